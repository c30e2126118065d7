"""Matrices in memory that several processes map: the bits of ordinary ones, for every format, any number of threads,
every level; and refusals.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from homenode import _native
from homenode.compute.native import NativeBackend, available_levels
from homenode.compute.native.shared_weights import NativeSharedWeights
from homenode.compute.ops import Experts, Ops, PackedLocation, Routing, SharedPlacement, Tensor
from homenode.compute.stored_matrix import StoredMatrix
from homenode.compute.thread_memory import ThreadMemory
from homenode.dtypes import BY_NAME
from homenode.engine.memory.huge_pages import on_small_pages
from homenode.errors import HostError, UserError
from homenode.host.bind.memory.huge_pages import ENOUGH_SHARE, TELLING_BYTES
from tests.native.steps import evaluate, same_bits
from tests.native.weights import FORMATS, load, stored, unpacked
from tests.shared_memory import experts_memory

SIZE = 1 << 22
BASE = 1 << 21


def put(
    backend: NativeBackend, memory: NativeSharedWeights, file: Path, format: str, rows: int, columns: int, at: int
) -> _native.Weight:
    """A matrix read from `file`, where `load` wrote it, into shared memory."""
    with file.open("rb") as opened:
        place = SharedPlacement(memory, at)
        return backend.weight_from_file(
            StoredMatrix(opened.fileno(), 77, BY_NAME[format], rows, columns), format, placement=place
        )


@pytest.mark.parametrize("threads", [(1, 3), (3, 1), (2, 5)])
@pytest.mark.parametrize("format", FORMATS)
def test_a_shared_matrix_has_the_bits_of_an_ordinary_one(tmp_path: Path, format: str, threads: tuple[int, int]) -> None:
    rows, columns = 131, 512
    writer, reader = (NativeBackend([-1] * n, spin_us=20) for n in threads)
    plain = load(writer, tmp_path / "w", stored(format, rows, columns))
    with experts_memory(SIZE) as fd:
        memory = writer.shared_weights(fd, SIZE)
        memory.open(BASE, SIZE)
        own = put(writer, memory, tmp_path / "w", format, rows, columns, BASE + 4096)
        memory.close()
        other = reader.attached_weight(
            SharedPlacement(reader.shared_weights(fd, SIZE), BASE + 4096), format, rows, columns, own=False
        )
    assert len(other.pieces) == threads[1] and other.nbytes == reader.packed_bytes(format, rows, columns)
    assert same_bits(unpacked(own), unpacked(plain)) and same_bits(unpacked(other), unpacked(plain))
    assert [piece[:2] for piece in own.pieces] == [piece[:2] for piece in plain.pieces]


@pytest.mark.parametrize("format", ["F32", "BF16", "Q8_0", "Q4_K"])
@pytest.mark.parametrize("level", available_levels())
def test_a_mixture_over_own_and_others_experts_is_that_over_ordinary_ones(
    tmp_path: Path, level: str, format: str
) -> None:
    columns, inner, count, tokens = 256, 256, 4, 11
    backend, other = NativeBackend([-1] * 2, spin_us=20, level=level), NativeBackend([-1] * 3, spin_us=20, level=level)
    plain: dict[str, list[_native.Weight]] = {kind: [] for kind in ("gate", "up", "down")}
    shared: dict[str, list[_native.Weight]] = {kind: [] for kind in plain}
    size = backend.packed_bytes(format, inner, columns) + 4095 & ~4095
    with experts_memory(end := 3 * count * size) as fd:
        mine, theirs = backend.shared_weights(fd, end), other.shared_weights(fd, end)
        for i, (kind, e) in enumerate((kind, e) for kind in plain for e in range(count)):
            plain[kind].append(load(backend, tmp_path / "w", stored(format, inner, columns, seed=i)))
            filler, memory = (other, theirs) if e % 2 else (backend, mine)
            memory.open(i * size, (i + 1) * size)
            put(filler, memory, tmp_path / "w", format, inner, columns, i * size)
            memory.close()
            shared[kind].append(
                backend.attached_weight(SharedPlacement(mine, i * size), format, inner, columns, own=e % 2 == 0)
            )
    random = np.random.default_rng(5)
    x, logits = (random.standard_normal((tokens, n)).astype(np.float32) for n in (columns, count))

    def result(experts: Experts, rows: int) -> np.ndarray:
        def forward(ops: Ops) -> Tensor:
            return ops.moe(backend.constant(x[:rows]), backend.constant(logits[:rows]), experts, Routing(2), None)

        return evaluate(backend, forward, rows)

    for rows in (1, tokens):
        assert same_bits(result(Experts(**plain), rows), result(Experts(**shared), rows))


def test_float32_rows_and_packed_files_go_there_too(tmp_path: Path) -> None:
    backend = NativeBackend([-1] * 3, spin_us=20)
    values = np.random.default_rng(1).standard_normal((70, 96)).astype(np.float32)
    plain = backend.weight_from_array(values, "Q8_0")
    with experts_memory(SIZE) as fd, (tmp_path / "packed").open("w+b") as file:
        memory = backend.shared_weights(fd, SIZE)
        memory.open(BASE, SIZE)
        first = backend.weight_from_array(values, "Q8_0", SharedPlacement(memory, BASE))
        checksum = backend.write_packed(first, file.fileno(), 0)
        places = [PackedLocation(0, "Q8_0", 70, 96, SharedPlacement(memory, BASE + (i << 16))) for i in (1, 2)]
        (second, read), _ = backend.weights_from_packed(file.fileno(), places)
    assert read == checksum
    assert same_bits(unpacked(first), unpacked(plain)) and same_bits(unpacked(second), unpacked(plain))


def test_what_a_matrix_leaves_is_taken_away_before_another_comes_there(tmp_path: Path) -> None:
    """Rows are packed to where zeros are: over what a process that was killed has left, the last rows' neighbours would
    be its own.
    """
    backend = NativeBackend([-1], spin_us=20)
    plain = load(backend, tmp_path / "w", stored("Q4_0", 33, 256))
    with experts_memory(SIZE) as fd:
        memory = backend.shared_weights(fd, SIZE)
        os.pwrite(fd, b"\x5a" * BASE, BASE)
        memory.open(BASE, SIZE)
        memory.clear(BASE + 4096, BASE + 8192)
        assert os.pread(fd, 3 * 4096, BASE) == b"\x5a" * 4096 + bytes(4096) + b"\x5a" * 4096
        memory.clear(BASE, SIZE)
        assert os.pread(fd, BASE, BASE) == bytes(BASE)
        put(backend, memory, tmp_path / "w", "Q4_0", 33, 256, BASE)
        with (tmp_path / "packed").open("w+b") as file:
            backend.write_packed(plain, file.fileno(), 0)
            assert os.pread(fd, plain.nbytes, BASE) == os.pread(file.fileno(), plain.nbytes, 0)


def test_a_weight_keeps_the_memory_whoever_else_lets_go_of_it() -> None:
    backend = NativeBackend([-1], spin_us=20)
    with experts_memory(SIZE) as fd:
        memory = backend.shared_weights(fd, SIZE)
        memory.open(BASE, SIZE)
        weight = backend.weight_from_array(np.ones((3, 32), np.float32), "F32", SharedPlacement(memory, BASE))
    del memory, backend
    assert np.array_equal(unpacked(weight), np.ones((3, 32), np.float32))


def test_only_what_is_open_is_written_and_only_what_is_inside_is_read() -> None:
    backend = NativeBackend([-1] * 2, spin_us=20)
    ones = np.ones((40, 64), np.float32)
    with experts_memory(SIZE) as fd:
        memory = backend.shared_weights(fd, SIZE)
        for opened, at in (
            ((0, 0), 0),
            ((4096, 8192), 0),
            ((4096, 8192), 4096),
            ((4096, 1 << 20), 4100),
            ((4096, 1 << 20), (1 << 20) - 4096),
        ):
            if opened[1]:
                memory.open(*opened)
            with pytest.raises(ValueError, match="open for writing"):
                backend.weight_from_array(ones, "F32", SharedPlacement(memory, at))
        memory.close()
        with pytest.raises(ValueError, match="open for writing"):
            backend.weight_from_array(ones, "F32", SharedPlacement(memory, 4096))
        for at in (SIZE, SIZE - 4096, 2**63, 100):
            with pytest.raises(ValueError, match="inside bytes 0 to"):
                backend.attached_weight(SharedPlacement(memory, at), "F32", 40, 64, own=False)
        for begin, end in ((0, SIZE + 4096), (4096, 4096), (8192, 4096), (1, 4096), (0, 100)):
            with pytest.raises(UserError, match="whole pages"):
                memory.open(begin, end)
        memory.open(4096, 8192)
        with pytest.raises(UserError, match="not open"):
            memory.clear(0, 8192)


def test_memory_that_could_shrink_is_none(tmp_path: Path) -> None:
    backend = NativeBackend([-1], spin_us=20)
    fd = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, SIZE)
        for refused in (lambda: backend.shared_weights(fd, SIZE), lambda: backend.shared_words(fd, 4)):
            with pytest.raises(UserError, match="not sealed against shrinking"):
                refused()
    finally:
        os.close(fd)
    with experts_memory(SIZE) as sealed:
        for size in (SIZE + 1, 2**62, 2**64 - 1, 0):
            with pytest.raises(UserError, match="wanted"):
                backend.shared_weights(sealed, size)
        with pytest.raises(UserError, match="wanted"):
            backend.shared_words(sealed, 1 << 40)
    with pytest.raises(HostError):
        backend.shared_weights(sealed, SIZE)


def test_words_are_written_once_and_seen_by_all() -> None:
    backend = NativeBackend([-1], spin_us=20)
    with experts_memory() as fd:
        words, others = backend.shared_words(fd, 8), backend.shared_words(fd, 8)
    top = (1 << 64) - 1
    assert words.exchange(3, 0, top) == 0 and others.exchange(3, 0, 5) == top and others.load(3) == top
    others.store(3, 6)
    assert words.load(3) == 6 and words.load(2) == 0
    for wrong in (-1, 8, 2**62):
        with pytest.raises(ValueError, match="shared word"):
            words.load(wrong)


def test_own_ranges_count_as_weights_and_others_do_not() -> None:
    homes = ThreadMemory(node_indices=(0, 0, 1, 1), nodes=(0, 0), bound=True)
    backend = NativeBackend([-1] * 4, spin_us=20, memory=homes)
    runs = [(BASE + i * 4096, BASE + (i + 1) * 4096) for i in range(5)]
    with experts_memory(SIZE) as fd:
        memory = backend.shared_weights(fd, SIZE)
        memory.own(runs)
        memory.open(BASE, SIZE)
        mine = backend.weight_from_array(np.ones((16, 64), np.float32), "F32", SharedPlacement(memory, BASE))
        backend.attached_weight(SharedPlacement(memory, BASE), "F32", 16, 64, own=False)
    address, _ = memory.handle.range
    assert [(at - address, size, home) for at, size, home in memory.ranges] == [
        (BASE, 3 * 4096, 0),
        (BASE + 3 * 4096, 2 * 4096, 1),
    ]
    seen = backend.statistics()
    assert seen["weight_bytes"] == mine.nbytes == seen["shared_weight_bytes"]
    assert sum(part.size for part in backend.planned()["weights"]) == 5 * 4096
    lines = backend.residency()["weights"]
    assert lines is None or sum(line["present"] for line in lines) == 2 * 4096  # a group of 32 rows of 64 floats


def test_what_is_shared_lies_on_huge_pages_where_the_kernel_gives_them() -> None:
    """On this machine or another: what the kernel has said is what is told, and what is told of small pages names the
    setting.
    """
    backend, size = NativeBackend([-1] * 2, spin_us=20), 96 << 20
    with experts_memory(size) as fd:
        memory = backend.shared_weights(fd, size)
        memory.own([(BASE, size)])
        memory.open(BASE, size)
        memory.take_huge()
        backend.weight_from_array(np.ones((4096, 5632), np.float32), "F32", SharedPlacement(memory, BASE))
        assert os.pread(fd, 16, BASE - 16) == bytes(16)
    seen = backend.statistics()["shared_pages"]
    if seen is None:
        pytest.skip("this kernel does not tell of pages")
    assert seen["present"] >= 4096 * 5632 * 4
    found = [finding.code for finding in on_small_pages(backend.statistics(), "madvise", False)]
    assert found == ([] if seen["huge"] >= ENOUGH_SHARE * seen["present"] else ["small_shared_pages"])
    assert (
        on_small_pages({"shared_pages": {"present": TELLING_BYTES, "huge": 0}}, "madvise", False)[0].code
        == "small_shared_pages"
    )
    assert on_small_pages({"shared_pages": {"present": TELLING_BYTES - 1, "huge": 0}}, "madvise", False) == ()
