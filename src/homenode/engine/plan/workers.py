"""The shares and places of an engine's several workers: everything that is decided before any of
them is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from homenode.engine.assignment import EngineAssignment
from homenode.engine.backend import make_backend
from homenode.engine.config import EngineConfig
from homenode.engine.devices import executor_kind, is_accelerator
from homenode.engine.experts.group import expert_settings_problem
from homenode.engine.experts.sizing import ExpertSharing, missing_layout
from homenode.engine.kv_transfer.checks import transfer_problems
from homenode.engine.memory.available import available_memory
from homenode.engine.memory.sizing import with_kv_memory_variable
from homenode.engine.plan.drafting import plan_drafting, with_drafting
from homenode.engine.plan.engine_plan import EnginePlan
from homenode.engine.plan.layer_split import layers_alike, layers_of_stages
from homenode.engine.plan.placement import UNPINNED
from homenode.engine.plan.replica_bindings import share_nodes
from homenode.engine.plan.stages.layer_capacity import layer_capacities, weight_needs, with_the_rest
from homenode.engine.plan.worker_bindings import worker_places
from homenode.engine.plan.worker_layout import lay_out, with_memory
from homenode.engine.problems import SettingProblems
from homenode.host.topology.allowance import Allowance
from homenode.host.topology.host import Host
from homenode.model.formats.expert_counts import read_placement
from homenode.model.part import ModelPart
from homenode.model.parts import PartitionSpec, plan_parts, read_layer_split, with_donors
from homenode.model.spec import Checkpoint
from homenode.model.weights.alignment import alignments_of
from homenode.model.weights.load import kv_geometry_of, plan_model


def plan_workers(
    assignment: EngineAssignment,
    checkpoint: Checkpoint,
    host: Host,
    devices: Sequence[str],
    devices_memory: Mapping[str, int] = MappingProxyType({}),
    common: ExpertSharing | None = None,
    problems: SettingProblems | None = None,
) -> EnginePlan:
    """Decide everything. `devices_memory`: bytes that workers may take of accelerators, as far as known. `common`:
    where several engines keep experts in common. `problems`: where what is wrong goes as far as the rest can be judged
    without it; None: it is raised. UserError, naming the setting, for what the model cannot be cut into
    or the host cannot hold.
    """
    config, replica = assignment.config, assignment.replica
    found = SettingProblems()
    found.add(*transfer_problems(config, replica, workers=devices))
    found.add(expert_settings_problem(assignment, checkpoint.spec))
    memory = found.of(lambda: with_kv_memory_variable(config, host), config).kv.kv_cache_memory
    if problems is None:
        found.require_none()
    else:
        problems.add(*found.found)
    bindings = worker_places(host, assignment, devices)
    backend, kept = make_backend(config.compute, (UNPINNED,)), config.model
    whole = plan_model(checkpoint, backend, quantize=kept.quantize, dtype=kept.dtype)
    missing = missing_layout(whole, ModelPart.whole(checkpoint.spec), common)
    weights_alone = weight_needs(
        checkpoint.spec, missing, config.parallel.pipeline_parallel_size, config.parallel.tensor_parallel_size
    )
    geometry = kv_geometry_of(checkpoint.spec, whole, config.kv.block_size, config.kv.kv_cache_dtype)
    needs = with_the_rest(weights_alone, config, checkpoint.spec, geometry, memory)
    capacities, without_kv = (
        layer_capacities(host, config, devices, bindings.bindings, devices_memory, need, assignment.memory_share)
        for need in (needs, weights_alone)
    )
    layers = read_layer_split(config.parallel.layer_split)
    if layers is None:
        if common is None:
            layers = layers_of_stages(
                config, checkpoint.spec, whole, devices, bindings.bindings, (capacities, without_kv)
            )
        else:
            layers = layers_alike(checkpoint.spec, whole, devices, config.parallel.tensor_parallel_size, without_kv)
        layers = with_donors(checkpoint.spec, layers)
    parts = plan_parts(
        checkpoint.spec, alignments_of(checkpoint, kept.quantize), _division(config, checkpoint, layers, devices)
    )
    weights = tuple(
        plan_model(checkpoint, backend, quantize=kept.quantize, dtype=kept.dtype, part=part) for part in parts
    )
    drafting = tuple(plan_drafting(checkpoint, config, backend, part) for part in parts)
    geometries = tuple(
        with_drafting(
            kv_geometry_of(checkpoint.spec, kept_as, config.kv.block_size, config.kv.kv_cache_dtype, part), drafts
        )
        for part, kept_as, drafts in zip(parts, weights, drafting, strict=True)
    )
    return EnginePlan(
        assignment,
        checkpoint,
        host,
        lay_out(replica, parts, devices, bindings),
        weights,
        geometries,
        memory,
        capacities,
        common,
        executor_kind(config.parallel.executor, devices),
        drafting=drafting,
    )


def _division(
    config: EngineConfig, checkpoint: Checkpoint, layers: tuple[int, ...], devices: Sequence[str]
) -> PartitionSpec:
    parallel = config.parallel
    return PartitionSpec(
        stages=parallel.pipeline_parallel_size,
        ranks=parallel.tensor_parallel_size,
        layers=layers,
        experts_whole=parallel.enable_expert_parallel,
        placement=read_placement(parallel.expert_placement, checkpoint.spec),
        accelerators=[number for number, device in enumerate(devices) if is_accelerator(device)],
    )


def with_available_memory(planned: EnginePlan) -> EnginePlan:
    """The plan with the memory that each worker may take of what is free on this host now."""
    layout, share = planned.worker_layout, planned.assignment.memory_share
    capacities = [available_memory(worker.binding) for worker in layout.workers]
    mine = [planned.kept(worker) for worker in layout.workers]
    held = sum(each.resident for each in mine)  # it is where it will be again, and no less free for being taken already
    total = Allowance.of_process().memory_available + held
    if share is not None:
        total = min(total, share)
    near = [
        sum(
            other.resident
            for other, there in zip(mine, capacities, strict=True)
            if share_nodes(room.nodes, there.nodes)
        )
        for room in capacities
    ]
    sizes = [(room.size + more, room.nodes) for room, more in zip(capacities, near, strict=True)]
    return replace(planned, worker_layout=with_memory(layout, [each.own for each in mine], sizes, total))
