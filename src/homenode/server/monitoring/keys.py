"""Figures that /metrics shows of named keys: of all fronts together, and never a key itself."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from homenode.server.keys.counts import GENERATED_TOKENS, PROMPT_TOKENS, REFUSALS, REQUESTS, RUNNING
from homenode.server.keys.keyring import Keyring


class KeyMetrics(Collector):
    """A series for each name; nothing where keys have none."""

    def __init__(
        self, keyring: Keyring, prefix: str, labels: tuple[str, ...] = (), values: tuple[str, ...] = ()
    ) -> None:
        """`labels` and `values`: those that all series of an application have."""
        self._keyring, self._prefix, self._labels, self._values = keyring, prefix, labels, values

    def collect(self) -> Iterator[Metric]:
        names = (*self._labels, "key")
        running = GaugeMetricFamily(f"{self._prefix}key_requests_running", "Requests of a key under way.", labels=names)
        requests = CounterMetricFamily(
            f"{self._prefix}key_requests", "Requests of a key that were let in.", labels=names
        )
        tokens = CounterMetricFamily(f"{self._prefix}key_tokens", "Tokens of a key.", labels=(*names, "kind"))
        refused = CounterMetricFamily(
            f"{self._prefix}key_rejections", "Requests of a key over one of its limits.", labels=(*names, "limit")
        )
        for name, counts, row in self._keyring.figures():
            values = (*self._values, name)
            running.add_metric(values, counts.total(row, RUNNING))
            requests.add_metric(values, counts.total(row, REQUESTS))
            tokens.add_metric((*values, "prompt"), counts.total(row, PROMPT_TOKENS))
            tokens.add_metric((*values, "generated"), counts.total(row, GENERATED_TOKENS))
            for limit, counter in REFUSALS.items():
                refused.add_metric((*values, limit), counts.total(row, counter))
        yield from (running, requests, tokens, refused)
