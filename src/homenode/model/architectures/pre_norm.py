"""The decoder that most families are: attention, then an MLP or experts, each added to the rows that it was made of,
with a norm before it, behind it, or both, by the norms that a layer has. Families differ in how they make queries, keys
and values: a `Projection`.
"""

from __future__ import annotations

from collections.abc import Callable

from homenode.compute.ops import Ops, Tensor
from homenode.model.architectures import attention, mlp, stage
from homenode.model.architectures.parameters import ForwardContext

Heads = tuple[Tensor, Tensor, Tensor]
# Of layer `index` of a stage, h being its normed rows: q, k and v of h, those of q and k rotated where the layer has
# rope.
Projection = Callable[[Ops, ForwardContext, int, Tensor, Tensor], Heads]
# Of layer `index` of a stage, h being its normed rows and the last argument what it attends to: that, gated.
Gate = Callable[[Ops, ForwardContext, int, Tensor, Tensor], Tensor]
# Of layer `index` of a stage, h being its normed rows: inner columns; of the model's last layer the selected rows only.
Mixer = Callable[[Ops, ForwardContext, int, Tensor], Tensor]
Forward = Callable[[Ops, ForwardContext], Tensor]


def project(ops: Ops, model: ForwardContext, index: int, h: Tensor, rotation: Tensor) -> Heads:
    """The `Projection` of Llama, and of Qwen 3, which has a norm over each head of q and k before they are rotated."""
    qkv = normed_heads(ops, model, index, attention.project_qkv(ops, model, index, h))
    return attention.rotated(ops, model, index, qkv, rotation)


def project_neighbours(ops: Ops, model: ForwardContext, index: int, h: Tensor, rotation: Tensor) -> Heads:
    """The `Projection` of a rope that turns elements beside each other, without norms of heads."""
    qkv = attention.project_qkv(ops, model, index, h)
    return attention.rotated(ops, model, index, qkv, rotation, adjacent=True)


def project_normed_whole(ops: Ops, model: ForwardContext, index: int, h: Tensor, rotation: Tensor) -> Heads:
    """The `Projection` with a norm over all of q and all of k."""
    qkv = attention.project_qkv_normed_whole(ops, model, index, h)
    return attention.rotated(ops, model, index, qkv, rotation)


def normed_heads(ops: Ops, model: ForwardContext, index: int, qkv: Heads) -> Heads:
    """q, k and v, each head of q and k through a norm where layer `index` of this stage has one."""
    layer, (q, k, v) = model.parameters.layers[index], qkv
    if "q_norm" not in layer:
        return qkv
    return stage.normed(ops, model, q, layer["q_norm"]), stage.normed(ops, model, k, layer["k_norm"]), v


def forward_with(
    projection: Projection = project,
    feed_forward: mlp.FeedForward = mlp.feed_forward,
    gate: Gate | None = None,
    mixer: Mixer | None = None,
    mixer_out: str = "",
) -> Forward:
    """The forward function of such a decoder. `feed_forward`: x plus what follows attention in a layer; `gate`: what
    becomes of what a layer attends to before it is projected; `mixer`: what layers without attention have in its place,
    projected with the matrix `mixer_out`.
    """

    def forward(ops: Ops, model: ForwardContext) -> Tensor:
        """Logits of the step's selected rows, or the rows for the next stage."""
        x = stage.enter(ops, model)
        rotation = attention.rotation_by_layer(ops, model)
        for index, layer in enumerate(model.parameters.layers):
            h = stage.normed(ops, model, x, layer["input_norm"]) if "input_norm" in layer else x
            if mixer is None or "q" in layer:
                found = attention.attended(ops, model, index, projection(ops, model, index, h, rotation(index)), None)
                found = stage.select_last(ops, model, index, found)
                if gate is not None:
                    found = gate(ops, model, index, stage.select_last(ops, model, index, h), found)
                x = stage.add_mixed(ops, model, index, x, found, "o")
            else:
                x = stage.add_mixed(ops, model, index, x, mixer(ops, model, index, h), mixer_out)
            x = stage.add_deep(ops, model, index, feed_forward(ops, model, index, x))
        return stage.leave(ops, model, x)

    return forward


forward = forward_with()
