"""A block that predicts further tokens as a model of one layer: its figures, after those of the model it belongs to,
and its tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from homenode.model.architectures.architecture import Conversion
from homenode.model.architectures.prediction import EMBEDDING, HEAD, JOINED, OUTPUT_NORM
from homenode.model.checkpoint.output_matrix import same_values
from homenode.model.spec import ModelSpec, PredictionSpec, TensorEntry

_BY_LAYER = (
    "layer_states", "layer_kv", "layer_query_heads", "layer_intermediate", "sliding_layers", "rope_layers",
)  # fmt: skip
_EXPERTS, _INDEXER = "model.layers.0.mlp.experts.", "model.layers.0.self_attn.indexer."


def figures_of_block(spec: ModelSpec, tensors: Mapping[str, TensorEntry], prediction: PredictionSpec) -> ModelSpec:
    """The figures of a block with these tensors in a model with those figures: of its layers it is like the last one
    that attends to everything; whether it has experts, and chooses the tokens that it attends to, its tensors say.
    """
    layer = _model_layer(spec)
    changes: dict[str, Any] = {
        name: tuple(values[layer : layer + 1]) for name in _BY_LAYER if (values := getattr(spec, name))
    }
    if changes.get("layer_states") == (None,):
        changes["layer_states"] = ()
    if isinstance(changes.get("layer_kv", (None,))[0], int):
        changes["layer_kv"] = (spec.kv_of(layer),)
    if spec.delta is not None:
        changes["delta"] = replace(spec.delta, layers=())
    if spec.moe is not None:
        has_experts = any(_EXPERTS in name for name in tensors)
        changes["moe"] = replace(spec.moe, dense_layers=() if has_experts else (0,))
    if spec.indexer is not None:
        chooses = any(_INDEXER in name for name in tensors)
        changes["indexer"] = replace(spec.indexer, layers=(0,)) if chooses else None
    dimensions = {**spec.dimensions, JOINED: 2 * spec.hidden_size}
    return replace(spec, num_layers=1, dimensions=dimensions, prediction=prediction, **changes)


def _model_layer(spec: ModelSpec) -> int:
    attending = [layer for layer in range(spec.num_layers) if spec.kv_of(layer) is not None]
    far = [layer for layer in attending if spec.window_of(layer) is None]
    return (far or attending)[-1]


def tensors_of_block(
    tensors: Mapping[str, TensorEntry], spec: ModelSpec, convert: Conversion, trunk: Mapping[str, TensorEntry]
) -> tuple[dict[str, TensorEntry], ModelSpec]:
    """Its tensors as its architecture has them, and its figures with what tables it has of its own: those that hold
    other values than the model's. `trunk`: the tensors of that.
    """
    found = convert(tensors, spec)
    if OUTPUT_NORM not in found:
        found[OUTPUT_NORM] = trunk[OUTPUT_NORM]
    head = trunk.get(HEAD, trunk[EMBEDDING])
    own = set[str]()
    for key, name, theirs in (("embed", EMBEDDING, trunk[EMBEDDING]), ("lm_head", HEAD, head)):
        if name not in found:
            continue
        if same_values(found[name], theirs):
            del found[name]
        else:
            own.add(key)
    assert spec.prediction is not None  # they are the figures of a block
    tied = spec.tie_word_embeddings and "lm_head" not in own
    return found, replace(spec, tie_word_embeddings=tied, prediction=replace(spec.prediction, own=frozenset(own)))


def with_tables(
    tensors: Mapping[str, TensorEntry], spec: ModelSpec, trunk: Mapping[str, TensorEntry]
) -> tuple[dict[str, TensorEntry], ModelSpec]:
    """The same with an embedding table of its own, for a worker that has none of the model."""
    assert spec.prediction is not None
    if EMBEDDING in tensors:
        return dict(tensors), spec
    own = replace(spec.prediction, own=spec.prediction.own | {"embed"})
    return {**tensors, EMBEDDING: trunk[EMBEDDING]}, replace(spec, prediction=own)
