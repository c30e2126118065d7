"""Metrics of the state memory, of models whose layers keep a state beside keys and values."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from homenode.engine.messages import EngineStats

_GAUGES = (
    ("state_slots", "Slots of the state memory.", "slots"),
    ("state_slots_used", "Slots of running requests, and of snapshots that are being written.", "used"),
    ("state_snapshots", "Slots with a snapshot that the prefix cache can find.", "snapshots"),
)
_COUNTERS = (
    ("state_snapshot_hits", "Requests that went on from a snapshot.", "hits"),
    (
        "state_recomputed_tokens",
        "Tokens computed again, as the prefix cache had their KV, but no state after them.",
        "recomputed_tokens",
    ),
)


def state_metrics(names: tuple[str, ...], parts: list[tuple[tuple[str, ...], EngineStats]]) -> Iterator[Metric]:
    """The series of each engine with such a model; none where no engine has one."""
    having = [(values, now.states) for values, now in parts if now.states is not None]
    if not having:
        return
    for name, text, field in _GAUGES:
        gauge = GaugeMetricFamily(f"homenode:{name}", text, labels=names)
        for values, states in having:
            gauge.add_metric(values, getattr(states, field))
        yield gauge
    for name, text, field in _COUNTERS:
        counter = CounterMetricFamily(f"homenode:{name}", text, labels=names)
        for values, states in having:
            counter.add_metric(values, getattr(states, field))
        yield counter
