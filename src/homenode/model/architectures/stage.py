"""The rows of a stage of layers: where they come from, what is added to them, and what the stage returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from homenode.compute.ops import Ops, Precision, Tensor
from homenode.model.architectures import prediction
from homenode.model.architectures.parameters import ForwardContext
from homenode.model.part import IndexRange

Layer = Mapping[str, Any]


def enter(ops: Ops, model: ForwardContext) -> Tensor:
    """The rows that the first of this stage's layers begins with: from the embedding table, or from the
    stage before.
    """
    if model.spec.prediction is not None:
        return prediction.joined(ops, model, embedded(ops, model))
    return embedded(ops, model) if model.part.first_stage else ops.received(model.spec.handed_columns)


def embedded(ops: Ops, model: ForwardContext) -> Tensor:
    """The rows of the embedding table for the step's tokens, scaled as the model has it; with those that the step
    brings in their places, if the program takes any.
    """
    part, scale = model.part, model.spec.embedding_scale
    table = model.parameters.top["embed"]
    if part.ranks == 1:
        x = ops.embedding(table)
    else:
        x = ops.sum(ops.embedding(table, part.vocabulary.first, model.spec.vocab_size))
    scales_rows = model.spec.scales_rows
    if model.takes_rows and scales_rows:
        x = _placed(ops, model, x)
    x = x if scale == 1.0 else ops.scale(x, scale)
    return _placed(ops, model, x) if model.takes_rows and not scales_rows else x


def _placed(ops: Ops, model: ForwardContext, x: Tensor) -> Tensor:
    deep = _deep_layers(model)
    return ops.place_rows(x, of_columns=(1 + deep) * model.spec.hidden_size) if deep else ops.place_rows(x)


def _deep_layers(model: ForwardContext) -> int:
    pictures = model.spec.pictures
    return pictures.deep_layers if model.takes_rows and pictures is not None else 0


def add_deep(ops: Ops, model: ForwardContext, index: int, x: Tensor) -> Tensor:
    """x behind layer `index` of this stage, with those columns of a step's rows that belong to that layer added to it
    in their places (deepstack; Meng et al. 2024). The model's last layer has none.
    """
    layer, deep, width = model.part.layers.first + index, _deep_layers(model), model.spec.hidden_size
    if layer >= min(deep, model.spec.num_layers - 1):
        return x
    return ops.place_rows(x, (1 + layer) * width, (1 + deep) * width, adds=True)


def normed(ops: Ops, model: ForwardContext, x: Tensor, weight: Tensor) -> Tensor:
    """x through an RMS norm over each run of as many columns as `weight` has: a whole row, or each head of one."""
    return ops.rms_norm(x, weight, model.spec.norm_eps)


def select_last(ops: Ops, model: ForwardContext, index: int, x: Tensor) -> Tensor:
    """After the attention of the model's last layer the rows that the step samples, as nothing reads the others. In
    other layers all of x.
    """
    last = model.part.layers.first + index == model.spec.num_layers - 1
    return ops.select(x) if last and model.keeps_rows == "selected" else x


def project_out(
    ops: Ops,
    model: ForwardContext,
    inner: Tensor,
    weight: Any,
    bias: Tensor | None,
    x: Tensor | None,
    precision: Precision = "usual",
) -> Tensor:
    """The product of the inner columns, bias included, plus x where there is one; ranks add up those of the columns
    they have.
    """
    if not model.part.adds_residual:
        bias = x = None
    return over_ranks(ops, model, ops.linear(inner, (weight,), (bias,), residual=x, precision=precision))


def over_ranks(ops: Ops, model: ForwardContext, x: Tensor) -> Tensor:
    """x added up over the ranks, of which there may be only one."""
    return x if model.part.ranks == 1 else ops.sum(x)


def adds_apart(model: ForwardContext, layer: Layer, norm: str) -> bool:
    """Return whether what is added to rows is normed or scaled first."""
    return norm in layer or model.spec.residual_scale != 1.0


def add_apart(ops: Ops, model: ForwardContext, layer: Layer, x: Tensor, out: Tensor, norm: str) -> Tensor:
    """x plus `out`, through the norm `norm` where the layer has it, and times the model's `residual_scale`."""
    out = normed(ops, model, out, layer[norm]) if norm in layer else out
    scale = model.spec.residual_scale
    return ops.add(x, out if scale == 1.0 else ops.scale(out, scale))


def add_projected(
    ops: Ops, model: ForwardContext, layer: Layer, x: Tensor, inner: Tensor, key: str, norm: str
) -> Tensor:
    """x plus the product of the inner columns with the matrix `key`, its bias included: see `add_apart`."""
    apart = adds_apart(model, layer, norm)
    out = project_out(ops, model, inner, layer[key], layer.get(f"{key}_bias"), None if apart else x)
    return add_apart(ops, model, layer, x, out, norm) if apart else out


def add_mixed(ops: Ops, model: ForwardContext, index: int, x: Tensor, inner: Tensor, key: str) -> Tensor:
    """x plus what attention or a recurrence of layer `index` of this stage made of the rows that the last layer
    selects, to be projected with the matrix `key`; of the model's last layer the selected rows only.
    """
    layer = model.parameters.layers[index]
    if model.part.adds_residual or adds_apart(model, layer, "attended_norm"):
        x = select_last(ops, model, index, x)
    return add_projected(ops, model, layer, x, inner, key, "attended_norm")


def leave(ops: Ops, model: ForwardContext, x: Tensor) -> Tensor:
    """Return what the stage returns: its rows for the next one, or logits [sampled rows, vocabulary], x being those
    that `select_last` left.
    """
    if model.keeps_rows == "all" or not model.part.last_stage:
        return x
    h = normed(ops, model, x, model.parameters.top["norm"])
    return h if model.keeps_rows == "normed" else logits_of(ops, model, h)


def logits_of(ops: Ops, model: ForwardContext, h: Tensor) -> Tensor:
    """Logits [sampled rows, vocabulary] of rows that the last norm was applied to, or of a model that makes vectors
    these rows. A tied model multiplies with its embedding table.
    """
    if model.spec.pooling is not None:
        return h
    spec, part, top = model.spec, model.part, model.parameters.top
    head = top["embed"] if spec.tie_word_embeddings else top["lm_head"]
    logits = ops.linear(h, (head,), (top.get("head_bias"),))
    if part.ranks > 1:
        logits = ops.gather(logits, part.vocabulary_widths)
    if spec.logits_softcap is not None:
        logits = ops.soft_cap(logits, spec.logits_softcap)
    return logits if spec.logits_scale == 1.0 else ops.scale(logits, spec.logits_scale)


def columns_of(ops: Ops, x: Tensor, heads: IndexRange, count: int, head_dim: int) -> Tensor:
    """Return those of some heads of x, which has `count`."""
    widths = [n * head_dim for n in (heads.first, heads.count, count - heads.end) if n]
    return ops.split(x, widths)[1 if heads.first else 0]
