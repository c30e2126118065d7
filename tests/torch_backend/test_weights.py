"""Reading matrices through the staging buffer: every format, cut rows, interleaved heads, files that end early."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from homenode.compute.reference import ReferenceBackend
from homenode.compute.reference.formats import DECODABLE
from homenode.compute.stored_matrix import StoredMatrix
from homenode.compute.torch import TorchBackend, open_backend, weights
from homenode.compute.torch.device import TorchDevice
from homenode.dtypes import BY_NAME
from homenode.errors import HostError, UnsupportedError
from tests.model.test_weight_formats import random_rows

ROWS, COLUMNS = 24, 512


@pytest.fixture(autouse=True)
def small_staging(monkeypatch: pytest.MonkeyPatch) -> None:
    """So small that a matrix takes several turns."""
    monkeypatch.setattr(weights, "_STAGED_BYTES", 5000)


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    opened = os.open(tmp_path / "weights", os.O_RDWR | os.O_CREAT)
    yield opened
    os.close(opened)


@pytest.mark.parametrize("heads", [0, 3])
@pytest.mark.parametrize("stored", sorted(DECODABLE))
def test_values_are_the_references(fd: int, stored: str, heads: int) -> None:
    dtype = BY_NAME[stored]
    os.pwrite(fd, random_rows(dtype, ROWS, COLUMNS), 7)
    wanted = ReferenceBackend().weight_from_file(
        StoredMatrix(fd, 7, dtype, ROWS, COLUMNS, permuted_heads=heads), stored
    )
    found = open_backend("torch:cpu").weight_from_file(
        StoredMatrix(fd, 7, dtype, ROWS, COLUMNS, permuted_heads=heads), "F32"
    )
    assert np.array_equal(found.numpy(), wanted, equal_nan=True)


@pytest.mark.parametrize("stored", ["F32", "BF16", "Q8_0", "Q6_K"])
def test_some_columns_of_a_wider_matrix(fd: int, stored: str) -> None:
    dtype = BY_NAME[stored]
    wide = dtype.row_bytes(2 * COLUMNS)
    os.pwrite(fd, random_rows(dtype, ROWS, 2 * COLUMNS), 0)
    whole = open_backend("torch:cpu").weight_from_file(StoredMatrix(fd, 0, dtype, ROWS, 2 * COLUMNS), "F32")
    half = open_backend("torch:cpu").weight_from_file(
        StoredMatrix(fd, wide // 2, dtype, ROWS, COLUMNS, row_bytes=wide), "F32"
    )
    assert torch.equal(half.nan_to_num(), whole[:, COLUMNS:].nan_to_num())


def test_a_device_for_narrow_types_keeps_them(fd: int) -> None:
    backend = TorchBackend(TorchDevice("torch:cuda:0", torch.device("cpu"), exact=False, narrow=True))
    assert backend.weight_types() == {"F32", "BF16", "F16"}
    os.pwrite(fd, random_rows(BY_NAME["Q8_0"], ROWS, COLUMNS), 0)
    kept = backend.weight_from_file(StoredMatrix(fd, 0, BY_NAME["Q8_0"], ROWS, COLUMNS), "BF16")
    exact = open_backend("torch:cpu").weight_from_file(StoredMatrix(fd, 0, BY_NAME["Q8_0"], ROWS, COLUMNS), "F32")
    assert kept.dtype == torch.bfloat16 and torch.equal(kept, exact.bfloat16())
    assert backend.statistics()["weight_bytes"] == ROWS * COLUMNS * 2


def test_a_file_that_ends_early(fd: int) -> None:
    os.pwrite(fd, b"\0" * 100, 0)
    with pytest.raises(HostError, match="ended 24 bytes early: 124 bytes were wanted at offset 0"):
        open_backend("torch:cpu").weight_from_file(StoredMatrix(fd, 0, BY_NAME["F32"], 1, 31), "F32")


def test_what_is_not_dense_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="keeps matrices dense, as F32, BF16, F16, not as Q8_0"):
        open_backend("torch:cpu").weight_from_array(np.zeros((2, 32), np.float32), "Q8_0")


def test_one_staging_buffer_is_all_the_host_holds(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    real = TorchDevice.staging

    def counted(self: TorchDevice, elements: int, dtype: torch.dtype) -> torch.Tensor:
        taken.append(elements)
        return real(self, elements, dtype)

    monkeypatch.setattr(TorchDevice, "staging", counted)
    os.pwrite(fd, random_rows(BY_NAME["F32"], ROWS, COLUMNS), 0)
    backend = open_backend("torch:cpu")
    for _ in range(3):
        backend.weight_from_file(StoredMatrix(fd, 0, BY_NAME["F32"], ROWS, COLUMNS), "F32")
    assert taken == [5000]
