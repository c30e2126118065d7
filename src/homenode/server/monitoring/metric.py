"""The row of a table of metrics: name, kind, help, labels and where the figure comes from. Pure: what Prometheus is
given is made from it in `metric_families.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Generic, Literal, NamedTuple, TypeVar

PREFIX = "homenode:"
Kind = Literal["counter", "gauge", "histogram"]
Scraped = TypeVar("Scraped")
Subject = TypeVar("Subject")


class BucketCounts(NamedTuple):
    """The state of a histogram that its source keeps. `counts`: of each bound, and of what lies beyond the last;
    `total`: the sum of all that was observed.
    """

    counts: Sequence[float]
    total: float

    def running_totals(self) -> list[float]:
        """Counts up to each bound, the last one of all."""
        return list(accumulate(self.counts))


Value = float | BucketCounts
Labelled = Iterable[tuple[tuple[str, ...], Value]]  # values of the row's own labels, and the figure of these


@dataclass(frozen=True)
class MetricRow(Generic[Subject]):
    """A metric. `name`: without the prefix, and without the `_total` that a counter's name gets. `labels`: its own,
    beside those of whose figures they are; one of the same name takes the other's place. `bounds`: of a histogram,
    ascending. `read`: the figure in its subject, for each value of the labels where it has any; None: the program
    counts it as it happens, in an object made from the row.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    read: Callable[[Subject], Value | Labelled] | None = None

    @property
    def shown_name(self) -> str:
        """The name that /metrics shows."""
        return f"{PREFIX}{self.name}{'_total' if self.kind == 'counter' else ''}"

    def samples(self, subject: Subject) -> Labelled:
        """The figures of a subject, by values of the row's own labels."""
        assert self.read is not None, self.name
        found: Any = self.read(subject)
        return found if self.labels else (((), found),)


@dataclass(frozen=True)
class MetricGroup(Generic[Scraped, Subject]):
    """Rows that are read from the same part of what a scrape looks at. `find`: that part; None: it has no such figures.
    `wanted`: whether the rows are shown at all, given the parts that were found.
    """

    find: Callable[[Scraped], Subject | None]
    rows: tuple[MetricRow[Subject], ...]
    wanted: Callable[[Sequence[Subject]], bool] = bool


def by_label(counts: Mapping[str, float]) -> Labelled:
    """Figures under the values of one label, in the order of these."""
    return [((name,), count) for name, count in sorted(counts.items())]


def gauge(name: str, help: str, read: Callable[[Subject], Value | Labelled], *labels: str) -> MetricRow[Subject]:
    """A figure of now."""
    return MetricRow(name, "gauge", help, labels, read=read)


def counter(name: str, help: str, read: Callable[[Subject], Value | Labelled], *labels: str) -> MetricRow[Subject]:
    """A figure that never goes back while its source lives."""
    return MetricRow(name, "counter", help, labels, read=read)


def histogram(
    name: str,
    help: str,
    bounds: tuple[float, ...],
    read: Callable[[Subject], Value | Labelled],
    *labels: str,
) -> MetricRow[Subject]:
    """Counts by size, which the source keeps."""
    return MetricRow(name, "histogram", help, labels, bounds, read)


def counted(name: str, help: str, *labels: str) -> MetricRow[None]:
    """A counter that this program adds to as things happen."""
    return MetricRow(name, "counter", help, labels)


def timed(name: str, help: str, bounds: tuple[float, ...], *labels: str) -> MetricRow[None]:
    """A histogram of seconds that this program observes."""
    return MetricRow(name, "histogram", help, labels, bounds)
