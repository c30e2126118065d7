"""What Prometheus is given, made from rows of the table of metrics: families of figures that are read at a scrape, and
objects that count as things happen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

from homenode.server.monitoring.metric import PREFIX, BucketCounts, MetricGroup, MetricRow

Labels = tuple[str, ...]
_FAMILIES = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}


def families(
    groups: Iterable[MetricGroup[Any, Any]],
    names: Labels,
    parts: Sequence[tuple[Labels, Any]],
    prefix: str = PREFIX,
) -> Iterator[Metric]:
    """The rows that have figures, each as a family. `names`: of the labels that all have; `parts`: values of these, and
    what the figures of each are read from.
    """
    for group in groups:
        found = [(values, part) for values, scraped in parts if (part := group.find(scraped)) is not None]
        if group.wanted([part for _, part in found]):
            yield from (_family(row, names, found, prefix) for row in group.rows)


def _family(row: MetricRow[Any], names: Labels, found: Sequence[tuple[Labels, Any]], prefix: str) -> Metric:
    kept = [place for place, name in enumerate(names) if name not in row.labels]
    family: Any = _FAMILIES[row.kind](
        prefix + row.name, row.help, labels=(*(names[place] for place in kept), *row.labels)
    )
    for values, part in found:
        for own, value in row.samples(part):
            labels = (*(values[place] for place in kept), *own)
            if isinstance(value, BucketCounts):
                bounds = [*map(repr, row.bounds), "+Inf"]
                family.add_metric(labels, list(zip(bounds, value.running_totals(), strict=True)), value.total)
            else:
                family.add_metric(labels, value)
    return family  # type: ignore[no-any-return]


class Families(Protocol):
    """Whatever gives families of figures."""

    def collect(self) -> Iterable[Metric]: ...


def exposition(of: Families, accept: str = "") -> tuple[bytes, str]:
    """The text of figures for a scrape, and its content type, as the header `accept` asks for it: Prometheus text, or
    OpenMetrics, which alone shows exemplars.
    """
    encode, kind = choose_encoder(accept)
    return encode(of), kind


def make_counter(row: MetricRow[None], registry: CollectorRegistry, *labels: str) -> Counter:
    """A counter of this process. `labels`: names of those before its own."""
    return Counter(PREFIX + row.name, row.help, (*labels, *row.labels), registry=registry)


def make_histogram(row: MetricRow[None], registry: CollectorRegistry, *labels: str) -> Histogram:
    """A histogram of this process. `labels`: names of those before its own."""
    return Histogram(PREFIX + row.name, row.help, (*labels, *row.labels), buckets=row.bounds, registry=registry)
