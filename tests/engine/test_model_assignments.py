"""The engines of one of several models divide the CPUs that the model was given, whatever its settings ask for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from homenode.engine.assignment import EngineAssignment
from homenode.engine.config import EngineConfig
from homenode.engine.plan.several_models.assignments import assign_model
from homenode.engine.plan.several_models.size import size_model
from homenode.errors import UserError
from homenode.host.discovery.read import read_host
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.hub.locate import builtin_model
from homenode.testing.hosts.synthetic import synthetic

HOST = read_host(synthetic("2s/2n/8c"))
ON_ONE_NODE, ON_BOTH = (0, 1, 2, 3), (0, 1, 4, 5)


def config(**settings: Any) -> EngineConfig:
    made = EngineConfig.of(None, settings)
    return replace(made, model=replace(made.model, path=str(builtin_model())))


def assign(cpus: tuple[int, ...], *, shared: bool = False, **settings: Any) -> tuple[EngineAssignment, ...]:
    checkpoint = open_checkpoint(Path(str(builtin_model())))
    return assign_model(size_model(config(**settings), checkpoint)[0], checkpoint, HOST, cpus, shared=shared)


@pytest.mark.parametrize(
    ("cpus", "settings", "teams", "nodes"),
    (
        (ON_ONE_NODE, {}, [(0, 1, 2, 3)], [(0,)]),
        (ON_BOTH, {}, [(0, 1, 4, 5)], [()]),
        (ON_ONE_NODE, {"threads": 2}, [(0, 1)], [(0,)]),
        (ON_ONE_NODE, {"data_parallel_size": 2}, [(0, 1), (2, 3)], [(0,), (0,)]),
        (ON_BOTH, {"data_parallel_size": 2}, [(0, 1), (4, 5)], [(0,), (1,)]),
        (ON_BOTH, {"tensor_parallel_size": 2}, [(0, 1, 4, 5)], [(0, 1)]),
        (ON_BOTH, {"tensor_parallel_size": 2, "numa": "shard"}, [(0, 1, 4, 5)], [(0, 1)]),
        (ON_ONE_NODE, {"numa": "shard"}, [(0, 1, 2, 3)], [(0,)]),
    ),
)
def test_engines_have_the_cpus_of_their_model(
    cpus: tuple[int, ...], settings: dict[str, Any], teams: list[tuple[int, ...]], nodes: list[tuple[int, ...]]
) -> None:
    made = assign(cpus, **settings)
    places = [each.replica for each in made if each.replica is not None]
    assert [place.binding.team for place in places] == teams
    assert [place.binding.memory_nodes for place in places] == nodes
    assert all(place.allowed == cpus for place in places)
    if cpus == ON_BOTH and len(teams) == 1 and not settings:
        assert places[0].binding.thread_memory == (0, 0, 1, 1)  # each thread's weights lie with it
    assert not any(found.code == "too_few_cores" for place in places for found in place.binding.findings)


def test_one_that_shares_its_cores_watches_for_nothing() -> None:
    assert assign((0,), shared=True)[0].config.compute.spin_us == 0
    assert assign((0,))[0].config.compute.spin_us > 0


def test_too_many_threads_are_refused() -> None:
    with pytest.raises(UserError, match="--threads 9"):
        assign(ON_ONE_NODE, threads=9)


def test_the_size_of_a_model_follows_from_its_settings() -> None:
    checkpoint = open_checkpoint(Path(str(builtin_model())))
    made, size = size_model(config(), checkpoint)
    assert made.kv.kv_cache_memory == size.kv >= size.weights > 0 < size.buffers
    assert size_model(config(kv_cache_memory=1 << 20), checkpoint)[1].kv == 1 << 20
    both = size_model(config(kv_cache_memory=1 << 20, data_parallel_size=2), checkpoint)[1]
    assert (both.weights, both.kv, both.buffers) == (2 * size.weights, 2 << 20, 2 * size.buffers)
