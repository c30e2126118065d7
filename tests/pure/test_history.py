"""The last hour in figures: what is made of counters read at two moments."""

from __future__ import annotations

import math

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from homenode.server.monitoring.history import History, quantile


@pytest.mark.parametrize(
    ("buckets", "share", "expected"),
    [
        ([], 0.5, None),
        ([(0.1, 0), (math.inf, 0)], 0.5, None),
        ([(0.1, 10), (math.inf, 10)], 0.5, 0.05),
        ([(0.1, 0), (0.2, 10), (math.inf, 10)], 0.5, 0.15),
        ([(0.1, 5), (0.2, 10), (math.inf, 10)], 0.5, 0.1),
        ([(0.1, 5), (0.2, 5), (math.inf, 10)], 0.95, 0.2),  # nobody knows how long it really was
        ([(0.1, 9), (0.2, 9), (0.4, 10), (math.inf, 10)], 0.95, 0.3),
    ],
)
def test_a_quantile_is_found_within_its_bucket(
    buckets: list[tuple[float, float]], share: float, expected: float | None
) -> None:
    assert quantile(buckets, share) == (None if expected is None else pytest.approx(expected))


def test_a_point_has_what_happened_between_two_looks() -> None:
    registry, now = CollectorRegistry(), [1000.0]
    first = Histogram("homenode:time_to_first_token_seconds", "x", ["m"], buckets=(0.1, 0.2), registry=registry)
    tokens = Counter("homenode:generation_tokens", "x", ["m"], registry=registry)
    running = Gauge("homenode:num_requests_running", "x", ["m"], registry=registry)
    usage = Gauge("homenode:kv_cache_usage_perc", "x", ["m"], registry=registry)
    Counter("homenode:steps", "what nobody keeps", registry=registry).inc(5)
    history = History(registry.collect, lambda: now[0])
    first.labels("a").observe(0.05)  # before the first look: it is no part of any point
    tokens.labels("a").inc(1000)
    history.take()
    assert history.since() == [] and history.newest == 0
    for model in "ab":
        first.labels(model).observe(0.15)
        tokens.labels(model).inc(150)
        running.labels(model).set(3)
    usage.labels("a").set(0.25)
    usage.labels("b").set(0.5)
    now[0] += 10
    history.take()
    (point,) = history.since()
    assert point.at == 1010 and point.generated_tokens == 30 and point.prompt_tokens == 0
    assert point.running == 6 and point.kv_usage == 0.5
    assert point.first_token is not None and 0.1 < point.first_token[0] < point.first_token[1] <= 0.2
    assert point.queue is None and point.between_tokens is None
    now[0] += 10
    history.take()
    assert history.since()[1].first_token is None and history.since()[1].generated_tokens == 0
    assert history.since(1010) == history.since()[1:] and history.newest == 1020


def test_an_hour_is_kept_and_no_more() -> None:
    now = [0.0]
    history = History(lambda: (), lambda: now[0])
    for _ in range(400):
        now[0] += 15
        history.take()
    assert len(history.since()) == 240 and history.newest == now[0]
