"""Places of engines where no thread may be bound to CPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from homenode.engine.binding import EngineBinding
from homenode.engine.plan.placement import UNPINNED
from homenode.engine.plan.unbound import unbound
from homenode.errors import UserError
from homenode.host.topology.finding import Finding

REFUSAL = Finding("warning", "affinity_refused", "sched_setaffinity is refused here (EPERM): so", "Allow it.")
BOUND = EngineBinding(
    (0, 1),
    others=(2,),
    memory_nodes=(0,),
    findings=(Finding("warning", "told", "something"),),
    spare=(3,),
    numa="shard",
    numa_why="it is faster",
    thread_memory=(0, 0),
    workers=(EngineBinding((0,), memory_nodes=(0,)), EngineBinding((1,))),
)


def test_nothing_is_bound_and_as_many_threads_compute() -> None:
    place = unbound(BOUND, REFUSAL)
    assert place.team == (UNPINNED, UNPINNED)
    assert not (place.others or place.spare or place.memory_nodes or place.thread_memory or place.free_of_compute)
    assert place.numa is None
    assert place.findings == BOUND.findings
    assert [worker.team for worker in place.workers] == [(UNPINNED,), (UNPINNED,)]
    assert not any(worker.memory_nodes for worker in place.workers)


def test_a_place_stays_where_binding_works() -> None:
    assert unbound(BOUND, None) is BOUND


def test_strict_placement_is_refused_by_name() -> None:
    with pytest.raises(UserError, match=r"--numa-strict.*sched_setaffinity"):
        unbound(replace(BOUND, strict=True), REFUSAL)
