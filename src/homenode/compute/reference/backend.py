"""The NumPy backend: parameters are float32 arrays, a program calls its forward function at every step."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from homenode.compute.expert_usage import Counts, ExpertUsage
from homenode.compute.ops import (
    FloatArray,
    IntArray,
    KvGeometry,
    MatrixPlacement,
    Ops,
    SampledRows,
    SamplingArrays,
    StateGeometry,
    StepArrays,
    StepLimits,
    Tensor,
)
from homenode.compute.ranks import RankGroup
from homenode.compute.reference import formats, sampling
from homenode.compute.reference.kv import ReferenceKvCache
from homenode.compute.reference.ops import EagerOps
from homenode.compute.reference.state import ReferenceStateMemory
from homenode.compute.stored_matrix import StoredMatrix
from homenode.dtypes import DType
from homenode.errors import HostError, UnsupportedError
from homenode.numa_policy import NumaPolicy
from homenode.units import format_count


class ReferenceBackend:
    """`Backend` in NumPy.

    A matrix is held as the float32 values its format stands for: exact in value, four bytes an element in memory.
    """

    name = "reference"
    tile_tokens = 1

    def __init__(self) -> None:
        self._weight_bytes = 0
        self._kv_bytes = 0

    def weight_types(self) -> frozenset[str]:
        """Every format this backend can decode: it computes on the decoded values of each."""
        return formats.DECODABLE

    def weight_from_file(
        self, stored: StoredMatrix, target: str, placement: MatrixPlacement = NumaPolicy.SHARD
    ) -> FloatArray:
        """See `Backend.weight_from_file`. HostError when the file ends early."""
        rows, columns, own, stride = stored.rows, stored.columns, stored.own_row_bytes, stored.stride
        read = np.zeros(rows * stride, np.uint8)
        size = (rows - 1) * stride + own
        read[:size] = _read(stored.fd, stored.offset, size)
        raw = np.ascontiguousarray(read.reshape(rows, stride)[:, :own])
        matrix = formats.decode(raw, stored.dtype, rows, columns)
        if heads := stored.permuted_heads:
            matrix = matrix.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)
        return self._keep(matrix if target == stored.dtype.name else formats.round_to(matrix, target))

    def weight_from_array(
        self, array: npt.NDArray[Any], target: str, placement: MatrixPlacement = NumaPolicy.SHARD
    ) -> FloatArray:
        """See `Backend.weight_from_array`."""
        return self._keep(formats.round_to(np.asarray(array, np.float32), target))

    def stored_table(self, fd: int, offset: int, dtype: DType, rows: int, columns: int) -> StoredRows:
        """See `TableBackend.stored_table`. UnsupportedError for a format this backend cannot decode."""
        if dtype.name not in formats.DECODABLE:
            raise UnsupportedError(f"the reference backend cannot read rows of {dtype.name} from a file")
        return StoredRows(os.dup(fd), offset, dtype, rows, columns)

    def vector(self, array: npt.NDArray[Any]) -> FloatArray:
        """See `Backend.vector`."""
        return np.array(array, np.float32).reshape(-1)

    def kv_cache(self, geometry: KvGeometry, blocks: int) -> ReferenceKvCache:
        """See `Backend.kv_cache`."""
        cache = ReferenceKvCache(geometry, blocks)
        self._kv_bytes += cache.nbytes
        return cache

    def state_memory(self, geometry: StateGeometry, slots: int) -> ReferenceStateMemory:
        """See `Backend.state_memory`."""
        memory = ReferenceStateMemory(geometry, slots)
        self._kv_bytes += memory.nbytes
        return memory

    def compile(
        self, forward: Callable[[Ops], Tensor], limits: StepLimits, group: RankGroup | None = None
    ) -> ReferenceProgram:
        """See `Backend.compile`."""
        return ReferenceProgram(forward, limits, group)

    def sample(self, logits: FloatArray, how: SamplingArrays, num_logprobs: int = -1) -> SampledRows:
        """See `Backend.sample`."""
        return sampling.sample_rows(logits, how, num_logprobs)

    def score(self, logits: FloatArray, rows: IntArray, targets: IntArray, num_logprobs: int) -> SampledRows:
        """See `Backend.score`."""
        return sampling.score_rows(logits, rows, targets, num_logprobs)

    def statistics(self) -> dict[str, Any]:
        """See `Backend.statistics`."""
        return {"backend": self.name, "level": "numpy", "weight_bytes": self._weight_bytes, "kv_bytes": self._kv_bytes}

    def _keep(self, matrix: FloatArray) -> FloatArray:
        kept = np.ascontiguousarray(matrix, np.float32)
        self._weight_bytes += kept.nbytes
        return kept


@dataclass(frozen=True)
class StoredRows:
    """A table in a file, whose descriptor is its own: see `TableBackend.stored_table`."""

    fd: int
    offset: int
    dtype: DType
    rows: int
    columns: int

    def read(self, row: int) -> FloatArray:
        """The values of a row, float32 [columns]. HostError when the file ends before it."""
        size = self.dtype.row_bytes(self.columns)
        stored = _read(self.fd, self.offset + row * size, size).reshape(1, size)
        values: FloatArray = formats.decode(stored, self.dtype, 1, self.columns)[0]
        return values

    def __del__(self) -> None:
        os.close(self.fd)


class ReferenceProgram:
    """`Program` that runs the forward function itself, at every step."""

    def __init__(self, forward: Callable[[Ops], Tensor], limits: StepLimits, group: RankGroup | None = None) -> None:
        self._forward = forward
        self._limits = limits
        self._group = group
        self._usage = ExpertUsage()

    def run(self, arrays: StepArrays) -> FloatArray:
        """See `Program.run`. ValueError when the arrays contradict each other or the limits."""
        check_arrays(arrays, self._limits)
        logits: FloatArray = self._forward(EagerOps(arrays, self._group, self._usage))
        return logits

    def expert_usage(self) -> Counts:
        """See `Program.expert_usage`."""
        return self._usage.table()


def check_arrays(arrays: StepArrays, limits: StepLimits) -> None:
    """ValueError, naming the array, unless the step is consistent in itself and within `limits`."""
    tokens, sequences, sampled = len(arrays.ids), len(arrays.context_len), len(arrays.sample_rows)
    if tokens > limits.max_tokens or sequences > limits.max_sequences or sampled > limits.max_sampled_rows:
        raise ValueError(
            f"a step of {format_count(tokens, 'token')}, {format_count(sequences, 'sequence')} and {sampled} "
            f"sampled rows is beyond {limits}"
        )
    starts = arrays.query_start
    if len(starts) != sequences + 1 or starts[0] != 0 or starts[-1] != tokens or (np.diff(starts) < 0).any():
        raise ValueError(
            f"query_start {starts.tolist()} does not divide {format_count(tokens, 'token')} among "
            f"{format_count(sequences, 'sequence')}"
        )
    if len(arrays.positions) != tokens or len(arrays.block_table) != sequences:
        raise ValueError(
            f"{format_count(len(arrays.positions), 'position')} for {format_count(tokens, 'token')}, "
            f"{len(arrays.block_table)} block rows for {sequences}"
        )
    if arrays.hidden is not None and len(arrays.hidden) != tokens:
        raise ValueError(
            f"{format_count(len(arrays.hidden), 'row')} of the stage before for {format_count(tokens, 'token')}"
        )
    for i, context in enumerate(arrays.context_len):
        positions = arrays.positions[starts[i] : starts[i + 1]]
        if not np.array_equal(positions, np.arange(context - len(positions), context)):
            raise ValueError(
                f"positions {positions.tolist()} of sequence {i} are not the last ones of a context of {context}"
            )
    if sampled and not 0 <= arrays.sample_rows.min() <= arrays.sample_rows.max() < tokens:
        raise ValueError(
            f"sample_rows {arrays.sample_rows.tolist()} are not rows of a step of {format_count(tokens, 'token')}"
        )


def _read(fd: int, offset: int, size: int) -> npt.NDArray[np.uint8]:
    """`size` bytes at `offset`; HostError when the system call fails or the file ends before them."""
    buffer = np.empty(size, np.uint8)
    view, done = memoryview(buffer.data), 0
    while done < size:
        try:
            count = os.preadv(fd, [view[done:]], offset + done)
        except OSError as error:
            raise HostError(
                f"pread of {size} bytes at offset {offset} failed: {error.strerror}", errno=error.errno
            ) from error
        if count == 0:
            raise HostError(
                f"the file ended {size - done} bytes early: {size} bytes were wanted at offset {offset}", offset=offset
            )
        done += count
    return buffer
