"""What settings of several workers come to, and what is refused by name before anything is loaded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from homenode.cli.main import cli
from homenode.engine.build import check_config
from homenode.engine.config import EngineConfig
from homenode.errors import UserError
from tests.checkpoints import make_folder
from tests.engine.engines import config_for


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("model"))


def refused(model: Path, settings: dict[str, Any]) -> str:
    [problem] = check_config(config_for(model, **settings))
    return f"{problem.param}: {problem.message}".replace("-", "_")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"pipeline_parallel_size": 2, "stage_devices": "cpu"}, ["stage_devices:", "pipeline_parallel_size 2"]),
        ({"pipeline_parallel_size": 2, "layer_split": "1,2,3"}, ["layer_split:", "1,2,3"]),
        ({"pipeline_parallel_size": 99}, ["pipeline_parallel_size:", "99", "or less"]),
        ({"tensor_parallel_size": 99}, ["tensor_parallel_size:", "99"]),
        ({"stage_devices": "cuda:99"}, ["stage_devices:", "cuda:99"]),
        ({"stage_devices": "gpu"}, ["stage_devices:", "gpu"]),
        ({"tensor_parallel_size": 2, "enable_expert_parallel": True}, ["enable_expert_parallel:", "no experts"]),
        ({"pipeline_parallel_size": 2, "executor": "inline"}, ["executor:", "inline"]),
        ({"pipeline_parallel_size": 2, "pd_role": "sender"}, ["pd_role:", "several workers"]),
        ({"pipeline_parallel_size": 2, "numa": "shard"}, ["numa:", "shard"]),
        ({"pipeline_parallel_size": 2, "kv_cache_memory": "1KiB"}, ["kv_cache_memory:", "hold 0"]),
        ({"pipeline_parallel_size": 2, "max_model_len": 10**6}, ["max_model_len:", "1000000"]),
    ],
)
def test_refusals(model: Path, settings: dict[str, Any], words: list[str]) -> None:
    text = refused(model, settings)
    assert all(word in text for word in words), text


def test_what_can_be_is_not_refused(model: Path) -> None:
    assert check_config(config_for(model, pipeline_parallel_size=2, tensor_parallel_size=2)) == []
    assert check_config(config_for(model, pipeline_parallel_size=2, stage_devices="cpu,cpu", layer_split="auto")) == []


def test_zero_ranks_are_no_setting() -> None:
    with pytest.raises(UserError, match="tensor_parallel_size is 0"):
        EngineConfig.of(None, {"tensor_parallel_size": 0})


@pytest.mark.parametrize(("text", "problem"), [("x", "VLLM_CPU_KVCACHE_SPACE is 'x'"), ("900000", "kv-cache-memory"), ("0", None)])
def test_kv_memory_of_the_field(model: Path, monkeypatch: pytest.MonkeyPatch, text: str, problem: str | None) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", text)
    for settings in ({}, {"pipeline_parallel_size": 2}):
        found = check_config(config_for(model, **settings))
        assert [p.message for p in found if problem and problem in p.message] == [p.message for p in found]
        assert bool(found) == (problem is not None)
        given = config_for(model, kv_cache_memory="64MiB", **settings)
        assert check_config(given) == [], "a setting comes first"


def test_a_plan_of_stages_is_printed_before_anything_loads(model: Path) -> None:
    flags = [
        "plan",
        "--stages",
        str(model),
        "--pipeline-parallel-size",
        "2",
        "--stage-devices",
        "cpu,cpu",
        "--layer-split",
        "1,1",
        "--json",
    ]
    answer = CliRunner().invoke(cli, [*flags, "--from", "1s/2n/8c"])
    assert answer.exit_code == 0, answer.output
    workers = json.loads(answer.output)["workers"]
    assert [(w["stage"], w["layers"], w["cpus"], w["memory_nodes"]) for w in workers] == [(0, [0, 0], "0-2", "0"), (1, [1, 1], "4-7", "1")]
    assert all(w["weight_bytes"] > 0 for w in workers)
    alone = CliRunner().invoke(cli, ["plan", "--layer-split", "1,1"])
    assert alone.exit_code == 2 and "--stages MODEL" in alone.output


def test_names_of_processes() -> None:
    config = EngineConfig.of(None, {"data_parallel_size": 2})
    assert config.process_name is None
    from homenode.engine.place import EnginePlace, Replica

    second = replace(config, replica=Replica(1, 2, EnginePlace((0,))))
    assert second.process_name == "homenode-worker-1"
    several = replace(second, parallel=replace(second.parallel, tensor_parallel_size=2))
    assert several.process_name == "homenode-engine-1"
