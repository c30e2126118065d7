"""Mixtral: Mistral's block with a mixture of experts in every layer, the weights of a token's experts adding up to 1."""

from __future__ import annotations

from homenode.compute.ops import Ops, Tensor
from homenode.model.architectures import blocks, moe
from homenode.model.architectures.parameters import Architecture, ForwardContext, Parameter

_MOE = "model.layers.{layer}.block_sparse_moe."
PARAMETERS = (
    *blocks.EMBEDDING_AND_HEAD,
    *blocks.ATTENTION,
    *blocks.POST_NORM,
    Parameter("router", _MOE + "gate.weight", ("experts", "hidden")),
    Parameter("expert_gate", _MOE + "experts.{expert}.w1.weight", ("expert_intermediate", "hidden")),
    Parameter("expert_up", _MOE + "experts.{expert}.w3.weight", ("expert_intermediate", "hidden")),
    Parameter("expert_down", _MOE + "experts.{expert}.w2.weight", ("hidden", "expert_intermediate")),
)


def forward(ops: Ops, model: ForwardContext) -> Tensor:
    """Logits of the step's selected rows, or the rows for the next stage."""
    x = blocks.enter(ops, model)
    rotation = blocks.angles(ops, model.rope)
    for index, layer in enumerate(model.parameters.layers):
        qkv = blocks.project_qkv(ops, model, layer, x)
        x = blocks.attend(ops, model, index, x, qkv, rotation)
        x = moe.feed_forward(ops, model, index, x)
    return blocks.leave(ops, model, x)


MIXTRAL = Architecture("mixtral", PARAMETERS, forward)
