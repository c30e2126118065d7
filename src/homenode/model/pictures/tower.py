"""A tower on a backend: its tensors, and its programs, each compiled once for as many rows as were needed so far.

Rows come in through `Ops.received`: a program's first columns are patches, or what an earlier program made, and behind
them whatever else of them a family has worked out, such as angles. Sequences are the pictures, tiles or windows within
which rows see each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from homenode.compute.ops import Backend, FloatArray, KvCache, KvGeometry, Ops, StepArrays, StepLimits, Tensor, Weight
from homenode.compute.stored_matrix import StoredMatrix, canonical_rows
from homenode.errors import CheckpointError
from homenode.model.formats.bounded_files import open_file
from homenode.model.formats.fallback_decode import iter_decoded_rows
from homenode.model.spec import TensorEntry

_BLOCK = 32  # tokens of a block of KV memory
_LEAST_ROWS = 1024
Heads = tuple[int, int]  # how many heads of keys, and how wide each is
_NO_HEADS: Heads = (0, 0)
# From the ops, the rows that come in, and the memory for keys and values to rows.
Forward = Callable[[Ops, Tensor, KvCache], Tensor]
Change = Callable[[FloatArray], FloatArray]


class TowerTensors:
    """The tensors of a tower, put into a backend as they are asked for. `storage`: what float matrices are kept as;
    None: as they are stored, where there is a kernel for that. `changes`: what becomes of the values of tensors whose
    names end so, where a file has them otherwise than a folder.
    """

    def __init__(
        self,
        backend: Backend,
        tensors: Mapping[str, TensorEntry],
        where: str,
        storage: str | None = None,
        changes: Mapping[str, Change] | None = None,
    ) -> None:
        self._backend, self._tensors, self._where, self._storage = backend, tensors, where, storage
        self._changes = changes or {}
        self._used: dict[str, TensorEntry] = {}

    @property
    def used(self) -> Sequence[TensorEntry]:
        """The tensors that were asked for so far."""
        return tuple(self._used.values())

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def front(self, name: str, fronts: Sequence[str]) -> str:
        """Return with which of `fronts` the name of a tensor begins here. CheckpointError where it is not there."""
        for front in fronts:
            if f"{front}{name}" in self:
                return front
        self._entry(f"{fronts[0]}{name}")
        return fronts[0]

    def array(self, name: str) -> FloatArray:
        """The values of a tensor. CheckpointError where there is none of this name."""
        entry = self._entry(name)
        flat = np.concatenate([chunk.reshape(-1) for chunk in iter_decoded_rows(entry)])
        values = flat.reshape(entry.shape)
        if heads := entry.permuted_heads:
            stored, values = values, np.empty_like(values)
            values[canonical_rows(len(values), heads)] = stored
        change = self._change(name)
        return values if change is None else np.ascontiguousarray(change(values), np.float32)

    def still(self, name: str) -> FloatArray:
        """The values of a convolution over two frames where both are the same picture: one matrix. Files may have each
        frame's by itself, the second under a further number.
        """
        if f"{name}.1" in self:
            values = self.array(name) + self.array(f"{name}.1")
        else:
            values = self.array(name)
            values = values.sum(axis=2) if values.ndim == 5 else values
        return np.ascontiguousarray(values.reshape(len(values), -1))

    def vector(self, name: str, plus: float = 0.0) -> Tensor:
        """A vector, with `plus` added to each value."""
        return self._backend.vector(self.array(name).reshape(-1) + np.float32(plus))

    def matrix(self, name: str) -> Weight:
        """A matrix; of a convolution all behind its first dimension is columns."""
        entry = self._entry(name)
        if entry.dtype.block > 1 and len(entry.shape) == 2 and self._change(name) is None:
            return self._of_blocks(entry)
        values = self.array(name)
        return self.of_array(values.reshape(len(values), -1), entry.dtype.name if entry.dtype.block == 1 else "F32")

    def storage_of(self, name: str) -> str:
        """The format that a tensor is stored in."""
        return self._entry(name).dtype.name

    def of_array(self, values: FloatArray, stored: str = "F32") -> Weight:
        """A matrix of these values, kept as one that is `stored` so."""
        target = self._storage or stored
        if target not in self._backend.weight_types():
            target = "F32"
        return self._backend.weight_from_array(np.ascontiguousarray(values, np.float32), target)

    def _of_blocks(self, entry: TensorEntry) -> Weight:
        """A matrix of a file's blocks: kept as they are where there is a kernel for them."""
        target = entry.dtype.name if entry.dtype.name in self._backend.weight_types() else "F32"
        with open_file(entry.file) as file:
            rows, columns = entry.shape
            stored = StoredMatrix(
                file.fileno(), entry.offset, entry.dtype, rows, columns, permuted_heads=entry.permuted_heads
            )
            return self._backend.weight_from_file(stored, target)

    def _change(self, name: str) -> Change | None:
        return next((change for end, change in self._changes.items() if name.endswith(end)), None)

    def constant(self, values: FloatArray) -> Tensor:
        """A vector of these values."""
        return self._backend.vector(np.ascontiguousarray(values, np.float32).reshape(-1))

    def layer(self, front: str, names: Mapping[str, str], plus: Mapping[str, float] | None = None) -> dict[str, Any]:
        """The parameters of a block: `names` from keys to modules behind `front`, each with the `weight`, and the
        `bias` where there is one. `plus`: what is added to a vector.
        """
        found: dict[str, Any] = {}
        for key, module in self._parts(front, names).items():
            weight, bias = f"{front}{module}.weight", f"{front}{module}.bias"
            if len(self._entry(weight).shape) == 1:
                found[key] = self.vector(weight, (plus or {}).get(key, 0.0))
            else:
                found[key] = self.matrix(weight)
            if bias in self:
                found[f"{key}_bias"] = self.vector(bias)
        return found

    def _parts(self, front: str, names: Mapping[str, str]) -> Mapping[str, str]:
        """The modules of a block, of which a file may have q, k and v apart where a folder has one."""
        joined = names.get("qkv")
        if joined is None or f"{front}{joined}.weight" in self:
            return names
        apart = {part: joined.replace("qkv", part) for part in "qkv"}
        return {**apart, **{k: v for k, v in names.items() if k != "qkv"}}

    def _entry(self, name: str) -> TensorEntry:
        if name not in self._tensors:
            raise CheckpointError(f"{self._where} has no tensor {name}, which its tower needs")
        self._used[name] = self._tensors[name]
        return self._used[name]


class Tower:
    """The programs of a tower. `heads`, `head_dim`: of the keys of its attention, but where a program says others."""

    def __init__(self, backend: Backend, tensors: TowerTensors, heads: int, head_dim: int) -> None:
        self.tensors = tensors
        self._backend, self._heads = backend, (heads, head_dim)
        self._forwards: dict[str, tuple[Forward, int, Heads]] = {}
        self._programs: dict[str, Any] = {}
        self._room, self._sequences = 0, 0
        self._caches: dict[Heads, KvCache] = {}

    def add(
        self, name: str, columns: int, forward: Forward, *, attends: bool = True, heads: Heads | None = None
    ) -> None:
        """Know a program by its name: rows of `columns` go into it. `attends`: it has attention, whose keys are of
        `heads`; None: of those of the tower.
        """
        self._forwards[name] = (forward, columns, (heads or self._heads) if attends else _NO_HEADS)

    def run(self, name: str, rows: FloatArray, lengths: Sequence[int], seen: int = 0) -> FloatArray:
        """Rows through a program. `lengths`: of the sequences that they are, in order. `seen`: how many rows at the
        beginning of each sequence see all of each other, where attention is of the mask "spans".
        """
        self._make_room(len(rows), len(lengths))
        if name not in self._programs:
            forward, columns, heads = self._forwards[name]
            cache = self._cache_of(heads)
            self._programs[name] = self._backend.compile(
                lambda ops: forward(ops, ops.received(columns), cache),
                StepLimits(self._room, self._sequences, 1, -(-self._room // _BLOCK)),
            )
        found = self._programs[name].run(_arrays(rows, lengths, seen))
        return np.array(np.asarray(found), np.float32)

    def _cache_of(self, heads: Heads) -> KvCache:
        if heads == _NO_HEADS:
            return None
        if heads not in self._caches:
            geometry = KvGeometry.uniform(1, *heads, _BLOCK, "f32")
            self._caches[heads] = self._backend.kv_cache(geometry, -(-self._room // _BLOCK) + self._sequences)
        return self._caches[heads]

    def _make_room(self, rows: int, sequences: int) -> None:
        if rows <= self._room and sequences <= self._sequences:
            return
        self._room = max(self._room, _LEAST_ROWS, 1 << (rows - 1).bit_length())
        self._sequences = max(self._sequences, 16, 1 << (sequences - 1).bit_length())
        self._programs.clear()
        self._caches.clear()


def _arrays(rows: FloatArray, lengths: Sequence[int], seen: int) -> StepArrays:
    counts = np.array(lengths, np.int32)
    blocks = -(-counts // _BLOCK)
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    table = np.zeros((len(counts), int(blocks.max())), np.int32)
    used = 0
    for number, count in enumerate(blocks.tolist()):
        table[number, :count] = np.arange(used, used + count)
        used += count
    positions = np.concatenate([np.arange(count, dtype=np.int32) for count in counts])
    spans = np.zeros((len(rows), 2), np.int32)
    spans[positions < seen, 1] = seen
    return StepArrays(
        ids=np.zeros(len(rows), np.int32),
        positions=positions,
        query_start=starts,
        context_len=counts,
        block_table=table,
        sample_rows=np.zeros(1, np.int32),
        hidden=np.ascontiguousarray(rows, np.float32),
        seen_spans=spans if seen else None,
    )
