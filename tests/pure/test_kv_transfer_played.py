"""Whole engines but for their models: schedulers with the strict scripted worker, and the transfer machines between
them, in simulated time.

What is lost, late, broken, frozen, killed or corrupted on the way, every request gets the tokens that it gets alone in
the world, and nothing is left in the end. The faults are those of transfer/test_machines_played.py; only the engines
are real here.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homenode.engine.errors import StepError
from homenode.engine.messages import Output
from homenode.engine.request import Request
from homenode.engine.scheduler.events import (
    Aborted,
    Emit,
    Event,
    Instruction,
    RequestArrived,
    StepDone,
    StepFailed,
    ToTransfer,
)
from homenode.engine.scheduler.scheduler import Scheduler
from homenode.engine.scheduler_config import KvConfig, SchedulerConfig
from homenode.engine.step import Step
from homenode.sampling import SamplingParams
from homenode.transfer.scheduler_events import KvTicket
from homenode.transfer.state.machines import ReceiverMachine, SenderMachine
from homenode.transfer.wire.message import Hello, Published, encode_published
from tests.examples import examples
from tests.pure.kv_transfer_bench import KeepingExecutor
from tests.pure.schedule_bench import expected, limits_of
from tests.pure.transfer.receiver_process import ReceiverProcess
from tests.pure.transfer.sender_process import SenderProcess
from tests.pure.transfer.test_machines_played import CHANNELS, MODES, Plan, Play, faults, plans
from tests.pure.transfer.world import TTL, World

_ANSWER = 12  # tokens


class Engine:
    """The scheduler and the worker of a process; its KV memory is the one that the world copies from and to."""

    def __init__(self, process: Any, num_blocks: int, block_size: int, caching: bool, lost: set[int]) -> None:
        self.process, self.world = process, process.world
        self.limits = limits_of(num_blocks, block_size, max_model_len=420, vocab_size=1000)
        self.config = SchedulerConfig(max_num_batched_tokens=96, max_num_seqs=6)
        kv = KvConfig(block_size=block_size, enable_prefix_caching=caching)
        self.scheduler = Scheduler(self.config, kv, self.limits, (), hash_seed=b"of all", lookahead=1)

        def fault(step: Step) -> Exception | None:
            return RuntimeError("lost") if step.number in lost else None

        self.executor = KeepingExecutor(self.limits, fault=fault)
        process.memory.values = self.executor.memory
        self.requests: dict[int, Request] = {}
        self.outputs: dict[int, list[Output]] = {}
        self._stepping = False

    def submit(self, prompt: tuple[int, ...], ticket: str, sends: bool, peer: bytes = b"") -> int:
        number = len(self.requests)
        params = SamplingParams(max_tokens=0 if sends else _ANSWER, ignore_eos=True)
        self.requests[number] = Request(
            id=number, prompt_ids=list(prompt), params=params, kv=KvTicket(ticket, sends, peer)
        )
        self.apply(RequestArrived(self.world.now, self.requests[number]))
        return number

    def apply(self, event: Event) -> None:
        self._obey(self.scheduler.apply(event))
        self.scheduler.audit()
        if not self._stepping:
            self._step()

    def _obey(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Emit(outputs):
                    for output in outputs:
                        self.outputs.setdefault(output.id, []).append(output)
                case ToTransfer(message):
                    self.process.engine(message)

    def _step(self) -> None:
        """Submit what can be, and see to the oldest result."""
        while (step := self.scheduler.next_step()) is not None:
            self.executor.submit(step)
        self._obey(self.scheduler.instructions())
        self.scheduler.audit()
        self._stepping = self.executor.pending > 0
        if self._stepping:
            self.world.after(self.world.lag(0.1), lambda: self.process.later(self._done))

    def _done(self) -> None:
        self._stepping = False
        try:
            result = self.executor.result()
            assert result is not None
            self.apply(StepDone(self.world.now, result))
        except StepError as error:
            self.apply(StepFailed(self.world.now, str(error)))

    def check_rest(self) -> None:
        """All requests had their right answers, and all blocks are free."""
        for number, request in self.requests.items():
            outputs = self.outputs.get(number, [])
            assert outputs and outputs[-1].finish_reason, f"request {number} ({request.kv}) never ended"
            tokens = [token for output in outputs for token in output.tokens]
            wanted = expected(request, self.limits)[0]
            assert tokens == wanted[: len(tokens)]
            assert outputs[-1].finish_reason in ("abort", "error") or tokens == wanted
        assert not self.scheduler.has_work()
        pool = self.scheduler.allocator.pool
        assert pool.num_free == pool.num_blocks


class SendingEngine(SenderProcess):
    """A sender of the world with a real scheduler."""

    def make(self) -> SenderMachine:
        machine = super().make()
        self.real = Engine(self, self.blocks, self.block_size, *self.world.traits(self))  # type: ignore[attr-defined]
        self.numbers: dict[str, int] = {}
        return machine

    def owner(self, block: int) -> Any:
        return next(
            (
                kv_export.key
                for kv_export in self.real.scheduler.coordinator.kv_exports.by_key.values()
                if block in kv_export.blocks
            ),
            None,
        )

    def told(self, event: Any) -> None:
        self.world.count[type(event).__name__] += 1
        self.real.apply(event)

    def submit(self, ticket: str, prompt: tuple[int, ...], receiver: ReceiverProcess) -> None:
        def begin() -> None:
            document = Published(
                role="receiver",
                mode=self.world.mode,  # type: ignore[arg-type]
                channel=self.world.channel,
                incarnation=receiver.incarnation.hex(),
                fingerprint={},
                block_size=receiver.block_size,
                alloc=[receiver.address],
            )
            self.numbers[ticket] = self.real.submit(prompt, ticket, True, encode_published(document))

        self.later(begin)

    def abandon(self, ticket: str) -> None:
        if ticket in self.numbers:
            self.real.apply(Aborted(self.world.now, self.numbers[ticket]))


class ReceivingEngine(ReceiverProcess):
    """A receiver of the world with a real scheduler."""

    def make(self) -> ReceiverMachine:
        machine = super().make()
        self.real = Engine(self, self.blocks, self.block_size, *self.world.traits(self))  # type: ignore[attr-defined]
        self.numbers: dict[str, int] = {}
        self.attached: dict[bytes, int] = {}
        return machine

    def owner(self, block: int) -> Any:
        deliveries = self.real.scheduler.coordinator.kv_imports
        owners = [d.offer.key for d in deliveries.by_key.values() if block in d.blocks[d.cached // self.block_size :]]
        return (owners + [ticket for ticket, blocks in deliveries.quarantined.items() if block in blocks] + [None])[0]

    def told(self, event: Any) -> None:
        kind = type(event).__name__
        self.world.count[f"{kind} in place" if getattr(event, "blocks", None) and kind == "Arrived" else kind] += 1
        self.real.apply(event)

    def bases(self, hello: Hello) -> dict[bytes, int]:
        if not self.world.in_place:
            return {}
        for buffer in hello.buffers:
            if buffer.id not in self.attached and buffer.layout.block_size == self.block_size:
                self.attached[buffer.id] = self.real.executor.attach(self.world.memories[buffer.id].values)  # type: ignore[arg-type]
        return {buffer.id: self.attached[buffer.id] for buffer in hello.buffers if buffer.id in self.attached}

    def close(self, peer: int) -> None:
        super().close(peer)
        reached = {
            memory.id
            for link in self.links.values()
            for p in link.ends
            for memory in (p.memory, p.pool)
            if memory is not None
        }
        for buffer in [buffer for buffer in self.attached if buffer not in reached]:
            # A step that names one of its blocks from here on fails the test.
            self.real.executor.detach(self.attached.pop(buffer))

    def ask(self, ticket: str, prompt: tuple[int, ...]) -> None:
        def begin() -> None:
            self.numbers[ticket] = self.real.submit(prompt, ticket, False)

        self.later(begin)

    def abort(self, ticket: str) -> None:
        if ticket in self.numbers:
            self.real.apply(Aborted(self.world.now, self.numbers[ticket]))


class Traits(World):
    """What the engines of this world are like."""

    caching = True
    lost: tuple[int, ...] = ()

    def traits(self, process: Any) -> tuple[bool, set[int]]:
        return self.caching, set(self.lost)


class EnginePlay(Play):
    """A play whose processes are engines."""

    blocks = (40, 40)
    in_place = False

    def sender(self, name: str) -> SenderProcess:
        return SendingEngine(self._world(), name, self.sizes[0], self.blocks[0], self.buffers[0])

    def receiver(self, name: str) -> ReceiverProcess:
        return ReceivingEngine(self._world(), name, self.sizes[1], self.blocks[1], self.buffers[1])

    def _world(self) -> World:
        self.world.__class__, self.world.in_place = Traits, self.in_place
        return self.world

    def finish(self, until: float) -> None:
        self.world.run(until)
        for who in (*self.senders, *self.receivers):
            if who.frozen:
                who.thaw()
        self.world.run(until + 40 * TTL)
        for who in (*self.senders, *self.receivers):
            machine, state = who.machine, who.machine.ctx
            assert machine.idle and machine.next_deadline() is None
            assert state.ledger.pinned == 0 and state.admission.used == 0 and state.admission.waiting == 0
            who.real.check_rest()  # type: ignore[union-attr]

    def handed(self) -> tuple[int, int]:
        """Tokens that were taken over by all receivers, and those that were computed again."""
        figures = [receiver.real.scheduler.statistics() for receiver in self.every_receiver]  # type: ignore[attr-defined]
        return sum(f.handed_tokens for f in figures), sum(f.recomputed_tokens for f in figures)


@pytest.mark.parametrize("channel", CHANNELS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("sizes", [(32, 32), (32, 64), (64, 32)])
def test_without_faults_nothing_is_computed_twice(
    mode: str, channel: str, offload: bool, sizes: tuple[int, int]
) -> None:
    if offload and mode == "push":
        pytest.skip("offload is for pull")
    play = EnginePlay(
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
    for n in range(30):
        play.plan(f"t{n}", Plan(n * 1.5, n, n // 2, n % 3, 20 + 9 * n, 3.0, None, None))
    play.finish(60.0)
    handed, again = play.handed()
    assert handed > 0 and again == 0


@pytest.mark.parametrize("mode", ["pull-eager", "pull-delay"])
@pytest.mark.parametrize("offload", [False, True])
def test_full_pages_are_read_in_place(mode: str, offload: bool) -> None:
    """No receiver has blocks for what it reads elsewhere, and no sender gets a block back that is still read."""
    kind = type("InPlace", (EnginePlay,), {"in_place": True})
    play = kind(
        random.Random(2),
        mode,
        "shm",
        senders=2,
        receivers=2,
        sizes=(32, 32),
        offload=offload,
        sender_pages=64,
        receiver_pages=64,
    )
    for n in range(30):
        play.plan(f"t{n}", Plan(n * 1.5, n, n // 2, n % 3, 20 + 9 * n, 3.0, None, None))
    play.finish(60.0)
    handed, again = play.handed()
    figures = [receiver.machine.figures() for receiver in play.every_receiver]
    assert handed > 0 and again == 0
    assert sum(f.in_place_pages for f in figures) > 0.6 * sum(f.pages for f in figures) > 0
    assert play.world.count["Arrived in place"] > 0


@pytest.mark.parametrize("channel", CHANNELS)
@pytest.mark.parametrize("mode", MODES)
@settings(derandomize=True, max_examples=examples(40), deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    plans=st.lists(plans, min_size=1, max_size=14),
    faults=st.lists(faults, max_size=6),
    crowd=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    sizes=st.sampled_from([(32, 32), (32, 64), (64, 32), (32, 96)]),
    blocks=st.sampled_from([(40, 40), (14, 14), (28, 16)]),
    offload=st.booleans(),
    corruption=st.sampled_from([0.0, 0.0, 0.02, 0.3]),
    caching=st.booleans(),
    lost=st.lists(st.integers(0, 30), max_size=3),
    in_place=st.booleans(),
)
def test_whatever_happens_every_answer_is_right(
    mode: str,
    channel: str,
    seed: int,
    plans: list[Plan],
    faults: list[Any],
    crowd: tuple[int, int],
    sizes: tuple[int, int],
    blocks: tuple[int, int],
    offload: bool,
    corruption: float,
    caching: bool,
    lost: list[int],
    in_place: bool,
) -> None:
    kind = type(
        "Drawn", (EnginePlay,), {"blocks": blocks, "in_place": in_place and mode != "push" and channel == "shm"}
    )
    Traits.caching, Traits.lost = caching, tuple(lost)
    play = kind(
        random.Random(seed),
        mode,
        channel,
        senders=crowd[0],
        receivers=crowd[1],
        sizes=sizes,
        sender_pages=30,
        receiver_pages=30,
        offload=offload and mode != "push",
        corruption=corruption,
        duplicate_done=0.3,
    )
    for n, plan in enumerate(plans):
        play.plan(f"t{n}", plan)
    for fault in faults:
        play.fault(fault)
    play.finish(15.0)
