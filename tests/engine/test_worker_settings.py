"""What settings of several workers come to, and what is refused by name before anything is loaded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from homenode.cli.main import cli
from homenode.engine.assignment import EngineAssignment
from homenode.engine.backend import make_backend
from homenode.engine.binding import EngineBinding, Replica
from homenode.engine.channels.messages import Join
from homenode.engine.config import ComputeConfig, EngineConfig
from homenode.engine.executor.join import join_of
from homenode.engine.executor.worker_pool import replace_join
from homenode.engine.kv_transfer.checks import kept_as, targets_of
from homenode.engine.memory import available
from homenode.engine.memory.available import MemoryBudget, memory_left
from homenode.engine.memory.sizing import resolve
from homenode.engine.plan.engine_plan import EnginePlan
from homenode.engine.plan.machine import read_machine
from homenode.engine.plan.make import check_config, plan_engine
from homenode.engine.plan.placement import UNPINNED
from homenode.engine.plan.workers import plan_workers
from homenode.engine.runtime.build import _growth
from homenode.errors import CapacityError, UserError
from homenode.host.discovery.read import read_host
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.part import IndexRange, ModelPart
from homenode.model.weights.layout import MatrixLayout, WeightLayout
from homenode.model.weights.load import plan_model
from homenode.testing.hosts.synthetic import synthetic
from tests.checkpoints import make_folder
from tests.engine.engines import config_for


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("model"))


def refused(model: Path, settings: dict[str, Any]) -> str:
    [problem] = check_config(EngineAssignment(config_for(model, **settings)))
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
        ({"pipeline_parallel_size": 2, "pd_role": "sender", "executor": "ray"}, ["executor:", "pd_role", "processes"]),
        (
            {"pipeline_parallel_size": 2, "pd_role": "sender", "pd_buffer_size": "1KiB"},
            ["pd_buffer_size:", "less than one KV block"],
        ),
        (
            {"tensor_parallel_size": 2, "pd_role": "receiver", "pd_peer_alloc_port": [7400]},
            ["pd_peer_alloc_port:", "2 ranks"],
        ),
        (
            {"pipeline_parallel_size": 2, "numa": "shard", "cpu_threads_bind": "auto"},
            ["numa:", "both say where threads run"],
        ),
        ({"pipeline_parallel_size": 2, "kv_cache_memory": "1KiB"}, ["kv_cache_memory:", "hold 0"]),
        ({"pipeline_parallel_size": 2, "max_model_len": 10**6}, ["max_model_len:", "1000000"]),
    ],
)
def test_refusals(model: Path, settings: dict[str, Any], words: list[str]) -> None:
    text = refused(model, settings)
    assert all(word in text for word in words), text


def test_what_can_be_is_not_refused(model: Path) -> None:
    assert check_config(EngineAssignment(config_for(model, pipeline_parallel_size=2, tensor_parallel_size=2))) == []
    assert (
        check_config(
            EngineAssignment(config_for(model, pipeline_parallel_size=2, stage_devices="cpu,cpu", layer_split="auto"))
        )
        == []
    )
    assert (
        check_config(
            EngineAssignment(config_for(model, pipeline_parallel_size=2, tensor_parallel_size=2, pd_role="sender"))
        )
        == []
    )


def test_zero_ranks_are_no_setting() -> None:
    with pytest.raises(UserError, match="tensor_parallel_size is 0"):
        EngineConfig.of(None, {"tensor_parallel_size": 0})


@pytest.mark.parametrize(
    ("text", "problem"), [("x", "VLLM_CPU_KVCACHE_SPACE is 'x'"), ("900000", "kv-cache-memory"), ("0", None)]
)
def test_kv_memory_of_the_field(model: Path, monkeypatch: pytest.MonkeyPatch, text: str, problem: str | None) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", text)
    for settings in ({}, {"pipeline_parallel_size": 2}):
        found = check_config(EngineAssignment(config_for(model, **settings)))
        assert [p.message for p in found if problem and problem in p.message] == [p.message for p in found]
        assert bool(found) == (problem is not None)
        given = config_for(model, kv_cache_memory="64MiB", **settings)
        assert check_config(EngineAssignment(given)) == [], "a setting comes first"


@pytest.mark.parametrize("settings", [{}, {"pipeline_parallel_size": 2}, {"tensor_parallel_size": 2}])
def test_the_log_says_the_size_that_the_field_gives_and_no_fraction(
    model: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, int]
) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "0.0625")
    config = config_for(model, **settings)
    checkpoint, devices = open_checkpoint(Path(str(config.model.path))), ("cpu",) * config.parallel.workers
    plan = plan_engine(EngineAssignment(config), checkpoint, read_machine(config, devices))
    sizes = resolve(config, checkpoint.spec, plan.whole_geometry, 1 << 40)
    said = _growth(plan, sizes)
    assert "--kv-cache-memory" in said and "fraction" not in said


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
    assert json.loads(answer.output)["rooms"] == [], "nobody knows what is free there"
    assert [(w["stage"], w["layers"], w["cpus"], w["memory_nodes"]) for w in workers] == [
        (0, [0, 0], "0-2", "0"),
        (1, [1, 1], "4-7", "1"),
    ]
    assert all(w["weight_bytes"] > 0 for w in workers)
    here = CliRunner().invoke(cli, flags)
    [room] = [room for room in json.loads(here.output)["rooms"] if room["where"] == "memory of this host"]
    assert room["takers"] == [1, 1] and room["shares"] >= 2
    assert "memory of this host: room for" in " ".join(CliRunner().invoke(cli, flags[:-1]).output.split())
    alone = CliRunner().invoke(cli, ["plan", "--layer-split", "1,1"])
    assert alone.exit_code == 2 and "--stages MODEL" in alone.output


def planned(model: Path, free: list[int], available: int, **settings: Any) -> EnginePlan:
    """An engine of two stages on a host of two nodes with so much free memory."""
    host = read_host(synthetic("1s/2n/8c"))
    nodes = tuple(replace(node, free=size) for node, size in zip(host.nodes, free, strict=True))
    host = replace(host, nodes=nodes, allowance=replace(host.allowance, memory_available=available))
    config = config_for(model, pipeline_parallel_size=2, stage_devices="cpu,cpu", **settings)
    return plan_workers(EngineAssignment(config), open_checkpoint(model), host, ["cpu", "cpu"])


SMALL = {"max_num_batched_tokens": 8, "max_num_seqs": 8, "max_model_len": 32}


def test_layers_are_divided_by_what_fits(tmp_path: Path) -> None:
    model = make_folder(tmp_path / "deep", num_hidden_layers=6)
    plenty = planned(model, [1 << 30, 1 << 30], 1 << 31, **SMALL)
    assert [worker.part.layers.count for worker in plenty.worker_layout.workers] == [3, 3]
    splits = [_stages(model, [size, 1 << 30]) for size in range(plenty.weights[0].target_bytes // 4, 1 << 22, 16 << 10)]
    assert list(dict.fromkeys(map(tuple, filter(None, splits)))) == [(1, 5), (2, 4), (3, 3)]
    with pytest.raises(CapacityError, match="memory of NUMA node 0 has room for 0 layers of stage 0") as caught:
        planned(model, [1024, 1 << 30], 1 << 31, **SMALL)
    assert caught.value.param == "layer_split"


def _stages(model: Path, free: list[int]) -> list[int] | None:
    """The layers of the stages; None where not all of a worker fits."""
    try:
        plan = planned(model, free, 1 << 31, **SMALL)
    except CapacityError:
        return None
    layers = [worker.part.layers.count for worker in plan.worker_layout.workers]
    return layers if all(room.holds(layers) for room in plan.capacities) else None


def test_too_much_kv_memory_is_said_of_its_setting(model: Path) -> None:
    found = check_config(
        EngineAssignment(
            config_for(model, pipeline_parallel_size=2, stage_devices="cpu,cpu", kv_cache_memory="900000GiB")
        )
    )
    assert [problem.param for problem in found] == ["kv_cache_memory"]


def test_names_of_processes() -> None:
    config = EngineConfig.of(None, {"data_parallel_size": 2})
    assert EngineAssignment(config).process_name is None
    second = EngineAssignment(config, Replica(1, 2, EngineBinding((0,))))
    assert second.process_name == "homenode-worker-1"
    parallel = replace(config.parallel, tensor_parallel_size=2)
    several = replace(second, config=replace(config, parallel=parallel))
    assert several.process_name == "homenode-engine-1"


@pytest.mark.parametrize("quantize", [None, "q8_0"])
def test_weights_are_kept_as_those_of_one_worker_whatever_the_degrees(tmp_path: Path, quantize: str | None) -> None:
    """So engines of different degrees may use each other's KV."""
    model = make_folder(tmp_path / "model", hidden_size=64, intermediate_size=128, head_dim=32)
    host, checkpoint, backend = (
        read_host(synthetic("1s/2n/8c")),
        open_checkpoint(model),
        make_backend(ComputeConfig(), (UNPINNED,)),
    )
    whole = plan_model(checkpoint, backend, quantize=quantize)
    for stages, ranks in ((2, 1), (1, 2), (2, 2)):
        config = config_for(model, pipeline_parallel_size=stages, tensor_parallel_size=ranks, quantize=quantize)
        plan = plan_workers(EngineAssignment(config), checkpoint, host, ["cpu"] * stages * ranks)
        assert plan.kept_as(backend) == kept_as(config, targets_of(whole))


def test_matrices_that_are_cut_within_blocks_are_others() -> None:
    def layout(columns: int, target: str, *names: str) -> WeightLayout:
        return WeightLayout(tuple(MatrixLayout(name, 8, columns, "f32", target, "", 0, 0) for name in names), 0)

    whole = layout(96, "Q8_0", "up", "down")
    assert targets_of(whole) == {"Q8_0": 2}
    assert targets_of(whole, [layout(64, "Q8_0", "up"), layout(32, "Q8_0", "up"), layout(96, "Q8_0", "down")]) == {
        "Q8_0": 2
    }
    assert targets_of(whole, [layout(48, "Q8_0", "up")] * 2) == {"Q8_0 of 48+48": 1, "Q8_0": 1}
    assert targets_of(whole, [layout(96, "Q8_0", "up"), layout(96, "f32", "up")]) == {"Q8_0/f32": 1, "Q8_0": 1}


def test_a_worker_in_another_s_place_counts_the_kv_memory_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in use already, and nobody else's."""
    monkeypatch.setattr(available, "available_memory", lambda binding: MemoryBudget(100))
    config, binding = EngineConfig.of(None, {}), EngineBinding((0,))
    assert memory_left(None, binding) == 100 and memory_left(None, binding, already_held=50) == 150
    assert memory_left(120, binding, taken=30, already_held=50) == 90
    nothing = IndexRange(0, 0)
    part = ModelPart(IndexRange(0, 1), 0, 1, 0, 1, nothing, nothing, nothing, nothing, nothing, nothing, ())
    join = Join(0, 0, config, "cpu", part, binding, [])
    assert replace_join(join, 1, [], 0) == Join(0, 1, config, "cpu", part, binding, [])
    assert replace_join(join, 1, [], 4096) == Join(
        0, 1, config, "cpu", part, binding, [], kv_cache_memory=4096, kv_there=4096
    )


def test_a_worker_is_told_the_cpus_that_its_engine_was_allowed(model: Path) -> None:
    """It is started by an engine that has moved to the CPUs of its loop, and would count those alone."""
    config, host = config_for(model, pipeline_parallel_size=2), read_host(synthetic("1s/1n/8c"))
    planned = plan_workers(EngineAssignment(config), open_checkpoint(model), host, ("cpu", "cpu"))
    assert planned.worker_layout.loop and set(planned.worker_layout.loop) < set(host.allowance.cpus)
    for worker in planned.worker_layout.workers:
        assert join_of(planned, worker).allowed_cpus == list(host.allowance.cpus)
    moved = EngineAssignment(config, Replica(0, 1, EngineBinding(tuple(range(8))), (2, 3)))
    assert join_of(replace(planned, assignment=moved), planned.worker_layout.workers[0]).allowed_cpus == [2, 3]
