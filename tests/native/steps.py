"""Step arrays for tests of the native core."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from homenode.compute.native import NativeBackend
from homenode.compute.ops import FloatArray, Ops, StepArrays, StepLimits, Tensor

PAIR_LEVELS = ("avx512bf16", "amx")  # whose attention multiplies pairs of bfloat16


@dataclass(frozen=True)
class Part:
    """Tokens start .. start + count - 1 of a sequence whose KV blocks are `blocks`."""

    start: int
    count: int
    blocks: Sequence[int] = ()


def step_of(parts: Sequence[Part], ids: Sequence[int] | None = None, sample_rows: Sequence[int] = ()) -> StepArrays:
    """The arrays of a step of these parts."""

    def int32(values: Any) -> npt.NDArray[np.int32]:
        return np.array(values, np.int32)

    count = sum(p.count for p in parts)
    table = np.full((len(parts), max(len(p.blocks) for p in parts)), -1, np.int32)
    for row, part in zip(table, parts, strict=True):
        row[: len(part.blocks)] = part.blocks
    positions = [p.start + i for p in parts for i in range(p.count)]
    context = [p.start + p.count for p in parts]
    start = np.cumsum([0] + [p.count for p in parts])
    return StepArrays(
        int32([0] * count if ids is None else ids),
        int32(positions),
        int32(start),
        int32(context),
        table,
        int32(sample_rows),
    )


def limits(tokens: int, sequences: int = 64, sampled: int = 64, blocks: int = 64) -> StepLimits:
    return StepLimits(tokens, sequences, sampled, blocks)


def evaluate(
    backend: NativeBackend, forward: Callable[[Ops], Tensor], rows: int, sample_rows: Sequence[int] = ()
) -> FloatArray:
    """The result of a forward function over constants of `rows` rows, one sequence from position 0."""
    program = backend.compile(forward, limits(rows, sampled=max(1, len(sample_rows))))
    return program.run(step_of([Part(0, rows)], sample_rows=sample_rows)).numpy()


def same_bits(a: FloatArray, b: FloatArray) -> bool:
    """Equal bit by bit: -0 and 0 differ, NaNs of one pattern do not."""
    return a.shape == b.shape and np.array_equal(a.view(np.uint32), b.view(np.uint32))
