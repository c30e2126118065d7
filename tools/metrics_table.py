"""Write docs/metrics.md from the table of metrics: `python -m tools.metrics_table` (a test holds the page up to
date).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from homenode.server.monitoring import metric_table
from homenode.server.monitoring.metric import MetricRow
from homenode.server.monitoring.metric_table import rows_of

PAGE = Path(__file__).resolve().parent.parent / "docs" / "metrics.md"
_INTRODUCTION = """# Metrics

Every family that `GET /metrics` of `homenode serve` and `homenode proxy` shows, in Prometheus text. Names, types,
labels and units are [kept](compatibility.md); labels that all families of a section have stand in its title. The sums
of what several engines, fronts or models show are the service's. What they mean at work: [the
server](server.md#metrics), [handing KV over](kv-transfer.md#metrics), [several workers](parallel.md), [the
proxy](proxy.md#metrics), [named keys](doors.md)."""
_SECTIONS: tuple[tuple[str, Iterable[MetricRow[Any]]], ...] = (
    (
        "Of each engine: `model_name`; of several also `engine`, and `node` where each has one to itself",
        rows_of(metric_table.ENGINE),
    ),
    ("Of each of several engines, over its lives: `model_name`, `engine`, `node`", rows_of(metric_table.REPLICA)),
    ("Of each model: `model_name`", (*rows_of(metric_table.MODEL), *metric_table.FRONT)),
    ("Of each of several models: `model_name`", rows_of(metric_table.LIFE)),
    ("Of each named key: `key`, and of a server `model_name`", rows_of(metric_table.KEY)),
    ("Of each server of a proxy: `role`, `server`", rows_of(metric_table.PROXY_SERVER)),
    ("Of a proxy", (*rows_of(metric_table.PROXY), *metric_table.PROXY_COUNTED)),
)


def page() -> str:
    """The whole page as Markdown."""
    parts = [_INTRODUCTION]
    for title, rows in _SECTIONS:
        parts += [f"\n## {title}\n", "| metric | type | meaning |", "|---|---|---|", *map(_row, rows)]
        if title.startswith("Of each named key"):
            parts.append("\nThose of a proxy begin with `homenode:proxy_key_`.")
    return "\n".join(parts) + "\n"


def _row(row: MetricRow[Any]) -> str:
    labels = f"{{{','.join(row.labels)}}}" if row.labels else ""
    return f"| `{row.shown_name}{labels}` | {row.kind} | {row.help} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
