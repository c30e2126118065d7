"""The head that follows pooling: a few matrices that a text's one row goes through, in NumPy. Each row is computed by
itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from homenode.errors import UnsupportedError
from homenode.model.formats.bounded_files import damaged
from homenode.model.formats.fallback_decode import iter_decoded_rows
from homenode.model.pooling import HeadActivation, PoolingSpec
from homenode.model.spec import Checkpoint

FloatArray = npt.NDArray[np.float32]
_MOST_ELEMENTS = 2**28  # of a matrix


def _gelu_erf(x: FloatArray) -> FloatArray:
    return np.array([0.5 * v * (1.0 + math.erf(v / math.sqrt(2.0))) for v in x.tolist()], np.float32)


_ACTIVATIONS: dict[HeadActivation, Callable[[FloatArray], FloatArray]] = {
    "none": lambda x: x,
    "tanh": lambda x: np.asarray(np.tanh(x), np.float32),
    "relu": lambda x: np.maximum(x, np.float32(0)),
    "gelu_erf": _gelu_erf,
}


@dataclass(frozen=True)
class LoadedHeadLayer:
    """A `HeadLayer` with its arrays: matrix [outputs, inputs], the others [outputs]."""

    matrix: FloatArray
    bias: FloatArray | None
    activation: HeadActivation
    norm: FloatArray | None
    norm_epsilon: float

    def apply(self, row: FloatArray) -> FloatArray:
        """Return what becomes of a row [inputs]."""
        x = self.matrix @ row
        x = _ACTIVATIONS[self.activation](x if self.bias is None else x + self.bias)
        if self.norm is None:
            return x
        centred = x - x.mean()
        return np.asarray(centred / np.sqrt(np.square(centred).mean() + self.norm_epsilon) * self.norm, np.float32)


def load_pooling_head(checkpoint: Checkpoint, pooling: PoolingSpec) -> tuple[LoadedHeadLayer, ...]:
    """Read the head. CheckpointError for tensors that are missing or do not fit each other, UnsupportedError for
    formats that are no plain numbers or blocks.
    """
    found, columns = [], checkpoint.spec.hidden_size
    for layer in pooling.head:
        matrix = _array(checkpoint, layer.matrix, columns)
        if layer.minus:
            matrix = matrix - _array(checkpoint, layer.minus, columns)
        columns = len(matrix)
        bias, norm = (_array(checkpoint, name, columns)[0] if name else None for name in (layer.bias, layer.norm))
        found.append(LoadedHeadLayer(matrix, bias, layer.activation, norm, layer.norm_epsilon))
    if columns != pooling.width:
        raise damaged(checkpoint.path, "pooled width", seen=columns, wanted=str(pooling.width))
    return tuple(found)


def _array(checkpoint: Checkpoint, name: str, columns: int) -> FloatArray:
    entry = checkpoint.tensors.get(name)
    wanted = f"a tensor of rows of {columns}"
    if entry is None:
        raise damaged(checkpoint.path, f"tensor {name}", seen="none", wanted=wanted)
    if entry.coded is not None:
        raise UnsupportedError(
            f"{entry.file}: {name} as codes and scales is not supported; homenode wants plain numbers"
        )
    if not entry.shape or entry.shape[-1] != columns or math.prod(entry.shape) > _MOST_ELEMENTS or len(entry.shape) > 2:
        raise damaged(entry.file, f"shape of {name}", seen=list(entry.shape), wanted=wanted)
    values = np.concatenate(list(iter_decoded_rows(entry))).astype(np.float32, copy=False)
    if not bool(np.isfinite(values).all()):
        raise damaged(entry.file, f"values of {name}", seen="one that is no finite number", wanted="finite numbers")
    return np.ascontiguousarray(values)
