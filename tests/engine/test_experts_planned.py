"""Engines that keep experts once for all of them, before they are there: what fits, what is refused or told, what plans
and simulations show.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from homenode.cli.main import cli
from homenode.engine.assignment import EngineAssignment
from homenode.engine.plan.make import check_config
from homenode.engine.router.client import ReplicasClient
from homenode.errors import CapacityError
from homenode.units import format_bytes
from tests.checkpoints import make_folder
from tests.engine.test_experts_in_common import bytes_of, engines_of, using

pytest.importorskip("homenode._native", reason="needs the compiled core")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "model", "mixtral")


def within(assignments: Sequence[EngineAssignment], memory: int) -> list[EngineAssignment]:
    """Each with so many bytes for itself."""
    return [replace(each, replica=replace(each.replica, memory=memory)) for each in assignments if each.replica]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_model_that_fits_only_once_is_accepted(tmp_path: Path, ranks: int) -> None:
    model = make_folder(tmp_path / "large", "mixtral", hidden_size=128, intermediate_size=2048, num_hidden_layers=4)
    settings = {
        "tensor_parallel_size": ranks,
        "stage_devices": "cpu",
        "kv_cache_memory": "64KiB",
        "max_model_len": 32,
        "max_num_seqs": 1,
    }
    weights, mib = bytes_of(model), 2**20
    assert weights["experts"] > 12 * mib > 10 * weights["rest"]
    room = weights["rest"] + weights["experts"] // 4 + 4 * ranks * mib  # with buffers of each worker
    fitting = within(engines_of(model, 4, **settings), room)
    assert [check_config(config) for config in fitting] == [[]] * 4
    for config in within(engines_of(model, 4, **{**settings, "enable_expert_parallel": False}), room):
        [refusal] = check_config(config)
        assert isinstance(refusal, CapacityError)
        if ranks == 1:
            assert (
                format_bytes(weights["rest"] + weights["experts"]) in refusal.message
                and format_bytes(room) in refusal.message
            )
            assert "--enable-expert-parallel" in refusal.message
    for config in within(engines_of(model, 2, **settings), room):
        [refusal] = check_config(config)
        assert isinstance(refusal, CapacityError)
        if ranks == 1:
            assert (
                f"take {format_bytes(weights['rest'] + weights['experts'] // 2)} beside "
                f"{format_bytes(weights['experts'] // 2)}"
            ) in refusal.message
    large = fitting[0].config
    large = replace(large, kv=replace(large.kv, kv_cache_memory=64 * mib))
    [refusal] = check_config(replace(fitting[0], config=large))
    assert refusal.param == "kv_cache_memory", "of what the own share leaves"


def test_a_model_without_experts_is_refused(tmp_path: Path) -> None:
    model = make_folder(tmp_path / "dense")
    for settings in ({}, {"tensor_parallel_size": 2, "stage_devices": "cpu,cpu"}):
        [refusal] = check_config(engines_of(model, 2, **settings)[0])
        assert refusal.param == "enable_expert_parallel" and "no experts" in refusal.message


def test_it_is_said_where_every_engine_keeps_all(model: Path) -> None:
    configs = engines_of(model, 2, backend="reference", kv_cache_memory="1MiB")

    async def use(client: ReplicasClient) -> None:
        details: dict[str, Any] = client.ready.details
        [note] = [note for note in details["notes"] if "--enable-expert-parallel" in note]
        assert "each of the 2 engines keeps all experts, as --backend reference" in note
        assert details["weight_bytes"] == 2 * sum(bytes_of(model)[part] for part in ("experts", "rest"))

    using(configs, use)


# Plans


def plan(*words: str) -> Any:
    result = CliRunner().invoke(cli, ["plan", *words, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_plans_show_what_each_keeps(model: Path) -> None:
    asked = ("--weights", str(model), "--numa", "replicate", "--from", "2s/2n/8c/smt1")
    all_of_it, once = plan(*asked), plan(*asked, "--enable-expert-parallel")
    experts = sum(
        one["rows"] > 0 for name, one in once["parameters"].items() if ".experts." in name and len(one["nodes"]) == 1
    )
    assert experts == 2 * 4 * 3 and {
        len(one["nodes"]) for name, one in once["parameters"].items() if ".experts." not in name
    } == {2}
    weights = bytes_of(model)
    for node in ("0", "1"):
        less = all_of_it["nodes"][node]["bytes"] - once["nodes"][node]["bytes"]
        assert less == pytest.approx(weights["experts"] / 2, rel=0.01)
    workers: list[Any] = []
    for rank in range(3):
        stages = (
            "--stages",
            str(model),
            "--stage-devices",
            "cpu",
            "--data-parallel-size",
            "3",
            "--data-parallel-rank",
            str(rank),
        )
        workers += plan(*stages, "--enable-expert-parallel", "--from", "1s/1n/8c/smt1")["workers"]
    assert len({worker["cpus"] for worker in workers}) == 3
    assert sum(worker["weight_bytes"] for worker in workers) == weights["experts"] + 3 * weights["rest"]
    assert {worker["weight_bytes"] + worker["shared_weight_bytes"] for worker in workers} == {
        weights["experts"] + weights["rest"]
    }
    late = CliRunner().invoke(
        cli, ["plan", "--stages", str(model), "--data-parallel-size", "2", "--data-parallel-rank", "2"]
    )
    assert late.exit_code == 2 and "numbered from 0" in late.output


def simulated(model: Path, *flags: str) -> Any:
    load = ("--workload", "closed:clients=4,in=8,out=32,n=8", "--max-model-len", "64", "--stage-devices", "cpu")
    result = CliRunner().invoke(cli, ["simulate", "--model", str(model), *load, *flags, "--json"])
    assert result.exit_code == 0, result.output
    [told] = json.loads(result.stdout)["results"]
    return told


@pytest.mark.parametrize(
    "flags",
    [
        ("--data-parallel-size", "2"),
        ("--numa", "replicate"),
        ("--data-parallel-size", "2", "--tensor-parallel-size", "2"),
    ],
    ids=["engines", "an engine a node", "engines of ranks"],
)
def test_simulated_engines_have_the_memory_of_one_copy(model: Path, flags: tuple[str, ...]) -> None:
    """On two nodes half of what they read of experts is far; on one nothing is."""
    far, near = ("--from", "2s/2n/8c/smt1"), ("--from", "1s/1n/8c/smt1")
    for host in (far, near) if "--numa" not in flags else (far,):
        apart, once = (simulated(model, *host, *flags, *more) for more in ((), ("--enable-expert-parallel",)))
        kept = [
            sum(size for engine in told["engines"] for size in engine["weights"].values()) for told in (apart, once)
        ]
        assert kept[0] - kept[1] == pytest.approx(bytes_of(model)["experts"], rel=0.01)
        rates = [told["output_tok_s"] for told in (apart, once)]
        assert rates[1] < rates[0] if host == far else rates[1] == pytest.approx(rates[0])
