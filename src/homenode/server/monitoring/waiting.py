"""Metrics of requests that wait: how many, by what they wait for."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from homenode.engine.messages import WAIT_REASONS, EngineStats


def waiting_metrics(names: tuple[str, ...], parts: list[tuple[tuple[str, ...], EngineStats]]) -> Iterator[Metric]:
    """The series of each engine, of every reason there is."""
    waiting = GaugeMetricFamily(
        "homenode:num_requests_waiting_by_reason",
        "Requests waiting for the engine, by what those in the queue lack first.",
        labels=(*names, "reason"),
    )
    for values, now in parts:
        for reason in WAIT_REASONS:
            waiting.add_metric((*values, reason), now.waiting_for.get(reason, 0))
    yield waiting
