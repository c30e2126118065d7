"""An engine that computes in its own process: where it runs, how its weights are kept, and what is left for
KV memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from homenode.engine.assignment import EngineAssignment
from homenode.engine.backend import make_backend
from homenode.engine.binding import EngineBinding
from homenode.engine.devices import CPU
from homenode.engine.experts.group import expert_settings_problem
from homenode.engine.experts.sizing import ExpertSharing, missing_layout
from homenode.engine.kv_transfer.checks import transfer_problems
from homenode.engine.memory.available import budget_on
from homenode.engine.memory.node_capacity import weight_nodes_of
from homenode.engine.memory.sizing import with_kv_memory_variable
from homenode.engine.plan.drafting import plan_drafting, with_drafting
from homenode.engine.plan.engine_plan import EnginePlan
from homenode.engine.plan.machine import MachineFacts
from homenode.engine.plan.placement import UNPINNED, alone, auto_is_meant, place_engine, too_few_cores
from homenode.engine.plan.unbound import unbound
from homenode.engine.plan.worker_layout import WorkerLayout, WorkerPlan
from homenode.engine.problems import SettingProblems
from homenode.errors import UserError
from homenode.host.bind.memory.mempolicy_fallback import MemoryPolicy
from homenode.host.plan.numa.demand import Decision
from homenode.host.plan.numa.policy import Chosen, Teams
from homenode.host.topology.host import Host
from homenode.model.part import ModelPart
from homenode.model.spec import Checkpoint
from homenode.model.weights.load import kv_geometry_of, plan_model
from homenode.model.weights.numa_choice import cost_choice, measured_speeds

_TYPICAL_CONTEXT = 1024  # tokens of the sequence that --numa auto is to be fast for


def binding_of(assignment: EngineAssignment, checkpoint: Checkpoint, host: Host) -> EngineBinding:
    """The engine's place: as the front decided for all of several engines, else by its own settings."""
    return assignment.replica.binding if assignment.replica else place_of_engine(assignment, checkpoint, host)


def place_of_engine(assignment: EngineAssignment, checkpoint: Checkpoint, host: Host) -> EngineBinding:
    """Return where an engine of this model runs by its own settings. Raises what `place_engine` raises."""
    config = assignment.config
    return place_engine(config.placement, config.compute.threads, host, numa_choice(assignment, checkpoint, host))


def with_numa_decided(
    assignment: EngineAssignment, checkpoint: Checkpoint, host: Host, policy: MemoryPolicy | None
) -> EngineAssignment:
    """Return the assignment with what --numa auto comes to where nobody has said how the engine is placed
    (`auto_is_meant`). As given where that is not so, or where the nodes by themselves have too little room for what all
    of them together have room for. `policy`: the memory policy of this process.
    """
    if not auto_is_meant(assignment, host, policy):
        return assignment
    config = assignment.config
    asked = replace(assignment, config=replace(config, placement=replace(config.placement, numa="auto")))
    try:
        binding = place_of_engine(asked, checkpoint, host)
        if binding.numa in (None, "replicate") or plan_bound(asked, checkpoint, host, binding, policy).problems():
            return assignment
    except UserError:
        return assignment
    node = host.cpu_by_id[binding.team[0]].node
    home = (node,) if binding.numa == "local" and node is not None else ()
    return replace(asked, numa_decision=Decision(binding.numa, binding.numa_why, home))


def numa_choice(assignment: EngineAssignment, checkpoint: Checkpoint, host: Host) -> Callable[[Teams], Chosen]:
    """Return what settles --numa auto: this model's figures. It is asked where several nodes can compute; elsewhere
    only the file of speeds is checked.
    """
    config = assignment.config
    measured = measured_speeds(config.placement.numa_measured)

    def choose(teams: Teams) -> Chosen:
        if assignment.numa_decision is not None:
            return assignment.numa_decision
        backend = make_backend(config.compute, (UNPINNED,))
        layout = plan_model(checkpoint, backend, quantize=config.model.quantize, dtype=config.model.dtype)
        geometry = kv_geometry_of(checkpoint.spec, layout, config.kv.block_size, config.kv.kv_cache_dtype)
        context = min(_TYPICAL_CONTEXT, config.model.max_model_len or checkpoint.spec.max_position)
        return cost_choice(host, checkpoint.spec, layout, geometry, 1, context, measured)(teams)

    return choose


def plan_inline(
    assignment: EngineAssignment,
    checkpoint: Checkpoint,
    machine: MachineFacts,
    problems: SettingProblems,
    common: ExpertSharing | None = None,
) -> EnginePlan:
    """Decide everything about an engine that computes in its own process. What is wrong goes into `problems` as far as
    the rest can be judged without it; UserError for what cannot.
    """
    host, config = machine.host, assignment.config
    problems.add(expert_settings_problem(assignment, checkpoint.spec))
    assignment = replace(assignment, config=problems.of(lambda: with_kv_memory_variable(config, host), config))
    assignment = with_numa_decided(assignment, checkpoint, host, machine.memory_policy)
    binding = problems.of(
        lambda: unbound(binding_of(assignment, checkpoint, host), machine.binding_refused), EngineBinding(())
    )
    try:
        return plan_bound(assignment, checkpoint, host, binding, machine.memory_policy, common)
    except UserError:
        problems.add(*transfer_problems(config, assignment.replica))
        raise


def plan_bound(
    assignment: EngineAssignment,
    checkpoint: Checkpoint,
    host: Host,
    binding: EngineBinding,
    policy: MemoryPolicy | None = None,
    common: ExpertSharing | None = None,
) -> EnginePlan:
    """The plan of such an engine whose CPUs and nodes are known. Raises what `plan_model` and
    `weight_nodes_of` raise.
    """
    config = assignment.config
    backend, spec, kept = make_backend(config.compute, (UNPINNED,)), checkpoint.spec, config.model
    weights = plan_model(checkpoint, backend, quantize=kept.quantize, dtype=kept.dtype)
    whole = ModelPart.whole(spec)
    wanted = missing_layout(weights, whole, common) if common and common.is_there(0) else weights
    drafting = plan_drafting(checkpoint, config, backend, whole)
    nodes = weight_nodes_of(
        config,
        host,
        binding,
        wanted if drafting is None else replace(wanted, matrices=(*wanted.matrices, *drafting.layout.matrices)),
        backend,
        assignment.number if assignment.replica else None,
        common.owners(wanted, whole) if common else {},
    )
    # Of several engines it is said with their places.
    crowded = () if assignment.replica else too_few_cores(host, binding)
    budget = budget_on(host, binding, policy, assignment.memory_share)
    name = assignment.process_name or "homenode"
    geometry = kv_geometry_of(spec, weights, config.kv.block_size, config.kv.kv_cache_dtype)
    return EnginePlan(
        assignment,
        checkpoint,
        host,
        WorkerLayout(
            (WorkerPlan(0, name, CPU, whole, binding, budget.size, budget.nodes),),
            alone(binding).free_of_compute,
            findings=(*binding.findings, *crowded),
        ),
        (weights,),
        (with_drafting(geometry, drafting),),
        config.kv.kv_cache_memory,
        common=common,
        executor="inline",
        weight_nodes=nodes,
        drafting=(drafting,),
    )
