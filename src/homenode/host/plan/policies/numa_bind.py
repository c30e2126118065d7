"""`numa-bind`: vLLM's `--numa-bind [--numa-bind-nodes N... --numa-bind-cpus LIST...]`, one node and one CPU list for
each visible device.

A worker runs on the CPUs of its list, or on all allowed CPUs of its node, and takes its memory from that node alone.
On nodes with priority cores it has these alone, and its engine core too (`priority_cores`), unless lists are given.
Without nodes given, the node is the one its device is on; a node that has memory but no CPUs (GH200, POWER9 with
NVLink) is never taken for it. An engine core spans the nodes of its workers. API servers and the data-parallel
coordinator are not bound. Everything is checked before anything starts; numactl is not needed, and nothing escapes an
inherited limit. On hosts with NPUs it is the Ascend CPU binding, and the two lists are ignored.

Without accelerators workers compute on CPUs: worker r takes the r-th node that has memory and allowed CPUs, and more
workers than nodes have neighbouring numbers on one. Workers of one node divide its cores, unless lists name their CPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from homenode.cpuset import format_cpu_list
from homenode.errors import PlacementError
from homenode.host.plan.demand import Demand
from homenode.host.plan.numa_bind_lists import CPUS, NODES, BindLists, read_lists
from homenode.host.plan.parallelism import check_sizes, engines, sizes_in_words, worker_index, world_size
from homenode.host.plan.plan import Plan, ProcessBinding, WorkerBinding
from homenode.host.plan.priority_cores import of_node, priority_cpus
from homenode.host.plan.ranks import assign_ranks, given_one, offered
from homenode.host.plan.resources.cores import allowed_cores, cpus_of, deal_in_turn
from homenode.host.plan.resources.memory_nodes import memory_nodes
from homenode.host.plan.resources.nodes import allowed_cpus, memory_of_cpus, nodes_of, working_nodes
from homenode.host.plan.strategy import Strategy
from homenode.host.plan.thread_layout import ranks_on_nodes
from homenode.host.topology.accelerator_kinds import KINDS
from homenode.host.topology.accelerators.cells import node_of_cpus
from homenode.host.topology.finding import Finding
from homenode.host.topology.host import Accelerator, Host, Node
from homenode.units import format_count


@dataclass(frozen=True, slots=True)
class _DeviceBinding:
    """The place where the worker of one device belongs: `node` says where; `memory`: the node its memory is bound to,
    None on a host without nodes. `on_priority`: `cpus` are of priority cores, for which they were chosen.
    """

    device: int
    node: int
    cpus: tuple[int, ...]
    memory: int | None
    why: str
    on_priority: bool = False


def plan(host: Host, demand: Demand) -> Plan:
    """Place a worker on every visible device that the deployment uses.

    Raises PlacementError: numa_node_unknown, numa_bind_too_short, no_such_node, nodes_not_allowed, bad_cpu_list,
    cpus_not_allowed, affinity_conflict, rank_out_of_range, bad_visible_devices, bad_parallelism; on hosts with NPUs
    what the Ascend strategies raise.
    """
    check_sizes(demand)
    if _has_npus(host):
        return _ascend(host, demand)
    devices = _devices(host, demand)
    lists = read_lists(host, demand, len(devices))
    asked, notes = _asked(host, devices, demand)
    others = {
        index: device for index, device in enumerate(_used(host, devices, demand)) if device not in asked.values()
    }
    bindings = {
        index: _bind_device(host, device, index, lists) for index, device in sorted({**others, **asked}.items())
    }
    if host.accelerators.kind is None and lists.cpus is None:
        bindings = _divided(host, bindings, share_cores=demand.share_cores)
    elif host.accelerators.kind is not None and lists.cpus is None:
        bindings = _on_priority_cores(host, bindings)
    return Plan(
        strategy=Strategy.NUMA_BIND,
        devices_total=len(host.accelerators.of_kind(host.accelerators.kind))
        if host.accelerators.kind
        else len(devices),
        devices_running=tuple(binding.device for binding in bindings.values()),
        pools={binding.device: binding.cpus for binding in bindings.values()},
        workers=tuple(
            _worker(bindings[index], index if demand.local_rank is None else demand.local_rank) for index in asked
        ),
        processes=_processes(host, demand, bindings),
        findings=(
            *notes,
            *lists.findings,
            *_count_findings(host, devices, demand, lists),
            *_memory_findings(host, tuple(bindings.values())),
        ),
    )


def _has_npus(host: Host) -> bool:
    """NPUs there are, or would be if the vendor's tool could be understood: the Ascend strategies then say what is
    wrong with it."""
    kind = host.accelerators.likely_kind
    return kind is not None and KINDS[kind].has_own_strategies


def _ascend(host: Host, demand: Demand) -> Plan:
    from homenode.host.plan.policies import ascend

    said = [
        Finding(
            "info",
            "numa_bind_converted",
            "--numa-bind on a host with NPUs is the Ascend CPU binding (enable_cpu_binding)",
        )
    ]
    for flag, given in ((NODES, demand.numa_bind_nodes), (CPUS, demand.numa_bind_cpus)):
        if given is not None:
            why = "Ascend pools come from the NPUs' affinity or their logical numbers"
            said.append(
                Finding("info", flag.removeprefix("--").replace("-", "_") + "_ignored", f"{flag} is ignored: {why}")
            )
    return ascend.plan(host, demand).with_findings(said)


def _devices(host: Host, demand: Demand) -> tuple[int, ...]:
    """The visible devices in the user's order; on a host without accelerators the numbers of the CPU workers."""
    if host.accelerators.kind is not None:
        return offered([chip.id for chip in host.accelerators.of_kind(host.accelerators.kind)], demand.visible)
    if host.accelerators.errors:
        raise host.accelerators.errors[0]  # there are accelerators, and the tool that should list them fails
    told = world_size(demand.parallelism)
    given = max(len(demand.numa_bind_nodes or ()), len(demand.numa_bind_cpus or ()))
    count = demand.workers or (told if told > 1 else given or len(working_nodes(host)))
    if not count:
        raise _no_cpus(host, 0, nodes_of(host)[0])
    return tuple(range(count))


def _used(host: Host, devices: Sequence[int], demand: Demand) -> Sequence[int]:
    """The devices that the deployment uses: as many as it has workers, all where nothing is told."""
    told = world_size(demand.parallelism)
    if host.accelerators.kind is None:
        return devices
    return devices[: told if told > 1 else demand.parallelism.devices or None]


def _asked(host: Host, devices: Sequence[int], demand: Demand) -> tuple[dict[int, int], tuple[Finding, ...]]:
    """The devices whose workers are asked for, by index into the lists."""
    if demand.local_rank is None:
        return dict(enumerate(_used(host, devices, demand))), ()
    chips = host.accelerators.of_kind(host.accelerators.kind) if host.accelerators.kind else ()
    single = bool(chips) and given_one(chips, demand.visible)
    index = worker_index(demand.parallelism, demand.local_rank)
    ranks = assign_ranks(devices, index, single=single, origin=demand.local_rank_origin)
    return ranks.devices, ranks.findings


def _bind_device(host: Host, device: int, index: int, lists: BindLists) -> _DeviceBinding:
    given = lists.entry(CPUS, lists.cpus, index, device)
    chosen = lists.entry(NODES, lists.nodes, index, device)
    node, origin = (
        _automatic_node(host, device, lists.devices, given) if chosen is None else (chosen, f"as {NODES} says")
    )
    memory = next(iter(memory_nodes(host, (node,))), None)
    if given is not None:
        return _DeviceBinding(
            device, node, given, memory, f"the CPUs that {CPUS} names; memory of node {node}, {origin}"
        )
    found = next(other for other in nodes_of(host) if other.id == node)
    cpus = allowed_cpus(host, found)
    if not cpus:
        raise _no_cpus(host, device, found)
    return _DeviceBinding(
        device, node, cpus, memory, f"the {format_count(len(cpus), 'allowed CPU')} of node {node}, {origin}"
    )


def _on_priority_cores(host: Host, bindings: dict[int, _DeviceBinding]) -> dict[int, _DeviceBinding]:
    """The same where nodes have priority cores enough for their workers and an engine core: on those alone."""
    moved = dict(bindings)
    for index, binding in bindings.items():
        workers = sum(other.node == binding.node for other in bindings.values())
        cpus = of_node(host, binding.node, binding.cpus, workers)
        if cpus != binding.cpus:
            count = format_count(len(cpus), "CPU")
            why = f"the {count} of priority cores of node {binding.node}, of {len(binding.cpus)} allowed there"
            moved[index] = replace(binding, cpus=cpus, why=why, on_priority=True)
    return moved


def _divided(host: Host, bindings: dict[int, _DeviceBinding], *, share_cores: bool) -> dict[int, _DeviceBinding]:
    """The same where workers that compute on one node have parts of it: runs of whole cores, in the order of the
    workers."""
    workers_of: dict[int, list[int]] = {}
    for index, binding in bindings.items():
        workers_of.setdefault(binding.node, []).append(index)
    divided = dict(bindings)
    for node, workers in workers_of.items():
        if len(workers) == 1:
            continue
        whole = set(bindings[workers[0]].cpus)
        cores = [core for found in allowed_cores(host).values() for core in found if core.cpus[0] in whole]
        if len(cores) < len(workers) and not share_cores:
            raise _too_few_cores(node, len(cores), len(workers))
        for index, run in zip(workers, deal_in_turn(cores, len(workers)), strict=True):
            why = (
                f"{format_count(len(run), 'core')} of the {len(cores)} of node {node}, which "
                f"{format_count(len(workers), 'worker divides', 'workers divide')}"
            )
            divided[index] = replace(bindings[index], cpus=tuple(sorted(cpus_of(run))), why=why)
    return divided


def _too_few_cores(node: int, cores: int, workers: int) -> PlacementError:
    return PlacementError(
        "insufficient_cpus",
        f"{format_count(workers, 'CPU worker')} are to compute on node {node}",
        seen=f"{format_count(cores, 'allowed core')} there",
        wanted="a core for each",
        remedy=f"Start fewer workers, spread them with {NODES}, or allow more CPUs.",
        param=NODES,
    )


def _automatic_node(host: Host, device: int, workers: int, given: tuple[int, ...] | None) -> tuple[int, str]:
    """The node a device is on, or that a CPU worker has, and how that is known."""
    computing = [node for node in nodes_of(host) if node.cpus]
    kind = host.accelerators.kind
    if len(computing) == 1:
        return computing[0].id, "the only one with CPUs"
    if kind is None:
        return _node_of_worker(host, device, workers, given)
    chip = next(chip for chip in host.accelerators.of_kind(kind) if chip.id == device)
    return device_node(host, chip), f"where device {device} is"


def device_node(host: Host, chip: Accelerator) -> int:
    """The node of a device among those with CPUs. Raises PlacementError numa_node_unknown where nothing tells it."""
    computing = [node for node in nodes_of(host) if node.cpus]
    if len(computing) == 1:
        return computing[0].id
    if (node := _local_node(chip, computing)) is not None:
        return node
    raise PlacementError(
        "numa_node_unknown",
        f"nothing says which NUMA node device {chip.id} ({chip.name or chip.kind}) is on",
        seen=f"PCI address {chip.address or 'unknown'}, local CPUs {format_cpu_list(chip.local_cpus) or 'unknown'}",
        wanted=f"one of the nodes with CPUs: {format_cpu_list(node.id for node in computing)}",
        remedy=f"Give {NODES}, one node for each visible device.",
        param=NODES,
    )


def _local_node(chip: Accelerator, computing: Sequence[Node]) -> int | None:
    """The device's node where that has CPUs, else the node on which most of its local CPUs lie; None when nothing
    tells it.
    """
    return chip.node if any(node.id == chip.node for node in computing) else node_of_cpus(chip.local_cpus, computing)


def _node_of_worker(host: Host, worker: int, workers: int, given: tuple[int, ...] | None) -> tuple[int, str]:
    """The node that most CPUs of its list are on; without one the next of those that have memory and CPUs, the same for
    neighbours where there are more workers than nodes."""
    if given is not None and (memories := memory_of_cpus(host, given)):
        return memories[0], "where most of them are"
    nodes = working_nodes(host)
    if not nodes:
        raise _no_cpus(host, worker, nodes_of(host)[0])
    cores = allowed_cores(host)
    seats = ranks_on_nodes([len(cores.get(node.id, ())) for node in nodes], workers, share_cores=True)
    ends = zip(nodes, accumulate(seats), strict=True)
    return next(node.id for node, end in ends if worker < end), f"the one that CPU worker {worker} has by its number"


def _no_cpus(host: Host, device: int, node: Node) -> PlacementError:
    return PlacementError(
        "affinity_conflict",
        f"no CPU of node {node.id}, where the worker of device {device} belongs, may be used by this process",
        seen=f"node {node.id} has CPUs {format_cpu_list(node.cpus) or 'none'}, allowed are "
        f"{format_cpu_list(host.allowance.cpus) or 'none'}",
        wanted=f"at least one allowed CPU on node {node.id}",
        remedy=f"Widen what this process inherits (taskset, Slurm, cpuset), or give {NODES} or {CPUS}.",
    )


def _worker(binding: _DeviceBinding, local_rank: int) -> WorkerBinding:
    return WorkerBinding(
        local_rank,
        binding.device,
        binding.cpus,
        {"main": binding.cpus},
        () if binding.memory is None else (binding.memory,),
        binding.why,
    )


def _processes(host: Host, demand: Demand, bindings: dict[int, _DeviceBinding]) -> tuple[ProcessBinding, ...]:
    """Engine cores, API servers and the coordinator. Our own CPU engine schedules inside its worker and has no engine
    core apart."""
    sizes = demand.parallelism
    places = []
    if host.accelerators.kind is not None:
        for rank, indices in engines(sizes, 1 + max(bindings)).items():
            if own := [bindings[index] for index in indices if index in bindings]:
                places.append(_engine_core(host, rank, own))
    unbound = "left as it is: --numa-bind is for workers and engine cores"
    names = [f"api_server_{number}" for number in range(sizes.api_server_count or sizes.data_parallel_size)]
    names += ["dp_coordinator"] if sizes.data_parallel_size > 1 else []
    return (*places, *(ProcessBinding(name, (), (), unbound) for name in names))


def _engine_core(host: Host, rank: int, own: Sequence[_DeviceBinding]) -> ProcessBinding:
    """All allowed CPUs of the nodes of its workers, of a node the priority cores where its workers have those; lists
    given for the workers are not for it, as long as the nodes have CPUs."""
    wanted = {binding.node for binding in own}
    on_priority = {binding.node for binding in own if binding.on_priority}
    nodes = {node.id: allowed_cpus(host, node) for node in nodes_of(host) if node.id in wanted}
    parts = (priority_cpus(host, cpus) if node in on_priority else cpus for node, cpus in nodes.items())
    cpus = tuple(sorted({cpu for part in parts for cpu in part}))
    memory = tuple(dict.fromkeys(binding.memory for binding in own if binding.memory is not None))
    why = f"spans the nodes of its {format_count(len(own), 'worker')}: {format_cpu_list(wanted)}"
    return ProcessBinding(
        f"engine_core_dp{rank}", cpus or tuple(sorted({cpu for binding in own for cpu in binding.cpus})), memory, why
    )


def _count_findings(host: Host, devices: Sequence[int], demand: Demand, lists: BindLists) -> list[Finding]:
    """Numbers of devices, entries and workers that do not go together."""
    findings = []
    if host.accelerators.kind is None and demand.workers is None:
        hidden_by = host.accelerators.hidden_by
        why = f"{hidden_by} hides all accelerators" if hidden_by else "no accelerator is seen on this host"
        message = f"{why}; the plan is for {format_count(len(devices), 'CPU worker')}"
        remedy = f"unset {hidden_by}" if hidden_by else "mend the driver and its tool"
        findings.append(
            Finding("info", "no_accelerators", message, f"Give --workers, or {remedy} if accelerators should be used.")
        )
    for flag, given in ((NODES, lists.nodes), (CPUS, lists.cpus)):
        if given is not None and len(given) > len(devices) > 1:
            message = (
                f"{flag} has {format_count(len(given), 'entry', 'entries')} for "
                f"{format_count(len(devices), 'visible device')}; the last {len(given) - len(devices)} are for nobody"
            )
            findings.append(
                Finding(
                    "warning",
                    "numa_bind_too_long",
                    message,
                    "Give one entry for each visible device, in the same order.",
                )
            )
    told, named = world_size(demand.parallelism), sizes_in_words(demand.parallelism)
    if told == 1 and host.accelerators.kind is not None:
        told, named = demand.parallelism.devices or 1, "--devices"
    given_one_each = len(devices) == 1 and demand.local_rank is not None  # by a launcher
    if told > len(devices) and not given_one_each:
        message = f"{named}: the deployment has {told} workers, and the visible devices are {len(devices)}"
        findings.append(
            Finding("warning", "too_few_devices", message, "Make more devices visible, or lower the parallel sizes.")
        )
    return findings


def _memory_findings(host: Host, bindings: Sequence[_DeviceBinding]) -> list[Finding]:
    """Nodes whose memory cannot be taken, and what stands in for them."""
    moved = {binding.node: binding.memory for binding in bindings if host.nodes and binding.memory != binding.node}
    findings = []
    for node, memory in moved.items():
        instead = (
            "memory is not bound"
            if memory is None
            else f"node {memory} at distance {host.distance(node, memory)} gives it instead"
        )
        message = f"node {node} has no memory that this process may take; {instead}"
        findings.append(
            Finding("info", "memory_node_replaced", message, "Allow its memory (cpuset.mems), or name another node.")
        )
    return findings
