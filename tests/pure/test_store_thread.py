"""The thread that moves blocks: it answers whatever it is asked for, whatever fails; copies are found before they are
written; who waits for blocks of KV memory does not wait for the disk.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from homenode.engine.kv_disk import disk_source
from homenode.engine.kv_disk.block_format import BlockFormat
from homenode.engine.kv_disk.block_store import ModelNote
from homenode.engine.kv_disk.disk_source import DiskSource
from homenode.engine.kv_disk.disk_store import DiskStore
from homenode.engine.kv_disk.folder import StoreFolder
from homenode.engine.kv_disk.messages import BlocksMoved
from homenode.engine.kv_disk.setup import KvDiskLink
from homenode.engine.kv_disk.store_thread import BlocksIn, BlocksOut, StoreThread, is_slower
from tests.waiting import wait_until

SIZE, TOKENS = 100, 4
MODEL = "ab" * 16
NAMES = [f"{n:032x}" for n in range(8)]


class Memory:
    """KV memory of blocks that are byte strings. `broken`: blocks that can be neither read nor written."""

    nbytes, state_nbytes = SIZE, 40

    def __init__(self, count: int) -> None:
        self.blocks = [bytearray([n]) * SIZE for n in range(count)]
        self.slots = [bytearray([n]) * self.state_nbytes for n in range(4)]
        self.broken: set[int] = set()

    def parts(self, block: int) -> list[memoryview]:
        if block in self.broken:
            raise ValueError("broken")
        return [memoryview(self.blocks[block])[:30], memoryview(self.blocks[block])[30:]]

    def copy(self, block: int) -> bytearray:
        return bytearray(b"".join(self.parts(block)))

    def fill(self, block: int, content: bytes | bytearray) -> None:
        self.parts(block)
        self.blocks[block][:] = content

    def copy_state(self, slot: int) -> bytearray:
        return bytearray(self.slots[slot])

    def fill_state(self, slot: int, content: bytes | bytearray) -> None:
        self.slots[slot][:] = content


class Moved:
    """A thread over a store in a folder, and what it has told."""

    def __init__(self, path: Path | None, *, store: type[DiskStore] = DiskStore, **settings: int) -> None:
        self.memory = Memory(16)
        self.store = None
        if path is not None:
            form = BlockFormat(b"model")
            self.store = store(StoreFolder.make(path), MODEL, form, [SIZE, 40], 1 << 20, ModelNote("toy"))
            self.store.start()
        self.told: list[BlocksMoved] = []
        self.thread = StoreThread(self.store, self.memory, block_tokens=TOKENS, **settings)  # type: ignore[arg-type]

    def start(self) -> Moved:
        self.thread.start(lambda message: self.told.append(message) if isinstance(message, BlocksMoved) else None)
        return self

    def keep(self, key: str, blocks: dict[str, int], states: dict[str, int] | None = None) -> BlocksOut:
        out = BlocksOut(key, deque(blocks.items()), deque((states or {}).items()))
        self.thread.keep(out)
        return out

    def answers(self, key: str) -> list[str]:
        return [message.answer for message in self.told if message.key == key]

    def wait(self, key: str, *answers: str) -> None:
        wait_until(lambda: self.answers(key) == list(answers))


def stored(moved: Moved) -> int:
    return moved.thread.figures().stored_tokens


def test_blocks_and_a_state_go_out_and_come_back_after_a_restart(tmp_path: Path) -> None:
    first = Moved(tmp_path / "kv").start()
    first.keep("out", {NAMES[n]: n for n in range(3)}, {NAMES[7]: 2})
    first.wait("out", "stored")
    first.thread.close(10.0)
    assert stored(first) == 3 * TOKENS
    again = Moved(tmp_path / "kv").start()
    again.thread.fetch(BlocksIn("in", NAMES[:3], [10, 11, 12], held=1, state=(NAMES[7], 3)))
    again.wait("in", "arrived")
    assert [again.memory.blocks[n][0] for n in (10, 11, 12)] == [10, 1, 2] and again.memory.slots[3][0] == 2
    again.thread.fetch(BlocksIn("more", NAMES[:4], [10, 11, 12, 13], held=0))  # the last one is not there
    again.wait("more", "arrived", "failed")
    assert again.told[-2].tokens == 3 * TOKENS
    again.thread.fetch(BlocksIn("none", NAMES[4:5], [10], held=0))
    again.wait("none", "failed")
    again.thread.close(10.0)


def test_a_state_that_is_not_there_makes_what_came_of_no_use(tmp_path: Path) -> None:
    moved = Moved(tmp_path / "kv").start()
    moved.keep("out", {NAMES[0]: 0})
    moved.wait("out", "stored")
    moved.thread.fetch(BlocksIn("in", NAMES[:1], [10], held=0, state=(NAMES[7], 3)))
    moved.wait("in", "failed")
    moved.thread.close(10.0)


def test_what_cannot_be_moved_is_answered_all_the_same(tmp_path: Path) -> None:
    moved = Moved(tmp_path / "kv").start()
    moved.memory.broken = {1, 11}
    moved.keep("out", {NAMES[0]: 0, NAMES[1]: 1})
    moved.wait("out", "stored")
    moved.thread.fetch(BlocksIn("in", NAMES[:1], [11], held=0))
    moved.wait("in", "failed")
    moved.keep("later", {NAMES[2]: 2})
    moved.wait("later", "stored")
    moved.thread.close(10.0)
    assert stored(moved) == 2 * TOKENS


def test_kv_memory_does_not_wait_for_a_disk_that_stands_still(tmp_path: Path) -> None:
    moved, goes_on = Moved(tmp_path / "kv"), threading.Event()
    assert moved.store is not None
    honest = moved.store.put

    def put(name: str, content: bytes | bytearray | memoryview) -> bool:
        goes_on.wait(30.0)
        return honest(name, content)

    moved.store.put = put  # type: ignore[method-assign]
    moved.keep("out", {NAMES[n]: n for n in range(3)})
    moved.start()
    moved.wait("out", "stored")
    assert all(map(moved.thread.knows, NAMES[:3])) and stored(moved) == 0
    goes_on.set()
    moved.thread.close(10.0)
    assert stored(moved) == 3 * TOKENS


@pytest.mark.parametrize(
    ("rate", "computed", "read", "seconds", "left", "slower"),
    [
        (0.0, 4 << 20, 1 << 20, 1e9, 4 << 20, False),  # nobody knows what computing takes
        (1e-6, 4 << 20, 1 << 19, 1e9, 4 << 20, False),  # nothing is known of the disk
        (1e-6, 4 << 20, 1 << 20, 1.0, 4 << 20, False),
        (1e-6, 4 << 20, 1 << 20, 1.1, 4 << 20, True),
        (1e-6, 6 << 20, 1 << 20, 1.1, 4 << 20, False),  # all would have to be computed
        (1e-6, 6 << 20, 1 << 20, 1.7, 4 << 20, True),
    ],
)
def test_what_reading_took_says_whether_computing_is_faster(
    rate: float, computed: int, read: int, seconds: float, left: int, slower: bool
) -> None:
    assert is_slower(rate, computed, read, seconds, left) == slower


class SlowStore(DiskStore):
    """A store on a disk that takes a while for every block."""

    gets = 0

    def get(self, name: str, parts: Sequence[memoryview]) -> bool:
        self.gets += 1
        time.sleep(0.01)
        return super().get(name, parts)


@pytest.mark.parametrize(
    ("block_s", "state", "arrives", "reads"),
    [(0.0, False, 8, 8), (1.0, False, 8, 8), (1e-4, False, 2, 2), (1e-4, True, None, 2), (1.0, True, 8, 9)],
)
def test_reading_ends_where_computing_is_faster(
    tmp_path: Path,
    block_s: float,
    state: bool,
    arrives: int | None,
    reads: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What an earlier process has left tells how long computing takes; the first two blocks, what reading does. With a
    state all that was read counts for nothing when the rest is not.
    """
    monkeypatch.setattr("homenode.engine.kv_disk.store_thread._MEASURED_BYTES", 2 * SIZE)
    first = Moved(tmp_path / "kv").start()
    first.keep("out", {name: n for n, name in enumerate(NAMES)}, {"f" * 32: 1})
    first.wait("out", "stored")
    assert first.store is not None
    first.store.set_rate(block_s / SIZE)
    first.thread.close(5.0)
    again = Moved(tmp_path / "kv", store=SlowStore).start()
    again.thread.fetch(BlocksIn("in", NAMES, [8 + n for n in range(8)], 0, ("f" * 32, 2) if state else None))
    again.wait("in", *([] if arrives is None else ["arrived"]), *([] if arrives == 8 else ["failed"]))
    tokens = [each.tokens for each in again.told if each.answer == "arrived"]
    assert tokens == ([] if arrives is None else [TOKENS * arrives])
    assert isinstance(again.store, SlowStore) and again.store.gets == reads
    again.thread.close(5.0)


def test_what_was_lost_is_not_kept(tmp_path: Path) -> None:
    moved = Moved(tmp_path / "kv")
    moved.keep("out", {NAMES[0]: 0}).lost = True
    moved.start()
    moved.wait("out", "stored")
    moved.thread.close(10.0)
    assert stored(moved) == 0 and not moved.thread.knows(NAMES[0])


@pytest.mark.parametrize("with_disk", [False, True])
def test_copies_in_memory_stay_as_long_as_there_is_room(tmp_path: Path, with_disk: bool) -> None:
    moved = Moved(tmp_path / "kv" if with_disk else None, park_bytes=3 * SIZE)
    journals = moved.thread.begin_journals()
    moved.start()
    for n in range(5):
        moved.keep(f"out/{n}", {NAMES[n]: n})
        moved.wait(f"out/{n}", "stored")
    wait_until(lambda: moved.thread.figures().parked_bytes == 3 * SIZE)
    copies, on_disk = ({name for name, there in each.take().items() if there} for each in journals)
    assert copies == set(NAMES[2:5]) and on_disk == (set(NAMES[:5]) if with_disk else set())
    asked = BlocksIn("in", NAMES[2:5], [10, 11, 12], held=0)
    moved.thread.fetch(asked)
    moved.wait("in", "arrived")
    assert [moved.memory.blocks[n][0] for n in (10, 11, 12)] == [2, 3, 4] and asked.parked == 3
    assert moved.thread.knows(NAMES[0]) == with_disk
    moved.thread.close(10.0)


def test_sessions_are_kept_as_long_as_the_names_of_their_blocks_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_source, "_MOST_NAMES", 10)
    source = DiskSource(Moved(None, park_bytes=1 << 20).thread, TOKENS)
    ids = [bytes([n]) * 16 for n in range(30)]
    for session, count in (("a", 4), ("b", 4), ("a", 6), ("c", 3)):  # of a, which is longer by now, 6 count
        source.pin(session, ids[:count])
    assert list(source._sessions) == ["a", "c"] and source._num_names == 9
    source.release_session("a")
    source.release_session("never seen")
    assert source._num_names == 3
    source.pin("vast", ids)  # one is always kept
    assert list(source._sessions) == ["vast"] and source._num_names == 30


@pytest.mark.parametrize("ended", [True, False])
def test_the_store_is_given_back_once_no_thread_uses_it(ended: bool) -> None:
    closed: list[str] = []
    link = object.__new__(KvDiskLink)
    link._thread = SimpleNamespace(close=lambda seconds: ended)  # type: ignore[assignment]
    link._store = SimpleNamespace(close=lambda: closed.append("store"))  # type: ignore[assignment]
    link.close(0.0)
    assert closed == (["store"] if ended else [])
