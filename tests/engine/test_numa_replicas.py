"""--numa replicate: an engine for each node, its threads and its memory there."""

from __future__ import annotations

import pytest

from homenode.engine.config import EngineConfig
from homenode.engine.plan.replica_assignments import node_places, replica_assignments
from homenode.errors import UserError
from homenode.host.discovery.read import read_host
from homenode.host.topology.host import Host
from homenode.testing.hosts.synthetic import synthetic


def config(**settings: object) -> EngineConfig:
    return EngineConfig.of("model", settings)


def host(text: str) -> Host:
    return read_host(synthetic(text))


def test_every_node_has_an_engine_with_its_threads_and_memory() -> None:
    places = node_places(config(numa="replicate"), host("2n 8c"))
    assert [place.team for place in places] == [(0, 1, 2, 3), (4, 5, 6)]  # a core is kept for the front
    assert [place.memory_nodes for place in places] == [(0,), (1,)]
    assert [place.thread_memory for place in places] == [(0, 0, 0, 0), (1, 1, 1)]
    assert {place.numa for place in places} == {"replicate"}


def test_named_nodes_only() -> None:
    places = node_places(config(numa="replicate", numa_nodes="1,3", threads=4), host("4n 16c"))
    assert [place.team for place in places] == [(4, 5), (12, 13)]


def test_one_node_or_another_policy_is_one_engine() -> None:
    assert node_places(config(numa="replicate"), host("1n 4c")) == ()
    assert node_places(config(numa="shard"), host("2n 8c")) == ()
    assert not config(numa="shard").may_be_several
    assert config(numa="auto").may_be_several


def test_two_ways_to_divide_the_host_contradict_each_other() -> None:
    with pytest.raises(UserError, match="--numa replicate and --data-parallel-size 2 both divide this host"):
        replica_assignments(config(numa="replicate", data_parallel_size=2))
