"""CPUs by role for the workers on NPUs: where each runs, its driver's acl and release threads, its device's interrupts.
Pure.

On Arm the pools are those of the documented Ascend strategy, elsewhere, and where those overlap, those of `fair`: both
count the NPUs that other processes may drive. What CPU workers of the same engine compute on is in no pool. Where that,
or a setting that names nodes and CPUs, leaves no such pools, the engine's own NPUs divide what is free near them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from homenode.engine.binding import DriverRoles, EngineBinding
from homenode.engine.devices import is_npu
from homenode.engine.plan.accelerators.driven_chips import chip_of
from homenode.engine.plan.placement import core_of, cut
from homenode.errors import PlacementError
from homenode.host.plan.demand import Demand
from homenode.host.plan.plan import Plan, WorkerBinding
from homenode.host.plan.policies.ascend import log_lines
from homenode.host.plan.policies.ascend_plan import arm_gate
from homenode.host.plan.resources.cores import AllowedCore, allowed_cores
from homenode.host.plan.resources.fair_roles import ROLES_APART, assign_roles
from homenode.host.plan.select import make_plan
from homenode.host.plan.strategy import Strategy
from homenode.host.topology.finding import Finding
from homenode.host.topology.host import Accelerator, Host

_OWN = "own"  # in place of a strategy's name: the engine's own NPUs divide what is free


@dataclass(frozen=True)
class NpuRoles:
    """`bindings`: of the workers on NPUs, by their numbers; none of those whose NPU the host does not tell of."""

    bindings: Mapping[int, EngineBinding]
    findings: tuple[Finding, ...] = ()

    @property
    def set_apart(self) -> frozenset[int]:
        """CPUs of interrupts and driver threads, on which nothing else is to run."""
        of_all = [binding.roles.roles for binding in self.bindings.values() if binding.roles]
        return frozenset(cpu for roles in of_all for role in roles if role != "main" for cpu in roles[role])

    @property
    def pools(self) -> frozenset[int]:
        """All CPUs that they have."""
        return frozenset(cpu for b in self.bindings.values() if b.roles for cpu in b.roles.cpus)


def npu_roles(
    host: Host, devices: Sequence[str], near: Mapping[int, EngineBinding], computing: Collection[int], *, named: bool
) -> NpuRoles:
    """Roles for the workers on NPUs. `near`: where the host threads of each worker would be without them. `computing`:
    cores with compute threads. `named`: settings name those places, which then are the pools.
    """
    numbers = [number for number, device in enumerate(devices) if is_npu(device)]
    chips = {number: chip for number in numbers if (chip := chip_of(host, devices[number])) is not None}
    findings = _unknown(host, [devices[number] for number in numbers if number not in chips])
    if not chips:
        return NpuRoles({}, findings)
    try:
        plan, mode = (None, _OWN) if named else _planned(host, tuple(chip.id for chip in chips.values()))
    except PlacementError as error:
        plan, mode = None, _OWN
        findings += (_refused(error),)
    if plan is None or not _all_bound(host, plan, computing):
        bindings = _divided(host, chips, near, computing)
        return NpuRoles(bindings, (*findings, *_shared(bindings)))
    of_rank = dict(enumerate(chips))
    bindings = {
        of_rank[worker.local_rank]: _binding(plan, worker, chips[of_rank[worker.local_rank]], mode)
        for worker in plan.workers
    }
    return NpuRoles(bindings, (*findings, *plan.findings))


def _planned(host: Host, driven: tuple[int, ...]) -> tuple[Plan, str]:
    """The plan of the strategy that is for this host, and its name as it is logged. Raises PlacementError."""
    demand = Demand(visible=driven, before_start=True)
    if arm_gate(host.machine):
        return make_plan(Strategy.FAIR, host, demand), Strategy.FAIR
    plan = make_plan(Strategy.ASCEND, host, demand)
    if sum(map(len, plan.pools.values())) > len({cpu for pool in plan.pools.values() for cpu in pool}):
        fair = make_plan(Strategy.FAIR, host, demand)
        message = (
            f"the pools of {plan.strategy} overlap on this host, so threads of one NPU would run on the CPUs set apart "
            "for another's: the NPUs of this engine have the pools of fair"
        )
        return fair.with_findings([Finding("info", "npu_pools_fair", message)]), Strategy.FAIR
    fell_back = any(finding.code == "topo_affinity_missing" for finding in plan.findings)
    return plan, Strategy.TOPO_AFFINITY if fell_back else plan.strategy


def _all_bound(host: Host, plan: Plan, computing: Collection[int]) -> bool:
    """Return whether each has a pool, and nobody computes there."""
    return all(
        worker.bound and not any(core_of(host, cpu) in computing for cpu in worker.cpus) for worker in plan.workers
    )


def _divided(
    host: Host, chips: Mapping[int, Accelerator], near: Mapping[int, EngineBinding], computing: Collection[int]
) -> dict[int, EngineBinding]:
    """Whole cores of what is free near each, those with one pool in common getting equal runs of it."""
    workers: list[WorkerBinding] = []
    for rank, number in enumerate(chips):
        pool = near[number].others or host.allowance.cpus
        alike = [other for other in chips if (near[other].others or host.allowance.cpus) == pool]
        cores = _cores(host, pool)
        apart = [core for core in cores if core.id not in computing] or cores
        first, past = (len(apart) * n // len(alike) for n in (alike.index(number), alike.index(number) + 1))
        mine = apart[first:past] or apart
        local = set(chips[number].local_cpus)
        mine.sort(key=lambda core: local.isdisjoint(core.cpus))
        cpus = tuple(sorted(cpu for core in mine for cpu in core.cpus))
        roles = assign_roles("npu", mine, sum(not local.isdisjoint(core.cpus) for core in mine))
        why = f"{len(cpus)} of {len(pool)} that are left near it"
        workers.append(WorkerBinding(rank, chips[number].id, cpus, roles, near[number].memory_nodes, why))
    pools = {worker.device: worker.cpus for worker in workers}
    plan = Plan(_OWN, len(chips), tuple(pools), pools, tuple(workers))
    return {number: _binding(plan, worker, chips[number], _OWN) for number, worker in zip(chips, workers, strict=True)}


def _cores(host: Host, cpus: Sequence[int]) -> list[AllowedCore]:
    within = replace(host, allowance=cut(host, host.allowance, tuple(cpus)))
    return [core for own in allowed_cores(within).values() for core in own]


def _binding(plan: Plan, worker: WorkerBinding, chip: Accelerator, mode: str) -> EngineBinding:
    lines = tuple(log_lines(plan, mode, worker.local_rank, plan.devices_running))
    where = (chip.address, chip.card, chip.chip)
    roles = DriverRoles(chip.id, worker.cpus, worker.roles, *where, lines, plan.kernel_threads)
    return EngineBinding((), worker.main_cpus, worker.memory_nodes, roles=roles)


def _shared(bindings: Mapping[int, EngineBinding]) -> tuple[Finding, ...]:
    made = [binding.roles for binding in bindings.values() if binding.roles]
    crowded = [str(roles.device) for roles in made if set(roles.roles["main"]) == set(roles.cpus)]
    if not crowded:
        return ()
    message = (
        f"few CPUs are left near NPU {', '.join(crowded)}: interrupts, acl and release threads share them with the "
        "worker"
    )
    return (Finding("info", "roles_shared", message, f"Roles lie apart on {ROLES_APART} CPUs or more."),)


def _unknown(host: Host, devices: Sequence[str]) -> tuple[Finding, ...]:
    """Return what is to be told of NPUs that the vendor's tool has not told of: their workers have one mask alone."""
    if not devices:
        return ()
    causes = [f" ({error.summary})" for error in host.accelerators.errors[:1]]
    message = (
        f"npu-smi does not tell of {', '.join(device.removeprefix('torch:') for device in devices)}{''.join(causes)}: "
        "the acl and release threads of their workers have no CPUs of their own, and interrupts stay where they are"
    )
    return (Finding("warning", "npu_not_listed", message, "Make npu-smi available here; see `homenode host`."),)


def _refused(error: PlacementError) -> Finding:
    message = (
        f"the Ascend binding has no pools for this engine's NPUs: {error.summary} (seen: {error.seen}; wanted: "
        f"{error.wanted}). They divide the CPUs that are free near them, where roles are together in pools of less "
        f"than {ROLES_APART} CPUs"
    )
    return Finding("warning", error.code, message, error.remedy)
