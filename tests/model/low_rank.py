"""A stand-in for adapters: pairs of low rank beside some matrices of a model, by the names of these, and the same model
with the pairs merged into its weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from homenode.compute.ops import Backend, FloatArray, Ops, Precision, Tensor, Weight
from homenode.model.weights.load import LoadedModel


@dataclass(frozen=True)
class Pair:
    """What is added to a matrix W: up @ down. down [rank, columns of W], up [rows of W, rank]."""

    down: FloatArray
    up: FloatArray


Adapter = Mapping[str, Pair]  # by the name of the tensor


def random_adapter(arrays: Mapping[str, FloatArray], ending: Sequence[str], rank: int, seed: int) -> Adapter:
    """Pairs for all matrices whose names end so."""
    random = np.random.default_rng(seed)

    def pair(matrix: FloatArray) -> Pair:
        rows, columns = matrix.shape
        down, up = random.standard_normal((rank, columns)), random.standard_normal((rows, rank))
        return Pair((down / np.sqrt(columns)).astype(np.float32), (0.7 * up / np.sqrt(rank)).astype(np.float32))

    return {name: pair(array) for name, array in arrays.items() if name.endswith(tuple(ending))}


def merged(arrays: Mapping[str, FloatArray], adapter: Adapter) -> dict[str, FloatArray]:
    """The parameters of the model in which the adapter is part of the weights."""
    return {name: array + adapter[name].up @ adapter[name].down if name in adapter else array
            for name, array in arrays.items()}  # fmt: skip


class AdaptedOps:
    """`Ops` whose products of some matrices have the pair of each row's sequence besides."""

    def __init__(self, ops: Ops, pairs: Mapping[int, tuple[Sequence[Weight | None], Sequence[Weight | None]]]) -> None:
        """`pairs`: by the identity of a matrix, what is beside it of each adapter, down and up; None: nothing is."""
        self._ops, self._pairs, self._index = ops, pairs, ops.adapter_index()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)

    def linear(
        self,
        x: Tensor,
        weights: Sequence[Weight],
        biases: Sequence[Tensor | None] = (),
        residual: Tensor | None = None,
        precision: Precision = "usual",
    ) -> Tensor:
        """See `Ops.linear`."""
        y = self._ops.linear(x, weights, biases, residual, precision)
        first = 0
        for weight in weights:
            if (pair := self._pairs.get(id(weight))) is not None:
                inner = self._ops.linear_indexed(x, pair[0], self._index)
                y = self._ops.linear_indexed(inner, pair[1], self._index, y, first)
            first += rows_of(weight)
        return y


def rows_of(weight: Weight) -> int:
    """How many outputs a weight of any backend has."""
    return int(weight.shape[0]) if hasattr(weight, "shape") else int(weight.rows)


def adapted(model: LoadedModel, backend: Backend, adapters: Sequence[Adapter]) -> LoadedModel:
    """The model, or the part of one that has all of its columns, with these adapters."""
    pairs = {}
    for name in {name for adapter in adapters for name in adapter if name in model.parameters.by_name}:
        both = [adapter.get(name) for adapter in adapters]
        pairs[id(model.parameters.by_name[name])] = (
            [None if pair is None else backend.weight_from_array(pair.down, "F32") for pair in both],
            [None if pair is None else backend.weight_from_array(pair.up, "F32") for pair in both],
        )
    return replace(model, wrap=lambda ops: AdaptedOps(ops, pairs))
