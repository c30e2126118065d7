"""The inputs of a machine, one after another, and those it hears of late: what others wait for is done before it has
been asked.

Where the machine foresees its answer (`machine.Foreseen`) that is given first, and the books are kept afterwards
(`catch_up`). The machine then has to say the very same. For one thread.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from homenode.compute.kv_memory import EpochWords, KvMemory
from homenode.errors import InternalError
from homenode.transfer.agent.buffers import AT_ONCE_BYTES, Buffers, CopyThread
from homenode.transfer.agent.page_io import PageIO
from homenode.transfer.carriers.sockets import MappedBuffer
from homenode.transfer.net.connection import Connection
from homenode.transfer.net.links import Links
from homenode.transfer.scheduler_events import Arrived, Computed, ToScheduler
from homenode.transfer.state.machine import (
    Action,
    Announcing,
    Connected,
    Copied,
    Copy,
    Expecting,
    FromEngine,
    FromPeer,
    Input,
    Machine,
    Send,
    Tell,
)
from homenode.transfer.wire.lane import Announced, Expected, Lanes, LaneWriter, PageExport, ready_of
from homenode.transfer.wire.message import ready

_log = logging.getLogger(__name__)


# An input, what was done, of which the machine will say that it is to be done, and the digests of pages that were read
# for it.
Recalled = tuple[Input, Sequence[Action], Sequence[bytes]]


@dataclass(slots=True)
class PredictedInput:
    """An input that was answered before the machine has heard of it: what is still to be said of what was done, and of
    the digests of pages."""

    done: deque[Action]
    digests: deque[bytes]
    answers: deque[Copied] = field(default_factory=deque)


class MachineDriver:
    """Gives a machine its inputs, and has what it says performed. Raises InternalError when the machine contradicts
    itself."""

    def __init__(
        self,
        machine: Machine,
        perform: Callable[[Action], None],
        blame: Callable[[FromPeer | Connected], None],
        clock: Callable[[], float],
    ) -> None:
        """`blame`: the machine failed over what this peer said, which is to be dropped."""
        self.failures = 0
        self.changed = False
        self.off = False  # the machine is asked nothing more
        # The machine is about to be told something; see `fast_path.FastPath.forget`.
        self.forget: Callable[[Input | None], None] = lambda _: None
        self._machine, self._perform, self._blame, self._clock = machine, perform, blame, clock
        self._inputs: deque[Input] = deque()
        self._feeding = False
        self._deferred: deque[tuple[Callable[[], Recalled], float, str]] = deque()
        self._ahead: PredictedInput | None = None  # the one of them that the machine hears of now

    @property
    def busy(self) -> bool:
        """Nothing can be answered ahead: the machine is being asked already, or nothing more."""
        return self._feeding or self.off

    @property
    def behind(self) -> bool:
        """Tell whether the machine has not heard yet of something that was answered already."""
        return bool(self._deferred)

    @property
    def announced(self) -> frozenset[str]:
        """The tickets whose pages were announced though the machine does not know."""
        return frozenset(announced for _, _, announced in self._deferred if announced)

    def feed(self, given: Input) -> None:
        """Give the machine an input, and do what it says; later, if that is what is going on already."""
        if self._deferred and not self._feeding:
            self.catch_up()
        self._inputs.append(given)
        if not self._feeding:
            self._feed_all([])

    def defer(self, recall: Callable[[], Recalled], now: float, announced: str = "") -> None:
        """The machine is to hear of what was done without it, after what it is to hear of already. `announced`: the
        ticket whose pages were."""
        self._deferred.append((recall, now, announced))

    def catch_up(self) -> None:
        """Tell the machine of what was answered without it. InternalError when it would have answered otherwise."""
        if not self._deferred or self._feeding or self.off:
            return
        self._feeding = True
        try:
            while self._deferred:
                recall, now, _ = self._deferred[0]
                self._settle(recall(), now)
                self._deferred.popleft()
        finally:
            self._feeding = False
            self._ahead = None
        if self._inputs:
            self._feed_all([])

    def _settle(self, recalled: Recalled, now: float) -> None:
        given, actions, digests = recalled
        ahead = self._ahead = PredictedInput(deque(actions), deque(digests))
        self._handle(given, now)
        while ahead.answers:
            self._handle(ahead.answers.popleft(), now, given)
        if ahead.done or ahead.digests:
            raise InternalError(f"the transfer machine answers {type(given).__name__} otherwise than was foreseen")

    def perform_all(self, actions: list[Action]) -> None:
        """Do what the machine said at another occasion (`tick`, `drain`), which was not `behind`."""
        self.changed = True
        self.forget(None)
        self._feed_all(actions)

    def _feed_all(self, actions: list[Action]) -> None:
        """One after another: what an input leads to is done before the next one is told."""
        if self.off:
            return
        self._feeding = True
        try:
            self._perform_each(actions)
            while self._inputs:
                self._handle(self._inputs.popleft())
        finally:
            self._feeding = False

    def _handle(self, given: Input, now: float | None = None, about: Input | None = None) -> None:
        """`about`: another input about the same hand-over, where `given` does not tell which."""
        self.changed = True
        self.forget(about or given)
        try:
            actions = self._machine.handle(given, self._clock() if now is None else now)
        except Exception as error:
            self.failures += 1
            if not isinstance(given, FromPeer | Connected):
                raise InternalError(f"the transfer machine failed over {type(given).__name__}: {error}") from error
            _log.exception("the transfer machine failed over what a peer said; the peer is dropped")
            self._blame(given)
            return
        self._perform_each(actions)

    def _perform_each(self, actions: list[Action]) -> None:
        """InternalError if one fails: the machine believes it and those after it done, so nothing of what it knows
        would be true."""
        try:
            for action in actions:
                if self._ahead is None or not self._was_done(action):
                    self._perform(action)
        except InternalError:
            raise
        except Exception as error:
            raise InternalError(f"what the transfer machine wanted could not be done: {error}") from error

    def _was_done(self, action: Action) -> bool:
        """Tell whether an action was done already, ahead of the machine's word."""
        ahead = self._ahead
        if ahead is None:
            return False
        if type(action) is Copy and len(ahead.digests) >= action.pages:
            ahead.answers.append(Copied(action.token, [ahead.digests.popleft() for _ in range(action.pages)]))
            return True
        if ahead.done and action == ahead.done[0]:
            ahead.done.popleft()
            return True
        return False


_MOST_PREPARED = 16  # hand-overs; it takes a few microseconds for each


@dataclass(frozen=True, slots=True)
class _Sending:
    next: Announcing
    connection: Connection
    lane: LaneWriter
    lending: PageExport
    words: EpochWords


@dataclass(frozen=True, slots=True)
class _Taking:
    next: Expecting
    expected: Expected  # keeps what it reads mapped


class FastPath:
    """Announces and takes pages ahead of the machine; for the thread that has it."""

    def __init__(
        self,
        machine: Machine,
        driver: MachineDriver,
        pages: PageIO,
        buffers: Buffers,
        copies: CopyThread,
        links: Links,
        post: Callable[[ToScheduler], None],
        clock: Callable[[], float],
        lanes: Lanes | None,
    ) -> None:
        """`post`: what is told here begins or ends no ticket. `lanes`: None where there are none."""
        self._machine, self._driver, self._pages, self._buffers, self._copies, self._links = (
            machine,
            driver,
            pages,
            buffers,
            copies,
            links,
        )
        self._post, self._clock, self._lanes = post, clock, lanes
        self._cache = next(iter(buffers.local.values()))
        self._size = self._cache.buffer.layout.block_size
        self._block_bytes = self._cache.buffer.layout.block_bytes
        # What is prepared holds: the machine was told nothing since; without lanes there is nothing.
        self._prepared = lanes is None
        self.sending: dict[str, _Sending] = {}
        self.taking: dict[tuple[int, int], _Taking] = {}

    # While there is time

    def forget(self, given: Input | None = None) -> None:
        """The machine is about to be told something, or has ended a connection."""
        if self._lanes is None:
            return
        self._prepared = False
        about = given.message if isinstance(given, FromEngine | FromPeer) else None
        ticket, pull_id = getattr(about, "ticket", None), getattr(about, "pull_id", None)
        if ticket is None and pull_id is None:
            self.sending.clear()
            self.taking.clear()
        for name in [name for name, one in self.sending.items() if name == ticket or one.next.pull_id == pull_id]:
            del self.sending[name]
        for key in [key for key, one in self.taking.items() if one.next.ticket == ticket or key[1] == pull_id]:
            del self.taking[key]

    def prepare(self) -> None:
        """Ask the machine what it will answer."""
        if self._prepared:
            return
        self._prepared = True
        self.sending = {ticket: one for ticket, one in self.sending.items() if one.next.holds()}
        self.taking = {key: one for key, one in self.taking.items() if one.next.holds()}
        words = self._cache.words
        for sends in self._machine.announcing(_MOST_PREPARED - len(self.sending), self.sending):
            connection = self._links.find(sends.peer)
            if words is not None and connection is not None and connection.lane_out is not None:
                where = (self._cache.buffer.id, sends.pull_id, sends.first, sends.pages, sends.most, sends.tokens)
                lending = connection.lane_out.export_pages(self._cache.memory, words, *where)
                self.sending[sends.ticket] = _Sending(sends, connection, connection.lane_out, lending, words)
        for takes in self._machine.expecting(
            _MOST_PREPARED - len(self.taking), {one.next.ticket for one in self.taking.values()}
        ):
            self.taking[takes.peer, takes.pull_id] = _Taking(takes, self._expected(takes))

    def _expected(self, next_: Expecting) -> Expected:
        assert self._lanes is not None
        most, left = max(1, AT_ONCE_BYTES // self._block_bytes), next_.tokens - next_.first * next_.page_tokens
        where = (next_.first, next_.pages, left, next_.digest_bytes, next_.blocks[:most], next_.seen)
        return self._lanes.expect(self._sources(next_.bases), self._cache.memory, *where)

    def _sources(self, buffers: Iterable[bytes]) -> dict[bytes, tuple[KvMemory, EpochWords]]:
        found = ((buffer, self._buffers.within_reach(buffer)) for buffer in buffers)
        return {buffer: (one.memory, one.words) for buffer, one in found if isinstance(one, MappedBuffer)}

    # At the moment itself

    def promise(self, tickets: Sequence[str]) -> None:
        """Pages of these are about to be announced. From any thread: a ticket that is not prepared is passed over."""
        for sending in [self.sending.get(ticket) for ticket in tickets]:
            if sending is not None:
                sending.lane.hint_wake()

    def announce(self, computed: Computed) -> bool:
        """Tell of pages that were computed. False: nothing was done."""
        sending, blocks = self.sending.get(computed.ticket), computed.blocks
        if sending is None:
            return False
        connection = sending.connection
        if (
            not (self._prepared or sending.next.holds())
            or connection.sending
            or connection.ending
            or not self._copies.reads_at_once(len(blocks), self._block_bytes)
        ):
            return False
        seconds = sending.lending.announce(connection.sent, computed.first, blocks, computed.last)
        if seconds is None:
            return False
        self._pages.copy_seconds += seconds
        del self.sending[computed.ticket]  # what comes next the machine will know when it has heard of this
        self._driver.defer(lambda: self._announced(computed, sending), self._clock(), computed.ticket)
        return True

    def _announced(self, computed: Computed, sending: _Sending) -> Recalled:
        words, digests = sending.words, sending.lending.digests
        self._pages.bytes_digested += len(digests) * self._block_bytes
        places = (computed.blocks, [words.read(block) for block in computed.blocks])
        said = ready(sending.next.pull_id, computed.first, digests, computed.last, self._cache.buffer.id, places)
        return FromEngine(computed), [Send(sending.next.peer, said)], digests

    def rehearse(self, connection: Connection) -> None:
        """Pages of this connection's peer will be announced in a moment: walk the way that `take` goes, so that it is
        in this CPU's caches then. Computing, or another page's bytes, have had them since."""
        for (peer, pull_id), taking in self.taking.items():
            if peer == connection.number:
                said = taking.expected.rehearsal(pull_id)
                if not self.take(connection, said):  # it fits nothing
                    self._told(said, taking.next, 0, self._clock())
                return

    def take(self, connection: Connection, said: Announced) -> bool:
        """Verify pages that were announced, and tell of them. False: nothing was told."""
        key = connection.number, said.pull_id
        taking = self.taking.get(key)
        if (
            taking is None
            or not (self._prepared or taking.next.holds())
            or not self._copies.reads_at_once(1, self._block_bytes)
            or not taking.expected.fits(said)
        ):
            return False
        now = self._clock()
        # Before the pages are read, which leaves nothing else in the caches.
        told = self._told(said, taking.next, taking.next.bases[said.buffer], now)
        seconds = taking.expected.take(said)
        if seconds is None:
            return False
        for event in told:
            self._post(event)
        del self.taking[key]  # a second announcement of the same is not to be taken for the next
        self._pages.copy_seconds += seconds
        self._driver.defer(lambda: self._taken(key[0], said, taking.next, told), now)
        return True

    def _taken(self, peer: int, said: Announced, expecting: Expecting, told: list[ToScheduler]) -> Recalled:
        self._pages.bytes_copied += sum(block >= 0 for block in expecting.blocks[: said.count]) * self._block_bytes
        return FromPeer(peer, ready_of(said)), [Tell(event) for event in told], said.digests

    def _told(self, said: Announced, expecting: Expecting, base: int, now: float) -> list[ToScheduler]:
        """Return what is to be told of announced pages, as the machine will, when they prove good. `base`: the first
        block of their buffer."""
        first, size = expecting.first, expecting.page_tokens
        past = first + said.count
        told: list[ToScheduler] = []
        for begin, count in expecting.runs:
            if begin >= past:
                break
            end = min(begin + count, past)
            tokens = min(end * size, expecting.tokens)
            if expecting.blocks[begin - first] < 0:
                told.append(
                    Arrived(now, expecting.ticket, tokens, begin, said.blocks(base, begin - first, end - begin))
                )
            else:
                told.append(Arrived(now, expecting.ticket, tokens))
        return told
