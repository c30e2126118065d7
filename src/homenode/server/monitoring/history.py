"""The last hour in figures: what the counters of /metrics did in each quarter of a minute, kept in memory.

The counters are read at even distances; nothing is measured that /metrics does not have.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import Struct
from prometheus_client.core import Metric

SPACING_S = 15.0
_KEPT = 240  # an hour
_TIMES = {
    "queue": "homenode:request_queue_time_seconds",
    "first_token": "homenode:time_to_first_token_seconds",
    "between_tokens": "homenode:inter_token_latency_seconds",
}
_GAUGES = {
    "running": "homenode:num_requests_running",
    "waiting": "homenode:num_requests_waiting",
    "kv_usage": "homenode:kv_cache_usage_perc",
}
_COUNTERS = {"prompt_tokens": "homenode:prompt_tokens", "generated_tokens": "homenode:generation_tokens"}
_WANTED = {name for table in (_TIMES, _GAUGES, _COUNTERS) for name in table.values()}

Buckets = tuple[tuple[float, float], ...]  # upper bounds in seconds, and how many were at most so long, ascending


class HistoryPoint(Struct, frozen=True):
    """What happened in one piece of time, which ended at `at` (Unix seconds). Times are (median, 95th percentile) in
    seconds, None where nothing was timed; tokens are per second; the others are as they were at the end, `kv_usage` of
    the fullest engine.
    """

    at: float
    queue: tuple[float, float] | None
    first_token: tuple[float, float] | None
    between_tokens: tuple[float, float] | None
    prompt_tokens: float
    generated_tokens: float
    running: float
    waiting: float
    kv_usage: float


@dataclass(frozen=True)
class Sample:
    """The counters at one moment, added up over models and engines: bucket counts by time, and single values."""

    at: float
    buckets: Mapping[str, Buckets] = field(default_factory=dict)
    values: Mapping[str, float] = field(default_factory=dict)


class History:
    """The samples of the last hour. `read` gives the families of /metrics."""

    def __init__(self, read: Callable[[], Iterable[Metric]], clock: Callable[[], float] = time.time) -> None:
        self._read, self._clock = read, clock
        self._last: Sample | None = None
        self._kept: deque[HistoryPoint] = deque(maxlen=_KEPT)
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Take a sample now and from now on, in the running loop."""
        self._task = asyncio.get_running_loop().create_task(self._go_on())

    def end(self) -> None:
        """Take no more."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def take(self) -> None:
        """Take one sample."""
        now = read_sample(self._clock(), self._read())
        if self._last is not None:
            self._kept.append(between(self._last, now))
        self._last = now

    def since(self, at: float = 0.0) -> list[HistoryPoint]:
        """Those pieces that ended after `at`."""
        return [each for each in self._kept if each.at > at]

    @property
    def newest(self) -> float:
        """Return when the newest piece ended; 0 where there is none."""
        return self._kept[-1].at if self._kept else 0.0

    async def _go_on(self) -> None:
        while True:
            self.take()
            await asyncio.sleep(SPACING_S)


def read_sample(at: float, families: Iterable[Metric]) -> Sample:
    """The counters that are kept, of all series of their families."""
    buckets: dict[str, dict[float, float]] = {}
    values: dict[str, float] = {}
    for family in families:
        if family.name not in _WANTED:
            continue
        for sample in family.samples:
            if sample.name.endswith("_bucket"):
                counts = buckets.setdefault(family.name, {})
                bound = float(sample.labels["le"])
                counts[bound] = counts.get(bound, 0.0) + sample.value
            elif sample.name in (family.name, f"{family.name}_total"):
                earlier = values.get(family.name, 0.0)
                fullest = family.name == _GAUGES["kv_usage"]
                values[family.name] = max(earlier, sample.value) if fullest else earlier + sample.value
    return Sample(at, {name: tuple(sorted(counts.items())) for name, counts in buckets.items()}, values)


def between(before: Sample, now: Sample) -> HistoryPoint:
    """What happened between two samples."""
    seconds = max(1e-3, now.at - before.at)
    times = {key: _times(before.buckets.get(name, ()), now.buckets.get(name, ())) for key, name in _TIMES.items()}
    rates = {
        key: round(max(0.0, now.values.get(name, 0.0) - before.values.get(name, 0.0)) / seconds, 2)
        for key, name in _COUNTERS.items()
    }
    gauges = {key: round(now.values.get(name, 0.0), 4) for key, name in _GAUGES.items()}
    return HistoryPoint(
        at=round(now.at, 1),
        queue=times["queue"],
        first_token=times["first_token"],
        between_tokens=times["between_tokens"],
        **rates,
        **gauges,
    )


def _times(before: Buckets, now: Buckets) -> tuple[float, float] | None:
    earlier = dict(before)
    new = [(bound, count - earlier.get(bound, 0.0)) for bound, count in now]
    median, high = quantile(new, 0.5), quantile(new, 0.95)
    return None if median is None or high is None else (median, high)


def quantile(buckets: Sequence[tuple[float, float]], share: float) -> float | None:
    """The time that `share` of all did not exceed, by interpolation within its bucket; the last finite bound for one
    beyond it. None where nothing was counted.
    """
    total = buckets[-1][1] if buckets else 0.0
    if total <= 0:
        return None
    wanted, lower, passed = share * total, 0.0, 0.0
    for bound, count in buckets:
        if count >= wanted:
            if bound == float("inf"):
                return round(lower, 6)
            part = (wanted - passed) / (count - passed) if count > passed else 1.0
            return round(lower + (bound - lower) * part, 6)
        lower, passed = bound, count
    return round(lower, 6)
