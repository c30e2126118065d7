"""`homenode plan --weights`: what it prints, as tables and as JSON, and what it refuses."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from homenode.cli.main import cli
from homenode.engine.api import planned_weights
from homenode.engine.config import ModelConfig
from homenode.host.discovery.snapshot import save_recording
from homenode.host.plan.numa.demand import Decision
from homenode.model.weights.layout import DTYPES, QUANTIZE
from homenode.options import options_of
from homenode.testing.hosts.synthetic import synthetic
from tests.checkpoints import make_folder
from tests.paths import ROOT
from tests.recorded import HOSTS


def run(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "80"}).invoke(cli, ["plan", "--weights", *arguments])


def as_json(*arguments: str) -> tuple[int, dict[str, Any]]:
    result = run(*arguments, "--json")
    return result.exit_code, json.loads(result.stdout)


@pytest.mark.parametrize(
    ("policy", "copies"), [("shard", 1), ("mirror", 4), ("replicate", 4), ("interleave", 1), ("local", 1)]
)
def test_json_has_bytes_and_rows_of_every_node(policy: str, copies: int) -> None:
    code, found = as_json("builtin", "--numa", policy, "--from", "2s/4n/64c/smt2")
    assert (code, found["policy"], found["asked"]) == (0, policy, policy)
    assert set(found["nodes"]) == ({"0"} if policy == "local" else {"0", "1", "2", "3"})
    assert (
        sum(node["bytes"] for node in found["nodes"].values()) == found["total_bytes"] == copies * found["model_bytes"]
    )
    assert len(found["parameters"]) == 29
    for parameter in found["parameters"].values():
        rows = sum(past - first for runs in parameter["nodes"].values() for first, past in runs)
        assert rows == (0 if policy == "interleave" else copies * parameter["rows"])
    assert [team["threads"] for team in found["teams"]] == ([16] if policy == "local" else [16, 16, 16, 15])


def test_a_recorded_host_with_sparse_nodes() -> None:
    code, found = as_json("builtin", "--numa", "shard", "--from", str(HOSTS / "opteron-48cpu-sparse-nodes.json"))
    assert code == 0
    assert sorted(map(int, found["nodes"])) == [0, 1, 2, 33, 34, 45, 72, 73]


def test_formats_count(tmp_path: Path) -> None:
    folder = str(make_folder(tmp_path / "model"))
    _, stored = as_json(folder, "--numa", "local")
    _, quantised = as_json(folder, "--numa", "local", "--quantize", "q8_0")
    assert quantised["model_bytes"] < stored["model_bytes"]


def test_more_nodes_than_columns_show_how_far_they_differ() -> None:
    shown = run("builtin", "--numa", "shard", "--from", "2s/8n/64c").stdout
    assert re.search(r"\.k_proj +│ 4 +│ 128 +│ 0 +│ 32 ", shown)
    assert "pages in turn" in run("builtin", "--numa", "interleave", "--from", "2s/8n/64c").stdout


def test_auto_is_the_default_and_asks_the_cost_model(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int, str]] = []

    def stand_in(host: Any, spec: Any, layout: Any, geometry: Any, batch: int, context: int, measured: str) -> Any:
        asked.append((batch, context, measured))
        return lambda teams: Decision("mirror", f"{len(teams)} nodes are twice as fast")

    monkeypatch.setattr(planned_weights, "cost_choice", stand_in)
    monkeypatch.setattr(planned_weights, "measured_speeds", lambda path: f"the speeds of {path}")
    code, found = as_json(
        "builtin", "--from", "2s/2n/8c", "--batch", "3", "--context", "77", "--numa-measured", "speeds.json"
    )
    assert (code, found["asked"], found["policy"], found["why"]) == (0, "auto", "mirror", "2 nodes are twice as fast")
    assert asked == [(3, 77, "the speeds of speeds.json")]


def test_on_one_node_everything_is_local_with_a_finding() -> None:
    code, found = as_json("builtin", "--numa", "mirror", "--from", "1s/1n/4c")
    (finding,) = found["findings"]
    assert (code, found["policy"], finding["code"], finding["severity"]) == (0, "local", "numa_single_node", "warning")
    code, found = as_json("builtin", "--numa", "mirror", "--from", "1s/1n/4c", "--numa-strict")
    assert (code, found["error"]["code"]) == (2, "several_nodes_needed")


def test_what_does_not_fit_says_where_and_what_would() -> None:
    code, found = as_json("builtin", "--numa", "mirror", "--from", "2s/2n/8c/mem=4MiB")
    error = found["error"]
    assert (code, error["code"]) == (2, "weights_do_not_fit")
    assert "4MiB on node 1" in error["seen"]
    assert "5.5MiB on node 1" in error["wanted"]
    assert "--numa shard" in error["remedy"]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("nosuch",), "nosuch"),
        (("builtin", "--strategy", "fair"), "--strategy"),
        (("builtin", "--numa-bind"), "--numa-bind"),
        (("builtin", "--requirements"), "--requirements"),
        (("builtin", "--numa", "fast"), "fast"),
        (("builtin", "--numa", "shard", "--numa-nodes", "9"), "no NUMA node 9"),
        (("builtin", "--numa", "shard", "--numa-nodes", "a"), "--numa-nodes"),
        (("builtin", "--numa", "mirror", "--numa-mirror-tensors", "lm_head*"), "--numa mirror"),
        (("builtin", "--numa", "shard", "--numa-mirror-tensors", "nosuch*"), "nosuch*"),
        (("builtin", "--numa", "shard", "--threads", "9", "--from", "2s/2n/8c"), "--threads 9"),
        (("builtin", "--numa", "shard", "--reserve-cpus", "8", "--from", "2s/2n/8c"), "--reserve-cpus 8"),
        (("builtin", "--threads-per-core", "3"), "3"),
    ],
)
def test_bad_input_ends_with_2_and_names_it(arguments: tuple[str, ...], word: str) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert word in result.stderr
    assert "Traceback" not in result.stderr


def test_variables_say_what_they_say_to_serve_and_nothing_to_a_plan_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOMENODE_NUMA", "mirror")
    monkeypatch.setenv("HOMENODE_THREADS", "4")
    _, found = as_json("builtin", "--from", "2s/2n/8c")
    assert (found["policy"], [team["threads"] for team in found["teams"]]) == ("mirror", [2, 2])
    workers = CliRunner().invoke(cli, ["plan", "--from", "2s/2n/8c", "--workers", "2", "--json"])
    assert (workers.exit_code, "workers" in json.loads(workers.stdout)) == (0, True)


@pytest.mark.parametrize("command", [("serve",), ("generate",), ("chat",), ("bench", "model"), ("plan",)], ids=" ".join)
def test_every_command_takes_the_same_options(command: tuple[str, ...]) -> None:
    shown = (
        CliRunner(env={"COLUMNS": "200"})
        .invoke(cli, [*command, "--help-all" if command == ("serve",) else "--help"])
        .stdout
    )
    assert set(re.findall(r"--numa(?:-nodes|-mirror-tensors|-strict|-measured)?(?= )|--threads-per-core", shown)) >= {
        "--numa", "--numa-nodes", "--threads-per-core", "--numa-mirror-tensors", "--numa-strict", "--numa-measured",
    }  # fmt: skip


@pytest.mark.parametrize(
    "flag", [("--numa", "shard"), ("--threads", "4"), ("--batch", "2"), ("--quantize", "q8_0"), ("--numa-strict",)]
)
def test_flags_about_weights_ask_for_them(flag: tuple[str, ...]) -> None:
    result = CliRunner().invoke(cli, ["plan", *flag])
    assert result.exit_code == 2
    assert f"{flag[0]} is about weights" in result.stderr


def test_the_choices_are_those_of_the_engine() -> None:
    from homenode.cli.placement import plan_weights

    declared = options_of(ModelConfig)
    assert declared["quantize"][1].choices == plan_weights.QUANTIZE == QUANTIZE
    assert set(declared["dtype"][1].choices) == set(plan_weights.DTYPES) == {"auto", *DTYPES}


def test_the_example_of_the_page_is_what_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from homenode.cli.output import report

    monkeypatch.delitem(vars(report), "OUT", raising=False)
    monkeypatch.chdir(tmp_path)
    save_recording("two-nodes.json", synthetic("2s/2n/8c"))
    page = (ROOT / "docs/placement/weights.md").read_text(encoding="utf-8")
    ((line, shown),) = re.findall(r"^\$ homenode plan --weights (.*)\n((?:.*\n)*?)```", page, re.MULTILINE)
    printed = [text.rstrip() for text in run(*line.split()).stdout.splitlines()]
    assert printed == shown.splitlines()


def test_the_page_of_weights_has_what_json_has(tmp_path: Path) -> None:
    file = tmp_path / "weights.html"
    words = ["plan", "--weights", "builtin", "--from", "2s/4n/64c", "--json"]
    result = CliRunner().invoke(cli, [*words, "--html", str(file)])
    assert result.exit_code == 0, result.output
    told, text = json.loads(result.stdout), file.read_text(encoding="utf-8")
    shown = re.findall(r'data-weight-node="(-?\d+)" data-bytes="(\d+)"', text)
    assert shown == [(node, str(kept["bytes"])) for node, kept in told["nodes"].items()]
    assert told["policy"] in text and told["why"] in unescape(text) and "<script" not in text
