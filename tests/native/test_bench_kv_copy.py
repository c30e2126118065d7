"""The comparison of KV copies with memcpy: its blocks are of the sizes asked for, and its figures are those of real
copies.
"""

from __future__ import annotations

import pytest

from homenode.bench.kv_transfer.kv_copy import measure_kv_copy
from homenode.compute.native import NativeBackend
from homenode.errors import UserError


def test_every_size_is_measured() -> None:
    sizes = [8 << 10, 16 << 10, 64 << 10, 512 << 10, 1 << 20, 8 << 20]
    found = measure_kv_copy(NativeBackend([-1], spin_us=20), sizes, rounds=1, batch_bytes=8 << 20)
    assert [speed.block_bytes for speed in found] == sizes
    for speed in found:
        assert all(1e6 < rate < 1e12 for rate in (speed.memcpy, speed.copy, speed.digest))
        assert speed.ratio == pytest.approx(speed.copy / speed.memcpy)


@pytest.mark.parametrize("size", [0, 4096, 24 << 10, (64 << 10) + 1])
def test_other_sizes_are_refused(size: int) -> None:
    with pytest.raises(UserError, match="power of two"):
        measure_kv_copy(NativeBackend([-1], spin_us=20), [size])
