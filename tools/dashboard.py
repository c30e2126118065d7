"""Write deploy/dashboard.json and deploy/alert-rules.yaml: `python -m tools.dashboard` (a test holds both up to date,
and every metric in them to the table of metrics).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "deploy"
DASHBOARD, ALERTS = FOLDER / "dashboard.json", FOLDER / "alert-rules.yaml"
_SOURCE = {"type": "prometheus", "uid": "${source}"}
_COLUMNS, _HEIGHT = 24, 8
_OF_MODEL = 'model_name=~"$model",instance=~"$instance"'
_OF_PROXY = 'instance=~"$instance"'


@dataclass(frozen=True)
class Panel:
    """One picture. `curves`: what is drawn, by how it is called. `unit`: Grafana's word."""

    title: str
    unit: str
    curves: dict[str, str]
    width: int = 8
    about: str = ""


def _rate(metric: str, by: str = "", of: str = _OF_MODEL) -> str:
    return f"sum{f' by ({by})' if by else ''} (rate({metric}{{{of}}}[$__rate_interval]))"


def _quantile(share: float, metric: str, of: str = _OF_MODEL) -> str:
    return f"histogram_quantile({share:g}, {_rate(f'{metric}_bucket', 'le', of)})"


def _quantiles(metric: str, of: str = _OF_MODEL) -> dict[str, str]:
    return {f"{round(100 * share)} %": _quantile(share, metric, of) for share in (0.5, 0.9, 0.99)}


def _share(part: str, whole: str) -> str:
    return f"{_rate(part)} / {_rate(whole)}"


ROWS: dict[str, list[Panel]] = {
    "Requests": [
        Panel(
            "Running and waiting",
            "short",
            {
                "running": f"sum (homenode:num_requests_running{{{_OF_MODEL}}})",
                "waiting": f"sum (homenode:num_requests_waiting{{{_OF_MODEL}}})",
            },
        ),
        Panel(
            "Why they wait",
            "short",
            {"{{reason}}": f"sum by (reason) (homenode:num_requests_waiting_by_reason{{{_OF_MODEL}}})"},
            about="slots: --max-num-seqs; blocks: KV memory; turn: steps have no room yet; prefix: another computes "
            "the same beginning; kv: another engine",
        ),
        Panel(
            "Ended, and turned away",
            "reqps",
            {
                "{{finished_reason}}": _rate("homenode:request_success_total", "finished_reason"),
                "turned away: {{reason}}": _rate("homenode:admission_rejections_total", "reason"),
            },
        ),
        Panel("Time to first token", "s", _quantiles("homenode:time_to_first_token_seconds")),
        Panel("Between tokens", "s", _quantiles("homenode:inter_token_latency_seconds")),
        Panel("In the queue", "s", _quantiles("homenode:request_queue_time_seconds")),
        Panel(
            "Where the time goes",
            "s",
            {
                "queue": _quantile(0.5, "homenode:request_queue_time_seconds"),
                "prefill": _quantile(0.5, "homenode:request_prefill_time_seconds"),
                "decode": _quantile(0.5, "homenode:request_decode_time_seconds"),
            },
            about="half of the requests take at most that",
        ),
        Panel(
            "First token, by the share that was cached",
            "s",
            {
                "{{cached_share}}": "histogram_quantile(0.5, "
                + _rate("homenode:time_to_first_token_by_cached_seconds_bucket", "le, cached_share")
                + ")"
            },
        ),
        Panel(
            "Length of prompts and answers",
            "short",
            {
                "prompt": _quantile(0.5, "homenode:request_prompt_tokens"),
                "answer": _quantile(0.5, "homenode:request_generation_tokens"),
            },
            about="tokens, half of the requests have at most that",
        ),
    ],
    "Tokens and cache": [
        Panel(
            "Tokens",
            "short",
            {
                "prompt": _rate("homenode:prompt_tokens_total"),
                "generated": _rate("homenode:generation_tokens_total"),
            },
            about="per second",
        ),
        Panel(
            "Found in the prefix cache",
            "percentunit",
            {"share": _share("homenode:prefix_cache_hits_total", "homenode:prefix_cache_queries_total")},
        ),
        Panel(
            "Drafted tokens that were right",
            "percentunit",
            {
                "share": _share(
                    "homenode:spec_decode_num_accepted_tokens_total", "homenode:spec_decode_num_draft_tokens_total"
                )
            },
        ),
        Panel(
            "KV memory in use",
            "percentunit",
            {"{{instance}} {{engine}}": f"homenode:kv_cache_usage_perc{{{_OF_MODEL}}}"},
        ),
        Panel("Preemptions", "short", {"per second": _rate("homenode:num_preemptions_total")}),
        Panel("Time of a step", "s", _quantiles("homenode:step_time_seconds")),
    ],
    "Placement": [
        Panel(
            "Pages that are where they belong",
            "percentunit",
            {"{{use}} on node {{node}}": f"min by (use, node) (homenode:numa_pages_local_ratio{{{_OF_MODEL}}})"},
            12,
            "weights and KV on their NUMA node; less than 1: `homenode doctor` and `homenode verify` say why",
        ),
        Panel(
            "Memory by kind of page",
            "bytes",
            {"{{use}}, {{pages}} pages": f"sum by (use, pages) (homenode:memory_bytes{{{_OF_MODEL}}})"},
            12,
        ),
    ],
    "Prefill and decode apart": [
        Panel("KV handed over", "Bps", {"bytes": _rate("homenode:kv_transfer_bytes_total")}),
        Panel("Time of a hand-over", "s", _quantiles("homenode:kv_transfer_seconds")),
        Panel(
            "Hand-overs that failed or were refused",
            "reqps",
            {
                "failed: {{reason}}": _rate("homenode:kv_transfer_failures_total", "reason"),
                "refused: {{reason}}": _rate("homenode:kv_transfer_refusals_total", "reason"),
            },
        ),
        Panel(
            "Requests of the proxy",
            "reqps",
            {"{{way}} {{outcome}}": _rate("homenode:proxy_requests_total", "way, outcome", _OF_PROXY)},
        ),
        Panel(
            "Servers of the proxy",
            "short",
            {"{{role}} {{server}} {{state}}": f"homenode:proxy_server_state{{{_OF_PROXY}}} == 1"},
        ),
        Panel(
            "First byte through the proxy",
            "s",
            _quantiles("homenode:proxy_time_to_first_byte_seconds", _OF_PROXY),
        ),
    ],
}


@dataclass(frozen=True)
class Alert:
    """A rule. `lasts`: how long it has to be so; `severity`: page: somebody is to look now; ticket: tomorrow."""

    name: str
    expr: str
    lasts: str
    severity: str
    summary: str
    todo: str


RULES = (
    Alert(
        "HomenodeEngineGone",
        'max by (instance, model_name, engine) (homenode:engine_state{state=~"gone|silent"}) == 1',
        "1m",
        "page",
        "Engine {{ $labels.engine }} of {{ $labels.model_name }} on {{ $labels.instance }} does not answer.",
        "The log of the server says why; others of the same service go on.",
    ),
    Alert(
        "HomenodeEngineRestarts",
        "increase(homenode:engine_restarts_total[30m]) > 2",
        "0m",
        "page",
        "Engines of {{ $labels.model_name }} on {{ $labels.instance }} are started again and again.",
        "Look at the log for memory that ran out, or a device that fails.",
    ),
    Alert(
        "HomenodeTurnsAway",
        "sum by (instance, model_name) (rate(homenode:admission_rejections_total[5m])) > 0",
        "10m",
        "ticket",
        "Requests to {{ $labels.model_name }} on {{ $labels.instance }} are turned away.",
        "The reason is a label. Queues have a bound: more engines, or a smaller model.",
    ),
    Alert(
        "HomenodeFirstTokenLate",
        "histogram_quantile(0.9, sum by (le, instance, model_name) "
        "(rate(homenode:time_to_first_token_seconds_bucket[10m]))) > 10",
        "10m",
        "ticket",
        "One request in ten of {{ $labels.model_name }} on {{ $labels.instance }} waits over 10 s for its first token.",
        "homenode:num_requests_waiting_by_reason says what they wait for.",
    ),
    Alert(
        "HomenodeKvMemoryShort",
        "sum by (instance, model_name) (rate(homenode:num_preemptions_total[10m])) > 0.1",
        "15m",
        "ticket",
        "Requests of {{ $labels.model_name }} on {{ $labels.instance }} give way to others for lack of KV memory.",
        "More --kv-cache-memory, a smaller --max-num-seqs, or --kv-cache-dtype int8.",
    ),
    Alert(
        "HomenodeKvMemoryRefused",
        "increase(homenode:kv_cache_growths_refused_total[10m]) > 0",
        "0m",
        "ticket",
        "The machine {{ $labels.instance }} had no memory for the KV of {{ $labels.model_name }}.",
        "Something else has taken it: a smaller --kv-cache-memory, or --kv-cache-prealloc.",
    ),
    Alert(
        "HomenodePagesElsewhere",
        "min by (instance, model_name, use, node) (homenode:numa_pages_local_ratio) < 0.9",
        "15m",
        "ticket",
        "Pages ({{ $labels.use }}) of {{ $labels.model_name }} on {{ $labels.instance }} are not on their NUMA node.",
        "`homenode verify` on that host says which and why; a container may lack SYS_NICE.",
    ),
    Alert(
        "HomenodeHandOversFail",
        "sum by (instance) (rate(homenode:kv_transfer_failures_total[5m])) > 0",
        "10m",
        "ticket",
        "Hand-overs of KV fail on {{ $labels.instance }}; receivers compute what is missing.",
        "The reason is a label; docs/kv-transfer-faults.md has each.",
    ),
    Alert(
        "HomenodeWrongKv",
        "increase(homenode:kv_transfer_digest_mismatches_total[10m]) > 0",
        "0m",
        "page",
        "Pages of KV that came to {{ $labels.instance }} were not what their sender had promised; they were not used.",
        "Look for failing memory or a network that changes bytes.",
    ),
    Alert(
        "HomenodeProxyWithoutServers",
        'sum by (instance, role) (homenode:proxy_server_state{state="ready"}) == 0',
        "1m",
        "page",
        "The proxy {{ $labels.instance }} has no {{ $labels.role }} server.",
        "Its page, or GET /health, says what each server answers.",
    ),
)


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS.items():
        panels.append({"type": "row", "title": title, "gridPos": _place(0, top, _COLUMNS, 1), "collapsed": False})
        top, left = top + 1, 0
        for panel in row:
            if left + panel.width > _COLUMNS:
                left, top = 0, top + _HEIGHT
            panels.append(_panel(panel, left, top))
            left += panel.width
        top += _HEIGHT
    for number, panel in enumerate(panels, 1):
        panel["id"] = number
    return {
        "title": "homenode",
        "uid": "homenode",
        "tags": ["homenode", "llm"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "source", "label": "Source", "type": "datasource", "query": "prometheus"},
                _variable("model", "Model", "label_values(homenode:num_requests_running, model_name)"),
                _variable("instance", "Server", "label_values(homenode:num_requests_running, instance)"),
            ]
        },
        "panels": panels,
    }


def _place(left: int, top: int, width: int, height: int) -> dict[str, int]:
    return {"x": left, "y": top, "w": width, "h": height}


def _panel(panel: Panel, left: int, top: int) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": _SOURCE,
        "gridPos": _place(left, top, panel.width, _HEIGHT),
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + number), "datasource": _SOURCE, "expr": expr, "legendFormat": legend}
            for number, (legend, expr) in enumerate(panel.curves.items())
        ],
    }


def _variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def alert_rules() -> str:
    """The rules as Prometheus reads them. JSON strings are strings of YAML."""
    lines = ["# Alerts of homenode, for `rule_files:` of Prometheus. Written by `python -m tools.dashboard`."]
    lines += ["groups:", "  - name: homenode", "    rules:"]
    for rule in RULES:
        lines += [
            f"      - alert: {rule.name}",
            f"        expr: {json.dumps(rule.expr)}",
            f"        for: {rule.lasts}",
            "        labels:",
            f"          severity: {rule.severity}",
            "        annotations:",
            f"          summary: {json.dumps(rule.summary)}",
            f"          description: {json.dumps(rule.todo)}",
        ]
    return "\n".join(lines) + "\n"


def written() -> dict[Path, str]:
    """Return the text of each file."""
    return {DASHBOARD: json.dumps(dashboard(), indent=1) + "\n", ALERTS: alert_rules()}


def main() -> None:
    """Write both."""
    for path, text in written().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
