"""Gemma 2: every other layer sees a window only, scores and logits are capped, and each half of a layer is normed again before it is added."""

from __future__ import annotations

from homenode.compute.ops import Ops, Tensor
from homenode.model.architectures import blocks
from homenode.model.architectures.parameters import Architecture, ForwardContext, Parameter

PARAMETERS = (
    *blocks.EMBEDDING_AND_HEAD,
    *blocks.ATTENTION,
    Parameter("attended_norm", "model.layers.{layer}.post_attention_layernorm.weight", ("hidden",)),
    Parameter("post_norm", "model.layers.{layer}.pre_feedforward_layernorm.weight", ("hidden",)),
    *blocks.GATE_UP_DOWN,
    Parameter("mlp_norm", "model.layers.{layer}.post_feedforward_layernorm.weight", ("hidden",)),
)


def enter(ops: Ops, model: ForwardContext) -> Tensor:
    """The rows the first of this stage's layers begins with; those of the embedding table are scaled."""
    x = blocks.enter(ops, model)
    return ops.scale(x, model.spec.embedding_scale) if model.part.first_stage else x


def layer_of(
    ops: Ops, model: ForwardContext, index: int, x: Tensor, qkv: tuple[Tensor, Tensor, Tensor], rotation: Tensor
) -> Tensor:
    """x after layer `index` of this stage, of which q, k and v are there, not yet rotated; of the model's last layer the selected rows only."""
    layer = model.parameters.layers[index]
    inner = blocks.select_last(ops, model, index, blocks.attended(ops, model, index, qkv, rotation))
    out = blocks.project_out(ops, model, inner, layer["o"], None, None)
    x = _add_normed(ops, model, blocks.select_last(ops, model, index, x), out, layer["attended_norm"])
    h = ops.rms_norm(x, layer["post_norm"], model.spec.rms_norm_eps)
    inner = ops.gelu_mul(ops.linear(h, (layer["gate"], layer["up"])))
    return _add_normed(
        ops, model, x, blocks.project_out(ops, model, inner, layer["down"], None, None), layer["mlp_norm"]
    )


def forward(ops: Ops, model: ForwardContext) -> Tensor:
    """Logits of the step's selected rows, or the rows for the next stage."""
    x = enter(ops, model)
    rotation = blocks.angles(ops, model.rope)
    for index, layer in enumerate(model.parameters.layers):
        x = layer_of(ops, model, index, x, blocks.project_qkv(ops, model, layer, x), rotation)
    return blocks.leave(ops, model, x)


def _add_normed(ops: Ops, model: ForwardContext, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    return ops.add(x, ops.rms_norm(y, weight, model.spec.rms_norm_eps))


GEMMA2 = Architecture("gemma2", PARAMETERS, forward)
