"""Places of the workers of one engine: they divide the engine's CPUs, nodes kept whole where there are enough of them.
Pure.

Host threads of accelerators are bound near their devices and compute nothing; CPU workers leave cores to them
(`host_threads`), and those of NPUs have CPUs by role (`npu_roles`). Without settings CPU workers divide what the engine
may use as several engines divide a host (`plan.replica_bindings`); with them, a worker is one of the plan that
`homenode plan` would print. Under `--numa` each keeps its weights on its own nodes (`node_policy`). More workers than
cores take turns, within what settings name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from homenode.cpuset import format_cpu_list
from homenode.engine.assignment import EngineAssignment
from homenode.engine.binding import EngineBinding
from homenode.engine.config import EngineConfig, PlacementConfig
from homenode.engine.devices import is_accelerator, is_npu
from homenode.engine.plan.host_threads import (
    accelerators_of,
    beside,
    home_of_device,
    left_to_accelerators,
    too_few_beside,
)
from homenode.engine.plan.node_policy import divided_host, over_own_nodes
from homenode.engine.plan.placement import UNPINNED, core_of, cut, plan_workers, reserved_cores, too_few_cores
from homenode.engine.plan.replica_bindings import divided_places, names_cpus
from homenode.errors import UserError
from homenode.host.plan.priority_cores import device_finding, of_node
from homenode.host.plan.resources.nodes import allowed_cpus
from homenode.host.plan.variables import memory_nodes, threads_bind, threads_bind_origin
from homenode.host.topology.finding import Finding
from homenode.host.topology.host import Accelerators, Host
from homenode.units import format_count

if TYPE_CHECKING:
    from homenode.engine.plan.npu_roles import NpuRoles


@dataclass(frozen=True)
class WorkerBindings:
    """`bindings`: of each worker. `loop`: CPUs of the engine's own threads, empty: wherever they are. `shared`: CPU
    workers have to share cores, so none may watch for another. `findings`: of all together.
    """

    bindings: tuple[EngineBinding, ...]
    loop: tuple[int, ...] = ()
    shared: bool = False
    findings: tuple[Finding, ...] = ()


def worker_places(host: Host, assignment: EngineAssignment, devices: Sequence[str]) -> WorkerBindings:
    """A place for the worker of each device. UserError and PlacementError for what this host cannot meet."""
    replica = assignment.replica
    within = _within(host, replica.binding) if replica else host
    on_cpu = [number for number, device in enumerate(devices) if not is_accelerator(device)]
    homes = dict(enumerate(replica.binding.workers)) if replica else _homes(host, assignment.config.placement, devices)
    if replica and replica.binding.workers:
        made = WorkerBindings(tuple(homes[number] for number in on_cpu), replica.binding.others)
    elif replica and UNPINNED in replica.binding.team:
        made = _unpinned(len(replica.binding.team), len(on_cpu))
    else:
        made = _on_cpus(
            _of_cpu_workers(within, assignment, devices), _cpu_entries(host, assignment, devices), len(on_cpu)
        )
    found = dict(zip(on_cpu, made.bindings, strict=True))
    team = {core_of(host, cpu) for binding in made.bindings for cpu in binding.team if cpu != UNPINNED}
    for number, device in enumerate(devices):
        if number not in found:
            found[number] = beside(within, device, team, homes.get(number))
    driven = accelerators_of(devices)
    free, told = tuple(cpu for cpu in within.allowance.cpus if core_of(host, cpu) not in team), made.findings
    if any(map(is_npu, devices)):
        # The NPUs of several engines without CPU workers are planned as those of one host.
        roles = _roles(within if on_cpu else host, assignment, devices, found, team)
        found |= roles.bindings
        free = _off(free, roles.pools) or _off(free, roles.set_apart) or free
        told = (*told, *roles.findings)
    bindings = tuple(found[number] for number in range(len(devices)))
    crowded = too_few_beside(within, devices, team) if driven else _crowded(within, made)
    homed = [(devices[number].removeprefix("torch:"), found[number].others) for number in homes if number not in on_cpu]
    findings = (*told, *crowded, *device_finding(host, homed))
    return replace(made, bindings=bindings, loop=free if driven else made.loop or free, findings=findings)


def _roles(
    host: Host,
    assignment: EngineAssignment,
    devices: Sequence[str],
    near: Mapping[int, EngineBinding],
    computing: Collection[int],
) -> NpuRoles:
    """Return the roles of the workers on NPUs. --numa-bind alone asks for what they have anyway; its lists name their
    pools.
    """
    from homenode.engine.plan.npu_roles import npu_roles  # brings the strategies of accelerators

    placement, replica = assignment.config.placement, assignment.replica
    lists = placement.numa_bind and (placement.numa_bind_nodes or placement.numa_bind_cpus)
    return npu_roles(host, devices, near, computing, named=bool(lists or (replica and replica.binding.workers)))


def _off(cpus: Sequence[int], taken: Collection[int]) -> tuple[int, ...]:
    return tuple(cpu for cpu in cpus if cpu not in taken)


def places_elsewhere(host: Host, assignment: EngineAssignment, device: str, count: int) -> WorkerBindings:
    """Places for `count` workers on another host than their engine's, where they divide what there is. UserError for
    settings with an entry for each worker of the engine's own host: nobody knows which of them are meant here.
    """
    placement = assignment.config.placement
    lists = "--numa-bind-nodes" if placement.numa_bind_nodes else "--numa-bind-cpus" if placement.numa_bind_cpus else ""
    if not lists and names_cpus(placement, host):
        lists = threads_bind_origin(placement.cpu_threads_bind, host.variables)
    if lists:
        raise UserError(
            f"{lists} names CPUs or nodes of one host, worker by worker, and --executor ray has put a worker on "
            "another; leave the lists out: --numa-bind and --cpu-threads-bind auto need none",
            param=lists.removeprefix("--").replace("-", "_"),
        )
    return worker_places(host, assignment, [device] * count)


def _within(host: Host, binding: EngineBinding) -> Host:
    """The host as far as it is the engine's: its compute threads' cores are what its workers divide."""
    cpus = tuple(cpu for cpu in binding.team if cpu != UNPINNED)
    if not cpus:
        return host
    quota = host.allowance.cpu_quota
    own = cut(host, host.allowance, cpus)
    return replace(host, allowance=replace(own, cpu_quota=None if quota is None else min(quota, float(len(cpus)))))


def _of_cpu_workers(host: Host, assignment: EngineAssignment, devices: Sequence[str]) -> Host:
    """The host as the CPU workers see it: without accelerators, and without the cores that are left to these unless
    settings say which cores are free.
    """
    placement, alone = assignment.config.placement, replace(host, accelerators=Accelerators())
    if not accelerators_of(devices):
        return alone
    if not assignment.replica and (reserved_cores(placement, host) is not None or names_cpus(placement, host)):
        return alone
    return replace(left_to_accelerators(host, devices), accelerators=Accelerators())


def _homes(host: Host, placement: PlacementConfig, devices: Sequence[str]) -> Mapping[int, EngineBinding]:
    """Return where --numa-bind has the worker of each accelerator, by its number: the entry of the lists, which have
    one for every worker, else the device's own node. Empty without it. Raises what the strategy raises.
    """
    driven = [number for number, device in enumerate(devices) if is_accelerator(device)]
    if not driven or not placement.numa_bind:
        return {}
    if not placement.numa_bind_nodes and not placement.numa_bind_cpus:
        return {number: home_of_device(host, devices[number]) for number in driven}
    plan = plan_workers(placement, replace(host, accelerators=Accelerators()), len(devices), share_cores=True)
    assert plan is not None  # --numa-bind is a plan
    homes = {}
    for number in driven:
        worker = plan.workers[number]
        cpus = worker.cpus
        if not placement.numa_bind_cpus:
            node = placement.numa_bind_nodes[number]
            cpus = of_node(host, node, allowed_cpus(host, host.node_by_id[node])) if host.nodes else cpus
        homes[number] = EngineBinding((), cpus, worker.memory_nodes)
    return homes


def _cpu_entries(host: Host, assignment: EngineAssignment, devices: Sequence[str]) -> EngineAssignment:
    """The assignment with those entries of the lists of --numa-bind that are the CPU workers'. Beside accelerators
    `_of_cpu_workers` has kept cores already, so no more of them are kept for the same.
    """
    config, placement = assignment.config, assignment.config.placement
    if assignment.replica or not accelerators_of(devices):
        return assignment
    mine = [number for number, device in enumerate(devices) if not is_accelerator(device)]
    kept = reserved_cores(placement, host)
    by_rule = not placement.numa_bind and any(
        says is not None
        for says in (
            threads_bind(placement.cpu_threads_bind, host.variables),
            memory_nodes(placement.memory_nodes, host.variables),
        )
    )
    own = replace(
        placement,
        reserve_cpus=0 if kept is None and not by_rule else kept,
        numa_bind_nodes=tuple(placement.numa_bind_nodes[n] for n in mine if n < len(placement.numa_bind_nodes)),
        numa_bind_cpus=tuple(placement.numa_bind_cpus[n] for n in mine if n < len(placement.numa_bind_cpus)),
    )
    return replace(assignment, config=replace(config, placement=own))


def _unpinned(threads: int, count: int) -> WorkerBindings:
    each = max(1, threads // max(1, count))
    return WorkerBindings((EngineBinding((UNPINNED,) * each),) * count, shared=threads < count)


def _on_cpus(host: Host, assignment: EngineAssignment, count: int) -> WorkerBindings:
    if not count:
        return WorkerBindings(())
    config, replica = assignment.config, assignment.replica
    if config.placement.numa is not None and not replica:
        return _under_a_policy(host, assignment, count)
    # What was asked for made the engine's place, and where the loop goes was decided with it: all its cores compute.
    settings = replace(config, placement=PlacementConfig(reserve_cpus=0)) if replica else config
    if not names_cpus(settings.placement, host):
        _refuse_threads(host, config, count)
    bindings = divided_places(
        host,
        settings,
        count,
        what="worker",
        flags="--pipeline-parallel-size x --tensor-parallel-size",
        share_cores=True,
    )
    findings = dict.fromkeys(finding for binding in bindings for finding in binding.findings)
    apart = tuple(replace(binding, findings=(), memory_nodes=_memory(binding, assignment)) for binding in bindings)
    shared = _share_cores(host, apart)
    loop = replica.binding.others if replica else bindings[0].spare
    return WorkerBindings(apart, loop, shared, tuple(findings))


def _memory(binding: EngineBinding, assignment: EngineAssignment) -> tuple[int, ...]:
    """The worker's nodes as far as its engine's memory is bound to them, else those of the engine."""
    of_engine = assignment.replica.binding.memory_nodes if assignment.replica else ()
    return tuple(node for node in binding.memory_nodes if node in of_engine) or of_engine or binding.memory_nodes


def _share_cores(host: Host, bindings: Sequence[EngineBinding]) -> bool:
    """Return whether workers have to take turns: two compute on one core, or nobody is pinned and there are too few."""
    cores = [{core_of(host, cpu) for cpu in binding.team if cpu != UNPINNED} for binding in bindings]
    if not any(cores):
        return len(host.allowance.physical_cpus) < len(bindings)
    return len(set().union(*cores)) < sum(map(len, cores))


def _under_a_policy(host: Host, assignment: EngineAssignment, count: int) -> WorkerBindings:
    """The cores divided as without one, then spread over each worker's nodes as --numa says."""
    config = assignment.config
    host = divided_host(host, config.placement)
    bare = replace(config, placement=PlacementConfig(reserve_cpus=config.placement.reserve_cpus))
    made = _on_cpus(host, EngineAssignment(replace(bare, compute=replace(bare.compute, threads=None))), count)
    bindings, findings = over_own_nodes(host, assignment, made.bindings)
    return replace(made, bindings=bindings, findings=(*made.findings, *findings))


def _refuse_threads(host: Host, config: EngineConfig, count: int) -> None:
    """UserError for several threads of workers that have a core in turn."""
    cores = host.allowance.physical_cpus
    if len(cores) < count and config.compute.threads is not None and config.compute.threads > 1:
        raise UserError(
            f"--threads {config.compute.threads}: {format_count(count, 'worker shares', 'workers share')} "
            f"{format_count(len(cores), 'physical core')}; leave it out, or allow more CPUs",
            param="threads",
        )


def _crowded(host: Host, made: WorkerBindings) -> tuple[Finding, ...]:
    """A warning when CPU workers take turns, or leave no core to front and scheduler."""
    count = len(made.bindings)
    team = [cpu for binding in made.bindings for cpu in binding.team]
    if not made.shared:
        return too_few_cores(host, EngineBinding(tuple(team)), count, "worker")
    pinned = tuple(cpu for cpu in dict.fromkeys(team) if cpu != UNPINNED) or host.allowance.physical_cpus
    cores = sorted({core_of(host, cpu) for cpu in pinned})
    message = (
        f"{format_count(count, 'worker shares', 'workers share')} {format_count(len(cores), 'physical core')} "
        f"(CPUs {format_cpu_list(pinned)}), so they wait for each other's turns, and "
        "none watches for work (--spin-us is 0 for them)"
    )
    remedy = f"Allow {format_count(count, 'core')} or more, have fewer stages and ranks, or name more CPUs and nodes."
    return (Finding("warning", "workers_share_cores", message, remedy),)
