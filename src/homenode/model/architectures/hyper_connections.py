"""Several streams of rows that layers hand on beside each other (hyper-connections; Xie et al. 2026): half a layer
takes in one row that is joined of all, and what it makes goes to each, which keeps some of every stream.
"""

from __future__ import annotations

from dataclasses import dataclass

from homenode.compute.ops import Ops, Tensor
from homenode.model.architectures.parameters import Condition, ForwardContext, Parameter, always
from homenode.model.architectures.stage import Layer


@dataclass(frozen=True)
class StreamMixing:
    """The rule by which the weights of streams are made: see `Ops.stream_weights`."""

    rounds: int
    eps: float


def parameters(key: str, name: str, gguf: str, when: Condition = always) -> tuple[Parameter, ...]:
    """Return what the weights of streams are made of, in half a layer or at the end of all (`key` "head")."""
    front = "model.layers.{layer}." if "{layer}" in gguf else "model."
    mixes, scales = ("streams", "one") if key == "head" else ("stream_mixes", "stream_scales")
    return (
        Parameter(f"{key}_mix", f"{front}{name}.fn", (mixes, "all_streams"), f"{gguf}_fn.weight", when),
        Parameter(f"{key}_base", f"{front}{name}.base", (mixes,), f"{gguf}_base.weight", when),
        Parameter(f"{key}_scales", f"{front}{name}.scale", (scales,), f"{gguf}_scale.weight", when),
    )


def dimensions(streams: int, hidden: int) -> dict[str, int]:
    """Lengths of these parameters."""
    mixes = (2 + streams) * streams
    return {"streams": streams, "stream_mixes": mixes, "stream_scales": 3, "all_streams": streams * hidden}


def begun(ops: Ops, model: ForwardContext, x: Tensor) -> Tensor:
    """The streams that the model's first layer takes in: x in each."""
    streams = x
    for _ in range(1, model.spec.streams):
        streams = ops.join_heads(streams, x, 1)
    return streams


def _mixed(ops: Ops, like: Tensor, streams: Tensor, weights: Tensor, hidden: int) -> Tensor:
    """Sums of the streams by these weights, as many as `like` has runs."""
    return ops.add_weighted(ops.scale(like, 0.0), streams, weights, hidden)


def _joined(ops: Ops, model: ForwardContext, streams: Tensor, weights: Tensor) -> Tensor:
    hidden, rest = model.spec.hidden_size, model.spec.handed_columns - model.spec.hidden_size
    first = ops.split(streams, (hidden, rest))[0] if rest else streams
    return _mixed(ops, first, streams, weights, hidden)


def _weights(ops: Ops, model: ForwardContext, layer: Layer, key: str, streams: Tensor, how: StreamMixing) -> Tensor:
    normed = ops.rms_norm(streams, model.spec.handed_columns, model.spec.norm_eps)
    mixes = ops.linear(normed, (layer[f"{key}_mix"],), precision="fine")
    scales, base = layer[f"{key}_scales"], layer[f"{key}_base"]
    return ops.stream_weights(mixes, scales, base, model.spec.streams, how.rounds, how.eps)


def joined(
    ops: Ops, model: ForwardContext, layer: Layer, key: str, streams: Tensor, how: StreamMixing
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The streams as one row, and what `parted` goes by."""
    count = model.spec.streams
    weights = _weights(ops, model, layer, key, streams, how)
    joins, parts, kept = ops.split(weights, (count, count, count * count))
    return _joined(ops, model, streams, joins), (parts, kept)


def parted(ops: Ops, model: ForwardContext, streams: Tensor, x: Tensor, by: tuple[Tensor, Tensor]) -> Tensor:
    """The streams mixed with each other, and x added to each."""
    parts, kept = by
    mixed = _mixed(ops, streams, streams, kept, model.spec.hidden_size)
    return ops.add_weighted(mixed, x, parts, model.spec.hidden_size)


def ended(ops: Ops, model: ForwardContext, streams: Tensor, how: StreamMixing) -> Tensor:
    """The one row that all streams become behind the model's last layer."""
    return _joined(ops, model, streams, _weights(ops, model, model.parameters.top, "head", streams, how))
