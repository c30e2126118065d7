"""Gemma 3, its text: Gemma 2's layer with an RMS norm over each head of q and k, and another rope in the layers that see a window only."""

from __future__ import annotations

from homenode.compute.ops import Ops, Tensor
from homenode.model.architectures import blocks, gemma2
from homenode.model.architectures.parameters import Architecture, ForwardContext, Parameter

PARAMETERS = (
    *gemma2.PARAMETERS,
    Parameter("q_norm", "model.layers.{layer}.self_attn.q_norm.weight", ("head",)),
    Parameter("k_norm", "model.layers.{layer}.self_attn.k_norm.weight", ("head",)),
)


def forward(ops: Ops, model: ForwardContext) -> Tensor:
    """Logits of the step's selected rows, or the rows for the next stage."""
    eps = model.spec.rms_norm_eps
    x = gemma2.enter(ops, model)
    far = blocks.angles(ops, model.rope)
    near = blocks.angles(ops, model.rope.local or model.rope)
    for index, layer in enumerate(model.parameters.layers):
        q, k, v = blocks.project_qkv(ops, model, layer, x)
        q = ops.rms_norm(q, layer["q_norm"], eps)
        k = ops.rms_norm(k, layer["k_norm"], eps)
        x = gemma2.layer_of(ops, model, index, x, (q, k, v), far if blocks.window(model, index) is None else near)
    return blocks.leave(ops, model, x)


GEMMA3 = Architecture("gemma3", PARAMETERS, forward)
