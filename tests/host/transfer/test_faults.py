"""Bytes that change, frames that are lost or come twice, clocks that differ, one peer that stands still: between real
agents.
"""

from __future__ import annotations

import pickle
import random
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from homenode.net.frames import frame
from homenode.transfer.agent import agent
from homenode.transfer.scheduler_events import Arrived, Failed, Returned, Stopped
from homenode.transfer.state.machine import Action, Input, Limits, Send
from homenode.transfer.state.machines import ReceiverMachine
from homenode.transfer.wire.message import Done, Published
from tests.host.transfer.hostile import RawPeer, say_last
from tests.host.transfer.pair import MODES, Engine, compute, content, running_engine, want
from tests.host.transfer.players import Outcome, Part, Player, children, playing, true_content
from tests.host.transfer.relay import as_it_is, cut, flipped, relaying
from tests.host.transfer.rig import PythonKv, copy_pages
from tests.host.transfer.test_every_step import PATIENT, QUICK
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.alone

OFFSETS = 24


def by_way_of(address: str, document: bytes) -> bytes:
    published = msgspec.json.decode(document, type=Published)
    return msgspec.json.encode(msgspec.structs.replace(published, alloc=[address]))


def both_ended(sender: Player, receiver: Player, ticket: str) -> Outcome:
    wait_until(lambda: bool(sender.outcomes[ticket].end), f"the sender's end of {ticket}")
    wait_until(
        lambda: ticket not in receiver.outcomes or bool(receiver.outcomes[ticket].end),
        f"the receiver's end of {ticket}",
    )
    outcome = receiver.outcomes.get(ticket, Outcome("never offered"))
    wanted = sender.expected.get(ticket, [])
    assert outcome.digests == wanted[: len(outcome.digests)], f"{ticket}: {outcome.end} with other bytes"
    return outcome


@pytest.mark.parametrize("fault", [flipped, cut])
@pytest.mark.parametrize("secret", [pytest.param(None, marks=pytest.mark.slow), "a secret"])
def test_a_stream_that_is_changed_or_cut_anywhere_brings_nothing_wrong(fault: Any, secret: str | None) -> None:
    """Push over TCP, through a relay."""
    settings = {"pd_secret": secret} if secret else {}
    with (
        playing("sender", "tcp", "push", QUICK, settings=settings) as sender,
        playing("receiver", "tcp", "push", QUICK, settings=settings) as receiver,
    ):
        alloc = receiver.agent.addresses["alloc"][0]

        def through(ticket: str, change: Any) -> tuple[Outcome, int]:
            with relaying(alloc, change) as relay:
                sender.want(ticket, by_way_of(relay.address, receiver.document))
                return both_ended(sender, receiver, ticket), relay.passed

        whole, total = through("whole", as_it_is)
        assert whole.end == "all arrived"
        ends = [through(f"t{n}", fault(total * n // OFFSETS))[0].end for n in range(OFFSETS)]
        assert sum(end != "all arrived" for end in ends) >= OFFSETS // 2, ends
        assert through("after", as_it_is)[0].end == "all arrived"
        for player in (sender, receiver):
            wait_until(lambda player=player: player.agent.figures().pinned_pages == 0, "nothing is pinned")


@pytest.mark.parametrize(("channel", "heals"), [("shm", True), ("shm", False), ("tcp", False)])
def test_a_bit_that_flips_in_memory_after_the_digest_was_taken(channel: str, heals: bool) -> None:
    """Read again once: what is right by then arrives, what is not is to be computed from that page on."""
    bad = FlippedPage()
    with (
        running_engine("sender", channel=channel, mode="pull-delay") as sender,
        running_engine(
            "receiver", channel=channel, mode="pull-delay", kv=PythonKv(bad.copy if heals else None)
        ) as receiver,
    ):
        blocks = sender.free[:-5:-1]  # those that are taken
        wanted = content(sender, blocks, 100)
        bad.watch(sender, blocks[1])
        want(sender, receiver, "t", 100)
        assert compute(sender, "t", 100) == blocks
        receiver.fetch("t")
        assert receiver.ended("t", 100) is heals, receiver.events
        assert bad.flipped.is_set()
        arrived = max((event.tokens for event in receiver.events if isinstance(event, Arrived)), default=0)
        assert arrived == (100 if heals else 32)
        assert content(receiver, receiver.placed["t"], arrived) == wanted[: -(-arrived // 16)]


class FlippedPage:
    """A bit of page 1 flips when its digest is known; with `copy` at the receiver until it was read once."""

    def __init__(self) -> None:
        self.flipped = threading.Event()
        self._read = 0

    def watch(self, sender: Engine, block: int) -> None:
        memory: Any = sender.cache
        self._block = block
        self._piece, real = memory.pieces(block, 2)[0], memory.digests

        def digests(table: Any, first_page: int, pages: int, *rest: Any) -> Any:
            found = real(table, first_page, pages, *rest)
            if block in table[first_page : first_page + pages] and not self.flipped.is_set():
                self._piece[7] ^= 16
                self.flipped.set()
            return found

        memory.digests = digests

    def copy(
        self,
        target: Any,
        target_table: Any,
        source: Any,
        source_table: Any,
        first_page: int,
        pages: int,
        *rest: Any,
        **named: Any,
    ) -> Any:
        if self._block in source_table[first_page : first_page + pages]:
            self._read += 1
            if self._read == 2:
                self._piece[7] ^= 16
        return copy_pages(target, target_table, source, source_table, first_page, pages, *rest, **named)


class LosesDones(ReceiverMachine):
    """The first two are not sent."""

    lost = 0

    def foresee(self, input: Input, now: float) -> None:
        """Nothing is sent past `handle`."""

    def handle(self, input: Input, now: float) -> list[Action]:
        return self._without(super().handle(input, now))

    def tick(self, now: float) -> list[Action]:
        return self._without(super().tick(now))

    def _without(self, actions: list[Action]) -> list[Action]:
        kept = []
        for action in actions:
            if isinstance(action, Send) and isinstance(action.message, Done) and self.lost < 2:
                self.lost += 1
            else:
                kept.append(action)
        return kept


class RepeatsDones(LosesDones):
    """Each is sent a hundred times."""

    def _without(self, actions: list[Action]) -> list[Action]:
        repeated = [
            [action] * (100 if isinstance(action, Send) and isinstance(action.message, Done) else 1)
            for action in actions
        ]
        return [action for some in repeated for action in some]


@pytest.mark.parametrize("machine", [LosesDones, RepeatsDones])
@pytest.mark.parametrize("mode", ["pull-eager", "pull-delay"])
@pytest.mark.parametrize("channel", ["shm", "tcp"])
def test_signals_that_are_lost_or_come_often(
    channel: str, mode: str, machine: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "ReceiverMachine", machine)
    with playing("sender", channel, mode, PATIENT) as sender, playing("receiver", channel, mode, PATIENT) as receiver:
        for n in range(5):
            sender.want(f"t{n}", receiver.document)
        for n in range(5):
            assert both_ended(sender, receiver, f"t{n}").end == "all arrived"
            assert sender.outcomes[f"t{n}"].end == "Returned"
        wait_until(lambda: sender.agent.figures().pinned_pages == 0, "nothing is pinned")
        assert sender.agent.figures().expired == 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("channel", ["shm", "tcp"])
def test_one_receiver_that_stands_still_keeps_nobody_waiting(channel: str, mode: str) -> None:
    """Forty hand-overs to another are over long before anything about the first one is."""
    limits = replace(PATIENT, silence=120.0, reply=120.0, progress=120.0)
    part = Part("receiver", channel, mode, "freeze", 4, 1, "stuck", limits)
    with (
        children([part]) as (stuck,),
        playing("sender", channel, mode, limits) as sender,
        playing("receiver", channel, mode, limits) as receiver,
    ):
        stuck.pipe.send(b"")
        sender.want("stuck", stuck.document)
        wait_until(lambda: stuck.state == "T", "one stands still")
        begun = time.monotonic()
        for n in range(40):
            sender.want(f"t{n}", receiver.document)
            assert both_ended(sender, receiver, f"t{n}").end == "all arrived"
        assert time.monotonic() - begun < 60 < limits.reply
        # What a socket has taken needs no page any more, so that a small push over tcp may be over at its sender.
        assert not sender.outcomes["stuck"].end or (channel, mode) == ("tcp", "push")
        stuck.signal(signal.SIGKILL)
        sender.ends()


@pytest.mark.parametrize(("channel", "mode", "side"), [("shm", "pull-delay", "receiver"), ("shm", "push", "sender")])
def test_a_copy_that_runs_is_waited_for_before_its_blocks_are_free(channel: str, mode: str, side: str) -> None:
    """The request ends in the middle of a copy; by whom it is done, makes no difference."""
    gate = Gate()
    large = {"channel": channel, "mode": mode, "blocks": 160}
    with (
        running_engine("sender", **large, **({"kv": PythonKv(gate)} if side == "sender" else {})) as sender,
        running_engine("receiver", **large, **({"kv": PythonKv(gate)} if side == "receiver" else {})) as receiver,
    ):
        tokens = 32 * 150
        want(sender, receiver, "t", tokens)
        compute(sender, "t", tokens, chunk=150)
        receiver.fetch("t")
        assert gate.entered.wait(20)
        receiver.agent.tell(Stopped("t"))
        threading.Timer(0.3, gate.opened.set).start()
        failed = receiver.wait("t", Failed)
        assert failed.now >= gate.finished > 0
        sender.wait("t", Returned)


class Gate:
    """A copier that does not go on before it is let; `finished`: when it last wrote."""

    def __init__(self) -> None:
        self.entered, self.opened, self.finished = threading.Event(), threading.Event(), 0.0

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.entered.set()
        assert self.opened.wait(20)
        done = copy_pages(*arguments, **named)
        self.finished = time.monotonic()
        return done


@pytest.mark.parametrize("offset", [-1e7, 1e7])
@pytest.mark.parametrize("role", ["sender", "receiver"])
@pytest.mark.parametrize("mode", MODES)
def test_clocks_that_have_nothing_in_common(mode: str, role: str, offset: float) -> None:
    """The other process's monotonic clock is months away."""
    one_plays(Part(role, "tcp", mode, "kill", 0, 3, "t", PATIENT, clock_offset=offset))


@pytest.mark.parametrize("role", ["sender", "receiver"])
@pytest.mark.parametrize("channel", ["shm", "tcp"])
def test_a_process_whose_other_threads_never_rest_is_not_taken_for_dead(channel: str, role: str) -> None:
    one_plays(
        Part(
            role, channel, "pull-delay", "kill", 0, 3, "t", Limits(chunk=4096, read=4096, heartbeat=0.2), busy_threads=3
        )
    )


@pytest.mark.parametrize(("channel", "mode"), [("shm", "pull-delay"), ("tcp", "push")])
def test_a_hand_over_that_is_over_before_its_receiver_looks_is_not_lost(channel: str, mode: str) -> None:
    """A sender may speak to a receiver's agent from the moment at which it knows its address."""
    one_plays(Part("receiver", channel, mode, "kill", 0, 3, "t", PATIENT, delay_s=0.3))


def one_plays(part: Part) -> None:
    """A hand-over between a process of its own and one here, at the end of which all has arrived."""
    other = "receiver" if part.role == "sender" else "sender"
    with children([part]) as (child,), playing(other, part.channel, part.mode, part.limits) as here:
        child.pipe.send(here.document if other == "receiver" else b"")
        if other == "sender":
            here.want("t", child.document)
        there, ends = child.heard(PATIENCE_S, here), here.ends()["t"]
        arrived, sent = (ends, there) if other == "receiver" else (there, ends)
        assert (arrived.end, sent.end) == ("all arrived", "Returned")
        assert arrived.digests == (true_content(part) if other == "receiver" else here.expected["t"])


@pytest.fixture
def jumping(monkeypatch: pytest.MonkeyPatch) -> Iterator[random.Random]:
    rng = random.Random(1)
    monkeypatch.setattr(time, "time", lambda: rng.uniform(-1e10, 1e10))
    monkeypatch.setattr(time, "time_ns", lambda: rng.randrange(-(10**18), 10**18))
    yield rng


@pytest.mark.parametrize("channel", ["shm", "tcp"])
def test_a_wall_clock_that_jumps_changes_nothing(channel: str, jumping: random.Random) -> None:
    with (
        playing("sender", channel, "pull-delay", QUICK) as sender,
        playing("receiver", channel, "pull-delay", QUICK) as receiver,
    ):
        assert time.time() != time.time()
        for n in range(5):
            sender.want(f"t{n}", receiver.document)
            assert both_ended(sender, receiver, f"t{n}").end == "all arrived"
        assert sender.agent.figures().expired == 0


class Touches:
    """What unpickles this makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("channel", ["shm", "tcp"])
def test_pickled_objects_are_garbage(channel: str, tmp_path: Path) -> None:
    with running_engine("receiver", channel=channel) as receiver:
        address = receiver.agent.addresses["alloc"][0]
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            bad = pickle.dumps(Touches(tmp_path / "made"), protocol)
            for greets in (False, True):
                for body in (bad, frame(bad)):
                    with RawPeer(address, "sender", channel=channel) as peer:
                        if greets:
                            peer.greet()
                        say_last(peer.sock, body + bytes(64))
                        assert peer.ended()
        assert not (tmp_path / "made").exists()
        assert not receiver.agent.statistics().broken
