"""The decoder that most families are: a norm before attention and one before the MLP or the experts, each added to the
rows that it was made of. Families differ in how they make queries, keys and values: a `Projection`.
"""

from __future__ import annotations

from collections.abc import Callable

from homenode.compute.ops import Ops, Tensor
from homenode.model.architectures import common
from homenode.model.architectures.parameters import ForwardContext

Heads = tuple[Tensor, Tensor, Tensor]
# Of layer `index` of a stage, h being its normed rows: q, k and v of h, those of q and k rotated where the layer has rope.
Projection = Callable[[Ops, ForwardContext, int, Tensor, Tensor], Heads]
FeedForward = Callable[[Ops, ForwardContext, int, Tensor], Tensor]
Forward = Callable[[Ops, ForwardContext], Tensor]


def project(ops: Ops, model: ForwardContext, index: int, h: Tensor, rotation: Tensor) -> Heads:
    """The `Projection` of Llama, and of Qwen 3, which has a norm over each head of q and k before they are rotated."""
    qkv = normed_heads(ops, model, index, common.project_qkv(ops, model, model.parameters.layers[index], h))
    return common.rotated(ops, model, index, qkv, rotation)


def project_neighbours(ops: Ops, model: ForwardContext, index: int, h: Tensor, rotation: Tensor) -> Heads:
    """The `Projection` of a rope that turns elements beside each other, without norms of heads."""
    qkv = common.project_qkv(ops, model, model.parameters.layers[index], h)
    return common.rotated(ops, model, index, qkv, rotation, adjacent=True)


def normed_heads(ops: Ops, model: ForwardContext, index: int, qkv: Heads) -> Heads:
    """q, k and v, each head of q and k through a norm where layer `index` of this stage has one."""
    layer, (q, k, v) = model.parameters.layers[index], qkv
    if "q_norm" not in layer:
        return qkv
    return common.normed(ops, model, q, layer["q_norm"]), common.normed(ops, model, k, layer["k_norm"]), v


def forward_with(projection: Projection = project, feed_forward: FeedForward = common.feed_forward) -> Forward:
    """The forward function of such a decoder. `feed_forward`: x plus what follows attention in a layer."""

    def forward(ops: Ops, model: ForwardContext) -> Tensor:
        """Logits of the step's selected rows, or the rows for the next stage."""
        x = common.enter(ops, model)
        rotation = common.rotation_by_layer(ops, model)
        for index, layer in enumerate(model.parameters.layers):
            qkv = projection(ops, model, index, common.normed(ops, model, x, layer["input_norm"]), rotation(index))
            x = feed_forward(ops, model, index, common.attend(ops, model, index, x, qkv, None))
        return common.leave(ops, model, x)

    return forward


forward = forward_with()
