"""What mixtures of experts share: the lines of a parameter table, and the piece that stands in a layer where others have an MLP."""

from __future__ import annotations

from homenode.compute.ops import Experts, Ops, Tensor
from homenode.model.architectures import blocks
from homenode.model.architectures.parameters import ForwardContext, Parameter

QWEN_MOE = (
    Parameter("router", "model.layers.{layer}.mlp.gate.weight", ("experts", "hidden"), when="moe"),
    Parameter(
        "expert_gate",
        "model.layers.{layer}.mlp.experts.{expert}.gate_proj.weight",
        ("expert_intermediate", "hidden"),
        when="moe",
    ),
    Parameter(
        "expert_up",
        "model.layers.{layer}.mlp.experts.{expert}.up_proj.weight",
        ("expert_intermediate", "hidden"),
        when="moe",
    ),
    Parameter(
        "expert_down",
        "model.layers.{layer}.mlp.experts.{expert}.down_proj.weight",
        ("hidden", "expert_intermediate"),
        when="moe",
    ),
)
_SHARED = "model.layers.{layer}.mlp.shared_expert"
SHARED_EXPERT = (
    Parameter("shared_router", _SHARED + "_gate.weight", ("one", "hidden"), when="shared_expert"),
    Parameter("shared_gate", _SHARED + ".gate_proj.weight", ("shared_intermediate", "hidden"), when="shared_expert"),
    Parameter("shared_up", _SHARED + ".up_proj.weight", ("shared_intermediate", "hidden"), when="shared_expert"),
    Parameter("shared_down", _SHARED + ".down_proj.weight", ("hidden", "shared_intermediate"), when="shared_expert"),
)


def feed_forward(ops: Ops, model: ForwardContext, index: int, x: Tensor) -> Tensor:
    """x plus what follows attention in layer `index` of this stage: a mixture of experts of normed x, or an MLP."""
    layer, part = model.parameters.layers[index], model.part
    if "router" not in layer:
        return blocks.gated_mlp(ops, model, layer, x)
    moe = model.spec.moe
    assert moe is not None  # a layer has a router only where the figures say so
    h = ops.rms_norm(x, layer["post_norm"], model.spec.rms_norm_eps)
    logits = ops.linear(h, (layer["router"],))
    here = part.experts[index]
    ids = None if len(here) == moe.num_experts else here
    experts = Experts(layer["expert_gate"], layer["expert_up"], layer["expert_down"], ids)
    if part.leads:
        x = _add_shared(ops, layer, h, x)
        x = ops.moe(h, logits, experts, moe.experts_per_token, moe.normalise, x)
    else:
        x = ops.moe(h, logits, experts, moe.experts_per_token, moe.normalise, None)
        x = _add_shared(ops, layer, h, x)
    return blocks.over_ranks(ops, model, x)


def _add_shared(ops: Ops, layer: blocks.Layer, h: Tensor, x: Tensor) -> Tensor:
    """x plus the expert every token uses, if there is one, scaled by sigmoid of a product of its own; of its inner columns those that are here."""
    if "shared_router" not in layer:
        return x
    inner = ops.silu_mul(ops.linear(h, (layer["shared_gate"], layer["shared_up"])))
    return ops.add_gated(x, ops.linear(inner, (layer["shared_down"],)), ops.linear(h, (layer["shared_router"],)))
