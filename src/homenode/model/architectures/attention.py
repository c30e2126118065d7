"""Attention that most decoders share: queries, keys and values of normed rows, their rotation, and the window."""

from __future__ import annotations

from collections.abc import Callable

from homenode.compute.ops import AttentionMask, FloatArray, Ops, Precision, RelativeBias, ScoreRule, Tensor
from homenode.model.architectures import stage
from homenode.model.architectures.parameters import ForwardContext
from homenode.model.architectures.rope import Rope
from homenode.model.spec import ModelSpec


def window(model: ForwardContext, index: int) -> int | None:
    """The sliding window of a layer of this stage, None where it sees its whole context."""
    return model.spec.window_of(model.part.layers.first + index)


def angles(ops: Ops, rope: Rope) -> Tensor:
    """cos and sin of the step's positions, used by every layer with this rope."""
    return ops.rope_angles(rope.inverse_frequencies, rope.scale, axes=rope.axes)


def rotation_by_layer(ops: Ops, model: ForwardContext) -> Callable[[int], Tensor]:
    """cos and sin for a layer of this stage, by its index: layers with a window may have a rope of their own."""
    far = angles(ops, model.rope)
    near = angles(ops, model.rope.local) if model.rope.local else far
    return lambda index: far if window(model, index) is None else near


def precision_of_scores(spec: ModelSpec) -> Precision:
    """Return the precision of the products which queries and keys come from. Scores go into exponents, where what
    bfloat16 takes from an activation counts most, and in a mixture a row that differs by little may choose other
    experts.
    """
    return "usual" if spec.moe is None else "fine"


def project_qkv(ops: Ops, model: ForwardContext, index: int, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """h through the three projections of layer `index` of this stage: q [tokens, query], k and v [tokens, kv] of the
    heads that are here, not yet rotated.
    """
    spec, layer = model.spec, model.parameters.layers[index]
    heads, kv_heads = (each.count * spec.head_dim for each in model.part.heads_in(model.part.layers.first + index))
    biases = (layer.get("q_bias"), layer.get("k_bias"), layer.get("v_bias"))
    qkv = ops.linear(h, (layer["q"], layer["k"], layer["v"]), biases, precision=precision_of_scores(spec))
    q, k, v = ops.split(qkv, (heads, kv_heads, kv_heads))
    return q, k, v


def project_qkv_normed_whole(
    ops: Ops, model: ForwardContext, index: int, h: Tensor, norm: Callable[[str, Tensor], Tensor] | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The same with `PROJECTIONS_NORMED_WHOLE`: all of q, brought together over the ranks, through a norm, and all of
    k, which is with every rank. `norm`: by the key of its weight; None: an RMS norm.
    """
    spec, part, layer = model.spec, model.part, model.parameters.layers[index]
    biases = (layer.get("q_bias"), layer.get("k_bias"), layer.get("v_bias"))
    qkv = ops.linear(h, (layer["q"], layer["k"], layer["v"]), biases, precision=precision_of_scores(spec))
    heads, kv = part.heads, part.kv_heads
    q, k, v = ops.split(qkv, [count * spec.head_dim for count in (heads.count, spec.num_kv_heads, kv.count)])
    if part.ranks > 1:
        q = ops.gather(q, [count * spec.head_dim for count in part.head_counts])
    if norm is None:
        q, k = stage.normed(ops, model, q, layer["q_norm"]), stage.normed(ops, model, k, layer["k_norm"])
    else:
        q, k = norm("q_norm", q), norm("k_norm", k)
    of_heads = ((q, heads, spec.num_heads), (k, kv, spec.num_kv_heads))
    q, k = (stage.columns_of(ops, x, here, count, spec.head_dim) for x, here, count in of_heads)
    return q, k, v


def rotated(
    ops: Ops,
    model: ForwardContext,
    index: int,
    qkv: tuple[Tensor, Tensor, Tensor],
    rotation: Tensor,
    *,
    adjacent: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v, each head of q and k rotated where layer `index` of this stage has rope. `adjacent`: the elements
    that turn together are neighbours.
    """
    if not model.spec.has_rope(model.part.layers.first + index):
        return qkv
    q, k, v = qkv
    q, k = (ops.rope(x, rotation, model.spec.head_dim, adjacent) for x in (q, k))
    return q, k, v


def mask_of(model: ForwardContext, window: int | None) -> AttentionMask:
    """Which tokens one sees in a layer with this window: of a model that sees, a picture's rows see each other in some
    layers.
    """
    pictures = model.spec.pictures
    if not model.takes_rows or pictures is None or pictures.sees_both_ways == "none":
        return model.spec.attention_mask
    both_ways = pictures.sees_both_ways == "all" or window is not None
    return "spans" if both_ways else model.spec.attention_mask


def attended(
    ops: Ops,
    model: ForwardContext,
    index: int,
    qkv: tuple[Tensor, Tensor, Tensor],
    rotation: Tensor | None,
    slopes: FloatArray | None = None,
    bias: RelativeBias | None = None,
) -> Tensor:
    """Return what layer `index` of this stage attends to: rotate q and k, attend over the cache, within the layer's
    window, if any. `rotation`: None where q and k are rotated already.
    """
    spec = model.spec
    q, k, v = qkv if rotation is None else rotated(ops, model, index, qkv, rotation)
    scale = spec.head_dim**-0.5 if spec.attention_scale is None else spec.attention_scale
    where = model.cache_layers[model.part.layers.first + index]
    rule = ScoreRule(
        scale,
        window(model, index),
        spec.attention_softcap,
        sinks=model.parameters.layers[index].get("sinks"),
        slopes=slopes,
        bias=bias,
        window_kind=spec.window_kind,
        mask=mask_of(model, window(model, index)),
    )
    return ops.attention(q, k, v, model.cache, where, rule)


def attend(
    ops: Ops, model: ForwardContext, index: int, x: Tensor, qkv: tuple[Tensor, Tensor, Tensor], rotation: Tensor | None
) -> Tensor:
    """x plus the attention of layer `index` of this stage, projected; of the model's last layer the selected
    rows only.
    """
    inner = stage.select_last(ops, model, index, attended(ops, model, index, qkv, rotation))
    return stage.add_mixed(ops, model, index, x, inner, "o")
