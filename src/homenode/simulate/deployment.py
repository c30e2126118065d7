"""The engines that `homenode serve` with these settings would start on a host, as far as they can be known without one:
places, memory, costs.

What does not fit, or contradicts itself, is refused by the code that refuses it there.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from homenode.engine.assignment import EngineAssignment
from homenode.engine.backend import make_backend
from homenode.engine.binding import EngineBinding, Replica
from homenode.engine.config import EngineConfig
from homenode.engine.devices import is_accelerator, worker_devices
from homenode.engine.experts.group import expert_group_rank, expert_problem
from homenode.engine.experts.sizing import ExpertSharing, own_layout
from homenode.engine.memory.sizing import resolve, with_kv_memory_variable
from homenode.engine.plan.engine_plan import EnginePlan
from homenode.engine.plan.inline import numa_choice, place_of_engine, plan_bound
from homenode.engine.plan.placement import UNPINNED, auto_is_meant, reserved_cores
from homenode.engine.plan.replica_assignments import node_places
from homenode.engine.plan.replica_bindings import memory_shares, replica_places
from homenode.engine.plan.worker_layout import with_memory
from homenode.engine.plan.workers import plan_workers
from homenode.engine.scheduler.drafts.draft_choice import DraftChoice
from homenode.engine.scheduler.scheduler import Scheduler
from homenode.engine.scheduler.steps.step_costs import StepCosts
from homenode.engine.step import WorkerLimits
from homenode.errors import CapacityError, UserError
from homenode.host.plan.numa.demand import Decision
from homenode.host.plan.numa.policy import numa_plan
from homenode.host.topology.accelerator_kinds import KINDS
from homenode.host.topology.host import Host
from homenode.model.part import ModelPart
from homenode.model.spec import Checkpoint
from homenode.model.weights.layout import WeightLayout
from homenode.model.weights.node_placement import plan_weight_nodes
from homenode.model.weights.numa_layout import packed_group_bytes
from homenode.numa_policy import NumaPolicy
from homenode.simulate.costs import Link, StageCost
from homenode.simulate.disk import DiskSpeed, SimulatedDisk
from homenode.simulate.engine import SimulatedEngine
from homenode.simulate.speeds import Speeds
from homenode.simulate.worker import Owners, accelerator_worker, cpu_worker, link_of, teams_of, work_of
from homenode.units import format_bytes, format_count


@dataclass(frozen=True)
class EngineSpec:
    """One engine before it runs. `weights`: bytes by NUMA node, or by the name of an accelerator. `kv_bytes`: of all
    its workers. `acceptance`: the chance of each drafted token behind right ones; None: nothing is drafted.
    """

    config: EngineConfig
    limits: WorkerLimits
    stages: tuple[StageCost, ...]
    back: float
    weights: dict[str, int]
    kv_bytes: int
    policy: str
    why: str
    acceptance: float | None = None
    disk: DiskSpeed | None = None

    def engine(self) -> SimulatedEngine:
        """A fresh one, with empty memory."""
        disk = None
        if self.disk is not None:
            disk = SimulatedDisk(self.disk, self.kv_bytes // self.limits.num_blocks, self.limits.block_size)
        limits, drafter, costs = self.limits, None, StepCosts()
        drafts = replace(self.config.speculation.resolved(), lookup_min=0)  # no text is there to look anything up in
        if self.acceptance is not None and drafts.method != "off":
            limits = msgspec.structs.replace(limits, max_drafted=drafts.max_drafted)
            drafter = DraftChoice(drafts, costs, drafts.max_drafted)
        scheduler = Scheduler(
            self.config.scheduler,
            self.config.kv,
            limits,
            (),
            hash_seed=bytes(32),
            lookahead=1 if len(self.stages) == 1 else 0,
            seeds=random.Random(0),
            stages=len(self.stages),
            costs=costs,
            drafter=drafter,
            stores=() if disk is None else (disk,),
        )
        return SimulatedEngine(scheduler, self.stages, self.back, self.acceptance or 0.0, disk)


def engines_on(host: Host, config: EngineConfig, checkpoint: Checkpoint, speeds: Speeds) -> tuple[EngineSpec, ...]:
    """Every engine on one host. UserError, CapacityError and PlacementError as `serve` would raise them there."""
    config = with_kv_memory_variable(config, host)
    parallel = config.parallel
    if parallel.workers == 1 and auto_is_meant(EngineAssignment(config), host, None):
        config = replace(config, placement=replace(config.placement, numa="auto"))
    bindings, decision = _bindings(host, config, checkpoint)
    there = [f"torch:{KINDS[chip.kind].torch}:{chip.id}" for chip in host.accelerators.chips]
    offered = there if speeds.accelerator else ()
    capacities = [_capacity(host, binding) for binding in bindings]
    shares = memory_shares(capacities, _available(host)) if len(bindings) > 1 else (None,) * len(bindings)
    made: list[EngineSpec] = []
    everybody = [
        worker_devices(
            parallel.stage_devices,
            parallel.pipeline_parallel_size,
            parallel.tensor_parallel_size,
            offered,
            number,
            len(bindings),
        )
        for number in range(len(bindings))
    ]
    for number, (binding, share, devices) in enumerate(zip(bindings, shares, everybody, strict=True)):
        replica = None if share is None else Replica(number, len(bindings), binding, host.allowance.cpus, share)
        own = EngineAssignment(config, replica, decision)
        if missing := [device for device in devices if is_accelerator(device) and device not in there]:
            raise UserError(f"--stage-devices: {missing[0].removeprefix('torch:')} is not there", param="stage_devices")
        if problem := expert_problem(own, checkpoint.spec):
            raise problem
        group_rank = expert_group_rank(own, everybody)
        together = None if group_rank is None else _Together(ExpertSharing(group_rank), bindings)
        inline = list(devices) == ["cpu"]
        made.append(
            _one_worker(host, own, checkpoint, binding, speeds, together)
            if inline
            else _workers(host, own, checkpoint, devices, speeds, together)
        )
    return tuple(made)


@dataclass(frozen=True)
class _Together:
    """Engines in these places that keep experts in common, and the seat of one."""

    common: ExpertSharing
    bindings: Sequence[EngineBinding]

    def owners(self, layout: WeightLayout, part: ModelPart) -> Owners:
        kept = self.common.owners(layout, part)
        return Owners(self.bindings, sum(m.target_bytes for m in layout.matrices if m.name in kept))


def _bindings(
    host: Host, config: EngineConfig, checkpoint: Checkpoint
) -> tuple[tuple[EngineBinding, ...], Decision | None]:
    """Return the binding of each engine, and what --numa auto has come to."""
    count, numa = config.parallel.data_parallel_size, config.placement.numa
    if count > 1:
        if numa is not None:
            raise UserError(
                f"--numa {numa} and --data-parallel-size {count} both divide a host; give one of them", param="numa"
            )
        return replica_places(host, config, count), None
    if config.parallel.workers > 1:
        return (EngineBinding(()),), None  # its workers have places
    choose, decision = numa_choice(EngineAssignment(config), checkpoint, host), None
    if numa in ("auto", "replicate"):
        plan = numa_plan(
            host, config.placement.demand(config.compute.threads, reserved_cores(config.placement, host)), choose
        )
        if several := node_places(config, host, plan):
            return several, None
        if numa == "auto":
            home = (plan.teams[0].node,) if plan.policy == "local" else ()
            decision = Decision(plan.policy, plan.why, home)
    return (place_of_engine(EngineAssignment(config, numa_decision=decision), checkpoint, host),), decision


def _one_worker(
    host: Host,
    assignment: EngineAssignment,
    checkpoint: Checkpoint,
    binding: EngineBinding,
    speeds: Speeds,
    together: _Together | None,
) -> EngineSpec:
    common = together.common if together else None
    config = assignment.config
    plan = plan_bound(assignment, checkpoint, host, binding, common=common)
    spec, (worker,), (layout,), (geometry,) = checkpoint.spec, plan.worker_layout.workers, plan.weights, plan.geometries
    part, nodes = worker.part, plan.weight_nodes
    if nodes is None or binding.numa == "replicate":
        teams, packed = teams_of(host, binding), packed_group_bytes(make_backend(config.compute, (UNPINNED,)))
        policy = NumaPolicy.SHARD if len(teams) > 1 else NumaPolicy.LOCAL
        nodes = plan_weight_nodes(own_layout(layout, part, common), teams, policy, (), binding.numa_why, packed)
    available = _capacity(host, binding)[0]
    if assignment.memory_share is not None:
        available = min(available, assignment.memory_share)
    left = max(0, min(available, _available(host)) - plan.kept(worker).own)
    capacity = plan.node_capacity
    limits = resolve(config, spec, geometry, left if capacity is None else min(left, capacity.size))
    limits = msgspec.structs.replace(limits, group_blocks=plan.group_blocks)
    owners = together.owners(layout, part) if together else None
    cost = cpu_worker(host, binding, work_of(spec, layout, geometry, part), speeds, owners)
    weights = {str(node): size for node, size in nodes.nodes.items() if size}
    return EngineSpec(
        config, limits, (StageCost((cost,), 4 * spec.handed_columns),), 0.0, weights,
        limits.num_blocks * geometry.block_bytes,
        binding.numa or nodes.policy, binding.numa_why, speeds.acceptance, speeds.disk,
    )  # fmt: skip


def _workers(
    host: Host,
    assignment: EngineAssignment,
    checkpoint: Checkpoint,
    devices: Sequence[str],
    speeds: Speeds,
    together: _Together | None,
) -> EngineSpec:
    config = assignment.config
    planned = plan_workers(assignment, checkpoint, host, devices, common=together.common if together else None)
    workers = planned.worker_layout.workers
    total = _available(host) if assignment.memory_share is None else assignment.memory_share
    capacities = [_capacity(host, worker.binding) for worker in workers]
    planned = replace(
        planned,
        worker_layout=with_memory(
            planned.worker_layout, [planned.kept(worker).own for worker in workers], capacities, total
        ),
    )
    if found := planned.problems():
        raise found[0]
    limits = _limits(planned, speeds)
    ranks, spec = config.parallel.tensor_parallel_size, checkpoint.spec
    links = [_link(host, planned, stage * ranks, speeds) for stage in range(len(workers) // ranks)]
    stages = tuple(_stage(host, planned, stage, links[stage], speeds, together) for stage in range(len(links)))
    weights: dict[str, int] = {}
    for worker in workers:
        own, nodes = planned.kept(worker).own, _nodes(host, worker.binding)
        names = (
            [worker.device.removeprefix("torch:")] if is_accelerator(worker.device) else [str(node) for node in nodes]
        )
        for at, name in enumerate(names):
            weights[name] = weights.get(name, 0) + own // len(names) + (at < own % len(names))
    kv = sum(limits.num_blocks * geometry.block_bytes for geometry in planned.geometries)
    back = links[0].latency if len(stages) > 1 else 0.0
    return EngineSpec(
        config,
        limits,
        stages,
        back,
        weights,
        kv,
        f"{len(stages)} x {format_count(ranks, 'worker')}",
        f"on {', '.join(devices)} [{spec.architecture}]",
        speeds.acceptance,
        speeds.disk,
    )


def _stage(
    host: Host, planned: EnginePlan, stage: int, link: Link, speeds: Speeds, together: _Together | None
) -> StageCost:
    spec = planned.checkpoint.spec
    mine = [n for n, worker in enumerate(planned.worker_layout.workers) if worker.stage == stage]
    costs = []
    for n in mine:
        worker = planned.worker_layout.workers[n]
        work = work_of(spec, planned.weights[n], planned.geometries[n], worker.part)
        if is_accelerator(worker.device):
            costs.append(accelerator_worker(work, speeds))
        else:
            owners = together.owners(planned.weights[n], worker.part) if together else None
            costs.append(cpu_worker(host, worker.binding, work, speeds, owners))
    part = planned.worker_layout.workers[mine[0]].part
    sums = 2 * part.layers.count + part.first_stage + part.last_stage if len(mine) > 1 else 0
    shared = Link(link.latency, link.byte * (len(mine) - 1))  # every rank reads what all others have
    return StageCost(tuple(costs), 4 * spec.handed_columns, sums, shared, link)


def _link(host: Host, planned: EnginePlan, first: int, speeds: Speeds) -> Link:
    """Return the link from the workers of a stage on: the accelerators' where there is one, else the host's memory."""
    workers = planned.worker_layout.workers[first:]
    if speeds.accelerator and any(is_accelerator(worker.device) for worker in workers):
        return speeds.accelerator.link
    return link_of(
        host, [worker.binding for worker in planned.worker_layout.workers if not is_accelerator(worker.device)], speeds
    )


def _limits(planned: EnginePlan, speeds: Speeds) -> WorkerLimits:
    """The limits with the KV blocks that fit at every worker: the least of all workers."""
    found = []
    for worker in planned.worker_layout.workers:
        left, config = planned.left(worker), planned.config
        if left is None:
            left = _on_accelerator(planned, worker.number, speeds)
            config = replace(config, kv=replace(config.kv, kv_cache_fraction=0.95))
        elif planned.kv_memory is not None:
            config = replace(config, kv=replace(config.kv, kv_cache_memory=planned.kv_memory))
        found.append(resolve(config, planned.checkpoint.spec, planned.geometries[worker.number], left))
    least = min(found, key=lambda limits: limits.num_blocks)
    return msgspec.structs.replace(least, group_blocks=planned.group_blocks)


def _on_accelerator(planned: EnginePlan, number: int, speeds: Speeds) -> int:
    """Bytes that the weights leave of its memory."""
    if speeds.accelerator is None:
        accelerator_worker(
            work_of(
                planned.checkpoint.spec,
                planned.weights[number],
                planned.geometries[number],
                planned.worker_layout.workers[number].part,
            ),
            speeds,
        )
        return 0
    have, need = (
        int(speeds.accelerator.memory * planned.config.compute.gpu_memory_utilization),
        planned.weights[number].target_bytes,
    )
    if need > have:
        raise CapacityError(
            f"worker {number} has {format_bytes(need)} of weights, and --gpu-memory-utilization leaves "
            f"{format_bytes(have)} of its accelerator; "
            "use more stages or ranks, or --quantize",
            param="gpu_memory_utilization",
        )
    return have - need


def _nodes(host: Host, binding: EngineBinding) -> tuple[int, ...]:
    return tuple(dict.fromkeys(team.memory_node for team in teams_of(host, binding)))


def _capacity(host: Host, binding: EngineBinding) -> tuple[int, tuple[int, ...]]:
    """Bytes that an engine with this binding may take, and the nodes its memory is bound to."""
    nodes = binding.memory_nodes
    known = [node for node in host.nodes if not nodes or node.id in nodes]
    size = sum(node.memory if node.free is None else node.free for node in known if node.memory is not None)
    return (min(size, _available(host)) if size else _available(host)), nodes


def _available(host: Host) -> int:
    """Bytes that one may take on this host. UserError for a recording that does not say."""
    found = host.allowance.memory_available or sum(node.memory or 0 for node in host.nodes)
    if not found:
        raise UserError(
            "this recording does not say how much memory the host has; give --node-memory SIZE", param="node_memory"
        )
    return found
