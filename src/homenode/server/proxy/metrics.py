"""Figures that the proxy's /metrics shows. One registry belongs to one proxy."""

from __future__ import annotations

import time
from collections import Counter as Counts
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from homenode.server.keys.keyring import Keyring
from homenode.server.monitoring.keys import KeyMetrics
from homenode.server.monitoring.metric import PREFIX
from homenode.server.monitoring.metric_families import exposition, families, make_counter, make_histogram
from homenode.server.monitoring.metric_table import (
    PROXY,
    PROXY_DIRECT,
    PROXY_FALLBACKS,
    PROXY_FAULTS,
    PROXY_FIRST_BYTE,
    PROXY_PREFILL,
    PROXY_REFUSED,
    PROXY_RELEASES,
    PROXY_REQUESTS,
    PROXY_SERVER,
    PROXY_WHOLE,
)
from homenode.server.monitoring.snapshots import ServerSnapshot
from homenode.server.proxy.instances import STATES, Instance, Role
from homenode.server.proxy.proxied_request import PHASES, Fault, Outcome, ProxiedRequest, Way
from homenode.server.proxy.routing import LoadTable


class _Now(Collector):
    """Gauges of the present: servers and requests."""

    def __init__(self, instances: Iterable[Instance], loads: LoadTable, proxied_requests: set[ProxiedRequest]) -> None:
        self._instances, self._loads, self._proxied = list(instances), loads, proxied_requests

    def collect(self) -> Iterator[Metric]:
        servers = [((instance.role, instance.url), self._server(instance)) for instance in self._instances]
        yield from families(PROXY_SERVER, ("role", "server"), servers)
        counts = Counts(proxied.phase for proxied in self._proxied)
        yield from families(PROXY, (), [((), {phase: counts[phase] for phase in PHASES})])

    def _server(self, instance: Instance) -> ServerSnapshot:
        return ServerSnapshot(
            states={state: instance.state == state for state in STATES},
            breaker_open=instance.breaker.open(time.monotonic()),
            lives=instance.lives,
            requests=self._loads.requests(instance.url),
            waiting_tokens=self._loads.waiting(instance.url),
            slowness=self._loads.slowness(instance.url, self._ready(instance.role)),
        )

    def _ready(self, role: Role) -> list[str]:
        return [each.url for each in self._instances if each.role == role and each.state == "ready"]


class ProxyMetrics:
    """The metrics of one proxy. `proxied_requests`: those under way."""

    def __init__(
        self,
        instances: Iterable[Instance],
        loads: LoadTable,
        proxied_requests: set[ProxiedRequest],
        keys: Keyring | None = None,
    ) -> None:
        """`keys`: whose use is shown."""
        self._registry = CollectorRegistry()
        if keys is not None:
            self._registry.register(KeyMetrics(keys, PREFIX + "proxy_"))
        self._registry.register(_Now(instances, loads, proxied_requests))
        self._requests, self._direct, self._faults, self._fallbacks, self._refused, self._releases = (
            make_counter(row, self._registry)
            for row in (
                PROXY_REQUESTS,
                PROXY_DIRECT,
                PROXY_FAULTS,
                PROXY_FALLBACKS,
                PROXY_REFUSED,
                PROXY_RELEASES,
            )
        )
        self._prefill, self._first_byte, self._whole = (
            make_histogram(row, self._registry) for row in (PROXY_PREFILL, PROXY_FIRST_BYTE, PROXY_WHOLE)
        )

    def finished(self, way: Way, outcome: Outcome, seconds: float) -> None:
        """A request is over."""
        self._requests.labels(way, outcome).inc()
        self._whole.observe(seconds)
        if way == "local":
            self._fallbacks.inc()

    def direct(self, reason: str) -> None:
        """A request is computed where it is decoded."""
        self._direct.labels(reason).inc()

    def fault(self, role: str, server: str, fault: Fault) -> None:
        """A server failed a request."""
        self._faults.labels(role, server, fault).inc()

    def refuse(self, reason: str) -> None:
        """A request was turned away."""
        self._refused.labels(reason).inc()

    def released(self, outcome: str) -> None:
        """A server was told, or could not be told, that a ticket is given up."""
        self._releases.labels(outcome).inc()

    def prefilled(self, seconds: float) -> None:
        """A prefill server answered."""
        self._prefill.observe(seconds)

    def first_byte(self, seconds: float) -> None:
        """An answer began."""
        self._first_byte.observe(seconds)

    def ways(self) -> dict[str, float]:
        """Return how many requests are over, by the way their prompt was computed."""
        found = Counts[str]()
        for family in self._requests.collect():
            for sample in family.samples:
                if sample.name.endswith("_total"):
                    found[sample.labels["way"]] += int(sample.value)
        return {way: float(count) for way, count in found.items()}

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """The text for a scrape, and its content type, as the header `accept` asks for it."""
        return exposition(self._registry, accept)
