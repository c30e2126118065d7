"""Conversions of stored tensors that several families share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from homenode.model.formats.bounded_files import damaged
from homenode.model.formats.tensor_parts import rows_of, runs_of, transposed
from homenode.model.spec import ModelSpec, TensorEntry, Tensors
from homenode.units import format_count


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


def split_grouped_rows(tensors: Tensors, spec: ModelSpec) -> dict[str, TensorEntry]:
    """The tensors of a folder whose `self_attn.grouped_qkv` has for each KV head the rows of its query heads, its key
    and its value, as an entry for each of q, k and v. CheckpointError for one of another height.
    """
    found: dict[str, TensorEntry] = {}
    head, groups = spec.head_dim, spec.num_kv_heads
    queries = spec.num_heads // groups * head
    apart = queries + 2 * head
    for name, entry in tensors.items():
        front, fused, kind = name.partition(".grouped_qkv.")
        if not fused:
            found[name] = entry
            continue
        if not entry.shape or entry.shape[0] != groups * apart:
            wanted = f"{format_count(groups, 'group')} of {format_count(apart, 'row')}"
            raise damaged(entry.file, f"shape of tensor {entry.name}", seen=list(entry.shape), wanted=wanted)
        for part, first, run in (("q", 0, queries), ("k", queries, head), ("v", queries + head, head)):
            each = f"{front}.{part}_proj.{kind}"
            found[each] = runs_of(entry, each, first, groups * run, run, apart)
    return found


def split_piled_experts(
    tensors: Tensors, spec: ModelSpec, pile: str, parts: Mapping[str, str]
) -> dict[str, TensorEntry]:
    """The tensors with each expert's matrices by themselves, of which layers have one below the other as `pile` and one
    of `parts`, that for down with its columns as rows. CheckpointError for one of another height.
    """
    found: dict[str, TensorEntry] = {}
    experts, size = (spec.moe.num_experts, spec.moe.intermediate_size) if spec.moe is not None else (0, 0)
    for name, entry in tensors.items():
        front, _, part = name.partition(pile)
        if part not in parts:
            found[name] = entry
            continue
        if len(entry.shape) != 2 or entry.shape[0] != experts * size:
            wanted = f"{format_count(size, 'row')} of each of {format_count(experts, 'expert')}"
            raise damaged(entry.file, f"shape of {name}", seen=list(entry.shape), wanted=wanted)
        for expert in range(experts):
            own = f"{front}.mlp.experts.{expert}.{parts[part]}.weight"
            rows = rows_of(entry, own, expert * size, size)
            found[own] = transposed(rows, own) if parts[part] == "down_proj" else rows
    return found


def renamed_tensors(tensors: Tensors, patterns: Iterable[tuple[re.Pattern[str], str]]) -> dict[str, TensorEntry]:
    """The tensors under other names: what matches a pattern, one after the other, becomes what stands beside it."""
    found = {}
    for name, entry in tensors.items():
        for pattern, ours in patterns:
            name = pattern.sub(ours, name)
        found[name] = replace(entry, name=name)
    return found
