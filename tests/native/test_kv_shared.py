"""KV memory and other processes: layouts and files that could fail a reader are refused, sealed ones hold, a child
finds the same.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import subprocess
import sys

import msgspec
import numpy as np
import pytest

from homenode.compute.kv_memory import KvLayout
from homenode.compute.native import NativeBackend
from homenode.compute.native.kv_memory import NativeEpochWords, copy_kv
from homenode.errors import UserError
from tests.native.kv_bytes import made_up
from tests.native.kv_memories import GEOMETRY, pool, shared_cache

F_SEAL_SHRINK, F_SEAL_GROW = 2, 4


@pytest.mark.parametrize("kind", ["cache", "pool"])
def test_layouts_that_are_made_up_are_refused(kind: str) -> None:
    backend = NativeBackend([-1], spin_us=20)
    memory = shared_cache(backend, GEOMETRY, 6) if kind == "cache" else pool(backend, GEOMETRY, 6)
    count = 0
    for layout in made_up(memory.layout, np.random.default_rng(5)):
        with pytest.raises(UserError):
            backend.map_kv(memory.fd, layout)
        count += 1
    assert count > 50
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(memory.layout), type=KvLayout)
    assert backend.map_kv(memory.fd, again).digests([5], 0, 1, 64) == memory.digests([5], 0, 1, 64)


def test_a_layout_may_have_blocks_on_top_of_each_other_but_not_outside() -> None:
    backend = NativeBackend([-1], spin_us=20)
    memory = pool(backend, GEOMETRY, 2)
    flat = msgspec.structs.replace(memory.layout.regions[0], block_stride=0)
    mapped = backend.map_kv(memory.fd, msgspec.structs.replace(memory.layout, blocks=(1 << 31) - 1, regions=(flat,)))
    assert mapped.digests([(1 << 31) - 2], 0, 1, 64) == memory.digests([0], 0, 1, 64)


def test_a_sealed_file_neither_shrinks_nor_grows_nor_is_written_by_others() -> None:
    backend = NativeBackend([-1], spin_us=20)
    memory = shared_cache(backend, GEOMETRY, 4)
    size = os.fstat(memory.fd).st_size
    assert size == memory.layout.nbytes
    for other in (0, size - 1, size + 4096):
        with pytest.raises(PermissionError):
            os.truncate(memory.fd, other)
    with pytest.raises(PermissionError):
        os.pwrite(memory.fd, b"x", 0)
    with pytest.raises(PermissionError):
        mmap.mmap(memory.fd, size)
    with pytest.raises(UserError, match="for reading only"):
        backend.map_kv(memory.fd, memory.layout, writable=True)
    mapped = backend.map_kv(memory.fd, memory.layout)
    assert not mapped.writable and all(piece.readonly for piece in mapped.pieces(0, 4))
    with pytest.raises(ValueError, match="for reading only"):
        copy_kv(mapped, [0], memory, [1], 0, 1, 64)


def test_others_write_where_they_may() -> None:
    backend = NativeBackend([-1], spin_us=20)
    memory = backend.kv_memory(backend.kv_cache(GEOMETRY, 4, shared=True, others_write=True))
    mapped, source = backend.map_kv(memory.fd, memory.layout, writable=True), pool(backend, GEOMETRY, 4)
    assert copy_kv(mapped, [2], source, [1], 0, 1, 64) == memory.digests([2], 0, 1, 64)
    mapped.pieces(0, 1)[0][0] = 77
    assert memory.pieces(0, 1)[0][0] == 77


@pytest.mark.parametrize("what", ["not sealed", "no memfd", "shorter"])
def test_files_that_could_fail_a_reader_are_refused(what: str, tmp_path: os.PathLike[str]) -> None:
    backend = NativeBackend([-1], spin_us=20)
    layout = backend.kv_pool(GEOMETRY, 4).layout
    if what == "no memfd":
        fd = os.open(os.path.join(tmp_path, "file"), os.O_RDWR | os.O_CREAT)  # noqa: PTH118
    else:
        fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.truncate(fd, layout.nbytes - (what == "shorter"))
    if what == "shorter":
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW)
    with pytest.raises(UserError, match="wanted at least" if what == "shorter" else "sealed against shrinking"):
        backend.map_kv(fd, layout)
    os.close(fd)


CHILD = """
import sys
import msgspec
from homenode.compute.kv_memory import KvLayout
from homenode.compute.native import NativeBackend
from homenode.compute.native.kv_memory import NativeEpochWords, copy_kv
from homenode.compute.ops import KvGeometry
memory, epochs = int(sys.argv[1]), int(sys.argv[2])
backend = NativeBackend([-1], spin_us=20)
layout = msgspec.json.decode(sys.stdin.buffer.read(), type=KvLayout)
source = backend.map_kv(memory, layout)
own = backend.kv_pool(KvGeometry.uniform(2, 3, 16, 32, "bf16"), 9)
words = NativeEpochWords.map(epochs, layout.blocks)
found = copy_kv(own, [8, 1, 7, 2], source, [3, 0], 0, 2, 111, epochs=(words, [4, words.read(0)]))
print(b"".join(found).hex(), found == own.digests([8, 1, 7, 2], 0, 2, 111, 64))
"""


def test_another_process_maps_the_memory_and_finds_the_same() -> None:
    backend = NativeBackend([-1], spin_us=20)
    memory, epochs = shared_cache(backend, GEOMETRY, 4), NativeEpochWords.create(4)
    epochs.write([3], [4])
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(memory.fd), str(epochs.fd)],
        input=msgspec.json.encode(memory.layout), pass_fds=(memory.fd, epochs.fd), capture_output=True, timeout=60,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr.decode()
    digests, same_there = child.stdout.decode().split()
    assert digests == b"".join(memory.digests([3, 0], 0, 2, 111)).hex() and same_there == "True"


def test_descriptors_go_with_the_memory() -> None:
    backend = NativeBackend([-1], spin_us=20)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    kept = [shared_cache(backend, GEOMETRY, 4), pool(backend, GEOMETRY, 4), NativeEpochWords.create(4)]
    assert len(os.listdir("/proc/self/fd")) == before + 3  # noqa: PTH208
    mapped = backend.map_kv(kept[1].fd, kept[1].layout)  # type: ignore[union-attr]
    assert len(os.listdir("/proc/self/fd")) == before + 3 and mapped.fd == -1  # noqa: PTH208
    assert not os.get_inheritable(kept[0].fd)
    kept.clear()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
