"""`topo-affinity`: CPUs that the vendor's tool reports as near, extended to the next node; documented for A2, Atlas 300
and all but A3.

    affinity of NPUs 0 and 2: |== node 6 ==|                  one node only, so the next one is added
    both extended:            |== node 6 ==|-- node 7 --|     identical, so it is split
    pools:                    |-- NPU 0 ---|-- NPU 2 ---|

An NPU whose affinity spans several nodes keeps exactly that, in the order reported. Pools that are not identical may
still overlap; that is how the documented strategy behaves, and a finding says so. After the last node comes the first.

The Ascend 950 has rules of its own within this strategy: see `ascend_950`.
"""

from __future__ import annotations

from collections.abc import Sequence

from homenode.cpuset import format_cpu_list
from homenode.errors import PlacementError
from homenode.host.plan.demand import Demand
from homenode.host.plan.plan import Plan
from homenode.host.plan.policies import ascend_950, global_slice
from homenode.host.plan.policies.ascend_plan import (
    Npus,
    arm_gate,
    device_type_of,
    hidden_counted,
    no_near_cpus,
    npus_of,
)
from homenode.host.plan.roles import too_small
from homenode.host.plan.strategy import Strategy
from homenode.host.topology.finding import Finding
from homenode.host.topology.host import Host
from homenode.units import format_count

STRATEGY = Strategy.TOPO_AFFINITY


def plan(host: Host, demand: Demand) -> Plan:
    """A plan of `global-slice` where the tool reports no affinity at all; by the rules of the Ascend 950 where the NPUs
    are such.

    What is wrong with one NPU's affinity fails the rank of that NPU only. Raises PlacementError: `npu_map_*`,
    `npu_unmapped`, `no_running_npu`, `no_numa_nodes`, `rank_out_of_range`; `topo_row_unparseable`, `affinity_conflict`
    and `pool_too_small` where no rank asked for has a pool.
    """
    if device_type_of(host, demand)[1] == "950":
        return ascend_950.plan(host, demand)
    npus = npus_of(host, demand, whole_map=False)
    if not any(chip.local_cpus or chip.unreadable_affinity for chip in npus.chips):
        return global_slice.plan(host, demand).with_findings([_fell_back(host)])
    nodes = _nodes(host)
    near, refused = _near_cpus(npus)
    extended = {device: _extended(npus, nodes, cpus) for device, cpus in near.items()}
    groups = _groups(extended)
    shares = {device: share for pool, members in groups.items() for device, share in split(pool, members).items()}
    pools = {device: shares[device] for device in npus.devices if device in shares}
    why = {
        device: _why(near[device], extended[device], device, groups[extended[device]], len(pools[device]))
        for device in pools
    }
    hidden = tuple(
        device for members in groups.values() if set(members) & set(pools) for device in members if device not in pools
    )
    findings = (*arm_gate(host.machine), *hidden_counted(hidden))
    return npus.plan(STRATEGY, pools, why, findings, {**too_small(pools), **refused})


def split(pool: Sequence[int], members: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """`pool` in contiguous, equal parts, one for each member; what is left over goes to the last (14 CPUs for three: 4,
    4, 6)."""
    size = len(pool) // len(members)
    ends = [size * number for number in range(1, len(members))] + [len(pool)]
    return {
        member: tuple(pool[number * size : end]) for number, (member, end) in enumerate(zip(members, ends, strict=True))
    }


def _near_cpus(npus: Npus) -> tuple[dict[int, tuple[int, ...]], dict[int, PlacementError]]:
    """The allowed CPUs of each candidate's affinity, in the order reported, and why a device to be placed has none.

    Candidates are the devices to be placed, and hidden ones whose near CPUs this process may use: another process with
    these CPUs may drive them.
    """
    usable = set(npus.allowed)
    near: dict[int, tuple[int, ...]] = {}
    refused: dict[int, PlacementError] = {}
    for chip in npus.chips:
        if cpus := tuple(dict.fromkeys(cpu for cpu in chip.local_cpus if cpu in usable)):
            near[chip.id] = cpus
        elif chip.id in npus.devices:
            refused[chip.id] = no_near_cpus(chip, npus.allowed)
    return near, refused


def _nodes(host: Host) -> list[int]:
    """Nodes with CPUs, ascending; their numbers may have gaps. Raises PlacementError `no_numa_nodes`."""
    nodes = sorted(node.id for node in host.nodes if node.cpus)
    if not nodes:
        raise PlacementError(
            "no_numa_nodes",
            "this host tells of no NUMA node with CPUs",
            seen="no CPUs in any /sys/devices/system/node/node*/cpulist",
            wanted="the NUMA node of every CPU",
            remedy="Make /sys readable in this container, or choose --strategy global-slice or fair, which need no "
            "nodes.",
        )
    return nodes


def _extended(npus: Npus, nodes: Sequence[int], own_cpus: tuple[int, ...]) -> tuple[int, ...]:
    """Return the CPUs with the allowed CPUs of the next node when all lie on one; the node after a single node is that
    node again.
    """
    node_of = {cpu: npus.host.cpu_by_id[cpu].node for cpu in npus.allowed}
    near_nodes = {node_of[cpu] for cpu in own_cpus}
    near_node = next(iter(near_nodes))
    if len(near_nodes) > 1 or near_node not in nodes:
        return own_cpus
    following = nodes[(nodes.index(near_node) + 1) % len(nodes)]
    return tuple(sorted({*own_cpus, *(cpu for cpu, node in node_of.items() if node == following)}))


def _groups(extended: dict[int, tuple[int, ...]]) -> dict[tuple[int, ...], list[int]]:
    groups: dict[tuple[int, ...], list[int]] = {}
    for device, pool in extended.items():
        groups.setdefault(pool, []).append(device)
    return groups


def _why(own_cpus: tuple[int, ...], extended: tuple[int, ...], device: int, members: Sequence[int], size: int) -> str:
    added = format_cpu_list(set(extended) - set(own_cpus))
    source = f"{format_cpu_list(own_cpus)} of its affinity" + (f" and {added} of the next node" if added else "")
    if len(members) == 1:
        return f"all {format_count(size, 'allowed CPU')} {source}"
    return (
        f"{size} of the {format_count(len(extended), 'allowed CPU')} {source}: part {members.index(device) + 1} of "
        f"{len(members)}, shared by NPU {format_cpu_list(members)}"
    )


def _fell_back(host: Host) -> Finding:
    causes = [
        f" ({note.message})"
        for note in host.accelerators.notes
        if note.code in ("tool_timeout", "tool_failed") and "npu-smi" in note.message
    ]
    message = f"NPU topo affinity not found{''.join(causes)}: global-slice is used instead"
    remedy = "See what `npu-smi info -t topo` prints here; its CPU Affinity column is needed."
    return Finding("warning", "topo_affinity_missing", message, remedy)
