"""Figures that /metrics shows of handing KV over, for engines that do: every series is there from the start, whatever
happened so far.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from homenode.engine.messages import EngineStats
from homenode.transfer.scheduler_events import BOUNDS_S, TransferStats

_GAUGES = (
    (
        "pinned_pages",
        "Pages of KV kept still for a hand-over: until the receiver has read them (sender), or a request takes them "
        "(receiver).",
    ),
    ("waiting", "Hand-overs that wait: for room (sender), or for the rest of their KV (receiver)."),
    ("peers", "Engines connected."),
)
_COUNTERS = (
    ("bytes", "bytes", "Bytes of KV handed over, copied or not."),
    ("pages", "pages", "Pages of KV handed over."),
    ("in_place_pages", "in_place_pages", "Pages of these that were read where the sender has them, without a copy."),
    ("held_pages", "held_pages", "Pages not handed over because the receiver had them."),
    ("completed", "completed", "Hand-overs that ended well."),
    ("waits", "waits", "Hand-overs that had to wait for room."),
    ("lease_expiries", "expired", "Hand-overs given up because the receiver neither read nor renewed in time."),
    ("late_signals", "late", "Done signals that came after that."),
    ("early_signals", "early", "Done signals that came before all pages were announced."),
    ("duplicate_signals", "duplicates", "Signals that said nothing new."),
    ("unknown_signals", "unknown", "Done signals about hand-overs that are not known, or not any more."),
    ("forged_signals", "forged", "Frames about another engine's hand-over."),
    ("breaker_opens", "breaker_opens", "Times nothing was offered to a receiver for a while, as it had no room."),
    ("forgotten", "forgotten", "Tickets that no request came for."),
    (
        "quarantined",
        "quarantined",
        "Hand-overs whose blocks a sender that does not answer may still write; they stay untouched.",
    ),
    ("poisoned_pages", "poisoned_pages", "Pages given up after they were wrong twice."),
    (
        "digest_mismatches",
        "digest_mismatches",
        "Pages whose bytes were not what the sender had promised; they were not used.",
    ),
)
_BY_REASON = (
    ("refusals", "refused", "Hand-overs refused before they began, by reason."),
    ("failures", "failed", "Hand-overs that began and ended badly, by reason; the receiver computes what is missing."),
    ("bad_frames", "bad_frames", "Frames dropped, by what was wrong with them."),
)

Parts = Sequence[tuple[tuple[str, ...], EngineStats]]


def transfer_metrics(names: tuple[str, ...], parts: Parts) -> Iterator[Metric]:
    """Metrics of engines that hand KV over; `names` of labels, and for each engine their values with its statistics."""
    of = [(values, statistics, statistics.transfer or TransferStats()) for values, statistics in parts]
    for name, help in _GAUGES:
        gauge = GaugeMetricFamily(f"homenode:kv_transfer_{name}", help, labels=names)
        for values, _, now in of:
            gauge.add_metric(values, getattr(now, name))
        yield gauge
    for name, field, help in _COUNTERS:
        counter = CounterMetricFamily(f"homenode:kv_transfer_{name}", help, labels=names)
        for values, _, now in of:
            counter.add_metric(values, getattr(now, field))
        yield counter
    yield _recomputed(names, parts)
    for name, field, help in _BY_REASON:
        counter = CounterMetricFamily(f"homenode:kv_transfer_{name}", help, labels=(*names, "reason"))
        for values, _, now in of:
            for reason, count in sorted(getattr(now, field).items()):
                counter.add_metric((*values, reason), count)
        yield counter
    yield _durations(names, [(values, now) for values, _, now in of])


def _recomputed(names: tuple[str, ...], parts: Parts) -> Metric:
    help = "Prompt tokens computed here, beyond the last one, of requests whose KV was to come from another engine."
    counter = CounterMetricFamily("homenode:kv_transfer_recomputed_tokens", help, labels=names)
    for values, now in parts:
        counter.add_metric(values, now.recomputed_tokens)
    return counter


def _durations(names: tuple[str, ...], parts: Sequence[tuple[tuple[str, ...], TransferStats]]) -> Metric:
    histogram = HistogramMetricFamily(
        "homenode:kv_transfer_seconds",
        "From the offer of a hand-over to its end, if that was a good one.",
        labels=names,
    )
    bounds = [*(repr(bound) for bound in BOUNDS_S), "+Inf"]
    for values, now in parts:
        counts, sofar = [], 0
        for bound, count in zip(bounds, now.durations, strict=False):
            sofar += count
            counts.append((bound, sofar))
        histogram.add_metric(values, counts, now.seconds)
    return histogram
