"""Llama 2 and 3: pre-norm blocks, grouped-query attention with rotary embedding, a SiLU-gated MLP."""

from __future__ import annotations

from homenode.compute.ops import Ops, Tensor
from homenode.model.architectures import blocks
from homenode.model.architectures.parameters import Architecture, ForwardContext

PARAMETERS = (
    *blocks.EMBEDDING_AND_HEAD,
    *blocks.ATTENTION,
    *blocks.QKV_BIASES,
    *blocks.OUTPUT_BIAS,
    *blocks.GATED_MLP,
    *blocks.MLP_BIASES,
)


def forward(ops: Ops, model: ForwardContext) -> Tensor:
    """Logits of the step's selected rows, or the rows for the next stage."""
    x = blocks.enter(ops, model)
    rotation = blocks.angles(ops, model.rope)
    for index, layer in enumerate(model.parameters.layers):
        qkv = blocks.project_qkv(ops, model, layer, x)
        x = blocks.attend(ops, model, index, x, qkv, rotation)
        x = blocks.gated_mlp(ops, model, layer, x)
    return blocks.leave(ops, model, x)


LLAMA = Architecture("llama", PARAMETERS, forward)
