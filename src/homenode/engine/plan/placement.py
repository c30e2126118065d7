"""The place where an engine runs: from its placement settings and the host to the CPUs of its threads and the nodes of
its memory. Pure.

The strategies are those of `homenode plan`; an engine is one CPU worker to them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from homenode.engine.assignment import EngineAssignment
from homenode.engine.binding import EngineBinding
from homenode.engine.config import PlacementConfig
from homenode.engine.memory.sizing import choose_cpus
from homenode.errors import UserError
from homenode.host.bind.base.syscalls import MPOL_DEFAULT, MPOL_LOCAL
from homenode.host.bind.memory.mempolicy_fallback import MemoryPolicy
from homenode.host.plan.demand import Demand
from homenode.host.plan.numa.demand import Decision
from homenode.host.plan.numa.policy import Chosen, Teams, home_team, numa_plan
from homenode.host.plan.plan import Plan, WorkerBinding
from homenode.host.plan.requirements import requirements
from homenode.host.plan.resources.core_order import fastest_cores, without_low_power
from homenode.host.plan.resources.cores import allowed_cores, cpus_of
from homenode.host.plan.resources.memory_nodes import has_memory
from homenode.host.plan.resources.nodes import permitted_nodes
from homenode.host.plan.select import make_plan
from homenode.host.plan.strategy import Strategy
from homenode.host.plan.threads_bind import AUTO
from homenode.host.plan.variables import (
    memory_nodes,
    memory_nodes_origin,
    reserve_cpus,
    threads_bind,
    threads_bind_origin,
)
from homenode.host.topology.allowance import Allowance
from homenode.host.topology.finding import Finding
from homenode.host.topology.host import Host
from homenode.numa_policy import NumaPolicy
from homenode.units import format_count

_UNBOUND = (MPOL_DEFAULT, MPOL_LOCAL)  # of a process: memory comes from where it is touched

UNPINNED = -1


def alone(binding: EngineBinding) -> EngineBinding:
    """The place of an engine that has its process to itself: its other threads go where no compute thread is, if there
    is room.
    """
    return replace(binding, others=binding.others or binding.spare)


def place_engine(
    config: PlacementConfig, threads: int | None, host: Host, choose: Callable[[Teams], Chosen] | None = None
) -> EngineBinding:
    """Decide. `choose`: settles `--numa auto` where several nodes can compute (`numa_choice.cost_choice`); None: shard
    is taken.

    UserError and PlacementError for settings that contradict each other or that this host cannot meet.
    """
    if config.numa is not None or config.threads_per_core > 1:
        _check(config)
        return _over_nodes(config, threads, host, choose or _shard)
    plan, reserve = plan_workers(config, host, workers=1, local_rank=0), reserved_cores(config, host)
    if plan is None:
        return _free(threads, host, reserve)
    return place_worker(plan, plan.workers[0], threads, host, reserve)


def plan_workers(
    config: PlacementConfig, host: Host, workers: int, local_rank: int | None = None, share_cores: bool = False
) -> Plan | None:
    """The plan that the settings ask for, of all workers or of that with this rank; None when they ask for none.
    `share_cores`: more workers than cores take turns. Raises as `place_engine`.
    """
    _check(config)
    lists = threads_bind(config.cpu_threads_bind, host.variables)
    nodes = memory_nodes(config.memory_nodes, host.variables)
    # That the flag has no effect beside lists is told with all such settings (settings_without_effect); that of a
    # variable by the plan.
    told = config.reserve_cpus is not None and (lists or AUTO).strip() != AUTO and not config.numa_bind
    reserve = None if told else reserved_cores(config, host)
    demand = Demand(
        local_rank=local_rank,
        reserve_cpus=reserve,
        threads_bind=lists or "auto",
        memory_nodes=nodes,
        workers=workers,
        share_cores=share_cores,
        threads_bind_origin=threads_bind_origin(config.cpu_threads_bind, host.variables),
        memory_nodes_origin=memory_nodes_origin(config.memory_nodes, host.variables),
    )
    if config.numa_bind:
        given = replace(
            demand, numa_bind_nodes=config.numa_bind_nodes or None, numa_bind_cpus=config.numa_bind_cpus or None
        )
        return make_plan(Strategy.NUMA_BIND, host, given)
    if lists is None and nodes is None:
        return None
    return make_plan(Strategy.CPU_THREADS, host, demand)


def place_worker(
    plan: Plan, worker: WorkerBinding, threads: int | None, host: Host, reserve: int | None
) -> EngineBinding:
    """The place that a plan of `plan_workers` gives one of its workers."""
    if plan.strategy == Strategy.NUMA_BIND:
        return _within(plan, worker, threads, host, reserve)
    return _on_list(plan, worker, threads, host)


def reserved_cores(config: PlacementConfig, host: Host) -> int | None:
    """Physical cores that are kept free of compute threads; None when nobody says."""
    return reserve_cpus(config.reserve_cpus, host.variables, cpu_workers=True)


def _check(config: PlacementConfig) -> None:
    if (config.numa_bind_nodes or config.numa_bind_cpus) and not config.numa_bind:
        raise UserError(
            "--numa-bind-nodes and --numa-bind-cpus say where to bind; give --numa-bind as well", param="numa_bind"
        )
    if config.numa_bind and config.cpu_threads_bind:
        raise UserError(
            "--numa-bind and --cpu-threads-bind are two ways to say the same; give one", param="cpu_threads_bind"
        )
    config.check()
    asked = "--numa" if config.numa is not None else "--threads-per-core" if config.threads_per_core > 1 else ""
    for flag, value in (
        ("--numa-bind", config.numa_bind),
        ("--cpu-threads-bind", config.cpu_threads_bind),
        ("--memory-nodes", config.memory_nodes),
    ):
        if asked and value:
            raise UserError(
                f"{asked} and {flag} both say where threads run and memory lies; give one of them (--numa-nodes "
                "names nodes for --numa)",
                param=asked[2:].replace("-", "_"),
            )


def _free(threads: int | None, host: Host, reserve: int | None) -> EngineBinding:
    """The whole allowance; a reserve of whole cores is made of the slowest of them."""
    allowance = host.allowance
    if reserve is None:
        team = choose_cpus(threads, host)
        taken = {core_of(host, cpu) for cpu in team}
        return EngineBinding(team, spare=tuple(cpu for cpu in allowance.cpus if core_of(host, cpu) not in taken))
    cores = {0: sorted((core for own in allowed_cores(host).values() for core in own), key=lambda core: core.cpus)}
    if reserve >= len(cores[0]):
        raise UserError(
            f"--reserve-cpus {reserve}: this process may use {format_count(len(cores[0]), 'physical core')}, so none "
            "would be left to compute; "
            f"give {len(cores[0]) - 1} or less",
            param="reserve_cpus",
        )
    computing = fastest_cores(cores, len(cores[0]) - reserve)
    if threads is None:
        computing = without_low_power(computing)
    left = cut(host, allowance, cpus_of(computing[0]))
    others = tuple(cpu for cpu in allowance.cpus if cpu not in left.cpus)
    team = choose_cpus(threads if threads is not None else left.usable_threads, replace(host, allowance=left))
    return EngineBinding(team, others)


def _within(plan: Plan, worker: WorkerBinding, threads: int | None, host: Host, reserve: int | None) -> EngineBinding:
    """The worker's CPUs are its whole world."""
    binding = _free(threads, replace(host, allowance=cut(host, host.allowance, worker.cpus)), reserve)
    return replace(
        binding,
        others=binding.others or binding.spare or worker.cpus,
        memory_nodes=worker.memory_nodes,
        findings=plan.findings,
    )


def _on_list(plan: Plan, worker: WorkerBinding, threads: int | None, host: Host) -> EngineBinding:
    """One thread for each CPU of the worker's list, in its order."""
    if not worker.bound:
        count = threads if threads is not None else len(choose_cpus(None, host))
        return EngineBinding((UNPINNED,) * count, findings=plan.findings)
    if threads is not None and threads > len(worker.cpus):
        raise UserError(
            f"--threads {threads}: the list of this worker has {format_count(len(worker.cpus), 'CPU')}; "
            f"give {len(worker.cpus)} or less",
            param="threads",
        )
    kept = tuple(cpu for process in plan.processes for cpu in process.cpus)
    return EngineBinding(worker.cpus[:threads], kept or worker.cpus, worker.memory_nodes, plan.findings)


def cut(host: Host, allowance: Allowance, cpus: tuple[int, ...]) -> Allowance:
    """The allowance with these CPUs only."""
    first_of_core = {core_of(host, cpu): cpu for cpu in sorted(cpus, reverse=True)}
    return replace(allowance, cpus=tuple(sorted(cpus)), physical_cpus=tuple(sorted(first_of_core.values())))


def core_of(host: Host, cpu: int) -> int:
    """The name of a CPU's core; its own number where the host does not know it."""
    known = host.cpu_by_id.get(cpu)
    return known.core if known else cpu


def _shard(teams: Teams) -> Chosen:
    return Decision(
        NumaPolicy.SHARD,
        f"nothing is known of a model to choose by: one copy over {format_count(len(teams), 'node')}, each row with "
        "its thread",
    )


def _over_nodes(
    config: PlacementConfig, threads: int | None, host: Host, choose: Callable[[Teams], Chosen]
) -> EngineBinding:
    """The teams of `--numa`, node after node. Memory is bound to their nodes where there are others it could
    come from.
    """
    reserve = reserve_cpus(config.reserve_cpus, host.variables, cpu_workers=True)
    plan = numa_plan(host, config.demand(threads, reserve), choose if config.numa is not None else _shard)
    teams, findings = plan.teams, plan.findings
    if plan.policy == "replicate":
        teams = (home_team(teams),) if config.numa_nodes is None else teams[:1]
        message = f"--numa replicate: this engine is one of them, that of node {teams[0].node}"
        findings += (Finding("info", "numa_one_replica", message),)
    team = tuple(cpu for own in teams for cpu in own.cpus)
    taken = {core_of(host, cpu) for cpu in team}
    binding = EngineBinding(team, spare=tuple(cpu for cpu in host.allowance.cpus if core_of(host, cpu) not in taken))
    if config.numa is None:
        return replace(binding, findings=tuple(finding for finding in findings if finding.code != "numa_single_node"))
    memory = tuple(dict.fromkeys(own.memory_node for own in teams)) if host.nodes else ()
    bound = memory if len(memory) < len([node for node in permitted_nodes(host) if has_memory(host, node)]) else ()
    return replace(
        binding,
        memory_nodes=bound,
        findings=findings,
        numa=plan.policy,
        numa_why=plan.why,
        thread_memory=tuple(own.memory_node for own in teams for _ in own.cpus) if host.nodes else (),
        mirror_tensors=config.numa_mirror_tensors if plan.policy == "shard" else (),
        strict=config.numa_strict,
    )


def team_groups(host: Host, team: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Return for each compute thread the path (NUMA node, last-level cache) of its CPU; empty for a thread that may run
    anywhere.

    An unknown cache counts as the node's only one, an unknown node as node 0.
    """
    return tuple(_path(host, cpu) for cpu in team)


def _path(host: Host, cpu: int) -> tuple[int, ...]:
    known = host.cpu_by_id.get(cpu)
    if known is None:
        return ()
    return (known.node if known.node is not None else 0, known.l3 if known.l3 is not None else -1)


def too_few_cores(host: Host, binding: EngineBinding, engines: int = 1, what: str = "engine") -> tuple[Finding, ...]:
    """A warning when the front, the scheduler and the compute threads of all engines have to share physical cores."""
    allowance = cut(host, host.allowance, (*host.allowance.cpus, *host.allowance.beside))
    needed = requirements(replace(host, allowance=allowance), Demand(workers=engines)).homenode
    if needed.met:
        return ()
    cores = len(allowance.physical_cpus)
    message = (
        f"{format_count(needed.physical_cores, 'physical core is', 'physical cores are')} the least for "
        f"{f'this {what}' if engines == 1 else f'{engines} {what}s'} "
        f"({', '.join(f'{what}: {n}' for what, n in needed.parts)}), and this process has {cores}"
    )
    remedy = (
        f"Allow more CPUs, or expect the {format_count(len(binding.team), 'compute thread')} to be interrupted by "
        "HTTP and scheduling."
    )
    return (Finding("warning", "too_few_cores", message, remedy),)


def auto_is_meant(assignment: EngineAssignment, host: Host, policy: MemoryPolicy | None) -> bool:
    """Pure. `policy`: the memory policy of this process, None where the kernel does not tell.

    Not for one of several engines, which have their places; nor where flags, variables or another program (numactl,
    `homenode run`) have placed threads or memory, which --numa would override.
    """
    config, placement = assignment.config, assignment.config.placement
    if (
        assignment.replica is not None
        or config.parallel.data_parallel_size > 1
        or config.compute.backend == "reference"
    ):
        return False
    if placement.numa is not None or placement.numa_bind or (policy is not None and policy.mode not in _UNBOUND):
        return False
    if placement.numa_nodes or placement.numa_mirror_tensors or placement.numa_strict or placement.numa_measured:
        return False  # they say how --numa is meant, and are refused without it
    if (
        threads_bind(placement.cpu_threads_bind, host.variables)
        or memory_nodes(placement.memory_nodes, host.variables) is not None
    ):
        return False
    nodes = {
        cpu.node
        for number in host.allowance.cpus
        if (cpu := host.cpu_by_id.get(number)) is not None and cpu.node is not None
    }
    return len(nodes) > 1
