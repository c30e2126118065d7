"""The part behind attention in most decoders: a gated MLP, or a mixture of experts (MoE)."""

from __future__ import annotations

from collections.abc import Callable

from homenode.compute.ops import Experts, Ops, Precision, Tensor
from homenode.model.architectures import attention, stage
from homenode.model.architectures.parameters import ForwardContext

FeedForward = Callable[[Ops, ForwardContext, int, Tensor], Tensor]


def gated(ops: Ops, layer: stage.Layer, h: Tensor, precision: Precision = "usual") -> Tensor:
    """silu(gate(h)) * up(h), the inner columns of an MLP."""
    biases = (layer.get("gate_bias"), layer.get("up_bias"))
    return ops.silu_mul(ops.linear(h, (layer["gate"], layer["up"]), biases, precision=precision))


def mixture(ops: Ops, model: ForwardContext, index: int, h: Tensor, x: Tensor | None) -> Tensor:
    """x (or 0) plus what the experts of layer `index` of this stage make of h, the one that every token uses among
    them.
    """
    layer, moe = model.parameters.layers[index], model.spec.moe
    logits = ops.linear(h, (layer["router"],), (layer["router_bias"],) if "router_bias" in layer else ())
    rows = ops.gate_by_largest(h, logits) if moe is not None and moe.weighted == "input" else h
    if x is not None and model.part.adds_residual:
        x = add_experts(ops, model, index, rows, logits, _add_shared_expert(ops, model, layer, h, x))
    else:
        x = _add_shared_expert(ops, model, layer, h, add_experts(ops, model, index, rows, logits, None))
    return stage.over_ranks(ops, model, x)


def add_experts(
    ops: Ops, model: ForwardContext, index: int, h: Tensor, logits: Tensor, residual: Tensor | None
) -> Tensor:
    """residual (or 0) plus what the experts of layer `index` of this stage that are here make of h, by the router's
    logits. Ranks have yet to add up their shares.

    Where each rank has a part of every expert, that which adds the residual also adds the biases of the outputs.
    """
    layer, moe, here = model.parameters.layers[index], model.spec.moe, model.part.experts[index]
    assert moe is not None  # a layer has a router only where the figures say so
    ids = None if len(here) == moe.num_experts and not moe.identities else here
    experts = Experts(
        layer.get("expert_gate", ()),
        layer["expert_up"],
        layer["expert_down"],
        ids,
        layer.get("expert_gate_bias"),
        layer.get("expert_up_bias"),
        layer.get("expert_down_bias") if model.part.adds_residual or ids is not None else None,
        layer.get("expert_scales"),
        moe.activation,
    )
    told: dict[str, Tensor] = {}
    if "experts_of_token" in layer:
        told["chosen"] = stage.select_last(ops, model, index, ops.embedding(layer["experts_of_token"]))
    return ops.moe(h, logits, experts, moe.routing, residual, layer.get("choice_bias"), **told)


def _add_shared_expert(ops: Ops, model: ForwardContext, layer: stage.Layer, h: Tensor, x: Tensor) -> Tensor:
    """x plus the expert that every token uses, if there is one; of its inner columns those that are here. Where it has
    a router, it is scaled by sigmoid of that.
    """
    if "shared_down" not in layer:
        return x
    activation = model.spec.moe.activation if model.spec.moe is not None else "silu"
    gate = {"clamped": ops.clamped_mul, "limited": ops.limited_mul}.get(activation, ops.silu_mul)
    inner = gate(ops.linear(h, (layer["shared_gate"], layer["shared_up"])))
    if "shared_router" not in layer:
        return ops.linear(inner, (layer["shared_down"],), residual=x)
    return ops.add_gated(x, ops.linear(inner, (layer["shared_down"],)), ops.linear(h, (layer["shared_router"],)))


def feed_forward_with(inner: Callable[[Ops, stage.Layer, Tensor, Precision], Tensor] = gated) -> FeedForward:
    """x plus what follows attention in layer `index` of this stage: a mixture of experts (MoE), or an MLP, of x, which
    is normed before where the layer has the norm. `inner`: the inner columns that the MLP of a layer makes of rows;
    where layers behind it have routers, their choice hangs on its rounding as on that of attention.
    """

    def feed_forward(ops: Ops, model: ForwardContext, index: int, x: Tensor) -> Tensor:
        layer = model.parameters.layers[index]
        h = stage.normed(ops, model, x, layer["post_norm"]) if "post_norm" in layer else x
        if "router" not in layer:
            made = inner(ops, layer, h, attention.precision_of_scores(model.spec))
            return stage.add_projected(ops, model, layer, x, made, "down", "mlp_norm")
        if not stage.adds_apart(model, layer, "mlp_norm"):
            return mixture(ops, model, index, h, x)
        return stage.add_apart(ops, model, layer, x, mixture(ops, model, index, h, None), "mlp_norm")

    return feed_forward


feed_forward = feed_forward_with()
