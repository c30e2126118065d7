"""Functions that NumPy and torch call by different names, for operations that are written once for both.

Of tensors: `homenode.compute.torch.tensors`, which says so here when it is imported.
"""

from __future__ import annotations

import math
from functools import singledispatch
from typing import Any

import numpy as np
import numpy.typing as npt

Array = Any  # float32 [rows, columns], of NumPy or torch
NumpyArray = npt.NDArray[np.float32]

_erf = np.vectorize(math.erf, otypes=[np.float32])


@singledispatch
def exponential(x: Array) -> Array:
    """e^x of every value; infinite where that is too large."""
    raise TypeError(f"no array: {type(x).__name__}")


@singledispatch
def hyperbolic_tangent(x: Array) -> Array:
    """tanh(x) of every value."""
    raise TypeError(f"no array: {type(x).__name__}")


@singledispatch
def root(x: Array) -> Array:
    """The square root of every value."""
    raise TypeError(f"no array: {type(x).__name__}")


@singledispatch
def soft_plus(x: Array) -> Array:
    """ln(1 + e^x) of every value."""
    raise TypeError(f"no array: {type(x).__name__}")


@singledispatch
def mean(x: Array, axis: int) -> Array:
    """Over an axis, which stays as one of length 1."""
    raise TypeError(f"no array: {type(x).__name__}")


@singledispatch
def largest(x: Array, axis: int) -> Array:
    """Over an axis, which stays as one of length 1."""
    raise TypeError(f"no array: {type(x).__name__}")


@singledispatch
def are_largest(x: Array, count: int) -> Array:
    """Return which values of each row are its `count` largest, as 1 and 0; of equals the first."""
    raise TypeError(f"no array: {type(x).__name__}")


@singledispatch
def join(x: Array, *others: Array, axis: int) -> Array:
    """Arrays one behind the other along an axis."""
    raise TypeError(f"no array: {type(x).__name__}")


@singledispatch
def normal_distribution(x: Array) -> Array:
    """The part of the standard normal distribution below every value."""
    raise TypeError(f"no array: {type(x).__name__}")


@exponential.register(np.ndarray)
def _(x: NumpyArray) -> NumpyArray:
    with np.errstate(over="ignore"):
        return np.asarray(np.exp(x), np.float32)


@hyperbolic_tangent.register(np.ndarray)
def _(x: NumpyArray) -> NumpyArray:
    return np.asarray(np.tanh(x), np.float32)


@normal_distribution.register(np.ndarray)
def _(x: NumpyArray) -> NumpyArray:
    return np.asarray(np.float32(0.5) * (1 + _erf(x * np.float32(math.sqrt(0.5)))), np.float32)


@root.register(np.ndarray)
def _(x: NumpyArray) -> NumpyArray:
    return np.asarray(np.sqrt(x), np.float32)


@soft_plus.register(np.ndarray)
def _(x: NumpyArray) -> NumpyArray:
    return np.asarray(np.logaddexp(x, 0), np.float32)


@mean.register(np.ndarray)
def _(x: NumpyArray, axis: int) -> NumpyArray:
    return np.asarray(x.mean(axis=axis, keepdims=True), np.float32)


@largest.register(np.ndarray)
def _(x: NumpyArray, axis: int) -> NumpyArray:
    return np.asarray(x.max(axis=axis, keepdims=True), np.float32)


@are_largest.register(np.ndarray)
def _(x: NumpyArray, count: int) -> NumpyArray:
    found = np.zeros_like(x)
    np.put_along_axis(found, np.argsort(-x, axis=1, kind="stable")[:, :count], 1, axis=1)
    return found


@join.register(np.ndarray)
def _(x: NumpyArray, *others: NumpyArray, axis: int) -> NumpyArray:
    return np.concatenate((x, *others), axis=axis)
