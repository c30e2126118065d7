"""Pages that are announced, and taken, over lanes the moment they can be, ahead of the machine: what a receiver waits
for.

The machine says beforehand what it will answer (`prepare`, while there is time); that holds until its next input
(`forget`). So all that is done at the moment itself is to compare what came with that, to read the pages, and to tell
of them. The machine hears of it afterwards, and has to agree.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from homenode.compute.kv_memory import EpochWords, KvMemory
from homenode.transfer.buffers import Buffers
from homenode.transfer.carriers.mapped import MappedBuffer
from homenode.transfer.connection import Connection
from homenode.transfer.copying import AT_ONCE_BYTES, CopyThread
from homenode.transfer.feeding import Recalled
from homenode.transfer.links import Links
from homenode.transfer.machine import Announcing, Expecting, FromEngine, FromPeer, Input, Send, Tell
from homenode.transfer.seam import Arrived, Computed, ToScheduler
from homenode.transfer.wire.lane import Announced, Expected, Lanes, LaneWriter, PageExport, ready_of
from homenode.transfer.wire.message import ready

_MOST_PREPARED = 16  # hand-overs; it takes a few microseconds for each


class _Machine(Protocol):
    def announcing(self, most: int, but: Container[str] = ()) -> list[Announcing]: ...

    def expecting(self, most: int, but: Container[str] = ()) -> list[Expecting]: ...


class _Counts(Protocol):
    """`page_io.PageIO`."""

    bytes_copied: int
    bytes_digested: int
    copy_seconds: float


class _Books(Protocol):
    """`feeding.Feeder`."""

    def owe(self, recall: Callable[[], Recalled], now: float, announced: str = "") -> None: ...


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


class AtOnce:
    """For the thread that has the machine."""

    def __init__(
        self,
        machine: _Machine,
        books: _Books,
        counts: _Counts,
        buffers: Buffers,
        copies: CopyThread,
        links: Links,
        post: Callable[[ToScheduler], None],
        clock: Callable[[], float],
        lanes: Lanes | None,
    ) -> None:
        """`post`: what is told here begins or ends no ticket. `lanes`: None where there are none."""
        self._machine, self._books, self._counts, self._buffers, self._copies, self._links = (
            machine,
            books,
            counts,
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
        self._counts.copy_seconds += seconds
        del self.sending[computed.ticket]  # what comes next the machine will know when it has heard of this
        self._books.owe(lambda: self._announced(computed, sending), self._clock(), computed.ticket)
        return True

    def _announced(self, computed: Computed, sending: _Sending) -> Recalled:
        words, digests = sending.words, sending.lending.digests
        self._counts.bytes_digested += len(digests) * self._block_bytes
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
        self._counts.copy_seconds += seconds
        self._books.owe(lambda: self._taken(key[0], said, taking.next, told), now)
        return True

    def _taken(self, peer: int, said: Announced, expecting: Expecting, told: list[ToScheduler]) -> Recalled:
        self._counts.bytes_copied += sum(block >= 0 for block in expecting.blocks[: said.count]) * self._block_bytes
        return FromPeer(peer, ready_of(said)), [Tell(event) for event in told], said.digests

    def _told(self, said: Announced, expecting: Expecting, base: int, now: float) -> list[ToScheduler]:
        """What is to be told of announced pages, as the machine will, when they prove good. `base`: the first block of
        their buffer."""
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
