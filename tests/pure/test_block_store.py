"""KV blocks in a folder: what is read is what was written or nothing, whatever became of the files, however many write
there, and wherever one of them was killed; all of it keeps within its bytes.
"""

from __future__ import annotations

import gc
import logging
import os
import random
import shutil
import signal
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homenode.engine.kv_disk.block_format import HEADER_BYTES, BlockFormat, DamagedBlockError
from homenode.engine.kv_disk.block_index import ModelBlocks, StoredBlock, choose_evicted, stored_size
from homenode.engine.kv_disk.block_store import ModelNote
from homenode.engine.kv_disk.disk_store import DiskStore
from homenode.engine.kv_disk.folder import DESCRIPTION, StoreFolder
from tests.examples import lives

SIZE = 700
MODEL, OTHER = "ab" * 16, "cd" * 16
KEY = bytes(range(32))


def content_of(name: str, size: int = SIZE) -> bytes:
    return random.Random(name).randbytes(size)


def names(count: int, seed: int = 1) -> list[str]:
    rng = random.Random(seed)
    return [rng.randbytes(16).hex() for _ in range(count)]


class Kept:
    """A store in a folder, and what it gives back."""

    def __init__(
        self, path: Path, *, model: str = MODEL, limit: int = 1 << 30, key: bytes | None = None, size: int = SIZE
    ) -> None:
        self.now = 1000.0
        self.folder, self.size = StoreFolder.make(path), size
        self.close = weakref.finalize(self, self.folder.close)
        form = BlockFormat(model.encode(), key)
        self.store = DiskStore(self.folder, model, form, [size], limit, ModelNote("toy"), lambda: self.now)
        self.store.start()

    def put(self, wanted: list[str]) -> int:
        count = 0
        for name in wanted:
            count += self.store.put(name, content_of(name, self.size))
            self.now += 1.0
        return count

    def get(self, name: str) -> bytes | None:
        found = bytearray(self.size)
        parts = [memoryview(found)[: self.size // 3], memoryview(found)[self.size // 3 :]]
        return bytes(found) if self.store.get(name, parts) else None

    def found(self, wanted: list[str]) -> list[str]:
        """Those that are there; wrong unless each is what was written."""
        there = [name for name in wanted if (content := self.get(name)) is not None and right(name, content)]
        assert all(self.get(name) == content_of(name, self.size) for name in there)
        return there


def right(name: str, content: bytes) -> bool:
    assert content == content_of(name, len(content)), "other bytes than were written"
    return True


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kv"


def lying(path: Path) -> int:
    return sum(stored_size(f.lstat().st_size) for f in path.rglob("*.kv") if f.is_file() and not f.is_symlink())


@pytest.mark.parametrize("key", [None, KEY])
def test_what_was_written_is_found_after_a_restart(path: Path, key: bytes | None) -> None:
    wanted = names(20)
    first = Kept(path, key=key)
    assert first.put(wanted) == 20 and first.put(wanted) == 0
    assert first.found(wanted) == wanted
    again = Kept(path, key=key)
    assert len(again.store.names.blocks) == 20 and again.found(wanted) == wanted and again.put(wanted) == 0
    assert again.store.rejected == 0 and again.store.total == lying(path) == 20 * stored_size(SIZE + HEADER_BYTES)


@pytest.mark.parametrize(("left_with", "read_with"), [(KEY, None), (None, KEY), (KEY, KEY[::-1]), (KEY, bytes(32))])
def test_another_key_or_none_is_a_miss(path: Path, left_with: bytes | None, read_with: bytes | None) -> None:
    """The store of an engine has another folder by its key; here one gets the files of the other."""
    wanted = names(3)
    Kept(path, key=left_with).put(wanted)
    assert Kept(path, key=read_with).found(wanted) == []


def test_nothing_of_a_block_is_in_the_clear_with_a_key(path: Path) -> None:
    (name,) = names(1)
    Kept(path, key=KEY).put([name])
    (file,) = path.rglob("*.kv")
    data, clear = file.read_bytes(), content_of(name)
    assert not any(clear[at : at + 8] in data for at in range(0, SIZE - 8, 4))


def test_blocks_of_another_model_are_not_found(path: Path) -> None:
    wanted = names(4)
    Kept(path).put(wanted)
    other = Kept(path, model=OTHER)
    shutil.copytree(path / MODEL, path / OTHER, dirs_exist_ok=True)
    other.store.count_again()
    assert other.found(wanted) == [] and other.store.rejected == 4
    assert Kept(path).found(wanted) == wanted


def test_what_it_makes_is_closed_to_others(path: Path) -> None:
    before = os.umask(0)
    try:
        Kept(path).put(names(3))
    finally:
        os.umask(before)
    for each in [path, *path.rglob("*")]:
        assert each.stat().st_mode & 0o777 == (0o700 if each.is_dir() else 0o600), each


def flip(rng: random.Random, file: Path, others: list[Path]) -> None:
    data = bytearray(file.read_bytes())
    for _ in range(rng.choice((1, 1, 3, 30))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(data)


def cut(rng: random.Random, file: Path, others: list[Path]) -> None:
    os.truncate(file, rng.choice((0, 1, HEADER_BYTES, file.stat().st_size - 1)))


def lengthen(rng: random.Random, file: Path, others: list[Path]) -> None:
    file.write_bytes(file.read_bytes() + rng.randbytes(rng.choice((1, 4096))))


def exchange(rng: random.Random, file: Path, others: list[Path]) -> None:
    other = rng.choice(others)
    mine, its = file.read_bytes(), other.read_bytes()
    file.write_bytes(its)
    other.write_bytes(mine)


def overwrite(rng: random.Random, file: Path, others: list[Path]) -> None:
    data = bytearray(file.read_bytes())
    at, size = rng.randrange(len(data)), rng.choice((8, 64, 512))
    data[at : at + size] = rng.choice((bytes(size), rng.randbytes(size)))
    file.write_bytes(data[: SIZE + HEADER_BYTES])


def link_out(rng: random.Random, file: Path, others: list[Path]) -> None:
    outside = file.parent.parent.parent / f"outside-{rng.getrandbits(40):x}"
    outside.write_bytes(file.read_bytes())
    file.unlink()
    kind = rng.randrange(5)
    if kind < 2:
        file.symlink_to(outside if kind else "/dev/zero")
    elif kind == 2:
        os.mkfifo(file)
    elif kind == 3:
        file.mkdir()
    else:
        file.mkdir()
        (file / "something").touch()


def plant(rng: random.Random, file: Path, others: list[Path]) -> None:
    """A block under a name that is not its own, and files that are nobody's."""
    (file.parent / f"{rng.getrandbits(128):032x}.kv").write_bytes(file.read_bytes())
    (file.parent / "notes.txt").write_bytes(b"mine")
    file.with_name(file.name.upper()).write_bytes(b"x")


DAMAGE: tuple[Callable[[random.Random, Path, list[Path]], None], ...] = (
    flip, cut, lengthen, exchange, overwrite, link_out, plant,
)  # fmt: skip


@pytest.mark.parametrize("key", [None, KEY])
def test_damage_is_a_clean_miss(path: Path, key: bytes | None, caplog: pytest.LogCaptureFixture) -> None:
    """HOMENODE_FUZZ_EXAMPLES says how many stores are damaged, with a key and without."""
    gc.collect()  # what earlier tests have left open
    descriptors = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for seed in lives(12, 2):
        one_damaged_life(path / f"{seed}" / "kv", seed, key, caplog)
        shutil.rmtree(path)
    assert len(os.listdir("/proc/self/fd")) <= descriptors  # noqa: PTH208


def one_damaged_life(path: Path, seed: int, key: bytes | None, caplog: pytest.LogCaptureFixture) -> None:
    path.parent.mkdir(parents=True)
    caplog.clear()
    rng, wanted = random.Random(seed), names(12, seed)
    running = Kept(path, key=key)
    running.put(wanted)
    files = sorted(path.rglob("*.kv"))
    beyond: dict[Path, bytes] = {}
    for _ in range(rng.randint(1, 12)):
        alive = [file for file in files if file.is_file() and not file.is_symlink() and file.stat().st_size]
        if not alive:
            break
        rng.choice(DAMAGE)(rng, rng.choice(alive), alive)
        beyond |= {p: p.read_bytes() for p in path.parent.glob("outside-*") if p not in beyond}
    for name in os.listdir(path) if rng.random() < 0.3 else ():  # noqa: PTH208
        if (path / name).is_file():
            (path / name).write_bytes(rng.randbytes(20))
    with caplog.at_level(logging.WARNING):
        for kept in (running, Kept(path, key=key)):
            there = kept.found(wanted)
            kept.put(wanted)
            assert set(kept.found(wanted)) >= set(there)
            kept.store.count_again()
            assert kept.store.total == lying(path)
            kept.close()
    assert len(caplog.records) <= 20  # ten a start
    assert {p: p.read_bytes() for p in beyond} == beyond
    again = Kept(path, key=key)  # but for names under which somebody keeps a full folder all are there again
    assert len(again.found(wanted)) >= len(wanted) - sum((f / "something").exists() for f in path.rglob("*.kv"))
    again.close()


def test_a_folder_that_is_removed_while_it_is_used(path: Path) -> None:
    kept, wanted = Kept(path), names(6)
    kept.put(wanted[:3])
    shutil.rmtree(path)
    assert kept.found(wanted) == []
    kept.put(wanted[3:])
    assert kept.found(wanted) == wanted[3:]
    shutil.rmtree(path / MODEL)
    kept.put(wanted[:2])
    assert set(kept.found(wanted)) == set(wanted[:2])


def test_two_stores_find_what_the_other_left_and_count_as_one(path: Path) -> None:
    one, two, wanted = Kept(path), Kept(path), names(12)
    one.put(wanted[:6])
    two.put(wanted[6:])
    assert (two.put(wanted[:6]), one.put(wanted[6:])) == (0, 0)
    for each in (one, two):
        each.store.refresh()
        assert each.found(wanted) == wanted and each.store.total == lying(path)


@pytest.mark.parametrize("seed", range(4))
def test_all_of_several_models_and_processes_keep_within_the_size(path: Path, seed: int) -> None:
    rng, limit = random.Random(seed), 20 * 4096
    stores = [Kept(path, model=model, limit=limit) for model in (MODEL, MODEL, OTHER)]
    for number in range(60):
        each = rng.choice(stores)
        for other in stores:
            other.now = max(store.now for store in stores)
        each.put(names(1, 100 * seed + number))
        if rng.random() < 0.3:
            rng.choice(stores).store.refresh()
        assert lying(path) <= limit
    assert lying(path) >= limit // 2
    small = Kept(path, limit=limit // 4)
    assert small.store.total == lying(path) <= limit // 4


@pytest.mark.parametrize("note", [b'{"name": "\xff"}', b"[" * 100_000, b"{"], ids=["no UTF-8", "deep", "cut"])
def test_a_damaged_note_of_another_model_is_no_hindrance(path: Path, note: bytes) -> None:
    Kept(path, model=OTHER).put(names(2))
    (path / OTHER / DESCRIPTION).write_bytes(note)
    wanted = names(3, 5)
    assert Kept(path).put(wanted) == 3 and Kept(path).found(wanted) == wanted


def test_blocks_of_a_removed_model_are_counted_no_more(path: Path) -> None:
    kept, first, second = Kept(path, limit=12 * stored_size(SIZE + HEADER_BYTES)), names(5, 2), names(5, 3)
    Kept(path, model=OTHER).put(names(5))
    kept.put(first)
    shutil.rmtree(path / OTHER)
    kept.store.count_again()
    assert kept.store.total == lying(path)
    assert kept.put(second) == 5 and kept.found([*first, *second]) == [*first, *second]


def test_a_beginning_outlives_what_stands_on_it(path: Path) -> None:
    kept, chain = Kept(path, limit=12 * 4096), names(8)
    kept.put(chain)
    kept.store.touch(chain)
    kept.put(names(6, 2))
    there = kept.found(chain)
    assert there == chain[: len(there)] and 0 < len(there) < 8


def test_what_is_cheap_to_compute_goes_first_and_what_is_old() -> None:
    cheap, dear = ModelBlocks(rate=1e-8), ModelBlocks(rate=1e-6)
    cheap.add("c", 100, 500.0)
    dear.add("d", 100, 490.0)
    models = [("cheap", cheap), ("dear", dear)]
    assert choose_evicted(models, 600.0) == ("cheap", "c")
    dear.blocks["d"].used = -20_000.0
    assert choose_evicted(models, 600.0) == ("dear", "d")
    dear.blocks["d"].used = 700.0  # which is to stay until then
    assert choose_evicted(models, 600.0) == ("cheap", "c")
    cheap.blocks["c"].used = 700.0
    assert choose_evicted(models, 600.0) is not None and choose_evicted([("none", ModelBlocks())], 1.0) is None


def test_what_a_session_pins_stays_until_it_is_released_or_its_time_is_over(path: Path) -> None:
    limit = 10 * 4096
    for ends in ("released", "expired", "goes on"):
        kept, pinned = Kept(path, limit=limit), names(3)
        kept.put(pinned)
        kept.store.touch(pinned, 100.0)
        kept.put(names(20, 2))
        kept.store.touch(pinned)  # a request that is of no session changes nothing
        kept.put(names(20, 3))
        assert kept.found(pinned) == pinned
        other = Kept(path, limit=limit)  # another process, or the next start, knows
        other.now = kept.now
        other.put(names(20, 4))
        assert other.found(pinned) == pinned
        if ends == "released":
            other.store.touch(pinned, 0.0)
        elif ends == "expired":
            other.now += 200.0
        other.put(names(20, 5))
        assert other.found(pinned) == (pinned if ends == "goes on" else [])
        shutil.rmtree(path)


@pytest.mark.parametrize("named", [False, True])
def test_a_killed_writer_leaves_a_clean_store(path: Path, named: bool) -> None:
    """Killed at any moment, while others are given up for what it writes. `named`: the file system makes no files
    without a name. HOMENODE_FUZZ_EXAMPLES says how often.
    """
    rng, wanted, limit = random.Random(named), names(200), 120 * stored_size(SIZE + HEADER_BYTES)
    most = 0
    for life in lives(5, 100):
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            try:
                write_for_ever(Kept(path, limit=limit), wanted, random.Random(life), writer, unnamed=not named)
            finally:
                os._exit(0)
        os.close(writer)
        assert os.read(reader, 1) == b"!", "it has begun to write"
        time.sleep(rng.uniform(0, 0.02))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reader)
        kept = Kept(path, limit=limit)
        found = kept.found(wanted)
        assert len(found) == len(kept.store.names.blocks) > 0 and kept.store.rejected == 0
        assert kept.store.total == lying(path) <= limit and not [*path.rglob("*.new")]
        most = max(most, len(found))
        kept.close()
    assert most > 20


def write_for_ever(kept: Kept, wanted: list[str], rng: random.Random, begun: int, *, unnamed: bool) -> None:
    kept.folder._unnamed = unnamed
    while True:
        kept.put([rng.choice(wanted)])
        os.write(begun, b"!")


def test_a_full_disk_is_told_once_and_tried_again(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept, wanted = Kept(path), names(9)
    kept.put(wanted[:2])
    honest = kept.folder.write

    def full(*arguments: object) -> object:
        raise OSError(28, "No space left on device")

    kept.folder.write = full  # type: ignore[assignment,method-assign]
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            assert kept.put(wanted[2:]) == 0
            kept.now += 1000.0
    assert [record.getMessage() for record in caplog.records if "the disk is full" in record.getMessage()]
    assert len(caplog.records) == 1 and kept.found(wanted) == wanted[:2]
    kept.folder.write = honest  # type: ignore[method-assign]
    kept.now += 1000.0
    assert kept.put(wanted) == 7


def test_every_byte_of_a_block_counts() -> None:
    for key in (None, KEY):
        form = BlockFormat(b"model", key)
        name = bytes(range(16))
        header, body = form.encode(name, content_of("x", 40))
        whole = bytes(header) + bytes(body)

        def read(data: bytes, form: BlockFormat = form, key: bytes | None = key, name: bytes = name) -> bytes:
            header, body = data[:HEADER_BYTES], data[HEADER_BYTES:]
            form.check_header(header, name, 40)
            if key is not None:
                return form.decrypt(header, body)
            form.check_content(header, [body])
            return body

        assert read(whole) == content_of("x", 40)
        for at in range(len(whole)):
            with pytest.raises(DamagedBlockError):
                read(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(DamagedBlockError):
            form.check_header(header, bytes(16), 40)
        with pytest.raises(DamagedBlockError):
            BlockFormat(b"model", key).check_header(header[:-1], name, 40)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "drop", "touch", "take over", "read"]), st.sets(st.integers(0, 5))),
        max_size=30,
    )
)
def test_a_journal_tells_of_every_name_that_came_or_went(steps: list[tuple[str, set[int]]]) -> None:
    """Whoever takes its changes, whenever he does, knows what is there, and is told of nothing twice."""
    wanted, known = names(6), set[str]()
    blocks = ModelBlocks()
    blocks.add(wanted[0], SIZE, 1.0)
    journal = blocks.begin_journal()
    for number, (what, some) in enumerate([*steps, ("read", set[int]())]):
        chosen = [wanted[each] for each in sorted(some)]
        match what:
            case "add":
                for name in chosen:
                    blocks.add(name, SIZE, float(number))
            case "drop":
                for name in chosen:
                    blocks.drop(name)
            case "touch":
                blocks.touch(chosen, float(number))
            case "take over":
                blocks.take_over({name: StoredBlock(SIZE, float(number)) for name in chosen})
            case _:
                for name, there in journal.take().items():
                    assert there == (name not in known)
                    (known.add if there else known.discard)(name)
                assert known == set(blocks.blocks)
