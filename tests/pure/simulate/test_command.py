"""`homenode simulate` on recorded and made-up hosts."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from homenode.cli.main import cli
from homenode.engine.config import EngineConfig, ParallelConfig, PlacementConfig
from homenode.host.discovery.read import read_host
from homenode.simulate.deployment import engines_on
from homenode.simulate.shape import shape_checkpoint
from homenode.simulate.speeds import Speeds
from homenode.testing.hosts.synthetic import synthetic
from tests.paths import ROOT

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("homenode._native") is None, reason="needs the native core, as `homenode plan` does"
)

SHAPE = "shape:layers=24,hidden=896,heads=14,kv_heads=2,intermediate=4864,vocab=151936,format=Q4_0,tied=1,max_len=4096"
FEW = "closed:clients=8,in=256,out=32,n=16"


def command(*words: str) -> Any:
    return CliRunner().invoke(cli, ["simulate", "--model", SHAPE, *words])


def found(*words: str) -> dict[str, Any]:
    result = command(*words, "--json")
    assert result.exit_code == 0, result.output
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def test_policies_are_compared() -> None:
    answer = found("--from", "2s/4n/64c", "--workload", FEW, "--compare", "numa")
    by_name = {result["name"]: result for result in answer["results"]}
    assert set(by_name) == {"shard", "mirror", "replicate", "interleave", "local"}
    assert all(result["finished"] == 16 for result in by_name.values())
    assert len(by_name["replicate"]["engines"]) == 4 and len(by_name["shard"]["engines"]) == 1
    one = sum(by_name["local"]["engines"][0]["weights"].values())
    assert sum(by_name["shard"]["engines"][0]["weights"].values()) == pytest.approx(one, rel=0.01)
    assert sum(by_name["mirror"]["engines"][0]["weights"].values()) == 4 * one
    assert answer["winner"] in by_name and answer["why"].startswith(answer["winner"])


@pytest.mark.parametrize(
    ("words", "engines", "stages"),
    [(("--data-parallel-size", "2"), 2, 1), (("--pipeline-parallel-size", "4"), 1, 4),
        (("--tensor-parallel-size", "2", "--pipeline-parallel-size", "2"), 1, 2),
     (("--hosts", "3"), 3, 1), (("--hosts", "2", "--data-parallel-size", "2", "--pipeline-parallel-size", "2"), 4, 2)],
)  # fmt: skip
def test_several_engines_stages_and_ranks(words: tuple[str, ...], engines: int, stages: int) -> None:
    answer = found("--from", "2s/4n/64c", "--workload", FEW,
        "--numa" if words[0] == "--hosts" and len(words) == 2 else "--max-num-seqs",
        "shard" if words[0] == "--hosts" and len(words) == 2 else "64", *words)  # fmt: skip
    result = answer["results"][0]
    assert result["finished"] == 16
    assert [engine["stages"] for engine in result["engines"]] == [stages] * engines
    assert sum(engine["requests"] for engine in result["engines"]) == 16


@pytest.mark.parametrize(("heads", "numa", "words", "wanted"), [
    (1, "shard", {}, 4), (1, "interleave", {}, 1), (2, "shard", {}, 4), (14, "shard", {}, 1),
    (1, "shard", {"pipeline_parallel_size": 2}, 4), (1, "local", {}, 1),
])  # fmt: skip
def test_the_scheduler_knows_which_blocks_lie_on_one_node(
    heads: int, numa: str, words: dict[str, int], wanted: int
) -> None:
    """As many as hold 256 positions, where there are fewer KV heads than the nodes of a worker."""
    host, shape = read_host(synthetic("2s/4n/64c")), shape_checkpoint(SHAPE.replace("kv_heads=2", f"kv_heads={heads}"))
    config = EngineConfig(placement=PlacementConfig(numa=numa), parallel=ParallelConfig(**words))
    (spec,) = engines_on(host, config, shape, Speeds())
    assert spec.limits.group_blocks == wanted


def test_a_recorded_host() -> None:
    host = str(ROOT / "tests" / "hosts" / "opteron-32cpu-8node.json")
    result = found("--from", host, "--workload", FEW, "--numa", "shard")["results"][0]
    assert result["finished"] == 16 and len(result["engines"][0]["weights"]) == 8


def test_accelerators_need_their_speed() -> None:
    host = str(ROOT / "tests" / "hosts" / "power9-6gpu-sparse-nodes.json")
    assert command("--from", host, "--workload", FEW, "--accelerator", "tops=1").exit_code == 2


def test_the_table(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,48,10\n", encoding="utf-8")
    result = command("--from", "2s/2n/16c", "--workload", str(trace))
    assert result.exit_code == 0 and "simulated, not measured" in result.stdout


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("--from", "2s/2n/16c", "--workload", "missing.csv"), "cannot read the trace"),
        (("--from", "2s/2n/16c", "--workload", "closed:clients=0"), "whole number"),
        (("--from", "missing.json", "--workload", FEW), "no such file"),
        (("--from", "2s/2n/16c", "--workload", FEW, "--requests", "3"), "are for traces"),
        (("--from", "2s/2n/16c/mem=256M", "--workload", FEW, "--numa", "mirror"), "do not fit"),
        (("--from", "2s/2n/16c", "--workload", FEW, "--pipeline-parallel-size", "25"), "layers"),
        (("--from", "2s/2n/16c", "--workload", FEW, "--data-parallel-size", "2", "--numa", "shard"), "both divide"),
        (("--from", "2s/2n/16c", "--workload", FEW, "--stage-devices", "cuda:0"), "is not there"),
        (("--from", "2s/2n/16c", "--workload", FEW, "--max-model-len", "5000"), "4096 positions"),
    ],
)
def test_mistakes_end_with_2(words: tuple[str, ...], fault: str) -> None:
    result = command(*words)
    assert result.exit_code == 2, result.output
    assert fault in result.stderr.replace("\n", " ")


@pytest.mark.parametrize(
    "shape",
    ["shape:", "shape:layers=0", f"{SHAPE},layers=2", f"{SHAPE},what=1", SHAPE.replace("Q4_0", "Q9"),
        SHAPE.replace("heads=14", "heads=13"), SHAPE.replace("layers=24", "layers=99999999")],
)  # fmt: skip
def test_shapes_that_cannot_be(shape: str) -> None:
    result = CliRunner().invoke(cli, ["simulate", "--model", shape, "--from", "2s/2n/16c", "--workload", FEW])
    assert result.exit_code == 2 and "--model shape:" in result.stderr
