"""Matrices that lie one below the other in a tensor, query, key and value, or gate and up -> an entry for each, as
other models have them.
"""

from __future__ import annotations

from collections.abc import Mapping

from homenode.model.formats.bounded_files import damaged
from homenode.model.formats.tensor_parts import rows_of
from homenode.model.spec import ModelSpec, TensorEntry
from homenode.units import format_count

_DIMENSIONS = {"weight": 2, "bias": 1}


def split_fused_rows(tensors: Mapping[str, TensorEntry], spec: ModelSpec) -> dict[str, TensorEntry]:
    """The tensors of a model, those that hold several matrices as an entry for each, and their biases likewise.

    CheckpointError for one of another height than its matrices.
    """
    query, kv, inner = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim, spec.intermediate_size
    parts = {
        "self_attn.qkv_proj": {"q_proj": query, "k_proj": kv, "v_proj": kv},
        "mlp.gate_up_proj": {"gate_proj": inner, "up_proj": inner},
    }
    found: dict[str, TensorEntry] = {}
    for name, entry in tensors.items():
        module, _, kind = name.rpartition(".")
        ending = next((ending for ending in parts if module.endswith(ending) and kind in _DIMENSIONS), None)
        entries = {name: entry} if ending is None else _entries_of(entry, module, kind, parts[ending])
        if both := sorted(found.keys() & entries.keys()):
            raise damaged(entry.file, f"tensor {name}", seen=f"{both[0]}, too", wanted="every matrix once")
        found |= entries
    return found


def _entries_of(entry: TensorEntry, module: str, kind: str, heights: dict[str, int]) -> dict[str, TensorEntry]:
    rows = sum(heights.values())
    if len(entry.shape) != _DIMENSIONS[kind] or entry.shape[0] != rows or entry.nbytes % rows:
        raise damaged(
            entry.file,
            f"shape of tensor {entry.name}",
            seen=list(entry.shape),
            wanted=f"{format_count(rows, 'row')}, of {', '.join(heights)}",
        )
    front = module.rpartition(".")[0]
    first, found = 0, {}
    for part, height in heights.items():
        name = f"{front}.{part}.{kind}"
        found[name] = rows_of(entry, name, first, height)
        first += height
    return found
