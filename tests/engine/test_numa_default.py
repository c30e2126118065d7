"""--numa where nobody says how an engine is placed: auto on a host with several nodes, decided once; nothing new
anywhere else.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from homenode.compute.thread_memory import ThreadMemory
from homenode.engine.assignment import EngineAssignment
from homenode.engine.config import EngineConfig
from homenode.engine.memory.numa import team_memory
from homenode.engine.plan import inline
from homenode.engine.plan.inline import numa_choice, place_of_engine, with_numa_decided
from homenode.engine.plan.placement import auto_is_meant
from homenode.errors import InternalError
from homenode.host.bind.base.syscalls import MPOL_BIND, MPOL_DEFAULT, MPOL_INTERLEAVE, MPOL_LOCAL, MPOL_PREFERRED
from homenode.host.bind.memory.mempolicy_fallback import MemoryPolicy
from homenode.host.discovery.read import read_host
from homenode.host.plan.numa.demand import Decision
from homenode.host.plan.numa.node_teams import node_teams
from homenode.host.topology.host import Host
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.spec import Checkpoint
from homenode.testing.hosts.synthetic import synthetic
from tests.engine.live import BUILTIN

needs_model = pytest.mark.skipif(not BUILTIN.is_file(), reason="needs the built-in model")


def assignment(**settings: object) -> EngineAssignment:
    given = {"kv_cache_memory": 2 << 20, "max_num_batched_tokens": 64, **settings}
    return EngineAssignment(EngineConfig.of(str(BUILTIN.parent), given))


def host(text: str) -> Host:
    return read_host(synthetic(text))


@pytest.mark.parametrize("nodes", ["2n 8c", "4n 16c"])
@pytest.mark.parametrize("policy", [None, MemoryPolicy(MPOL_DEFAULT, ()), MemoryPolicy(MPOL_LOCAL, ())])
def test_it_is_meant_where_several_nodes_could_compute(nodes: str, policy: MemoryPolicy | None) -> None:
    assert auto_is_meant(assignment(), host(nodes), policy)
    assert not auto_is_meant(assignment(), host("1n 8c"), policy)


@pytest.mark.parametrize(
    "settings",
    [
        {"numa": "shard"},
        {"numa_nodes": "1"},
        {"numa_strict": True},
        {"numa_bind": True},
        {"cpu_threads_bind": "0-3"},
        {"cpu_threads_bind": "nobind"},
        {"memory_nodes": "0"},
        {"data_parallel_size": 2},
        {"backend": "reference"},
    ],
)
def test_it_is_not_meant_where_something_is_said(settings: dict[str, Any]) -> None:
    assert not auto_is_meant(assignment(**settings), host("2n 8c"), None)


@pytest.mark.parametrize(
    "policy", [MemoryPolicy(MPOL_BIND, (0,)), MemoryPolicy(MPOL_INTERLEAVE, (0, 1)), MemoryPolicy(MPOL_PREFERRED, (1,))]
)
def test_it_does_not_override_what_another_program_has_bound(policy: MemoryPolicy) -> None:
    assert not auto_is_meant(assignment(), host("2n 8c"), policy)


@pytest.fixture
def checkpoint() -> Checkpoint:
    pytest.importorskip("homenode._native", reason="needs the compiled core")
    return open_checkpoint(BUILTIN.parent)


@needs_model
def test_it_is_settled_once(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    two = host("2n 8c")
    settled = with_numa_decided(assignment(), checkpoint, two, None)
    assert settled.config.placement.numa == "auto" and settled.numa_decision is not None and settled.numa_decision.why

    def again(*_: object) -> None:
        raise InternalError("asked a second time")

    monkeypatch.setattr(inline, "cost_choice", again)
    place = place_of_engine(settled, checkpoint, two)
    assert (place.numa, place.numa_why) == (settled.numa_decision.policy, settled.numa_decision.why)
    memory = team_memory(place, two)
    assert isinstance(memory, ThreadMemory) and memory.bound
    assert with_numa_decided(settled, checkpoint, two, None) is settled


@needs_model
def test_what_the_front_has_settled_holds_for_the_engine(checkpoint: Checkpoint) -> None:
    two, told = host("2n 8c"), Decision("interleave", "as the front found")
    given = replace(assignment(numa="auto"), numa_decision=told)
    assert numa_choice(given, checkpoint, two)(node_teams(two, None, None, 1)) is told
    assert place_of_engine(given, checkpoint, two).numa == "interleave"


@needs_model
def test_nothing_changes_on_one_node(checkpoint: Checkpoint) -> None:
    given = assignment()
    assert with_numa_decided(given, checkpoint, host("1n 8c"), None) is given
    assert place_of_engine(given, checkpoint, host("1n 8c")).numa is None


@needs_model
def test_what_only_all_nodes_together_have_room_for_is_placed_as_before(checkpoint: Checkpoint) -> None:
    given, two = assignment(), host("2n 8c")
    full = replace(two, nodes=tuple(replace(node, free=1 << 20) for node in two.nodes))
    assert with_numa_decided(given, checkpoint, full, None) is given
    assert with_numa_decided(given, checkpoint, two, None) is not given
