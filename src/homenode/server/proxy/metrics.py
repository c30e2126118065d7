"""Figures that the proxy's /metrics shows. One registry belongs to one proxy."""

from __future__ import annotations

import time
from collections import Counter as Counts
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from homenode.server.keys.keyring import Keyring
from homenode.server.monitoring.keys import KeyMetrics
from homenode.server.proxy.instances import STATES, Instance
from homenode.server.proxy.proxied_request import PHASES, Fault, Outcome, ProxiedRequest, Way
from homenode.server.proxy.routing import LoadTable

_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0)


class _Now(Collector):
    """Gauges of the present: servers and requests."""

    def __init__(self, instances: Iterable[Instance], loads: LoadTable, proxied_requests: set[ProxiedRequest]) -> None:
        self._instances, self._loads, self._proxied = list(instances), loads, proxied_requests

    def collect(self) -> Iterator[Metric]:
        names = ("role", "server")
        states = GaugeMetricFamily(
            "homenode:proxy_server_state", "1 for the state a server is in.", labels=(*names, "state")
        )
        open_ = GaugeMetricFamily(
            "homenode:proxy_server_breaker_open", "1 while a server is left alone after failures.", labels=names
        )
        lives = GaugeMetricFamily("homenode:proxy_server_lives", "How often a server was found anew.", labels=names)
        requests = GaugeMetricFamily(
            "homenode:proxy_server_requests", "Requests a server has from this proxy.", labels=names
        )
        waiting = GaugeMetricFamily(
            "homenode:proxy_server_waiting_tokens", "Prompt tokens, estimated, that wait at a server.", labels=names
        )
        for instance in self._instances:
            values = (instance.role, instance.url)
            for state in STATES:
                states.add_metric((*values, state), instance.state == state)
            open_.add_metric(values, instance.breaker.open(time.monotonic()))
            lives.add_metric(values, instance.lives)
            requests.add_metric(values, self._loads.requests(instance.url))
            waiting.add_metric(values, self._loads.waiting(instance.url))
        phases = GaugeMetricFamily("homenode:proxy_requests_in_flight", "Requests by phase.", labels=("phase",))
        counts = Counts(proxied.phase for proxied in self._proxied)
        for phase in PHASES:
            phases.add_metric((phase,), counts[phase])
        yield from (states, open_, lives, requests, waiting, phases)


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
            self._registry.register(KeyMetrics(keys, "homenode:proxy_"))
        self._registry.register(_Now(instances, loads, proxied_requests))
        self._requests = self._counter(
            "requests", "Requests, by the way their prompt was computed and what became of them.", "way", "outcome"
        )
        self._direct = self._counter("direct", "Requests that were not to be handed over, by reason.", "reason")
        self._faults = self._counter("faults", "Requests that a server failed.", "role", "server", "fault")
        self._fallbacks = self._counter("fallbacks", "Requests to be handed over whose prompt a decoder computed.")
        self._refused = self._counter("refused", "Requests turned away.", "reason")
        self._releases = self._counter("releases", "Tickets given up, by how a server took it.", "outcome")
        self._prefill = self._histogram("prefill_seconds", "From asking a prefill server to its answer.")
        self._first_byte = self._histogram(
            "time_to_first_byte_seconds", "From a request's arrival to the first byte of its answer."
        )
        self._whole = self._histogram("request_seconds", "From a request's arrival to its end.")

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

    def render(self) -> bytes:
        """The text for a Prometheus scrape."""
        return generate_latest(self._registry)

    def _counter(self, name: str, help: str, *labels: str) -> Counter:
        return Counter(f"homenode:proxy_{name}", help, labels, registry=self._registry)

    def _histogram(self, name: str, help: str) -> Histogram:
        return Histogram(f"homenode:proxy_{name}", help, buckets=_SECONDS, registry=self._registry)
