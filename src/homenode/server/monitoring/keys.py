"""Figures that /metrics shows of named keys: of all fronts together, and never a key itself."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from homenode.server.keys.keyring import Keyring
from homenode.server.monitoring.metric_families import families
from homenode.server.monitoring.metric_table import KEY


class KeyMetrics(Collector):
    """A series for each name; nothing where keys have none."""

    def __init__(
        self, keyring: Keyring, prefix: str, labels: tuple[str, ...] = (), values: tuple[str, ...] = ()
    ) -> None:
        """`labels` and `values`: those that all series of an application have."""
        self._keyring, self._prefix, self._labels, self._values = keyring, prefix, labels, values

    def collect(self) -> Iterator[Metric]:
        parts = [((*self._values, name), partial(counts.total, row)) for name, counts, row in self._keyring.figures()]
        yield from families(KEY, (*self._labels, "key"), parts, self._prefix)
