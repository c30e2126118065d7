"""Sender and receiver machines played against each other: whatever is lost, late, doubled, broken, frozen or killed,
nothing wrong arrives, and everything ends. Rows are those of the table of faults in docs/kv-transfer.md.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.pure.transfer.receiver_process import ReceiverProcess
from tests.pure.transfer.sender_process import SenderProcess
from tests.pure.transfer.world import LIMITS, TTL, World

MODES = ["push", "pull-eager", "pull-delay"]
CHANNELS = ["shm", "tcp"]
_STEMS = [tuple(random.Random(n).choices(range(1000), k=400)) for n in range(3)]


@dataclass(frozen=True)
class Plan:
    """One request: when it comes, over whom, how long its prompt is; when it is asked for at the receiver, aborted
    there, abandoned at the sender.
    """

    at: float
    sender: int
    receiver: int
    stem: int
    tokens: int
    asked: float | None
    aborted: float | None
    abandoned: float | None


@dataclass(frozen=True)
class Fault:
    """What happens to one process."""

    at: float
    kind: str
    who: int
    lasts: float


class Play:
    """A world with its processes; a process that crashed is followed by a new one at the same address."""

    def __init__(
        self,
        rng: random.Random,
        mode: str,
        channel: str,
        *,
        senders: int = 1,
        receivers: int = 1,
        sizes: tuple[int, int] = (32, 32),
        **more: float,
    ) -> None:
        buffers = (int(more.pop("sender_pages", 64)), int(more.pop("receiver_pages", 64)))
        self.world = World(
            rng, mode, channel, corruption=more.pop("corruption", 0.0), offload=bool(more.pop("offload", False))
        )
        self.world.duplicate_done = more.pop("duplicate_done", 0.0)
        self.world.slowness = more.pop("slowness", 0.02)
        chunk = int(more.pop("chunk", 1))
        self.world.limits = replace(LIMITS, chunk=chunk, read=int(more.pop("read", chunk)))
        assert not more
        self.sizes, self.buffers = sizes, buffers
        self.senders = [self.sender(f"s{i}") for i in range(senders)]
        self.receivers = [self.receiver(f"r{i}") for i in range(receivers)]
        self.prompts: dict[str, tuple[int, ...]] = {}
        self.every_sender, self.every_receiver = list(self.senders), list(self.receivers)

    def sender(self, name: str) -> SenderProcess:
        return SenderProcess(self.world, name, self.sizes[0], 800, self.buffers[0])

    def receiver(self, name: str) -> ReceiverProcess:
        return ReceiverProcess(self.world, name, self.sizes[1], 120, self.buffers[1])

    def plan(self, ticket: str, plan: Plan) -> None:
        prompt = (plan.stem, *_STEMS[plan.stem][: plan.tokens])
        self.prompts[ticket] = prompt

        def submit() -> None:
            receiver = self.receivers[plan.receiver % len(self.receivers)]
            sender = self.senders[plan.sender % len(self.senders)]
            for every in self.every_receiver:
                every.prompts[ticket] = prompt
            sender.submit(ticket, prompt, receiver)
            if plan.asked is not None:
                self.world.after(plan.asked, lambda: receiver.ask(ticket, prompt))
            if plan.aborted is not None:
                self.world.after(plan.aborted, lambda: receiver.later(lambda: receiver.abort(ticket)))
            if plan.abandoned is not None:
                self.world.after(plan.abandoned, lambda: sender.later(lambda: sender.abandon(ticket)))

        self.world.after(plan.at, submit)

    def fault(self, fault: Fault) -> None:
        def strike() -> None:
            everyone = [*self.senders, *self.receivers]
            who = everyone[fault.who % len(everyone)]
            if not who.alive:
                return
            if fault.kind == "crash":
                who.crash()
                self.world.after(fault.lasts, lambda: self.restart(who))
            elif fault.kind == "freeze" and not who.frozen:
                who.freeze()
                self.world.after(fault.lasts, lambda: who.alive and who.thaw())
            elif fault.kind == "break" and who.links:
                who.broken(list(who.links.values())[int(fault.lasts * 97) % len(who.links)], False)

        self.world.after(fault.at, strike)

    def restart(self, who: SenderProcess | ReceiverProcess) -> None:
        if isinstance(who, SenderProcess):
            self.senders[self.senders.index(who)] = new = self.sender(who.name)
            self.every_sender.append(new)
        else:
            self.receivers[self.receivers.index(who)] = again = self.receiver(who.name)
            again.prompts.update(self.prompts)
            self.every_receiver.append(again)

    def finish(self, until: float) -> None:
        """Let it all happen, then all that may happen of itself; nothing may be left."""
        self.world.run(until)
        for who in (*self.senders, *self.receivers):
            if who.frozen:
                who.thaw()
        self.world.run(until + 40 * TTL)
        for sender in self.senders:
            self.nothing_left_at_sender(sender)
        for receiver in self.receivers:
            self.nothing_left_at_receiver(receiver)

    def nothing_left_at_sender(self, sender: SenderProcess) -> None:
        left = {ticket: request for ticket, request in sender.requests.items() if not request.end}
        assert not left, f"requests that never ended: {left}"
        machine, state = sender.machine, sender.machine.ctx
        assert machine.idle and not machine.sessions.going, "hand-overs that never ended"
        assert state.ledger.pinned == 0 and state.admission.used == 0 and state.admission.waiting == 0
        assert len(state.leases) == 0 and machine.next_deadline() is None
        assert sorted(sender.free) == list(range(sender.blocks))

    def nothing_left_at_receiver(self, receiver: ReceiverProcess) -> None:
        left = {ticket: request for ticket, request in receiver.requests.items() if request.state != "ended"}
        assert not left, f"tickets that never ended: {left}"
        machine, state = receiver.machine, receiver.machine.ctx
        assert machine.idle and not machine.sessions.going
        assert state.ledger.pinned == 0 and state.admission.used == 0 and state.admission.waiting == 0
        assert machine.next_deadline() is None
        assert sorted(receiver.free) == list(range(receiver.blocks))

    def outcomes(self) -> list[str]:
        return [request.outcome for receiver in self.every_receiver for request in receiver.requests.values()]


@pytest.mark.parametrize("channel", CHANNELS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("sizes", [(32, 32), (32, 64), (64, 32)])
def test_without_faults_all_arrives_and_nothing_stays(
    mode: str, channel: str, offload: bool, sizes: tuple[int, int]
) -> None:
    if offload and mode == "push":
        pytest.skip("offload is for pull")
    play = Play(
        random.Random(1),
        mode,
        channel,
        senders=2,
        receivers=2,
        sizes=sizes,
        offload=offload,
        sender_pages=64,
        receiver_pages=64,
    )
    play.world.rng = random.Random(7)
    for n in range(30):
        play.plan(f"t{n}", Plan(n * 0.15, n, n // 2, n % 3, 20 + 9 * n, 1.0, None, None))
    play.finish(20.0)
    outcomes = play.outcomes()
    assert len(outcomes) == 30
    assert all(o in ("complete", "late") for o in outcomes), outcomes
    for machine in (*(p.machine for p in play.senders), *(p.machine for p in play.receivers)):
        figures = machine.figures()
        assert not figures.failed and not figures.refused and not figures.bad_frames and not figures.expired, figures


plans = st.builds(
    Plan,
    at=st.floats(0, 3),
    sender=st.integers(0, 2),
    receiver=st.integers(0, 2),
    stem=st.integers(0, 2),
    tokens=st.integers(1, 390),
    asked=st.one_of(st.none(), st.floats(0, 4)),
    aborted=st.one_of(st.none(), st.none(), st.floats(0, 3)),
    abandoned=st.one_of(st.none(), st.none(), st.floats(0, 2)),
)
faults = st.builds(
    Fault,
    at=st.floats(0, 5),
    kind=st.sampled_from(["crash", "freeze", "break", "break"]),
    who=st.integers(0, 5),
    lasts=st.floats(0.01, 9),
)


@pytest.mark.parametrize("channel", CHANNELS)
@pytest.mark.parametrize("mode", MODES)
@settings(derandomize=True, max_examples=examples(60), deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    plans=st.lists(plans, min_size=1, max_size=14),
    faults=st.lists(faults, max_size=6),
    crowd=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    sizes=st.sampled_from([(32, 32), (32, 64), (64, 32), (32, 96)]),
    pages=st.sampled_from([(64, 64), (14, 14), (8, 8), (30, 20)]),
    offload=st.booleans(),
    corruption=st.sampled_from([0.0, 0.0, 0.02, 0.3]),
    full=st.sampled_from([0.0, 0.1, 0.5]),
    slowness=st.sampled_from([0.02, 0.3]),
    chunk=st.sampled_from([1, 1600, 1 << 20]),
    read=st.sampled_from([1, 3200, 1 << 20]),
)
def test_whatever_happens_nothing_wrong_arrives_and_everything_ends(
    mode: str,
    channel: str,
    seed: int,
    plans: list[Plan],
    faults: list[Fault],
    crowd: tuple[int, int],
    sizes: tuple[int, int],
    pages: tuple[int, int],
    offload: bool,
    corruption: float,
    full: float,
    slowness: float,
    chunk: int,
    read: int,
) -> None:
    """Rows 1-9, 11-14, 16-30, 41, 42, 49, 50."""
    play = Play(
        random.Random(seed),
        mode,
        channel,
        senders=crowd[0],
        receivers=crowd[1],
        sizes=sizes,
        sender_pages=pages[0],
        receiver_pages=pages[1],
        offload=offload and mode != "push",
        corruption=corruption,
        duplicate_done=0.3,
        slowness=slowness,
        chunk=chunk,
        read=read,
    )
    play.world.full = full
    for n, plan in enumerate(plans):
        play.plan(f"t{n}", plan)
    for fault in faults:
        play.fault(fault)
    play.finish(16.0)
    assert LIMITS.remembered >= max(len(p.machine.ctx.ended) for p in play.senders)
