"""Engines that play their whole part by themselves, and machines to which something happens at a chosen step."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from homenode.transfer.agent import agent
from homenode.transfer.agent.agent import TransferAgent
from homenode.transfer.scheduler_events import (
    Arrived,
    Claimed,
    Computed,
    Failed,
    Fetch,
    Forgotten,
    Offered,
    Quarantined,
    ReservationFailed,
    Reserved,
    Returned,
    SendAdmitted,
    SendRefused,
    SendWanted,
    ToScheduler,
    TransferStats,
)
from homenode.transfer.state.machine import Action, Foreseen, Input, Limits, Send, Tell
from homenode.transfer.state.machines import ReceiverMachine, SenderMachine
from tests.host.transfer.pair import Engine, content, identities
from tests.host.transfer.rig import layout, new_memory
from tests.waiting import PATIENCE_S

TOKENS = 100
_FORK = multiprocessing.get_context("fork")
_STANDARD_ERROR = 2  # the descriptor: pytest shows what is written there with a test that failed
_USED_AGAIN = b"\xee"


def seeded_memory(seed: int, blocks: int = 64, block_size: int = 32) -> Any:
    """The same bytes in every process."""
    of = layout(blocks, block_size)
    memory = new_memory(of, b"\0")
    memory.bytes[:] = random.Random(seed).randbytes(of.nbytes)
    return memory


@dataclass
class Outcome:
    """How a ticket ended."""

    end: str = ""
    arrived: int = 0
    digests: list[bytes] = field(default_factory=list)  # of what arrived, by 16 tokens


@dataclass
class Player(Engine):
    """Computes what is wanted, takes what is offered, claims what arrived. Blocks that are free are overwritten at
    once, as if used again.
    """

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    expected: dict[str, list[bytes]] = field(default_factory=dict)  # at the sender
    tokens: dict[str, int] = field(default_factory=dict)
    used_again: set[int] = field(default_factory=set)

    def want(self, ticket: str, document: bytes, tokens: int = TOKENS) -> None:
        """A request came to this sender."""
        self.outcomes[ticket], self.tokens[ticket] = Outcome(), tokens
        self.agent.tell(SendWanted(ticket, document, tokens, identities(ticket, tokens, self.block_size)))

    def expect(self, ticket: str) -> None:
        """A request will come to this receiver, or came to it, and was perhaps over, before this was called."""
        with self.changed:
            self.outcomes.setdefault(ticket, Outcome())

    def ends(self, timeout: float = PATIENCE_S) -> dict[str, Outcome]:
        """When every ticket it has heard of has ended."""
        with self.changed:
            done = self.changed.wait_for(lambda: all(outcome.end for outcome in list(self.outcomes.values())), timeout)
        assert done, f"{self.role}: not ended in {timeout} s: {self.outcomes}"
        return self.outcomes

    def untouched(self) -> bool:
        """Whether nobody has written to blocks that are free."""
        return all(
            bytes(piece) == _USED_AGAIN * len(piece) for block in self.used_again for piece in self._pieces(block)
        )

    def _pieces(self, block: int) -> list[memoryview]:
        assert self.cache is not None
        return self.cache.pieces(block, self.block_size // 16)

    def _take(self, event: ToScheduler) -> None:
        match event:
            case SendAdmitted(_, ticket):
                blocks = self._allocate(ticket, self.tokens[ticket])
                self.expected[ticket] = content(self, blocks, self.tokens[ticket])
                self.agent.tell(Computed(ticket, 0, blocks[:2], len(blocks) <= 2))
                if blocks[2:]:
                    self.agent.tell(Computed(ticket, 2, blocks[2:], True))
            case SendRefused(_, ticket, reason):
                self._end(ticket, f"SendRefused: {reason}")
            case Returned(_, ticket):
                self._free(ticket)
                self._end(ticket, "Returned")
            case Offered(_, ticket, tokens, _, _, reserve):
                self._offer(ticket, tokens, reserve)
            case Arrived(_, ticket, tokens):
                outcome = self.outcomes[ticket]
                assert self.cache is not None
                outcome.arrived, outcome.digests = tokens, content(self, self.placed[ticket], tokens)
                if tokens >= self.tokens[ticket]:
                    self._claim(ticket, "all arrived")
            case Failed(_, ticket, reason):
                self._claim(ticket, f"Failed: {reason}")
            case Quarantined(_, ticket):
                self.agent.tell(Claimed(ticket, self.outcomes[ticket].arrived))
                self._end(ticket, "Quarantined")
            case Forgotten(_, ticket):
                self._free(ticket)
                self._end(ticket, "Forgotten")
        with self.changed:
            self.events.append(event)
            self.changed.notify_all()

    def _offer(self, ticket: str, tokens: int, reserve: bool) -> None:
        if not self.has_room(ticket, tokens):
            self.agent.tell(ReservationFailed(ticket, len(self.free), "full"))
            return
        self.outcomes[ticket], self.tokens[ticket] = Outcome(), tokens
        blocks = self._allocate(ticket, tokens)
        if reserve:
            self.agent.tell(Reserved(ticket, blocks, 0))
        self.agent.tell(Fetch(ticket, blocks, 0))

    def _claim(self, ticket: str, end: str) -> None:
        self.agent.tell(Claimed(ticket, self.outcomes[ticket].arrived))
        self._free(ticket)
        self._end(ticket, end)

    def _end(self, ticket: str, end: str) -> None:
        with self.changed:
            self.outcomes[ticket].end = self.outcomes[ticket].end or end

    def _allocate(self, ticket: str, tokens: int) -> list[int]:
        blocks = self.take_blocks(ticket, tokens)
        self.used_again -= set(blocks)
        return blocks

    def _free(self, ticket: str) -> None:
        blocks = self.placed.pop(ticket, [])
        for block in blocks:
            for piece in self._pieces(block):
                piece[:] = _USED_AGAIN * len(piece)
        self.used_again |= set(blocks)
        self.free = blocks + self.free  # used last


class Interrupted:
    """A machine with a fault at its n-th step: an input taken, or an action performed."""

    def __init__(self, machine: Any, after: int, fault: Callable[[], None]) -> None:
        self.steps = 0
        self._machine, self._after, self._fault = machine, after, fault

    def handle(self, given: Input, now: float) -> Iterator[Action]:
        self._step()
        return self._in_steps(self._machine.handle(given, now))

    def foresee(self, given: Input, now: float) -> Foreseen | None:
        foreseen: Foreseen | None = self._machine.foresee(given, now)
        if foreseen is None:
            return None
        self._step()

        def then(digests: list[list[bytes]]) -> list[Send | Tell] | None:
            actions = foreseen.then(digests)
            return None if actions is None else _InSteps(actions, self._step)

        return Foreseen(foreseen.copies, then)

    def tick(self, now: float) -> Iterator[Action]:
        return self._in_steps(self._machine.tick(now))

    def drain(self, now: float) -> Iterator[Action]:
        return self._in_steps(self._machine.drain(now))

    def next_deadline(self) -> float | None:
        due: float | None = self._machine.next_deadline()
        return due

    def figures(self) -> TransferStats:
        figures: TransferStats = self._machine.figures()
        return figures

    @property
    def idle(self) -> bool:
        return bool(self._machine.idle)

    def lent(self) -> frozenset[str]:
        return frozenset(self._machine.lent())

    def _in_steps(self, actions: list[Action]) -> Generator[Action, None, None]:
        for action in actions:
            yield action
            self._step()

    def _step(self) -> None:
        self.steps += 1
        if self.steps == self._after:
            self._fault()


class _InSteps(list[Send | Tell]):
    """Performed one after another the first time, with a step after each; compared with what the machine says the
    second time.
    """

    def __init__(self, actions: Iterable[Send | Tell], step: Callable[[], None]) -> None:
        super().__init__(actions)
        self._step: Callable[[], None] | None = step

    def __iter__(self) -> Iterator[Send | Tell]:
        step, self._step = self._step, None
        for action in super().__iter__():
            yield action
            if step is not None:
                step()


def _fail() -> None:
    raise RuntimeError("a fault of a test")


FAULTS: dict[str, Callable[[], None]] = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "freeze": lambda: signal.pthread_kill(
        threading.get_ident(), signal.SIGSTOP
    ),  # all threads stop; this one takes no further step
    "raise": _fail,
}


@dataclass(frozen=True)
class Part:
    """What a process of its own plays."""

    role: str
    channel: str
    mode: str
    fault: str
    after: int  # 0: never
    seed: int
    ticket: str
    limits: Limits
    clock_offset: float = 0.0
    busy_threads: int = 0
    delay_s: float = 0.0  # between the start of its agent and its own first step: others have the CPU
    settings: tuple[tuple[str, Any], ...] = ()


def _interrupt_machines(part: Part) -> list[Interrupted]:
    """In a process of its own: what is made from now on is interrupted."""
    made: list[Interrupted] = []

    def make(own: Any, config: Any, limits: Any) -> Any:
        machine = (SenderMachine if part.role == "sender" else ReceiverMachine)(own, config, limits)
        made.append(Interrupted(machine, part.after, FAULTS[part.fault]))
        return made[-1]

    agent.SenderMachine = agent.ReceiverMachine = make  # type: ignore[attr-defined, assignment]
    return made


def _spin() -> None:
    while True:
        pass


def _play(part: Part, said: Connection) -> None:
    faulthandler.register(signal.SIGUSR1, _STANDARD_ERROR)
    made = _interrupt_machines(part)
    if part.clock_offset:
        assert TransferAgent.__init__.__kwdefaults__ is not None
        TransferAgent.__init__.__kwdefaults__["clock"] = lambda: time.monotonic() + part.clock_offset
    for _ in range(part.busy_threads):
        threading.Thread(target=_spin, daemon=True).start()
    kv = Player(
        part.role,
        part.channel,
        part.mode,
        cache=seeded_memory(part.seed),
        limits=part.limits,
        settings=dict(part.settings),
    )
    said.send(kv.document if part.role == "receiver" else b"")
    document = said.recv()
    kv.agent.start()
    said.poll(part.delay_s)  # less where nobody wants its part any more
    if part.role == "sender":
        kv.want(part.ticket, document)
    else:
        kv.expect(part.ticket)  # until it has ended, whether it is offered or not
    said.send(None)  # it plays
    while not kv.outcomes[part.ticket].end and not said.poll(0):
        with kv.changed:
            kv.changed.wait_for(lambda: bool(kv.outcomes[part.ticket].end), 0.05)
    said.send((made[0].steps, kv.outcomes[part.ticket], kv.untouched()))
    said.recv()
    os._exit(0)


@dataclass
class Child:
    """A process that plays a part."""

    part: Part
    process: Any
    pipe: Connection
    document: bytes = b""
    outcome: Outcome | None = None
    steps: int = 0

    @property
    def state(self) -> str:
        """As the kernel tells it: T is frozen, Z is dead."""
        return Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0]

    def hear(self, timeout: float) -> bool:
        """Whether its outcome has come by then."""
        if self.outcome is None and self.pipe.poll(timeout):
            with contextlib.suppress(EOFError, ConnectionResetError):
                said = self.pipe.recv()
                if said is None:
                    return self.hear(timeout)
                self.steps, self.outcome, untouched = said
                assert untouched, f"{self.part}: blocks in use elsewhere were written"
        return self.outcome is not None

    def heard(self, timeout: float, here: Player) -> Outcome:
        """Its outcome. It is an error, with what came of it here and where the threads there and here are, if none
        comes by then.
        """
        if not self.hear(timeout):
            state = self.state
            self.show_threads()
            raise AssertionError(f"no outcome within {timeout} s of {self.part}, {state}; here: {here.outcomes}")
        assert self.outcome is not None
        return self.outcome

    def show_threads(self) -> None:
        """Write to standard error where all threads of it, if it is not frozen, and of this process are."""
        with contextlib.suppress(ProcessLookupError):
            self.signal(signal.SIGUSR1)
        self.process.join(0.5)  # while it writes
        faulthandler.dump_traceback(_STANDARD_ERROR)

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)


@contextlib.contextmanager
def children(parts: list[Part]) -> Iterator[list[Child]]:
    """Processes for these; forked before anything else is opened, ended with the block."""
    them: list[Child] = []
    try:
        for part in parts:
            here, there = _FORK.Pipe()
            process = _FORK.Process(target=_play, args=(part, there), daemon=True)
            process.start()
            there.close()
            them.append(Child(part, process, here))
        for child in them:
            assert child.pipe.poll(PATIENCE_S), "a process did not start"
            child.document = child.pipe.recv()
        yield them
    finally:
        for child in them:
            with contextlib.suppress(ProcessLookupError):
                child.signal(signal.SIGKILL)
        for child in them:
            child.process.join(10)
            child.pipe.close()


@contextlib.contextmanager
def playing(role: str, channel: str, mode: str, limits: Limits, **options: Any) -> Iterator[Player]:
    """One here."""
    player = Player(role, channel, mode, blocks=options.pop("blocks", 512), limits=limits, **options)
    player.agent.start()
    try:
        yield player
    finally:
        player.agent.close(2.0)
        assert not player.agent.statistics().broken


def true_content(part: Part) -> list[bytes]:
    """What a sending child had in the blocks it took first."""
    memory = seeded_memory(part.seed)
    blocks = [memory.layout.blocks - 1 - number for number in range(-(-TOKENS // memory.layout.block_size))]
    return list(memory.digests(blocks, 0, -(-TOKENS // 16), TOKENS, 16))
