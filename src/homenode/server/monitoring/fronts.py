"""Counts of all fronts together, whichever of them is asked.

prometheus_client keeps the values of a process in files of a folder when it is told one before it is imported; values
of fronts that have ended stay there, so that counters never go back.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector, CollectorRegistry

from homenode.server.monitoring.metric import PREFIX
from homenode.server.monitoring.metric_families import make_counter
from homenode.server.monitoring.metric_table import FRONT_REJECTIONS

_REFUSED = PREFIX + FRONT_REJECTIONS.name


class AllFronts(Collector):
    """Reads the values of all fronts from `folder`."""

    def __init__(self, folder: str) -> None:
        self._files = MultiProcessCollector(None, folder)  # type: ignore[no-untyped-call]

    def collect(self) -> Iterator[Metric]:
        """Everything but refusals, which are shown with those of the engines."""
        return (family for family in self._families() if family.name != _REFUSED)

    def refused(self) -> dict[str, int]:
        """Requests that fronts turned away, by reason."""
        samples = [sample for family in self._families() if family.name == _REFUSED for sample in family.samples]
        return {sample.labels["reason"]: int(sample.value) for sample in samples}

    def _families(self) -> list[Metric]:
        return list(self._files.collect())  # type: ignore[no-untyped-call]


class Refusals:
    """Requests that this front turned away, counted where all fronts see it."""

    def __init__(self) -> None:
        self._counter = make_counter(FRONT_REJECTIONS, CollectorRegistry())

    def count(self, reason: str) -> None:
        """Count one more refused request."""
        self._counter.labels(reason).inc()
