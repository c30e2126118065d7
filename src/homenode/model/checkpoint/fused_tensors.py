"""Tensors of GGUF files that hold several matrices of the parameter table one below the other, whichever architecture
the file is of: q, k and v, or gate and up of experts.

Which parts there are is known by name before the model's figures are; how high each is by the figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from homenode.model.architectures.architecture import Architecture
from homenode.model.architectures.parameters import expected_tensors
from homenode.model.formats.bounded_files import damaged
from homenode.model.formats.tensor_parts import rows_of
from homenode.model.spec import ModelSpec, TensorEntry
from homenode.units import format_count

# What a file calls them -> the tensors whose rows they hold, in that order.
FUSED: Mapping[str, tuple[str, ...]] = {
    "attn_qkv": ("attn_q", "attn_k", "attn_v"),
    "ffn_gate_up_exps": ("ffn_gate_exps", "ffn_up_exps"),
}
# Tensors under the names of all that they hold.
FusedTensors = Sequence[tuple[tuple[str, ...], TensorEntry]]


def split_fused(
    tensors: dict[str, TensorEntry], fused: FusedTensors, architecture: Architecture, spec: ModelSpec
) -> dict[str, TensorEntry]:
    """`tensors` with an entry for each part. CheckpointError for a tensor whose rows are not those of its parts."""
    if not fused:
        return tensors
    heights = {e.name: e.shape[0] for e in expected_tensors(architecture.parameters, spec)}
    found = dict(tensors)
    for names, entry in fused:
        rows = [heights.get(name, 0) for name in names]
        if not entry.shape or not all(rows) or entry.shape[0] != sum(rows):
            wanted = f"{format_count(sum(rows), 'row')}, of {', '.join(names)}"
            raise damaged(entry.file, f"shape of tensor {entry.name}", seen=list(entry.shape), wanted=wanted)
        first = 0
        for name, count in zip(names, rows, strict=True):
            found[name] = rows_of(entry, name, first, count)
            first += count
    return found
