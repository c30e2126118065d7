"""A block that predicts further tokens as a model of one layer: its figures, after those of the model it belongs to,
and its tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from homenode.errors import CheckpointError, UnsupportedError
from homenode.model.architectures.architecture import Architecture, Conversion
from homenode.model.architectures.parameters import expected_tensors
from homenode.model.architectures.prediction import EMBEDDING, HEAD, JOINED, OUTPUT_NORM, predicting
from homenode.model.checkpoint.output_matrix import same_values
from homenode.model.checkpoint.prediction_blocks import BlockTensors
from homenode.model.spec import ModelSpec, TensorEntry

_BY_LAYER = (
    "layer_states",
    "layer_kv",
    "layer_query_heads",
    "layer_intermediate",
    "sliding_layers",
    "rope_layers",
)
_EXPERTS, _INDEXER = "model.layers.0.mlp.experts.", "model.layers.0.self_attn.indexer."
Block = tuple[ModelSpec, dict[str, TensorEntry]]


def read_block(
    block: BlockTensors,
    spec: ModelSpec,
    architecture: Architecture,
    convert: Conversion,
    trunk: Mapping[str, TensorEntry],
) -> Block | None:
    """The figures and tensors of a block in a model with those figures, whose tensors are `trunk`. Of the model's
    layers it is like the last one that its tensors fit: one that attends to everything, or else one with a window.
    None where homenode cannot run such a block in this model, which is the same without.
    """
    made: list[Block] = []
    for layer in _layers_alike(spec):
        with suppress(CheckpointError, UnsupportedError):
            figures = _figures(spec, layer, block)
            made.append(_with_own_tables(convert(block.tensors, figures), figures, trunk))
            if _fits(architecture, *made[-1]):
                return made[-1]
    return made[0] if made else None  # whoever wants it is told what is wrong


def _layers_alike(spec: ModelSpec) -> Iterator[int]:
    """Layers that a block may be like. None in models whose rows are several, or whose layers pool them, or that keep
    states where they are no gated delta nets: blocks of these are other ones.
    """
    if spec.pooled is not None or spec.mixer is not None or spec.streams > 1:
        return
    attending = [layer for layer in range(spec.num_layers) if spec.kv_of(layer) is not None]
    for near in (False, True):
        kind = [layer for layer in attending if (spec.window_of(layer) is not None) == near]
        yield from kind[-1:]


def _figures(spec: ModelSpec, layer: int, block: BlockTensors) -> ModelSpec:
    """The figures of a block that is like a layer of the model; whether it has experts, and chooses the tokens that it
    attends to, its tensors say.
    """
    own = {name: values[layer : layer + 1] for name in _BY_LAYER if (values := getattr(spec, name))}
    changes: dict[str, Any] = {**own, "layer_states": ()}
    if spec.layer_kv:
        changes["layer_kv"] = (spec.kv_of(layer),)
    if spec.delta is not None:
        changes["delta"] = replace(spec.delta, layers=())
    if spec.moe is not None:
        has_experts = any(_EXPERTS in name for name in block.tensors)
        changes["moe"] = replace(spec.moe, dense_layers=() if has_experts else (0,))
    if spec.indexer is not None:
        chooses = any(_INDEXER in name for name in block.tensors)
        changes["indexer"] = replace(spec.indexer, layers=(0,)) if chooses else None
    dimensions = {**spec.dimensions, JOINED: 2 * spec.hidden_size}
    return replace(spec, num_layers=1, dimensions=dimensions, prediction=block.spec, **changes)


def _with_own_tables(tensors: Mapping[str, TensorEntry], spec: ModelSpec, trunk: Mapping[str, TensorEntry]) -> Block:
    """The figures with what tables the block has of its own, which hold other values than the model's, and its tensors
    with the model's last norm where it has none.
    """
    found, own = dict(tensors), set[str]()
    if OUTPUT_NORM not in found and OUTPUT_NORM in trunk:
        found[OUTPUT_NORM] = trunk[OUTPUT_NORM]
    tables = (("embed", EMBEDDING, trunk.get(EMBEDDING)), ("lm_head", HEAD, trunk.get(HEAD, trunk.get(EMBEDDING))))
    for key, name, theirs in tables:
        if name in found and theirs is not None and same_values(found[name], theirs):
            del found[name]
        elif name in found:
            own.add(key)
    assert spec.prediction is not None  # they are the figures of a block
    tied = spec.tie_word_embeddings and "lm_head" not in own
    return replace(spec, tie_word_embeddings=tied, prediction=replace(spec.prediction, own=frozenset(own))), found


def _fits(architecture: Architecture, spec: ModelSpec, tensors: Mapping[str, TensorEntry]) -> bool:
    wanted = expected_tensors(predicting(architecture).parameters, spec)
    return all(each.name in tensors and tensors[each.name].shape == each.shape for each in wanted)


def with_tables(spec: ModelSpec, tensors: Mapping[str, TensorEntry], trunk: Mapping[str, TensorEntry]) -> Block:
    """The same with an embedding table of its own, for a worker that has none of the model."""
    assert spec.prediction is not None
    if EMBEDDING in tensors:
        return spec, dict(tensors)
    own = replace(spec.prediction, own=spec.prediction.own | {"embed"})
    return replace(spec, prediction=own), {**tensors, EMBEDDING: trunk[EMBEDDING]}
