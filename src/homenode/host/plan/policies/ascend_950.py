"""The Ascend 950 within `topo-affinity`: one cluster of eight cores for each NPU, inside the node of its affinity,
without a split by role.

    node 2: |cluster 0|cluster 1|cluster 2| ... |     eight cores each: 8 CPUs with one thread a core, 16 with two
            |  NPU 4  |  NPU 5  |  left   | ... |     NPUs of the node by number, hidden ones too

No CPU is set apart for interrupts, submissions or releases: the driver of this generation has no such threads, it
polls. Its polling threads are the kernel's and stay on node 0, on CPUs that no cluster has and not on CPU 0; they are
seen only from the host's own process numbers.

Source: the CPU binding of vllm-ascend since July 2026, by its behaviour. Where the two differ docs/placement/ascend.md
says how.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from homenode.cpuset import format_cpu_list
from homenode.errors import PlacementError
from homenode.host.plan.demand import Demand
from homenode.host.plan.plan import Plan, WorkerBinding
from homenode.host.plan.policies.ascend_plan import Npus, arm_gate, hidden_counted, no_near_cpus, npus_of
from homenode.host.plan.strategy import Strategy
from homenode.host.topology.host import Accelerator, Host
from homenode.units import format_count

STRATEGY = Strategy.TOPO_AFFINITY
CORES_OF_CLUSTER = 8
POLLING_THREAD = "uvb_poll_window_thread"
_POLLING_NODE, _KEPT_CPU = 0, 0  # CPU 0 takes the kernel's own interrupts and timers
_MOST_THREADS = 2  # of a core: no processor beside a 950 has more, and what a cluster would be there is not known

Clusters = dict[int, tuple[int, ...]]


def plan(host: Host, demand: Demand) -> Plan:
    """A plan for hosts with Ascend 950.

    What is wrong with one NPU's affinity fails the rank of that NPU only. Raises PlacementError: `npu_map_*`,
    `npu_unmapped`, `no_running_npu`, `rank_out_of_range`, `clusters_unknown`; `topo_row_unparseable`,
    `affinity_conflict` and `insufficient_cpus` where no rank asked for has one.
    """
    npus = npus_of(host, demand, whole_map=False)
    size = CORES_OF_CLUSTER * _threads_of_core(host)
    node_of, refused = _npu_nodes(npus)
    clusters: Clusters = {}
    for node in dict.fromkeys(node_of.values()):
        members = [device for device, other_node in node_of.items() if other_node == node]
        given, without = _share_out(members, _of_node(npus, node), node, size)
        clusters |= given
        refused |= {device: error for device, error in without.items() if device in npus.devices}
    pools = {device: clusters[device] for device in npus.devices if device in clusters}
    why = {device: _why(device, node_of, size) for device in pools}
    near = {node_of[device] for device in pools}
    hidden = [device for device in clusters if device not in pools and node_of[device] in near]
    findings = (*arm_gate(host.machine), *hidden_counted(hidden))
    made = npus.plan(STRATEGY, pools, why, findings, refused, _worker)
    return replace(made, kernel_threads=_polling_threads(npus, clusters))


def _threads_of_core(host: Host) -> int:
    threads = max((len(cpus) for cpus in host.cores.values()), default=1)
    if threads > _MOST_THREADS:
        raise PlacementError(
            "clusters_unknown",
            "the clusters of this processor are not known to the rules of the Ascend 950",
            seen=f"{format_count(threads, 'thread')} a core",
            wanted="one or two threads a core",
            remedy="Choose --strategy fair, which goes by cores and caches.",
        )
    return threads


def _npu_nodes(npus: Npus) -> tuple[dict[int, int], dict[int, PlacementError]]:
    """The node of each candidate, ascending by device, and why a device to be placed has none.

    Candidates are the devices to be placed, and hidden ones whose node has CPUs that this process may use.
    """
    node_of: dict[int, int] = {}
    refused: dict[int, PlacementError] = {}
    for chip in npus.chips:
        nodes = _nodes_near(npus, chip)
        if len(nodes) == 1:
            node_of[chip.id] = nodes[0]
        elif chip.id in npus.devices:
            refused[chip.id] = _several_nodes(chip, nodes) if nodes else no_near_cpus(chip, npus.allowed)
    return node_of, refused


def _nodes_near(npus: Npus, chip: Accelerator) -> list[int]:
    """Nodes of the allowed CPUs in its affinity; where none is reported the node that the firmware names, if this
    process has CPUs there.
    """
    node_of = {cpu: npus.host.cpu_by_id[cpu].node for cpu in npus.allowed}
    if chip.local_cpus or chip.unreadable_affinity:
        near = {node_of.get(cpu) for cpu in chip.local_cpus}
    else:
        near = {chip.node} & set(node_of.values())
    return sorted(node for node in near if node is not None)


def _several_nodes(chip: Accelerator, nodes: Sequence[int]) -> PlacementError:
    return PlacementError(
        "affinity_conflict",
        f"the affinity of NPU {chip.id} is not that of one node",
        seen=f"CPU affinity {format_cpu_list(chip.local_cpus)}, on nodes {format_cpu_list(nodes)}",
        wanted="CPUs of one node, inside of which the NPU of an Ascend 950 gets its cluster",
        remedy="See what `npu-smi info -t topo` prints here, or choose --strategy fair.",
    )


def _of_node(npus: Npus, node: int) -> list[int]:
    """The allowed CPUs of a node, core by core, so that siblings are in one cluster whatever their numbers are."""
    cpus = npus.host.cpu_by_id
    return sorted((cpu for cpu in npus.allowed if cpus[cpu].node == node), key=lambda cpu: (cpus[cpu].core, cpu))


def _share_out(
    members: Sequence[int], cpus: Sequence[int], node: int, size: int
) -> tuple[Clusters, dict[int, PlacementError]]:
    """A cluster of `size` CPUs for each member as far as they go, and the refusals of the others."""
    whole = len(cpus) // size
    given = {
        device: tuple(sorted(cpus[at * size : (at + 1) * size])) for at, device in enumerate(members) if at < whole
    }
    seen = (
        f"{format_count(len(cpus), 'allowed CPU')} on node {node}: {whole} clusters for NPUs {format_cpu_list(members)}"
    )
    return given, {device: _no_cluster(device, seen, size) for device in members[whole:]}


def _no_cluster(device: int, seen: str, size: int) -> PlacementError:
    return PlacementError(
        "insufficient_cpus",
        f"there is no cluster of {format_count(size, 'CPU')} left for NPU {device}",
        seen=seen,
        wanted=f"{format_count(size, 'allowed CPU')} for each NPU of the node, visible or not",
        remedy="Allow this process more CPUs of that node (cpuset, --cpuset-cpus), or choose --strategy fair, which "
        "shares out what there is.",
    )


def _why(device: int, node_of: Mapping[int, int], size: int) -> str:
    members = [other for other, other_node in node_of.items() if other_node == node_of[device]]
    cluster = (
        f"cluster {members.index(device)} of node {node_of[device]}, the node of its affinity: {CORES_OF_CLUSTER} "
        f"cores, {format_count(size, 'CPU')}"
    )
    return cluster if len(members) == 1 else f"{cluster}; NPUs {format_cpu_list(members)} have one each"


def _worker(host: Host, local_rank: int, device: int, pool: tuple[int, ...], why: str) -> WorkerBinding:
    node = host.cpu_by_id[pool[0]].node
    return WorkerBinding(local_rank, device, pool, {"main": pool}, () if node is None else (node,), why)


def _polling_threads(npus: Npus, clusters: Clusters) -> dict[str, tuple[int, ...]]:
    """CPUs of the driver's polling threads; nothing where this process has no CPU of node 0 to give them."""
    own = [cpu for cpu in _of_node(npus, _POLLING_NODE) if cpu != _KEPT_CPU]
    taken = {cpu for cluster in clusters.values() for cpu in cluster}
    cpus = [cpu for cpu in own if cpu not in taken] or own
    return {POLLING_THREAD: tuple(sorted(cpus))} if cpus else {}
