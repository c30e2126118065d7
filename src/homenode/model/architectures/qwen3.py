"""Qwen 3 (dense): Llama's block with an RMS norm over each head of q and k before they are rotated."""

from __future__ import annotations

from homenode.compute.ops import Ops, Tensor
from homenode.model.architectures import blocks, moe
from homenode.model.architectures.parameters import Architecture, ForwardContext, Parameter

PARAMETERS = (
    *blocks.EMBEDDING_AND_HEAD,
    *blocks.ATTENTION,
    Parameter("q_norm", "model.layers.{layer}.self_attn.q_norm.weight", ("head",)),
    Parameter("k_norm", "model.layers.{layer}.self_attn.k_norm.weight", ("head",)),
    *blocks.QKV_BIASES,
    *blocks.OUTPUT_BIAS,
    *blocks.GATED_MLP,
)


def forward(ops: Ops, model: ForwardContext) -> Tensor:
    """Logits of the step's selected rows, or the rows for the next stage."""
    eps = model.spec.rms_norm_eps
    x = blocks.enter(ops, model)
    rotation = blocks.angles(ops, model.rope)
    for index, layer in enumerate(model.parameters.layers):
        q, k, v = blocks.project_qkv(ops, model, layer, x)
        q = ops.rms_norm(q, layer["q_norm"], eps)
        k = ops.rms_norm(k, layer["k_norm"], eps)
        x = blocks.attend(ops, model, index, x, (q, k, v), rotation)
        x = moe.feed_forward(ops, model, index, x)
    return blocks.leave(ops, model, x)


QWEN3 = Architecture("qwen3", PARAMETERS, forward)
