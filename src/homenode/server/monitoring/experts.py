"""Figures that /metrics shows of a mixture's experts: how often each was chosen, and how unevenly; nothing for a model
without experts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from homenode.engine.messages import EngineStats


class _Experts(msgspec.Struct):
    """`expert_table.figures`."""

    tokens: list[int]
    imbalance: list[tuple[int, float]]
    layers: list[list[int]] = []


def expert_metrics(names: tuple[str, ...], parts: Sequence[tuple[tuple[str, ...], EngineStats]]) -> Iterator[Metric]:
    """`names` of labels, and their values with the figures they are of."""
    shown = [
        (values, msgspec.convert(now.compute["experts"], _Experts)) for values, now in parts if "experts" in now.compute
    ]
    if not shown:
        return
    tokens = CounterMetricFamily(
        "homenode:expert_tokens", "Tokens that an expert was chosen for, over all layers.", labels=(*names, "expert")
    )
    uneven = GaugeMetricFamily(
        "homenode:expert_imbalance",
        "Tokens of a layer's most used expert, in times the mean of its experts.",
        labels=(*names, "layer"),
    )
    apart = CounterMetricFamily(
        "homenode:expert_layer_tokens",
        "Tokens that an expert of a layer was chosen for.",
        labels=(*names, "layer", "expert"),
    )
    for values, now in shown:
        for expert, count in enumerate(now.tokens):
            tokens.add_metric((*values, str(expert)), count)
        for layer, ratio in now.imbalance:
            uneven.add_metric((*values, str(layer)), ratio)
            for expert, count in enumerate(now.layers[layer] if now.layers else ()):
                apart.add_metric((*values, str(layer), str(expert)), count)
    yield from (tokens, uneven, *((apart,) if any(now.layers for _, now in shown) else ()))
