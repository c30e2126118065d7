"""`global-slice`: the allowed CPUs cut evenly by logical NPU number, documented for A3, whose NPUs are about as near to
every node.

    allowed  |-- NPU 0 --|-- NPU 1 --| ... |-- NPU n-1 --|     ascending; the first `extra` slices have one CPU more

Every process cuts the same list in the same way, visible or not, so processes with one cpuset never overlap. A slice is
found by the position of the logical id among all ids: the same as the id itself where ids start at zero, and the right
thing in a container that shows NPUs 4-7 only and has CPUs of its own; where it has not, `npus_partly_shown` warns.
"""

from __future__ import annotations

from collections.abc import Sequence

from homenode.cpuset import format_cpu_list
from homenode.errors import PlacementError
from homenode.host.plan.demand import Demand
from homenode.host.plan.plan import Plan
from homenode.host.plan.policies.ascend_plan import Npus, arm_gate, hidden_counted, npus_of
from homenode.host.plan.roles import SMALLEST_POOL, too_small
from homenode.host.plan.strategy import Strategy
from homenode.host.topology.host import Host
from homenode.units import format_count

STRATEGY = Strategy.GLOBAL_SLICE


def plan(host: Host, demand: Demand) -> Plan:
    """Raises PlacementError: `npu_map_*`, `npu_unmapped`, `no_running_npu`, `insufficient_cpus`,
    `rank_out_of_range`."""
    npus = npus_of(host, demand)
    ids = [chip.id for chip in npus.chips]
    cut = slices(npus.allowed, ids)
    pools = {device: cut[device] for device in npus.devices}
    why = {device: _why(npus, ids.index(device), len(pools[device])) for device in pools}
    hidden = tuple(device for device in ids if device not in pools)
    return npus.plan(STRATEGY, pools, why, (*arm_gate(host.machine), *hidden_counted(hidden)), too_small(pools))


def slices(allowed: Sequence[int], ids: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """The slice of every device. `allowed` and `ids` are ascending. Raises PlacementError `insufficient_cpus`."""
    base, extra = divmod(len(allowed), len(ids))
    if base < SMALLEST_POOL:
        raise PlacementError(
            "insufficient_cpus",
            f"{format_count(len(allowed), 'allowed CPU is', 'allowed CPUs are')} too few for "
            f"{format_count(len(ids), 'NPU')}",
            seen=f"{format_count(base, 'CPU')} for each NPU, cut from {format_cpu_list(allowed) or 'none'}",
            wanted=f"at least {SMALLEST_POOL} for each of all {format_count(len(ids), 'NPU')}, visible or not: "
            f"{format_count(SMALLEST_POOL * len(ids), 'CPU')}",
            remedy="Widen the cpuset of this process, show the container fewer NPUs, or choose --strategy fair, "
            "which lets roles share CPUs.",
        )
    starts = [position * base + min(position, extra) for position in range(len(ids) + 1)]
    return {device: tuple(allowed[starts[at] : starts[at + 1]]) for at, device in enumerate(ids)}


def _why(npus: Npus, position: int, size: int) -> str:
    total = len(npus.chips)
    return (
        f"{size} of {format_count(len(npus.allowed), 'allowed CPU')}: slice {position + 1} of {total}, one for "
        "each NPU of the host"
    )
