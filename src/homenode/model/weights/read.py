"""Moving a model's bytes from its files into a backend, as its layout says.

At most one matrix at a time exists as float32 beside the packed ones, and only when the backend cannot read its format
by itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from homenode.compute.ops import Backend, FloatArray, MatrixPlacement, TableBackend, Weight
from homenode.compute.stored_matrix import StoredMatrix, canonical_rows
from homenode.errors import CheckpointError, HostError, InternalError, UnsupportedError
from homenode.host.bind.base.temporary import nameless_file
from homenode.host.refusals import named_refusals
from homenode.model.architectures.parameters import Parameters
from homenode.model.formats import coded_rows
from homenode.model.formats.bounded_files import read_at
from homenode.model.formats.fallback_decode import iter_decoded_rows
from homenode.model.part import IndexRange
from homenode.model.spec import TensorEntry
from homenode.model.weights.expert_memory import SharedExperts
from homenode.model.weights.finite_check import check_finite
from homenode.model.weights.layout import READ_BY_BACKENDS, WeightLayout
from homenode.model.weights.model_files import ModelFiles
from homenode.model.weights.names import MatchedTensor
from homenode.model.weights.packed_cache import PackedCache
from homenode.model.weights.read_ahead import Extent, ReadAhead
from homenode.numa_policy import NumaPolicy
from homenode.units import format_count

IndexArray = npt.NDArray[np.int64]
MatrixPolicyOf = Callable[[str], NumaPolicy]  # of a tensor's name
PlaceOf = Callable[[str], MatrixPlacement]
Progress = Callable[[int, int], None]  # bytes of the files taken in so far, bytes in all


def read_parameters(
    tensors: Iterable[MatchedTensor],
    layout: WeightLayout,
    backend: Backend,
    layers: IndexRange,
    files: ModelFiles,
    progress: Progress | None = None,
    cache: PackedCache | None = None,
    place_of: PlaceOf = lambda name: NumaPolicy.SHARD,
    experts: SharedExperts | None = None,
) -> Parameters:
    """Read every tensor, or what is wanted of it, and hand it to the backend; matrices from `cache` where it has them.
    `layers`: those of the part. `files`: of the model.

    `experts`: those kept in common with others, of which this reads its own share, if that is not ready, and waits for
    the rest. Raises CheckpointError when a file is gone or ends before a tensor does, or a vector holds what is no
    number, what the backend raises for failed reads, and what `experts` does.
    """
    todo = list(tensors)
    here = [t for t in todo if experts is None or experts.is_read(t.entry.name)]
    total = sum(t.nbytes for t in here)
    matrices = _Matrices(backend, {m.name: m.target for m in layout.matrices}, place_of, cache, experts)
    handles: dict[str, Any] = {}
    done = 0

    def tell() -> None:
        if progress is not None:
            progress(done, total)

    with ReadAhead([_extents(t, cache) for t in here], files.open) as ahead:
        for tensor in here:
            entry, expected = tensor.entry, tensor.expected
            with _said_of(entry):
                if expected.parameter.kind == "table":
                    assert isinstance(backend, TableBackend)  # `require_tables` has looked
                    fd = files.open(entry.file)
                    handles[entry.name] = backend.stored_table(fd, entry.offset, entry.dtype, *entry.shape)
                elif expected.parameter.kind == "vector":
                    values = check_finite(_load_vector(files.open(entry.file), entry, expected.cut[0]), entry)
                    handles[entry.name] = backend.vector(values)
                else:
                    handles[entry.name] = matrices.load(files, tensor)
            done += tensor.nbytes
            ahead.advance()
            tell()
    if experts:
        handles |= matrices.keep(experts.complete(tell))
    return _by_key(todo, handles, layers)


def require_tables(tensors: Iterable[MatchedTensor], backend: Backend) -> None:
    """UnsupportedError for a table that this backend cannot leave in its file, or that is no table there."""
    for tensor in tensors:
        if tensor.expected.parameter.kind == "table" and (tensor.entry.coded or not isinstance(backend, TableBackend)):
            why = "as codes and scales" if tensor.entry.coded else f"with --backend {backend.name}"
            raise UnsupportedError(
                f"{tensor.entry.file}: {tensor.entry.name} {why} is not supported; homenode reads its rows from the "
                f"file, as floats or GGUF blocks, with --backend native"
            )


def _extents(tensor: MatchedTensor, cache: PackedCache | None) -> list[Extent]:
    """Return where the bytes lie that will be read of a tensor, in whole rows; nowhere where the packed
    cache has it.
    """
    entry, cut = tensor.entry, tensor.expected.cut
    if tensor.expected.parameter.kind == "table" or (cache is not None and cache.has(entry.name)):
        return []
    if entry.coded or len(cut) != 2 or cut[0].runs > 1:
        return [(part.file, part.offset, part.nbytes) for part in entry.stored]
    row_bytes = entry.dtype.row_bytes(entry.shape[1])
    return [(entry.file, entry.offset + cut[0].first * row_bytes, cut[0].count * row_bytes)]


@contextmanager
def _said_of(entry: TensorEntry) -> Iterator[None]:
    """Say of which tensor and file it is what the machine refuses: backends know descriptors and offsets only."""
    try:
        with named_refusals(f"reading {entry.name} of {entry.file}", CheckpointError):
            yield
    except HostError as error:
        if str(entry.file) in error.message:
            raise
        raise HostError(f"reading {entry.name} of {entry.file}: {error.message}", **error.facts) from error


@dataclass(frozen=True)
class _Matrices:
    """The places that matrices come from and go to."""

    backend: Backend
    targets: Mapping[str, str]
    place_of: PlaceOf
    cache: PackedCache | None
    experts: SharedExperts | None

    def load(self, files: ModelFiles, tensor: MatchedTensor) -> Weight:
        """Load from the packed cache where it has the matrix, else from the model."""
        name = tensor.entry.name
        if self.cache and (found := self.cache.weight(name)) is not None:
            return found
        if self.cache and self.experts and self.cache.has_begun(name):
            self.experts.clear(name)
        target, place = self.targets[name], self.place_of(name)
        if tensor.entry.coded:
            weight = _load_coded(self.backend, tensor, target, place)
        else:
            weight = _load_matrix(self.backend, files.open(tensor.entry.file), tensor, target, place)
        return self.keep({name: weight})[name]

    def keep(self, weights: dict[str, Weight]) -> dict[str, Weight]:
        """Keep these for the cache, too, if it is written."""
        if self.cache:
            self.cache.add(weights)
        return weights


def _by_key(tensors: Iterable[MatchedTensor], handles: Mapping[str, Any], layers: IndexRange) -> Parameters:
    """The handles of tensors, by name, as forward functions find them."""
    top: dict[str, Any] = {}
    found: list[dict[str, Any]] = [{} for _ in range(layers.count)]
    for tensor in tensors:
        expected = tensor.expected
        owner = top if expected.layer is None else found[expected.layer - layers.first]
        if not expected.is_one_of_several:
            owner[expected.parameter.key] = handles[tensor.entry.name]
        else:
            owner.setdefault(expected.parameter.key, []).append(handles[tensor.entry.name])
    return Parameters(top, tuple(found), handles)


def _load_matrix(backend: Backend, fd: int, tensor: MatchedTensor, target: str, placement: MatrixPlacement) -> Weight:
    entry, (rows, columns) = tensor.entry, tensor.expected.cut
    if entry.dtype.name not in READ_BY_BACKENDS or entry.times != 1.0:
        blocks = [[_decode(entry, run, piece) for piece in columns.pieces] for run in rows.pieces]
        return backend.weight_from_array(np.block(blocks), target, placement)
    row_bytes = entry.dtype.row_bytes(entry.shape[1])
    if rows.runs > 1 or columns.runs > 1:
        return _load_runs(backend, tensor, target, placement)
    stored = StoredMatrix(
        fd,
        entry.offset + rows.first * row_bytes + entry.dtype.row_bytes(columns.first),
        entry.dtype,
        rows.count,
        columns.count,
        row_bytes if columns.count < entry.shape[1] else 0,
        _heads(entry, rows),
    )
    return backend.weight_from_file(stored, target, placement)


def _load_runs(backend: Backend, tensor: MatchedTensor, target: str, placement: MatrixPlacement) -> Weight:
    """A matrix of which several runs of rows, or of columns, are wanted: put together in memory."""
    entry, (rows, columns) = tensor.entry, tensor.expected.cut
    width, of = entry.dtype.row_bytes(entry.shape[1]), entry.dtype.row_bytes
    joined = nameless_file("homenode-runs")
    with os.fdopen(joined, "wb") as file:
        for piece in rows.pieces:
            stored = np.frombuffer(
                read_at(entry.file, entry.offset + piece.first * width, piece.count * width), np.uint8
            )
            runs = [stored.reshape(-1, width)[:, of(run.first) : of(run.end)] for run in columns.pieces]
            file.write(np.concatenate(runs, axis=1).tobytes())
        file.flush()
        return backend.weight_from_file(
            StoredMatrix(joined, 0, entry.dtype, rows.count, columns.count), target, placement
        )


def _load_coded(backend: Backend, tensor: MatchedTensor, target: str, placement: MatrixPlacement) -> Weight:
    """A matrix of several tensors: put together in memory, as blocks that backends read as those of a file, or as
    floats.
    """
    entry, (rows, columns) = tensor.entry, tensor.expected.cut
    wanted, heads = ((rows.first, rows.end), (columns.first, columns.end)), _heads(entry, rows)
    if entry.dtype.block == 1:
        values = coded_rows.decoded(entry, *wanted)
        if heads:
            stored, values = values, np.empty_like(values)
            values[canonical_rows(rows.count, heads)] = stored
        return backend.weight_from_array(values, target, placement)
    fd = nameless_file("homenode-blocks")
    try:
        coded_rows.write_blocks(entry, *wanted, fd)
        blocks = StoredMatrix(fd, 0, entry.dtype, rows.count, columns.count, permuted_heads=heads)
        return backend.weight_from_file(blocks, target, placement)
    finally:
        os.close(fd)


def _heads(entry: TensorEntry, rows: IndexRange) -> int:
    """Return how many heads of interleaved halves these rows of the tensor are; 0 where rows are in order."""
    if not entry.permuted_heads:
        return 0
    head = entry.shape[0] // entry.permuted_heads
    if rows.first % head or rows.count % head:
        raise InternalError(
            f"rows {rows.first} to {rows.end} of {entry.name} were asked for; heads of {format_count(head, 'row')} "
            f"cannot be cut"
        )
    return rows.count // head


def _load_vector(fd: int, entry: TensorEntry, cut: IndexRange) -> FloatArray:
    """Some of a vector as float32. Nearly all are stored so: a read from the open file is then a fraction of
    the work.
    """
    if cut.runs > 1:
        return np.concatenate([_load_vector(fd, entry, piece) for piece in cut.pieces])
    if entry.times != 1.0:
        return _load_vector(fd, replace(entry, times=1.0), cut) * np.float32(entry.times)
    if entry.coded:
        column = replace(entry, shape=(*entry.shape, 1))
        return coded_rows.decoded(column, (cut.first, cut.end), (0, 1))[:, 0] + np.float32(entry.plus)
    if entry.function != "identity":
        stored = _load_vector(fd, replace(entry, function="identity"), cut)
        return -np.exp(stored) if entry.function == "negative_exponential" else np.logaddexp(stored, np.float32(0))
    if entry.dtype.name == "F32" and len(entry.shape) == 1 and not entry.permuted_heads and not entry.plus:
        data = os.pread(fd, entry.nbytes, entry.offset)
        if len(data) == entry.nbytes:
            return np.frombuffer(data, "<f4")[cut.first : cut.end]
    whole = _decode(
        replace(entry, shape=(1, *entry.shape), permuted_heads=0), IndexRange(0, 1), IndexRange(0, entry.shape[0])
    )[0]
    vector = np.empty(len(whole), np.float32)
    vector[canonical_rows(len(whole), entry.permuted_heads)] = whole + np.float32(entry.plus)
    return vector[cut.first : cut.end]


def _decode(entry: TensorEntry, rows: IndexRange, columns: IndexRange) -> FloatArray:
    """Some rows and columns of a matrix as float32 in Hugging Face's order, whatever it is stored as."""
    row_bytes = entry.dtype.row_bytes(entry.shape[1])
    here = replace(
        entry,
        shape=(rows.count, entry.shape[1]),
        offset=entry.offset + rows.first * row_bytes,
        nbytes=rows.count * row_bytes,
    )
    order = canonical_rows(rows.count, _heads(entry, rows))
    decoded = np.empty((rows.count, columns.count), np.float32)
    filled = 0
    for chunk in iter_decoded_rows(here):
        decoded[order[filled : filled + len(chunk)]] = chunk[:, columns.first : columns.end]
        filled += len(chunk)
    return decoded if entry.times == 1.0 else decoded * np.float32(entry.times)
