"""Moving a model's bytes from its files into a backend, as its layout says.

At most one matrix at a time exists as float32 beside the packed ones, and only when the backend cannot read its format by itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from homenode.compute.ops import Backend, FloatArray, Spread, Weight
from homenode.errors import CheckpointError
from homenode.model.architectures.parameters import Parameters
from homenode.model.checkpoint.fallback_decode import iter_decoded_rows
from homenode.model.checkpoint.spec import TensorEntry
from homenode.model.weights.layout import READ_BY_BACKENDS, WeightLayout
from homenode.model.weights.names import MatchedTensor
from homenode.model.weights.packed_cache import PackedCache

IndexArray = npt.NDArray[np.int64]
SpreadOf = Callable[[str], Spread]  # of a tensor's name
Progress = Callable[[int, int], None]  # bytes of the files taken in so far, bytes in all


def read_parameters(
    tensors: Iterable[MatchedTensor],
    layout: WeightLayout,
    backend: Backend,
    num_layers: int,
    progress: Progress | None = None,
    cache: PackedCache | None = None,
    spread_of: SpreadOf = lambda name: "split",
) -> Parameters:
    """Read every tensor and hand it to the backend; matrices from `cache` where it has them.

    Raises CheckpointError when a file is gone or ends before a tensor does, and what the backend raises for failed reads.
    """
    todo = list(tensors)
    targets = {m.name: m.target for m in layout.matrices}
    total = sum(t.entry.nbytes for t in todo)
    top: dict[str, Any] = {}
    layers: list[dict[str, Any]] = [{} for _ in range(num_layers)]
    done = 0
    with _Files() as files:
        for tensor in todo:
            entry, expected = tensor.entry, tensor.expected
            if expected.parameter.kind == "vector":
                handle = backend.vector(_load_vector(files.open(entry.file), entry))
            else:
                handle = cache.weight(entry.name) if cache else None
                if handle is None:
                    handle = _load_matrix(backend, files.open(entry.file), entry, targets[entry.name], spread_of(entry.name))
                    if cache:
                        cache.add(entry.name, handle)
            owner = top if expected.layer is None else layers[expected.layer]
            if expected.expert is None:
                owner[expected.parameter.key] = handle
            else:
                owner.setdefault(expected.parameter.key, []).append(handle)
            done += entry.nbytes
            if progress is not None:
                progress(done, total)
    if cache:
        cache.complete()
    return Parameters(top, tuple(layers))


class _Files:
    """Each file of a model, opened once, closed together."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._fds: dict[Path, int] = {}

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, *unused: object) -> None:
        self._stack.close()

    def open(self, path: Path) -> int:
        """A descriptor of `path` to read from; CheckpointError when it cannot be opened."""
        if path not in self._fds:
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise CheckpointError(f"{path} cannot be opened: {error.strerror}; it was there when the model was looked at") from error
            self._stack.callback(os.close, fd)
            self._fds[path] = fd
        return self._fds[path]


def _load_matrix(backend: Backend, fd: int, entry: TensorEntry, target: str, spread: Spread) -> Weight:
    rows, columns = entry.shape
    if entry.dtype.name in READ_BY_BACKENDS:
        return backend.weight_from_file(fd, entry.offset, entry.dtype, rows, columns, target, entry.permuted_heads, spread)
    return backend.weight_from_array(_decode(entry), target, spread)


def _load_vector(fd: int, entry: TensorEntry) -> FloatArray:
    """A vector as float32. Nearly all are stored so: a read from the open file is then a fraction of the work."""
    if entry.dtype.name == "F32" and len(entry.shape) == 1 and not entry.permuted_heads:
        data = os.pread(fd, entry.nbytes, entry.offset)
        if len(data) == entry.nbytes:
            return np.frombuffer(data, "<f4")
    return _decode(entry)


def _decode(entry: TensorEntry) -> FloatArray:
    """A matrix, or a vector, as float32 in Hugging Face's order, whatever it is stored as."""
    order = canonical_rows(entry.shape[0], entry.permuted_heads)
    decoded = np.empty(entry.shape, np.float32)
    filled = 0
    for chunk in iter_decoded_rows(entry):
        values = chunk if len(entry.shape) == 2 else chunk.reshape(-1)  # a vector comes as one row
        decoded[order[filled : filled + len(values)]] = values
        filled += len(values)
    return decoded


def canonical_rows(rows: int, heads: int) -> IndexArray:
    """Where each stored row belongs. In GGUF's llama order row 2j + h of each of `heads` heads is its row h * half + j; with 0 heads all are in place."""
    order: IndexArray = np.arange(rows)
    return order.reshape(heads, 2, -1).swapaxes(1, 2).reshape(-1) if heads else order
