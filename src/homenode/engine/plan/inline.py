"""An engine that computes in its own process: where it runs, how its weights are kept, and what is left for
KV memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from homenode.cpuset import format_cpu_list
from homenode.engine.backend import make_backend
from homenode.engine.binding import EngineBinding
from homenode.engine.config import EngineConfig
from homenode.engine.devices import CPU
from homenode.engine.experts.group import expert_problem
from homenode.engine.experts.sizing import ExpertSharing, missing_layout
from homenode.engine.experts.usage_file import counts_problem
from homenode.engine.kv_transfer.checks import transfer_problems
from homenode.engine.memory.available import MemoryBudget, memory_budget
from homenode.engine.memory.node_capacity import weight_nodes_of
from homenode.engine.memory.sizing import Sizes, problems, resolve, weights_problem, with_kv_memory_variable
from homenode.engine.plan.engine_plan import EnginePlan
from homenode.engine.plan.layout import Layout, WorkerPlan
from homenode.engine.plan.placement import UNPINNED, auto_is_meant, place_engine
from homenode.errors import CapacityError, UserError
from homenode.host.binding.mempolicy_fallback import current_policy
from homenode.host.binding.syscalls import Syscalls
from homenode.host.placement.numa_demand import Decision
from homenode.host.placement.numa_policy import Chosen, Teams
from homenode.host.topology.host import Host
from homenode.model.part import ModelPart
from homenode.model.spec import Checkpoint, ModelSpec
from homenode.model.weights.load import kv_geometry_of, plan_model
from homenode.model.weights.numa_choice import cost_choice, measured_speeds
from homenode.units import format_bytes

_TYPICAL_CONTEXT = 1024  # tokens of the sequence that --numa auto is to be fast for


def expert_settings_problem(config: EngineConfig, spec: ModelSpec) -> UserError | None:
    """What is asked of experts and this model has not."""
    return expert_problem(config, spec) or counts_problem(config.parallel.expert_counts, spec)


def binding_of(config: EngineConfig, checkpoint: Checkpoint, host: Host) -> EngineBinding:
    """The engine's place: as the front decided for all of several engines, else by its own settings."""
    return config.replica.binding if config.replica else place_of_engine(config, checkpoint, host)


def place_of_engine(config: EngineConfig, checkpoint: Checkpoint, host: Host) -> EngineBinding:
    """Where an engine of this model runs. Raises what `place_engine` raises."""
    return place_engine(config.placement, config.compute.threads, host, numa_choice(config, checkpoint, host))


def with_numa_decided(config: EngineConfig, checkpoint: Checkpoint, host: Host) -> EngineConfig:
    """With what --numa auto comes to where nobody has said how the engine is placed (`auto_is_meant`). As given where
    that is not so, or where the nodes by themselves have too little room for what all of them together have room for.
    """
    if not auto_is_meant(config, host, current_policy(Syscalls())):
        return config
    asked = replace(config, placement=replace(config.placement, numa="auto"))
    try:
        binding = place_of_engine(asked, checkpoint, host)
    except UserError:
        return config
    if binding.numa in (None, "replicate") or model_problems(asked, checkpoint, host, binding):
        return config
    node = host.cpu_by_id[binding.team[0]].node
    home = (node,) if binding.numa == "local" and node is not None else ()
    return replace(asked, numa_decision=Decision(str(binding.numa), binding.numa_why, home))


def numa_choice(config: EngineConfig, checkpoint: Checkpoint, host: Host) -> Callable[[Teams], Chosen]:
    """What settles --numa auto: this model's figures. It is asked where several nodes can compute; elsewhere only the
    file of speeds is checked.
    """
    measured = measured_speeds(config.placement.numa_measured)

    def choose(teams: Teams) -> Chosen:
        if config.numa_decision is not None:
            return config.numa_decision
        backend = make_backend(config.compute, (UNPINNED,))
        layout = plan_model(checkpoint, backend, quantize=config.model.quantize, dtype=config.model.dtype)
        geometry = kv_geometry_of(checkpoint.spec, layout, config.kv.block_size, config.kv.kv_cache_dtype)
        context = min(_TYPICAL_CONTEXT, config.model.max_model_len or checkpoint.spec.max_position)
        return cost_choice(host, checkpoint.spec, layout, geometry, 1, context, measured)(teams)

    return choose


def plan_inline(
    config: EngineConfig, checkpoint: Checkpoint, host: Host, common: ExpertSharing | None = None
) -> EnginePlan:
    """Decide everything about an engine that computes in its own process. UserError for what it cannot be."""
    if problem := expert_settings_problem(config, checkpoint.spec):
        raise problem
    config = with_numa_decided(with_kv_memory_variable(config, host), checkpoint, host)
    return plan_bound(config, checkpoint, host, binding_of(config, checkpoint, host), common)


def plan_bound(
    config: EngineConfig,
    checkpoint: Checkpoint,
    host: Host,
    binding: EngineBinding,
    common: ExpertSharing | None = None,
) -> EnginePlan:
    """The plan of such an engine whose CPUs and nodes are known. Raises what `plan_model` and
    `weight_nodes_of` raise.
    """
    backend, spec, kept = make_backend(config.compute, (UNPINNED,)), checkpoint.spec, config.model
    weights = plan_model(checkpoint, backend, quantize=kept.quantize, dtype=kept.dtype)
    whole = ModelPart.whole(spec)
    wanted = missing_layout(weights, whole, common) if common and common.is_there(0) else weights
    nodes = weight_nodes_of(config, host, binding, wanted, backend, common.owners(wanted, whole) if common else {})
    return EnginePlan(
        config,
        checkpoint,
        host,
        Layout((WorkerPlan(0, config.process_name or "homenode", CPU, whole, binding),)),
        (weights,),
        (kv_geometry_of(spec, weights, config.kv.block_size, config.kv.kv_cache_dtype),),
        config.kv.kv_cache_memory,
        common=common,
        executor="inline",
        weight_nodes=nodes,
    )


def model_problems(
    config: EngineConfig,
    checkpoint: Checkpoint,
    host: Host,
    binding: EngineBinding,
    common: ExpertSharing | None = None,
) -> list[UserError]:
    """Everything that keeps the model from being served there with the memory that is free now."""
    budget = memory_budget(config, binding)
    try:
        plan = plan_bound(config, checkpoint, host, binding, common)
    except UserError as error:
        return [error, *transfer_problems(config)]
    kept = plan.kept(plan.layout.workers[0])
    left = step_and_kv_bytes(plan, budget, kept.own)
    short = weights_shortage(plan, budget)
    found = [short] if short else problems(config, checkpoint.spec, plan.geometries[0], left)
    return [with_nodes_named(plan, problem, budget, kept.own) for problem in found] + transfer_problems(
        config, plan.geometries[0], left
    )


def weights_shortage(plan: EnginePlan, budget: MemoryBudget) -> CapacityError | None:
    """Why there is no memory for the weights alone, if so."""
    kept = plan.kept(plan.layout.workers[0])
    return weights_problem(plan.config, plan.checkpoint.spec, kept, budget.size) if kept.own > budget.size else None


def sizes_of(plan: EnginePlan, budget: MemoryBudget, weights: int = 0) -> Sizes:
    """What the engine is laid out for, with `weights` bytes still to be read."""
    try:
        return resolve(plan.config, plan.checkpoint.spec, plan.geometries[0], step_and_kv_bytes(plan, budget, weights))
    except UserError as error:
        raise with_nodes_named(plan, error, budget, weights) from None


def step_and_kv_bytes(plan: EnginePlan, budget: MemoryBudget, weights: int) -> int:
    """Bytes for the buffers of a step and KV memory."""
    left = max(0, budget.size - weights)
    return left if plan.node_capacity is None else min(left, plan.node_capacity.size)


def with_nodes_named(plan: EnginePlan, error: UserError, budget: MemoryBudget, weights: int) -> UserError:
    """Of too little memory it is said on which nodes, as others may have plenty."""
    if not isinstance(error, CapacityError):
        return error
    if (capacity := plan.node_capacity) is not None and capacity.size < budget.size - weights:
        return capacity.explain(error)
    if not budget.nodes:
        return error
    where = (
        f"memory is bound to NUMA node {format_cpu_list(budget.nodes)}, where {format_bytes(budget.size)} can be had"
    )
    return CapacityError(f"{error.message}; {where}", param=error.param, **error.facts)
