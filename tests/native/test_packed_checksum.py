"""The checksum of packed files against the same in NumPy, and what it tells."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from homenode import _native
from tests.native.weights import packed_floats

STEP, SPREAD, ALL = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B, (1 << 64) - 1
AT_ONCE = 256 << 10  # bytes of a file's head that are one block


def mixed(chain: int, word: int) -> int:
    product = (chain ^ word) * STEP & ALL
    return (product << 29 | product >> 35) & ALL


def block_checksum(data: bytes, index: int) -> int:
    """As csrc/quant/checksum.h describes it: eight columns of words, two sums of each over 64 lines, sixteen chains."""
    chains = [(index * 16 + i + 1) * SPREAD & ALL for i in range(16)]
    whole = len(data) // 64 * 64
    stripes = [data[at : min(at + 4096, whole)] for at in range(0, whole, 4096)] + [data[whole:].ljust(64, b"\0")]
    for stripe in stripes:
        lines = np.frombuffer(stripe, "<u8").reshape(-1, 8)
        words = np.add.accumulate(lines ^ lines >> np.uint64(32), axis=0, dtype=np.uint64)
        sums = [*words[-1].tolist(), *words.sum(axis=0, dtype=np.uint64).tolist()]
        chains = [mixed(chain, word) for chain, word in zip(chains, sums, strict=True)]
    total = len(data) * SPREAD & ALL
    for chain in chains:
        total = mixed(total, chain)
        total ^= total >> 32
    return total * SPREAD & ALL ^ total >> 31


def of_file(path: Path, data: bytes, size: int | None = None) -> int:
    path.write_bytes(data)
    with path.open("rb") as file:
        return _native.head_checksum(file.fileno(), len(data) if size is None else size)


@pytest.mark.parametrize(
    "size", [0, 1, 7, 8, 63, 64, 65, 4095, 4096, 4097, 4160, 12345, AT_ONCE, AT_ONCE + 1, 3 * AT_ONCE - 5]
)
def test_it_is_what_numpy_computes(tmp_path: Path, size: int) -> None:
    data = np.random.default_rng(size).bytes(size)
    wanted = sum(block_checksum(data[at : at + AT_ONCE], at) for at in range(0, size, AT_ONCE)) & ALL
    assert of_file(tmp_path / "f", data) == of_file(tmp_path / "f", data, size + 99) == wanted


def test_of_a_weight_it_is_the_sum_over_its_groups(tmp_path: Path) -> None:
    values = np.random.default_rng(1).standard_normal((100, 77)).astype(np.float32)
    weight = packed_floats(_native.ThreadPool([-1, -1], 0, False), values)
    with (tmp_path / "f").open("w+b") as file:
        found = weight.write(file.fileno(), 0)
    data = (tmp_path / "f").read_bytes()
    group = 32 * 77 * 4
    assert len(data) == 4 * group == weight.nbytes
    assert found == sum(block_checksum(data[i * group : (i + 1) * group], i) for i in range(4)) & ALL


def test_it_tells_what_happens_to_files(tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    data = random.bytes(10_000)
    words = np.frombuffer(data, "<u8")
    damaged = [
        data[:4096] + bytes(512) + data[4608:],
        data[512:1024] + data[:512] + data[1024:],
        data[:-1],
        data + b"\0",
        bytes(len(data)),
    ]
    # Two words that change places, or both lose their highest bit.
    for first, second in random.integers(0, len(words), (600, 2)):
        for change in (words[[second, first]], words[[first, second]] ^ np.uint64(1 << 63)):
            other = words.copy()
            other[[first, second]] = change
            damaged.append(other.tobytes())
    for bit in random.integers(0, 8 * len(data), 200):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        damaged.append(bytes(flipped))
    right, different = of_file(tmp_path / "f", data), set(damaged) - {data}
    assert len(different) > 1300
    assert all(of_file(tmp_path / "f", case) != right for case in different)


def test_a_descriptor_that_is_none_is_refused() -> None:
    with pytest.raises(OSError, match="fstat"):
        _native.head_checksum(-1, 10)
