"""Blocks that predict further tokens (multi-token prediction, MTP; DeepSeek-AI 2024): a layer of the model's own
architecture over rows that are made of a token's embedding and the model's row of the token before, both normed.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.compute.ops import Ops, Tensor
from homenode.model.architectures.architecture import Architecture
from homenode.model.architectures.parameters import Condition, ForwardContext, Parameter
from homenode.model.part import ModelPart
from homenode.model.spec import ModelSpec

# What the tensors of such a block are called here, whatever they are in files: those of a layer are the first layer's.
TOKEN_NORM, ROW_NORM, JOIN = "model.token_norm.weight", "model.row_norm.weight", "model.join.weight"
OUTPUT_NORM, EMBEDDING, HEAD = "model.norm.weight", "model.embed_tokens.weight", "lm_head.weight"
JOINED = "joined"  # the dimension of an embedding and a row beside each other


def _has(table: str) -> Condition:
    def holds(spec: ModelSpec, _part: ModelPart, _layer: int | None) -> bool:
        return spec.prediction is not None and table in spec.prediction.own

    return holds


PARAMETERS = (
    Parameter("embed", EMBEDDING, ("vocabulary", "hidden"), "", _has("embed")),
    Parameter("token_norm", TOKEN_NORM, ("hidden",), ""),
    Parameter("row_norm", ROW_NORM, ("hidden",), ""),
    Parameter("join", JOIN, ("hidden", JOINED), ""),
    Parameter("norm", OUTPUT_NORM, ("hidden",), ""),
    Parameter("lm_head", HEAD, ("vocabulary", "hidden"), "", _has("lm_head")),
)


def predicting(architecture: Architecture) -> Architecture:
    """The architecture of a block that predicts, in a model of this one."""
    layers = tuple(parameter for parameter in architecture.parameters if parameter.per_layer)
    return replace(architecture, parameters=(*PARAMETERS, *layers))


def joined(ops: Ops, model: ForwardContext, embedded: Tensor) -> Tensor:
    """The rows that such a block begins with: of the tokens' embeddings, and of the rows that it receives."""
    top, epsilon, prediction = model.parameters.top, model.spec.norm_eps, model.spec.prediction
    assert prediction is not None  # whoever calls has looked
    rows = ops.rms_norm(ops.received(model.spec.handed_columns), top["row_norm"], epsilon)
    tokens = ops.rms_norm(embedded, top["token_norm"], epsilon)
    first, second = (rows, tokens) if prediction.row_first else (tokens, rows)
    return ops.linear(ops.join_heads(first, second, 1), (top["join"],))
