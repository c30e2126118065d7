"""Matrices that lie one below the other in a tensor: Phi 3's query, key and value, and its gate and up -> an entry for each, as other models have them."""

from __future__ import annotations

from dataclasses import replace

from homenode.errors import UnsupportedError
from homenode.model.checkpoint.reading import damaged
from homenode.model.checkpoint.spec import ModelSpec, TensorEntry

FUSED = ("phi3",)  # architectures that store them so


def with_rows_apart(tensors: dict[str, TensorEntry], spec: ModelSpec) -> dict[str, TensorEntry]:
    """The tensors of a model, those that hold several matrices as an entry for each.

    CheckpointError for one of another height than its matrices, UnsupportedError for one that is quantised in a folder.
    """
    query, kv, inner = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim, spec.intermediate_size
    parts = {
        "self_attn.qkv_proj.weight": {"q_proj": query, "k_proj": kv, "v_proj": kv},
        "mlp.gate_up_proj.weight": {"gate_proj": inner, "up_proj": inner},
    }
    found: dict[str, TensorEntry] = {}
    for name, entry in tensors.items():
        ending = next((ending for ending in parts if name.endswith(ending)), None)
        apart = {name: entry} if ending is None else _apart(entry, parts[ending])
        if both := sorted(found.keys() & apart.keys()):
            raise damaged(entry.file, f"tensor {name}", seen=f"{both[0]}, too", wanted="every matrix once")
        found |= apart
    return found


def _apart(entry: TensorEntry, heights: dict[str, int]) -> dict[str, TensorEntry]:
    if entry.coded:
        raise UnsupportedError(
            f"{entry.file}: tensor {entry.name} is several matrices, quantised together ({entry.coded.label}); homenode reads them unquantised, and in GGUF files"
        )
    rows = sum(heights.values())
    if len(entry.shape) != 2 or entry.shape[0] != rows or entry.nbytes % rows:
        raise damaged(entry.file, f"shape of tensor {entry.name}", seen=list(entry.shape), wanted=f"{rows} rows, of {', '.join(heights)}")
    front = entry.name.removesuffix(".weight").rpartition(".")[0]
    row_bytes, first, found = entry.nbytes // rows, 0, {}
    for part, height in heights.items():
        name = f"{front}.{part}.weight"
        found[name] = replace(
            entry, name=name, shape=(height, entry.shape[1]), offset=entry.offset + first * row_bytes, nbytes=height * row_bytes
        )
        first += height
    return found
