"""/metrics is what the table of metrics says, and has what it had when metrics.txt was kept: other programs read it.
Something new is no change of that; who takes something away on purpose writes the text anew: `python -m
tests.server.test_metrics`.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from homenode.engine.messages import STEP_TIME_BOUNDS, DiskStats, EngineStats, ReplicaStats, StateStats
from homenode.server.keys.counts import GENERATED_TOKENS, PROMPT_TOKENS, REFUSALS, REQUESTS, RUNNING
from homenode.server.monitoring import metric_table
from homenode.server.monitoring.metric import MetricRow
from homenode.server.monitoring.metric_table import rows_of
from homenode.server.monitoring.server_metrics import Metrics
from homenode.server.monitoring.snapshots import LifeSnapshot
from homenode.server.proxy.breaker import CircuitBreaker
from homenode.server.proxy.instances import Instance
from homenode.server.proxy.metrics import ProxyMetrics
from homenode.start_phases import mark_phase, marked_phases
from homenode.transfer.scheduler_events import BOUNDS_S, TransferStats
from tests.paths import ROOT
from tools.metrics_table import PAGE, page

ALL: tuple[MetricRow[Any], ...] = (
    *rows_of((*metric_table.ENGINE, *metric_table.REPLICA, *metric_table.MODEL, *metric_table.LIFE, *metric_table.KEY)),
    *metric_table.FRONT,
    *rows_of((*metric_table.PROXY_SERVER, *metric_table.PROXY)),
    *metric_table.PROXY_COUNTED,
)
KEPT = Path(__file__).parent / "metrics.txt"
PAGES = {"present": 10, "huge": 4}
COMPUTE = {
    "weight_pages": PAGES,
    "shared_pages": {"present": 3, "huge": 1},
    "kv_pages": {"present": 0, "huge": 0},
    "residency": {
        "weights": [{"node": 0, "local": 3, "present": 4}, {"node": -1, "local": 0, "present": 0}],
        "kv": [{"node": 1, "local": 1, "present": 1}],
        "scratch": None,
    },
    "stages": [{"stage": 0, "busy_s": 1.5, "wait_s": 0.5}, {"stage": 1, "busy_s": 1.0, "wait_s": 1.0}],
    "workers": [{"state": "ready"}, {"state": "starting"}, {"state": "ready"}],
    "restarts": 2,
    "barrier_wait_share": 0.125,
    "experts": {"tokens": [5, 7], "imbalance": [[1, 1.2]], "layers": [[0, 0], [5, 7]]},
    "weight_bytes": 100,
    "shared_weight_bytes": 50,
}
FULL = EngineStats(
    num_running=2,
    num_waiting=1,
    kv_usage=0.25,
    prefix_queries=10,
    prefix_hits=4,
    preemptions=3,
    prompt_tokens=50,
    generation_tokens=70,
    kv_released_bytes=4096,
    kv_growths_refused=6,
    waiting_for={"slots": 1, "kv": 2},
    rejected={"queue_full": 5, "draining": 1},
    step_times={"decode": [*range(len(STEP_TIME_BOUNDS) + 1), 12.5], "mixed": [0.0] * (len(STEP_TIME_BOUNDS) + 2)},
    step_errors={"decode": 0.125},
    compute=COMPUTE,
    recomputed_tokens=9,
    transfer=TransferStats(
        **{
            field.name: number + 1
            for number, field in enumerate(msgspec.structs.fields(TransferStats))
            if field.type is int
        },
        refused={"no room": 2, "breaker": 1},
        failed={"peer_lost": 1},
        bad_frames={"too long": 3},
        durations=list(range(len(BOUNDS_S) + 1)),
        seconds=17.5,
    ),
    states=StateStats(8, 2, 3, 4, 5),
    disk=DiskStats(1, 2, 3, 4, 5, 6.0, 7.0),
)
NONE_OF_THEM = EngineStats(compute={"experts": {"tokens": [1, 2], "imbalance": []}})
START = [("weights", 1.5), ("ready", 2.0)]


class Key:
    """Counts of one key: the number of the counter, tenfold, and of the row."""

    def total(self, row: int, counter: int) -> int:
        return 10 * counter + row


KEYS: Any = SimpleNamespace(figures=lambda: [("alice", Key(), 1), ("bob", Key(), 2)])
assert {RUNNING, REQUESTS, PROMPT_TOKENS, GENERATED_TOKENS, *REFUSALS.values()} == set(range(7))


def engine(statistics: EngineStats, *engines: ReplicaStats, **details: object) -> Any:
    ready = SimpleNamespace(details={"prefix_caching": True, **details}, block_size=16, num_blocks=64)
    return SimpleNamespace(statistics=statistics, engines=engines, ready=ready)


def replicas(*nodes: int | None) -> tuple[ReplicaStats, ...]:
    states = ("ready", "restarting", "gone")
    figures = (FULL, NONE_OF_THEM, EngineStats())
    return tuple(ReplicaStats(n, nodes[n], states[n], n, 2 * n, figures[n]) for n in range(len(nodes)))  # type: ignore[arg-type]


def server(client: Any, keys: Any = None) -> bytes:
    metrics = Metrics("teller", keys=keys)
    recorder = metrics.add_model("teller", client).recorder()
    recorder.tokens(2)
    recorder.tokens(2)
    recorder.end("stop")
    metrics.refuse("queue_full")
    return metrics.render()[0]


def several_models() -> bytes:
    metrics = Metrics("")
    metrics.add_model("one", engine(FULL))
    metrics.add_model("two", engine(EngineStats(), *replicas(0, 1), kv_transfer={"role": "sender"}))
    metrics.refuse("draining")
    metrics.front_begins(True)
    states = {"loaded": True, "unloaded": False}
    metrics.show_lives(lambda: [("one", LifeSnapshot(states, {"0": 3.0}, 1, 2, 3, 4))])
    return metrics.render()[0]


def proxy() -> bytes:
    servers = [Instance(f"http://{role}", role, CircuitBreaker(3, 1.0)) for role in ("prefill", "decode")]  # type: ignore[arg-type]
    loads: Any = SimpleNamespace(requests=len, waiting=lambda url: 2 * len(url), slowness=lambda url, others: 1)
    under_way: Any = [SimpleNamespace(phase="choosing"), SimpleNamespace(phase="decoding")]
    metrics = ProxyMetrics(servers, loads, under_way, KEYS)
    metrics.finished("local", "ok", 1.5)
    metrics.direct("short")
    metrics.fault("prefill", "http://prefill", "late")
    metrics.refuse("draining")
    metrics.released("ok")
    metrics.prefilled(0.25)
    metrics.first_byte(0.3)
    return metrics.render()[0]


SCENES = {
    "an engine that hands KV over": lambda: server(
        engine(FULL, start_phases=START, kv_transfer={"role": "receiver"}), KEYS
    ),
    "an engine without anything special": lambda: server(engine(EngineStats())),
    "an engine that will hand KV over": lambda: server(engine(EngineStats(), kv_transfer={"role": "receiver"})),
    "engines on nodes": lambda: server(engine(EngineStats(), *replicas(4, 6))),
    "several models": several_models,
    "a proxy": proxy,
}
TIMED = re.compile(r"(queue_time|first_token|token_latency|request_latency)_seconds_(bucket|sum)|start_phase_seconds")
BUCKETS = re.compile(r"_bucket\{.*le=\"(?!0\.01\"|1\"|1\.0\"|\+Inf)")


def lines_of(text: bytes) -> list[str]:
    """Types and samples. What a clock says is left out, and most buckets."""
    found: list[str] = []
    for line in text.decode().splitlines():
        if line.startswith("# HELP") or "_created" in line or BUCKETS.search(line):
            continue
        timed = not line.startswith("#") and TIMED.search(line.partition("{")[0])
        found.append(line.rpartition(" ")[0] if timed else line)
    return found


def scenes() -> dict[str, list[str]]:
    """The lines of each scene."""
    if "imports" not in dict(marked_phases()):  # another test of this process may have marked others
        mark_phase("imports")
    return {title: lines_of(scene()) for title, scene in SCENES.items()}


def test_what_was_shown_is_shown() -> None:
    shown = scenes()
    for part in KEPT.read_text(encoding="utf-8").split("\n\n"):
        title, *lines = part.strip().splitlines()
        assert set(lines) - set(shown[title]) == set(), title


def test_every_family_is_a_row_of_the_table_with_its_labels() -> None:
    rows = {row.shown_name: row for row in ALL}
    assert len(rows) == len(ALL), "a name is used once"
    met = set()
    for title, scene in SCENES.items():
        for family in text_string_to_metric_families(scene().decode()):
            name = f"{family.name}{'_total' if family.type == 'counter' else ''}".replace("proxy_key_", "key_")
            if not family.name.endswith("_created"):
                row = rows[name]
                met.add(name)
                assert family.type == row.kind, (title, name)
                labels = {label for sample in family.samples for label in sample.labels} - {"le"}
                assert labels >= set(row.labels) or not family.samples, (title, name)
                outer = {"model_name", "engine", "node", "key", "role", "server"}
                assert labels <= {*row.labels, *outer}, (title, name)
    assert met == rows.keys(), "give FULL or another scene figures of those that are missing"


def test_every_figure_of_an_engine_is_shown() -> None:
    unshown = {"drafted_tokens", "accepted_tokens", "steps", "step_tokens", "waiting_for_kv", "handed_tokens"}
    text = "".join(
        (ROOT / "src/homenode/server/monitoring" / name).read_text() for name in ("metric_table.py", "snapshots.py")
    )
    for kind in (EngineStats, TransferStats, StateStats):
        for name in kind.__struct_fields__:
            assert name in unshown or re.search(rf"\.{name}\b", text), (kind.__name__, name)


def test_the_page_is_that_of_the_table() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m tools.metrics_table"


def test_pages_name_metrics_that_there_are() -> None:
    names = {name for row in ALL for name in series_of(row)}
    for path in sorted(PAGE.parent.rglob("*.md")):
        for name in re.findall(r"`(homenode:\w*[a-z])(?:\{[^`]*\})?`", path.read_text(encoding="utf-8")):
            assert name in names or any(each.startswith(name) for each in names), (path.name, name)


def series_of(row: MetricRow[Any]) -> list[str]:
    parts = ("_bucket", "_sum", "_count") if row.kind == "histogram" else ()
    return [row.shown_name, *(row.shown_name + part for part in parts)]


def test_only_rows_become_families() -> None:
    kinds = re.compile(r"(Counter|Gauge|Histogram|Summary|Info|Enum)(MetricFamily)?")
    made = set()
    for path in sorted((ROOT / "src/homenode").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "prometheus_client" not in text:
            continue
        tree = ast.parse(text)
        names = {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("prometheus_client")
            for alias in node.names
            if kinds.fullmatch(alias.name)
        }
        calls = {
            node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        made |= {path.name for name in names & calls}
        made |= {path.name for name in names if name.endswith("Family")}
    assert made == {"metric_families.py"}


if __name__ == "__main__":
    KEPT.write_text(
        "\n\n".join("\n".join([title, *lines]) for title, lines in scenes().items()) + "\n", encoding="utf-8"
    )
