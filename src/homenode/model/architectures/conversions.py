"""Conversions of stored tensors that several families share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from homenode.model.formats.bounded_files import damaged
from homenode.model.formats.tensor_parts import rows_of
from homenode.model.spec import ModelSpec, TensorEntry
from homenode.units import format_count

Tensors = Mapping[str, TensorEntry]


def norms_plus_one(tensors: Tensors, _spec: ModelSpec, end: str = "norm.weight") -> dict[str, TensorEntry]:
    """The tensors of a folder, one added to the weights of norms. `end`: of the names of those."""
    return {n: replace(entry, plus=1.0) if n.endswith(end) else entry for n, entry in tensors.items()}


def interleaved_heads(tensors: Tensors, spec: ModelSpec) -> dict[str, TensorEntry]:
    """The tensors of a GGUF file whose converter reordered the rows of q and k, weights and biases alike, for a rope
    that turns neighbours.

    CheckpointError for one that has not as many rows as its heads.
    """
    heads = {"q_proj": spec.num_heads, "k_proj": spec.num_kv_heads}
    found = {}
    for name, entry in tensors.items():
        module, _, _ = name.rpartition(".")
        count = heads.get(module.rpartition(".self_attn.")[2], 0)
        if count and (not entry.shape or entry.shape[0] != count * spec.head_dim):
            wanted = f"{format_count(count, 'head')} of {format_count(spec.head_dim, 'row')}"
            raise damaged(entry.file, f"shape of {name}", seen=list(entry.shape), wanted=wanted)
        found[name] = replace(entry, permuted_heads=count)
    return found


def halves(entry: TensorEntry, upper: str, lower: str) -> dict[str, TensorEntry]:
    """Both halves of the rows of a matrix, such as gate and up in one, under these names. CheckpointError for an odd
    number of rows.
    """
    if len(entry.shape) != 2 or entry.shape[0] % 2:
        wanted = "as many rows of gate as of up"
        raise damaged(entry.file, f"shape of {entry.name}", seen=list(entry.shape), wanted=wanted)
    half = entry.shape[0] // 2
    return {upper: rows_of(entry, upper, 0, half), lower: rows_of(entry, lower, half, half)}
