"""Figures that /metrics shows of an engine's stages and workers; nothing where the engine's process is its
only worker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from homenode.engine.messages import EngineStats

_STATES = ("starting", "waiting", "ready")


def worker_metrics(names: tuple[str, ...], parts: Sequence[tuple[tuple[str, ...], EngineStats]]) -> Iterator[Metric]:
    """`names` of labels, and their values with the figures they are of."""
    shown = [(values, now.compute) for values, now in parts if now.compute.get("stages")]
    if not shown:
        return
    busy = CounterMetricFamily("homenode:stage_busy_seconds", "Seconds a stage computed.", labels=(*names, "stage"))
    wait = CounterMetricFamily(
        "homenode:stage_wait_seconds",
        "Seconds a stage did not compute while steps were in flight: bubbles.",
        labels=(*names, "stage"),
    )
    states = GaugeMetricFamily("homenode:workers", "Workers, by state.", labels=(*names, "state"))
    restarts = CounterMetricFamily("homenode:worker_restarts", "Times a worker was replaced.", labels=names)
    for values, compute in shown:
        for stage in _dicts(compute.get("stages")):
            busy.add_metric((*values, str(stage["stage"])), float(str(stage["busy_s"])))
            wait.add_metric((*values, str(stage["stage"])), float(str(stage["wait_s"])))
        counts = Counter(str(worker["state"]) for worker in _dicts(compute.get("workers")))
        for state in _STATES:
            states.add_metric((*values, state), counts[state])
        restarts.add_metric(values, float(str(compute.get("restarts", 0))))
    yield from (busy, wait, states, restarts)


def _dicts(value: object) -> list[dict[str, object]]:
    return value if isinstance(value, list) else []
