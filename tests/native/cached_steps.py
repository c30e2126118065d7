"""Steps of one sequence over a cache, for kernels that read what earlier steps kept: on any backend, cut anyhow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from homenode.compute.native import NativeBackend
from homenode.compute.ops import FloatArray, KvGeometry, Ops, StepLimits, Tensor
from homenode.compute.reference import ReferenceBackend
from tests.native.steps import Part, step_of

BLOCKS, SIZE = 40, 32


class CachedCase(Protocol):
    """Shapes of the operations under test, over a sequence of `length` tokens."""

    @property
    def length(self) -> int: ...

    @property
    def geometry(self) -> KvGeometry:
        """Of a cache with blocks of `SIZE` tokens."""

    def inputs(self) -> list[FloatArray]:
        """What the operations take of each token, [length, columns] each."""

    def forward(self, ops: Ops, given: Sequence[Tensor], cache: object) -> Tensor:
        """The operations over the rows of a step."""


def table(case: CachedCase, first: int = 0, apart: int = 7) -> list[int]:
    """Blocks for the sequence, out of order, `apart` from each other; those of another `first` are others."""
    return [(apart * i + first) % BLOCKS for i in range(-(-case.length // SIZE))]


def run(backend: NativeBackend | ReferenceBackend, case: CachedCase, steps: Sequence[Sequence[Part]]) -> FloatArray:
    """What all steps compute, one after the other, over a cache of `BLOCKS` blocks."""
    cache, found = backend.kv_cache(case.geometry, BLOCKS), []
    for parts in steps:
        rows = np.concatenate([np.arange(part.start, part.start + part.count) for part in parts])
        given = [x[rows] for x in case.inputs()]
        if isinstance(backend, NativeBackend):
            given = [backend.constant(x) for x in given]  # type: ignore[misc]
        room = StepLimits(len(rows), len(parts), 1, BLOCKS)
        program = backend.compile(lambda ops, given=given: case.forward(ops, given, cache), room)
        found.append(np.array(np.asarray(program.run(step_of(parts)))))
    return np.concatenate(found)
