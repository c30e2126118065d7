"""The documented split of a pool by role, and the workers made of it.

pool[0:2] interrupts (submission, completion) | pool[2:-2] the process and its threads | pool[-2] acl thread | pool[-1]
release thread
"""

from __future__ import annotations

from collections.abc import Mapping

from homenode.cpuset import format_cpu_list
from homenode.errors import PlacementError
from homenode.host.plan.plan import WorkerBinding
from homenode.host.topology.host import Host
from homenode.units import format_count

SMALLEST_POOL = 5  # two CPUs for interrupts, one at least for the process, one each for the acl and the release thread


def split_roles(pool: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """CPUs by role, in the pool's own order; the pool has SMALLEST_POOL CPUs or more."""
    return {"irq": pool[:2], "main": pool[2:-2], "acl": pool[-2:-1], "release": pool[-1:]}


def too_small(pools: Mapping[int, tuple[int, ...]]) -> dict[int, PlacementError]:
    """The refusal `pool_too_small` by device, for each pool without a CPU for every role."""
    return {device: _too_small(device, pool) for device, pool in pools.items() if len(pool) < SMALLEST_POOL}


def _too_small(device: int, pool: tuple[int, ...]) -> PlacementError:
    return PlacementError(
        "pool_too_small",
        f"the pool of NPU {device} has {format_count(len(pool), 'CPU')}",
        seen=f"CPUs {format_cpu_list(pool) or 'none'}",
        wanted=f"at least {SMALLEST_POOL}: two for interrupts, one for the process, one each for the acl and the "
        "release thread",
        remedy="Allow this process more CPUs near the device (cpuset, --cpuset-cpus), or choose --strategy fair, "
        "which lets roles share CPUs.",
    )


def worker(host: Host, local_rank: int, device: int, pool: tuple[int, ...], why: str) -> WorkerBinding:
    """One worker with documented roles. Its memory node is the node of the pool's first CPU; none on a host without
    nodes."""
    first = host.cpu_by_id.get(pool[0])
    nodes = () if first is None or first.node is None else (first.node,)
    return WorkerBinding(local_rank, device, pool, split_roles(pool), nodes, why)
