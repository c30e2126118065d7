"""Layers that share keys and values: the last ones read those of the last layer of their kind before them (Gemma 3n,
small sizes of Gemma 4).
"""

from __future__ import annotations

import math
from dataclasses import replace

from homenode.compute.ops import LayerKv
from homenode.model.config.folder_config import FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats.bounded_files import damaged
from homenode.model.part import ModelPart
from homenode.model.spec import ModelSpec, TensorEntry, Tensors


def has_own(spec: ModelSpec, _part: ModelPart, layer: int | None) -> bool:
    return layer is None or spec.donor_of(layer) == layer


def _shared(own: list[LayerKv], sliding: tuple[bool, ...], first: int) -> tuple[LayerKv | int, ...]:
    """Return what each layer keeps, those from `first` on reading the last layer before it of their kind. ValueError
    where there is none.
    """
    last = {kind: max(layer for layer in range(first) if sliding[layer] == kind) for kind in set(sliding)}
    return tuple(kv if layer < first else last[sliding[layer]] for layer, kv in enumerate(own))


def with_layers(config: FolderConfig | GgufConfig, spec: ModelSpec, own: list[LayerKv], shared: int) -> ModelSpec:
    """The figures with what each layer keeps, the last `shared` of them nothing of their own."""
    sliding = spec.sliding_layers or (False,) * spec.num_layers
    try:
        kept = _shared(own, sliding, spec.num_layers - shared)
    except ValueError as error:
        wanted = "a layer of each kind before them, whose keys and values they read"
        raise damaged(config.path, "layers that share keys and values", seen=shared, wanted=wanted) from error
    for kv in own:
        if spec.num_heads % kv.kv_heads:
            raise damaged(
                config.path, "key-value heads of a layer", seen=kv.kv_heads, wanted=f"a divisor of {spec.num_heads}"
            )
    return replace(
        spec,
        layer_kv=kept,
        num_kv_heads=max(kv.kv_heads for kv in own),
        embedding_scale=math.sqrt(spec.hidden_size),
        attention_scale=1.0,
    )


def without_unread(tensors: Tensors, spec: ModelSpec) -> dict[str, TensorEntry]:
    """The tensors but for keys and values of layers that read those of others, which some files hold all the same."""
    unread = {
        f"model.layers.{layer}.self_attn.{name}.weight"
        for layer in range(spec.num_layers)
        if spec.donor_of(layer) != layer
        for name in ("k_proj", "v_proj", "k_norm", "v_norm")
    }
    return {name: entry for name, entry in tensors.items() if name not in unread}
