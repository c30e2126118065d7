"""Matrices on a device: dense, in one of torch's types, whatever they were stored as.

A matrix comes through a staging buffer of some MiB (pinned for an accelerator), a run of rows at a time, so that the
host never holds a whole one. Plain floats go over as they are stored and are converted on the device; formats in blocks
are decoded on the host.
"""

from __future__ import annotations

import os

import numpy as np
import torch

from homenode.compute.ops import FloatArray
from homenode.compute.reference.formats import ByteArray, decode
from homenode.compute.stored_matrix import StoredMatrix, canonical_rows
from homenode.compute.torch.device import TorchDevice
from homenode.errors import HostError, UnsupportedError

DENSE = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_STAGED_BYTES = 16 * 2**20


class MatrixReader:
    """Reads matrices into a device, through one staging buffer."""

    def __init__(self, device: TorchDevice) -> None:
        self._device = device
        self._staged = torch.empty(0, dtype=torch.uint8)

    def read(self, stored: StoredMatrix, target: str) -> torch.Tensor:
        """[rows, columns] kept as `target`. HostError when the file ends early, UnsupportedError for a `target` that is
        not dense.
        """
        kept = torch.empty((stored.rows, stored.columns), dtype=dense(target), device=self._device.device)
        places = in_place(stored.rows, stored.permuted_heads)
        step = max(1, _STAGED_BYTES // max(stored.own_row_bytes, 1))
        for first in range(0, stored.rows, step):
            rows = range(first, min(first + step, stored.rows))
            values = self._values(stored, rows)
            if places is None:
                kept[rows.start : rows.stop] = values
            else:
                kept[torch.from_numpy(places[rows.start : rows.stop]).to(kept.device)] = values.to(kept.dtype)
        return kept

    def keep(self, values: FloatArray, target: str) -> torch.Tensor:
        """A float32 array [rows, columns] of the host, kept as `target`."""
        source = torch.from_numpy(np.ascontiguousarray(values, np.float32))
        kept = torch.empty(source.shape, dtype=dense(target), device=self._device.device)
        kept.copy_(source)
        return kept

    def done(self) -> None:
        """Give the staging buffer back; another matrix takes a new one."""
        self._staged = torch.empty(0, dtype=torch.uint8)

    def _values(self, stored: StoredMatrix, rows: range) -> torch.Tensor:
        """Rows on the device, as floats of some width."""
        self._device.wait()  # what was staged before has been copied
        staged = self._stage(len(rows) * stored.own_row_bytes)
        _fill(staged.numpy(), stored, rows)
        if plain := DENSE.get(stored.dtype.name):
            return self._device.to_device(staged).view(plain).reshape(len(rows), stored.columns)
        return torch.from_numpy(decode(staged.numpy(), stored.dtype, len(rows), stored.columns)).to(self._device.device)

    def _stage(self, size: int) -> torch.Tensor:
        if len(self._staged) < size:
            self._staged = self._device.staging(max(size, _STAGED_BYTES), torch.uint8)
        return self._staged[:size]


def dense(target: str) -> torch.dtype:
    """The type of torch that holds a format. UnsupportedError for another than those in DENSE."""
    if target not in DENSE:
        raise UnsupportedError(
            f"the torch backend keeps matrices dense, as {', '.join(DENSE)}, not as {target}", target=target
        )
    return DENSE[target]


def in_place(rows: int, heads: int) -> np.ndarray[tuple[int], np.dtype[np.int64]] | None:
    """Return where each stored row belongs when they are in GGUF's llama order, halves of each head interleaved; None
    when they are in place.
    """
    return canonical_rows(rows, heads) if heads else None


def _fill(buffer: ByteArray, stored: StoredMatrix, rows: range) -> None:
    """The bytes of `rows`, one after another: in one read when rows follow each other in the file, else in one for
    each.
    """
    begin = stored.offset + rows.start * stored.stride
    if stored.stride == stored.own_row_bytes:
        _read(stored.fd, memoryview(buffer.data), begin)
        return
    view = memoryview(buffer.data)
    for i in range(len(rows)):
        _read(
            stored.fd,
            view[i * stored.own_row_bytes : (i + 1) * stored.own_row_bytes],
            begin + i * stored.stride,
        )


def _read(fd: int, view: memoryview, offset: int) -> None:
    """Fill `view` from `offset` on; HostError when the system call fails or the file ends before it is full."""
    done = 0
    while done < len(view):
        try:
            count = os.preadv(fd, [view[done:]], offset + done)
        except OSError as error:
            raise HostError(
                f"pread of {len(view)} bytes at offset {offset} failed: {error.strerror}", errno=error.errno
            ) from error
        if count == 0:
            raise HostError(
                f"the file ended {len(view) - done} bytes early: {len(view)} bytes were wanted at offset {offset}",
                offset=offset,
            )
        done += count
