"""Metrics of steps: how long they take by kind, and how well that is foreseen."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric

from homenode.engine.messages import STEP_TIME_BOUNDS, EngineStats


def step_metrics(names: tuple[str, ...], parts: list[tuple[tuple[str, ...], EngineStats]]) -> Iterator[Metric]:
    """The series of each engine, by kind: steps that only decode, of prompts alone, and of both."""
    times = HistogramMetricFamily("homenode:step_time_seconds", "Seconds of a step.", labels=(*names, "kind"))
    errors = GaugeMetricFamily(
        "homenode:step_time_error_ratio",
        "By how much of its time a step was expected wrongly, on average of late.",
        labels=(*names, "kind"),
    )
    for values, now in parts:
        for kind, (*counts, seconds) in now.step_times.items():
            bounds = [*(f"{bound:g}" for bound in STEP_TIME_BOUNDS), "+Inf"]
            times.add_metric((*values, kind), list(zip(bounds, accumulate(counts), strict=True)), seconds)
        for kind, error in now.step_errors.items():
            errors.add_metric((*values, kind), error)
    yield times
    yield errors
