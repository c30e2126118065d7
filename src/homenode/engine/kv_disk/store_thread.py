"""The thread that moves blocks between KV memory and a store, so that no step ever waits for one.

What is to be read comes first, then what is to be copied out of KV memory, so that its blocks are free again, then what
was copied is written. While steps are computed writing takes a small share of the time (`_SHARE`), unless KV memory
waits for it. Copies stay in memory as long as there is room for them (`park_bytes`), and are found there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from homenode.engine.kv_disk.block_store import BlockStore
from homenode.engine.kv_disk.messages import BlocksMoved
from homenode.engine.kv_disk.name_journal import NameJournal
from homenode.engine.kv_transfer.agent import StatsChanged
from homenode.engine.messages import DiskStats
from homenode.host.refusals import start_thread

_log = logging.getLogger(__name__)
_SHARE = 0.02  # of the time that writing takes while steps are computed
_LOOK_EVERY_S = 0.5  # for what others have left
_LONGEST_REST_S = 0.25
_TELL_EVERY_S = 0.2
_MEASURED_BYTES = 1 << 20  # after which the speed of reading is known
_FADE = 0.2


class MovedBlocks(Protocol):
    """KV memory by blocks: `kv_blocks.KvBlocks`."""

    @property
    def nbytes(self) -> int: ...

    @property
    def state_nbytes(self) -> int: ...

    def parts(self, block: int) -> list[memoryview]: ...

    def copy(self, block: int) -> bytearray: ...

    def fill(self, block: int, content: bytes | bytearray) -> None: ...

    def copy_state(self, slot: int) -> bytearray: ...

    def fill_state(self, slot: int, content: bytes | bytearray) -> None: ...


@dataclass
class BlocksIn:
    """Blocks that are to be read: names by page, those from page `held` on. `state`: the name of the state behind them,
    and the slot that gets it.
    """

    key: str
    names: list[str]
    blocks: list[int]
    held: int
    state: tuple[str, int] | None = None
    parked: int = 0  # blocks that were copies in memory
    stopped: bool = False


@dataclass
class BlocksOut:
    """Blocks that are to be copied out, and slots with states: names, and where each is. `done`: nobody reads them any
    more.
    """

    key: str
    pages: deque[tuple[str, int]]
    states: deque[tuple[str, int]] = field(default_factory=deque)
    lost: bool = False
    done: bool = False


@dataclass
class _Counts:
    stored: int = 0
    read_s: float = 0.0
    write_s: float = 0.0
    read_bytes: int = 0
    speed: float = 0.0  # bytes per second


@dataclass
class _Copies:
    """Copies of blocks in memory: those that are still to be written, and those that are there besides."""

    unwritten: OrderedDict[str, bytearray] = field(default_factory=OrderedDict)
    parked: OrderedDict[str, bytearray] = field(default_factory=OrderedDict)
    journal: NameJournal | None = None  # of those that are parked

    def use(self, name: str) -> None:
        if name in self.parked:
            self.parked.move_to_end(name)

    def note(self, name: str, there: bool) -> None:
        if self.journal is not None:
            self.journal.note(name, there)

    def find(self, name: str) -> bytearray | None:
        found = self.unwritten.get(name)
        return self.parked.get(name) if found is None else found


def is_slower(rate: float, computed: int, read: int, seconds: float, left: int) -> bool:
    """Return whether reading what is left would take longer than computing, by what was read so far; all in bytes.
    `rate`: seconds that computing a byte takes, 0: nobody knows. `computed`: what would be computed in place of
    reading on: what is left, or all of it where what was read is of no use without the rest.
    """
    return read >= _MEASURED_BYTES and 0 < rate * computed < seconds / read * left


class StoreThread:
    """`run` is the thread's; everything else may be called from any other one, and returns at once.

    `block_tokens`: of a block. `buffer_bytes`: of copies that are not written yet. `park_bytes`: of copies that stay
    besides. `busy`: whether steps are computed.
    """

    def __init__(
        self,
        store: BlockStore | None,
        memory: MovedBlocks,
        *,
        block_tokens: int,
        buffer_bytes: int = 64 << 20,
        park_bytes: int = 0,
        busy: Callable[[], bool] = lambda: False,
    ) -> None:
        self._store, self._memory, self._busy = store, memory, busy
        self._tell: Callable[[object], None] = lambda message: None
        self._tokens, self._park_bytes = block_tokens, park_bytes
        self._most_unwritten = max(2, buffer_bytes // max(1, memory.nbytes))
        self._changed = threading.Condition()
        self._in: deque[BlocksIn] = deque()
        self._out: deque[BlocksOut] = deque()
        self._uses: deque[tuple[list[str], float | None]] = deque()
        self._copies = _Copies()
        self._counts = _Counts()
        self._hit_tokens = self._parked_hit_tokens = self._parked_bytes = 0
        self._rate = 0.0
        self._closing = False
        self._closed_by = 0.0
        self._rest_until = self._look_at = self._told_at = 0.0
        self._thread = threading.Thread(target=self.run, name="homenode-kv-disk", daemon=True)

    def start(self, tell: Callable[[object], None]) -> None:
        """Begin to work. `tell`: takes what is left for the engine's loop."""
        self._tell = tell
        start_thread(self._thread)

    # For others

    def knows(self, name: str) -> bool:
        """Return whether a block is there, or will be soon."""
        return self._copies.find(name) is not None or (self._store is not None and name in self._store.names)

    def begin_journals(self) -> tuple[NameJournal, NameJournal]:
        """Note from now on which copies stay in memory, and which blocks are on disk, those first that are there. To be
        called before the thread is started.
        """
        copies = self._copies.journal = NameJournal()
        return copies, NameJournal() if self._store is None else self._store.names.begin_journal()

    def seconds_for(self, blocks: int) -> float:
        """Return what reading so many blocks would probably take; 0: nobody knows yet."""
        speed = self._counts.speed
        return blocks * self._memory.nbytes / speed if speed and self._counts.read_bytes >= _MEASURED_BYTES else 0.0

    def fetch(self, wanted: BlocksIn) -> None:
        """Read blocks; `BlocksMoved` will follow: arrived, or failed, or both."""
        with self._changed:
            self._in.append(wanted)
            self._changed.notify()

    def keep(self, offered: BlocksOut) -> None:
        """Keep blocks; `BlocksMoved` will follow: stored."""
        with self._changed:
            self._out.append(offered)
            self._changed.notify()

    def wake(self) -> None:
        """Look at what was asked for: it was changed."""
        with self._changed:
            self._changed.notify()

    def use(self, names: list[str], pinned_s: float | None = None) -> None:
        """Note that the blocks of a beginning are used, given from the first on, and for how many seconds they are to
        stay; 0: they need not any more; None: nothing changes about that.
        """
        with self._changed:
            self._uses.append((names, pinned_s))
            self._changed.notify()

    def count_hit(self, tokens: int, parked: int = 0) -> None:
        """Count tokens that were read here and were of use. `parked`: those of them that were copies in memory."""
        self._hit_tokens += tokens - parked
        self._parked_hit_tokens += parked

    def learn_rate(self, seconds: float, tokens: int) -> None:
        """Take in that computing so many tokens takes so many seconds."""
        if seconds > 0 and tokens:
            self._rate = seconds / tokens * self._tokens / max(1, self._memory.nbytes)

    def figures(self) -> DiskStats:
        """Counters since the start, and gauges of now."""
        counts, store = self._counts, self._store
        return DiskStats(
            nbytes=0 if store is None else store.total,
            hit_tokens=self._hit_tokens,
            stored_tokens=counts.stored,
            rejected_blocks=0 if store is None else store.rejected,
            read_s=counts.read_s,
            write_s=counts.write_s,
            parked_bytes=self._parked_bytes,
            parked_hit_tokens=self._parked_hit_tokens,
        )

    def close(self, seconds: float) -> bool:
        """Write what is left, as far as it goes in so many seconds, and end. Returns whether it has ended."""
        with self._changed:
            self._closing, self._closed_by = True, time.monotonic() + seconds
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(seconds + 5.0)
        return not self._thread.is_alive()

    # The thread

    def run(self) -> None:
        """Work until closed."""
        while True:
            try:
                if not self._work():
                    return
            except Exception:  # whatever it is: requests go on without the disk
                _log.exception("KV on disk: a block could not be moved")
                time.sleep(_LONGEST_REST_S)

    def _work(self) -> bool:
        """Do the next piece of work, or wait for one. False: there is none, and it is over."""
        with self._changed:
            wanted = self._in.popleft() if self._in else None
            used = self._uses.popleft() if wanted is None and self._uses else None
            offered = self._out[0] if wanted is None and self._out and self._has_room() else None
        now = time.monotonic()
        if wanted is not None:
            self._bring(wanted)
        elif used is not None:
            if self._store is not None:
                self._store.touch(*used)
        elif offered is not None:
            try:
                self._take(offered)
            except Exception:
                offered.lost = True  # whoever waits for its blocks gets them next
                raise
        elif self._copies.unwritten and (self._closing or self._out or now >= self._rest_until or not self._busy()):
            if self._closing and now > self._closed_by:
                return False
            self._write()
        elif self._closing:
            return False
        elif now >= self._look_at:
            self._look(now)
        else:
            due = min(self._look_at, self._rest_until) if self._copies.unwritten else self._look_at
            with self._changed:
                if not (self._in or self._out or self._uses or self._closing):
                    self._changed.wait(min(_LONGEST_REST_S, max(1e-3, due - now)))
        return True

    def _has_room(self) -> bool:
        return len(self._copies.unwritten) < self._most_unwritten

    def _look(self, now: float) -> None:
        """Look for what others have left."""
        if self._store is not None:
            before = self._store.total, self._store.rejected
            self._store.refresh()
            if self._rate:
                self._store.set_rate(self._rate)
            if (self._store.total, self._store.rejected) != before:
                self._tell(StatsChanged())
        took = time.monotonic() - now
        self._look_at = now + max(_LOOK_EVERY_S, 50 * took)

    def _bring(self, wanted: BlocksIn) -> None:
        """Read, and answer whatever happens: a request waits."""
        try:
            self._fetch(wanted)
        except BaseException:
            self._tell(BlocksMoved("failed", wanted.key))
            raise

    def _fetch(self, wanted: BlocksIn) -> None:
        """Read as many blocks as there are, in order."""
        done, begin, size = wanted.held, time.monotonic(), len(wanted.names)
        nbytes = 0
        while done < size and not wanted.stopped:
            name, block = wanted.names[done], wanted.blocks[done]
            copy = self._copies.find(name)
            if copy is not None:
                self._memory.fill(block, copy)
                self._copies.use(name)
                wanted.parked += 1
            elif self._store is None or self._is_slow(nbytes, time.monotonic() - begin, size - done, wanted):
                break
            else:
                if done + 1 < size:
                    self._store.read_ahead(wanted.names[done + 1])
                if not self._store.get(name, self._memory.parts(block)):
                    break
                nbytes += self._memory.nbytes
            done += 1
        complete = done == size and not wanted.stopped and (wanted.state is None or self._fetch_state(*wanted.state))
        self._measure(nbytes, time.monotonic() - begin)
        if complete or (done > wanted.held and wanted.state is None):
            self._tell(BlocksMoved("arrived", wanted.key, done * self._tokens))
        if not complete:
            self._tell(BlocksMoved("failed", wanted.key))
        elif self._store is not None:
            self._store.touch([*wanted.names, *([wanted.state[0]] if wanted.state else [])])

    def _is_slow(self, nbytes: int, seconds: float, left: int, wanted: BlocksIn) -> bool:
        assert self._store is not None
        rate = self._rate or self._store.names.rate  # the latter is what an earlier process has left
        computed = left if wanted.state is None else len(wanted.names) - wanted.held
        return is_slower(rate, computed * self._memory.nbytes, nbytes, seconds, left * self._memory.nbytes)

    def _fetch_state(self, name: str, slot: int) -> bool:
        content = self._copies.find(name)
        if content is None and self._store is not None:
            content = bytearray(self._memory.state_nbytes)
            if not self._store.get(name, [memoryview(content)]):
                return False
        if content is None:
            return False
        self._memory.fill_state(slot, content)
        return True

    def _measure(self, nbytes: int, seconds: float) -> None:
        counts = self._counts
        counts.read_s += seconds
        counts.read_bytes += nbytes
        if nbytes and seconds > 0:
            speed = nbytes / seconds
            counts.speed = speed if not counts.speed else counts.speed + _FADE * (speed - counts.speed)

    def _take(self, offered: BlocksOut) -> None:
        """Copy a block out; when it was the last one its sequence's blocks are free again."""
        if not offered.lost and (offered.pages or offered.states):
            copy, places = (
                (self._memory.copy, offered.pages) if offered.pages else (self._memory.copy_state, offered.states)
            )
            name, place = places.popleft()
            if not self.knows(name):
                copied = copy(place)
                if not offered.lost:
                    self._copies.unwritten[name] = copied
            if offered.pages or offered.states:
                return
        with self._changed:
            self._out.remove(offered)
        offered.done = True
        self._tell(BlocksMoved("stored", offered.key))

    def _write(self) -> None:
        """Write the oldest copy."""
        name, content = next(iter(self._copies.unwritten.items()))
        begin = time.monotonic()
        try:
            if self._store is not None and self._store.put(name, content) and len(content) == self._memory.nbytes:
                self._counts.stored += self._tokens
        except BaseException:
            del self._copies.unwritten[name]
            raise
        took = time.monotonic() - begin
        if self._store is not None:
            self._counts.write_s += took
            self._rest_until = begin + took / _SHARE
        if self._park_bytes:
            self._park(name, content)
        del self._copies.unwritten[name]
        if not self._copies.unwritten or begin - self._told_at > _TELL_EVERY_S:
            self._told_at = begin
            self._tell(StatsChanged())

    def _park(self, name: str, content: bytearray) -> None:
        parked = self._copies.parked
        self._copies.note(name, True)
        parked[name] = content
        self._parked_bytes += len(content)
        while parked and self._parked_bytes > self._park_bytes:
            gone, dropped = parked.popitem(last=False)
            self._copies.note(gone, False)
            self._parked_bytes -= len(dropped)
