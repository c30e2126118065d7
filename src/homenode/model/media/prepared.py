"""A file as the tower of a model takes it, and its arrays in frames between processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
ArrayWords = Sequence[Sequence[Any]]  # of each array its type and its lengths, as JSON has them
_TYPES = ("|u1", "<i2", "<f4")  # of elements


@dataclass(frozen=True)
class PreparedFile:
    """Arrays that were made of a file. `layout`: how it was cut, as its family says it: JSON has it as a list."""

    arrays: Sequence[Array]
    layout: Sequence[Any]


# Reads the bytes of a file; `alone`: the request has no other of its medium. RefusedFileError where it is damaged or of
# an unknown form, ValueError where it cannot be cut.
FileReader = Callable[[bytes, bool], PreparedFile]


def array_words(arrays: Sequence[Array]) -> list[list[Any]]:
    """Return what arrays are, besides their bytes."""
    return [[array.dtype.str, *array.shape] for array in arrays]


def array_bytes(arrays: Sequence[Array]) -> bytes:
    """The elements of arrays, one behind the other."""
    return b"".join(array.tobytes() for array in arrays)


def num_bytes(words: ArrayWords) -> int:
    """Return how many bytes such arrays have. ValueError for words that are of none."""
    for dtype, *shape in words:
        if dtype not in _TYPES or not all(isinstance(length, int) and length >= 0 for length in shape):
            raise ValueError(f"{dtype} {shape} is no array")
    return sum(int(dtype[-1]) * prod(shape) for dtype, *shape in words)


def arrays_of(words: ArrayWords, data: bytes) -> list[Array]:
    """The arrays that these are. ValueError for words of others."""
    if num_bytes(words) != len(data):
        raise ValueError(f"{len(data)} bytes are not those of the arrays")
    found, at = [], 0
    for dtype, *shape in words:
        array = np.frombuffer(data, dtype, prod(shape), at).reshape(shape)
        found.append(array)
        at += array.nbytes
    return found
