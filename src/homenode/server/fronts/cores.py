"""A check whether the processes of a service have a core each, as the field counts them."""

from __future__ import annotations

from collections.abc import Sequence

from homenode.engine.assignment import EngineAssignment
from homenode.host.discovery.read import read_host
from homenode.host.plan.demand import Demand, Parallelism
from homenode.host.plan.requirements import requirements
from homenode.host.topology.finding import Finding
from homenode.host.topology.host import Host
from homenode.host.topology.source import LiveSource
from homenode.units import format_count


def too_few_cores(
    assignments: Sequence[EngineAssignment], fronts: int, host: Host | None = None
) -> tuple[Finding, ...]:
    """A warning where there are fewer physical cores than `fronts`, engines, workers and the coordinator: A + DP + N +
    (1 if DP > 1).
    """
    parallel = assignments[0].config.parallel
    sizes = Parallelism(
        data_parallel_size=len(assignments),
        tensor_parallel_size=parallel.tensor_parallel_size,
        pipeline_parallel_size=parallel.pipeline_parallel_size,
        api_server_count=fronts,
    )
    needed = requirements(host or read_host(LiveSource(), accelerators=False), Demand(parallelism=sizes))
    if needed.met:
        return ()
    message = (
        f"{format_count(fronts, 'API server')}, {format_count(len(assignments), 'engine')} with their workers and "
        f"the coordinator want {format_count(needed.physical_cores, 'physical core')} "
        f"({needed.formula}), and {needed.have_cores} are there: processes take turns"
    )
    return (
        Finding(
            "warning",
            "too_few_cores",
            message,
            "Lower --api-server-count or --data-parallel-size, or allow more whole cores.",
        ),
    )
