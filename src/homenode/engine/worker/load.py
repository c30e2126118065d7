"""A worker's part of the model, loaded where the worker belongs: its place settled first, then threads, then
weights.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from homenode.compute.openmp import set_openmp_variables
from homenode.compute.ops import Backend, KvGeometry, MovableBackend, PlacedBackend, StepLimits
from homenode.engine.backend import make_backend
from homenode.engine.binding import EngineBinding
from homenode.engine.channels.messages import Join
from homenode.engine.config import EngineConfig
from homenode.engine.devices import CPU, is_accelerator, is_torch
from homenode.engine.experts.sizing import ExpertSharing, Kept, kept_of
from homenode.engine.memory.available import memory_left
from homenode.engine.memory.numa import away_from_home, leave_plan, matrix_policy_of, team_memory
from homenode.engine.memory.report import log_memory
from homenode.engine.memory.sizing import resolve, step_limits
from homenode.engine.pinning import apply_binding, pin_process_threads
from homenode.engine.plan.cpu_contention import spin_us, too_many_threads
from homenode.engine.plan.drafting import DraftingPlan, plan_drafting, with_drafting
from homenode.engine.plan.opened_model import open_engine_model
from homenode.engine.plan.placement import UNPINNED, alone, team_groups
from homenode.engine.step import WorkerLimits
from homenode.errors import HomenodeError, InternalError
from homenode.host.discovery.read import read_host
from homenode.host.topology.host import Host
from homenode.host.topology.source import LiveSource
from homenode.model.checkpoint.index import drafting_of
from homenode.model.identity import refuse_other_texts
from homenode.model.spec import Checkpoint
from homenode.model.weights.layout import WeightLayout
from homenode.model.weights.load import LoadedModel, kv_geometry_of, load_model, plan_model
from homenode.model.weights.packed_cache import packed_folder
from homenode.start_phases import mark_phase

_SAMPLED_PAGES = 2048
_LEFT_TO_THE_DEVICE = 1 << 62  # bytes: what an accelerator cannot hold it says by itself
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class LoadedDrafting:
    """A model that drafts, or the share of this worker in one."""

    model: LoadedModel
    plan: DraftingPlan


@dataclass(frozen=True)
class LoadedPart:
    """`kept`: what it has of the weights, those of `drafting` among them. `limits.num_blocks`: KV blocks that would
    fit here. `binding`: of its process. `notes`: worth telling an operator.
    """

    backend: Backend
    model: LoadedModel
    kept: Kept
    geometry: KvGeometry
    limits: WorkerLimits
    step_limits: StepLimits
    binding: EngineBinding
    host: Host
    notes: tuple[str, ...] = ()
    drafting: LoadedDrafting | None = None  # what drafts here, if anything does


@dataclass(frozen=True)
class InsideEngine:
    """Facts that a worker in the engine's own process knows already. `owns_process`: nothing else lives in it, so
    that all its threads may be kept off the CPUs that compute.
    """

    checkpoint: Checkpoint
    host: Host
    layout: WeightLayout
    owns_process: bool


def load_part(
    join: Join, progress: Progress, experts: int | None = None, inside: InsideEngine | None = None
) -> LoadedPart:
    """Settle and load. `experts`: memory that belongs to `join.experts`. Raises as `build.build_engine`."""
    config, part = join.config, join.part
    checkpoint = inside.checkpoint if inside else open_engine_model(config, drafts=join.drafts)
    refuse_other_texts(f"worker {join.number}", str(config.model.path), join.texts, checkpoint.files.texts)
    if join.allowed_cpus:
        pin_process_threads(tuple(join.allowed_cpus))
    host = inside.host if inside else read_host(LiveSource(), accelerators=False)
    binding = _binding_of(join, inside is None or inside.owns_process)
    # The plan was judged before this binds the process to its nodes: the kernel ends a process that wants more of them
    # than there is.
    findings = (*too_many_threads(host, binding), *apply_binding(binding))
    backend = _backend(join, host, binding)
    as_asked = config.model
    layout = (
        inside.layout
        if inside
        else plan_model(checkpoint, backend, quantize=as_asked.quantize, dtype=as_asked.dtype, part=part)
    )
    common = None if join.experts is None or experts is None else ExpertSharing(join.experts, {join.number: experts})
    mine = kept_of(layout, part, common, join.number)
    drafts = plan_drafting(checkpoint, config, backend, part)
    mine = mine if drafts is None else replace(mine, own=mine.own + drafts.nbytes)
    geometry = kv_geometry_of(checkpoint.spec, layout, config.kv.block_size, config.kv.kv_cache_dtype, part)
    geometry = with_drafting(geometry, drafts)
    config = replace(config, kv=replace(config.kv, kv_cache_memory=join.kv_cache_memory))
    if not is_accelerator(join.device):
        already_held = mine.resident + join.kv_there
        left = memory_left(join.memory_share, binding, already_held=already_held) - mine.own
        resolve(config, checkpoint.spec, geometry, _within_nodes(join, left))
    mark_phase("plan")
    model = load_model(
        checkpoint,
        backend,
        quantize=as_asked.quantize,
        dtype=as_asked.dtype,
        max_model_len=as_asked.max_model_len,
        progress=progress,
        packed_cache=packed_folder(as_asked.packed_cache, Path(str(as_asked.path))),
        matrix_policy_of=matrix_policy_of(binding),
        part=part,
        experts=None if common is None else common.share(join.number),
    )
    drafting = None if drafts is None else _load_drafting(checkpoint, backend, config, drafts, binding)
    limits = _limits(config, join, binding, model, mine, backend, geometry)
    mark_phase("weights")
    notes = (*model.layout.notes, *model.notes, *(finding.text for finding in findings if finding.severity != "info"))
    bounds = step_limits(config, limits)
    return LoadedPart(backend, model, mine, geometry, limits, bounds, binding, host, notes, drafting)


def _load_drafting(
    checkpoint: Checkpoint, backend: Backend, config: EngineConfig, plan: DraftingPlan, binding: EngineBinding
) -> LoadedDrafting:
    drafting, asked = drafting_of(checkpoint), config.model
    assert drafting is not None  # it was planned
    policy = matrix_policy_of(binding)
    model = load_model(
        drafting, backend, quantize=asked.quantize, dtype=asked.dtype, matrix_policy_of=policy, part=plan.part
    )
    return LoadedDrafting(model, plan)


def moved_part(join: Join, loaded: LoadedPart, place: EngineBinding, inside: InsideEngine | None = None) -> LoadedPart:
    """The part with its threads in another place on the same nodes, between two steps; its memory stays. HostError when
    the machine refuses: they are then where they were. InternalError for threads that nobody can move.
    """
    backend, owns_process = loaded.backend, inside is None or inside.owns_process
    if not isinstance(backend, MovableBackend):
        raise InternalError(f"the threads of a {backend.name} backend cannot be moved")
    binding = _binding_of(msgspec.structs.replace(join, binding=place), owns_process)
    try:
        if binding.others:
            pin_process_threads(binding.others)  # those that compute among them, which go on from there
        backend.move(binding.places)
    except HomenodeError:
        backend.move(loaded.binding.places)
        raise
    if owns_process and isinstance(backend, PlacedBackend):
        leave_plan(binding, backend.planned())
    return replace(loaded, binding=binding)


def check_pages(loaded: LoadedPart) -> tuple[str, ...]:
    """Return what is to be told of where the memory of a worker's process lies; it is logged, and left for `homenode
    verify`. HostError under --numa-strict.
    """
    backend, binding, host = loaded.backend, loaded.binding, loaded.host
    if not isinstance(backend, PlacedBackend):
        return ()
    seen = backend.residency(None if len(host.nodes) > 1 else _SAMPLED_PAGES)
    findings = away_from_home(seen, binding, host)
    log_memory(backend, binding, host)
    leave_plan(binding, backend.planned())
    return tuple(finding.text for finding in findings if finding.severity != "info")


def _within_nodes(join: Join, size: int) -> int:
    return size if join.nodes_memory is None else min(size, join.nodes_memory)


def _binding_of(join: Join, owns_process: bool) -> EngineBinding:
    """Return where this worker's process is; other threads of one that is not its own are left where they are. Where
    torch computes on the CPU all threads begin on the CPUs of the team, and OpenMP pins each of its own to one of them
    (`compute.openmp`), where it is not loaded yet.
    """
    if _is_torch_on_cpu(join) and owns_process:
        return replace(join.binding, others=tuple(cpu for cpu in join.binding.team if cpu != UNPINNED))
    if join.config.compute.backend == "torch":
        return replace(join.binding, others=())  # its threads are torch's own, which inherit where this process may be
    return alone(join.binding) if owns_process else join.binding


def _is_torch_on_cpu(join: Join) -> bool:
    by_device = is_torch(join.device) and not is_accelerator(join.device)
    return by_device or (join.device == CPU and join.config.compute.backend == "torch")


def _backend(join: Join, host: Host, binding: EngineBinding) -> Backend:
    watched_us = spin_us(join.config.compute.spin_us, host, binding)
    if _is_torch_on_cpu(join) and binding.others and "torch" not in sys.modules:
        set_openmp_variables(binding.team, watched_us)
    if is_torch(join.device) or join.config.compute.backend == "torch":
        from homenode.compute.torch import open_backend

        compute = join.config.compute
        return open_backend(
            join.device if is_torch(join.device) else "torch:cpu",
            attention=compute.attention_backend,
            enforce_eager=compute.enforce_eager,
            threads=len(binding.team) or None,
        )
    compute = replace(join.config.compute, spin_us=watched_us)
    backend = make_backend(compute, binding.team, team_groups(host, binding.team), team_memory(binding, host))
    if binding.sets and isinstance(backend, MovableBackend):
        backend.move(binding.sets)
    return backend


def _limits(
    config: EngineConfig,
    join: Join,
    binding: EngineBinding,
    model: LoadedModel,
    mine: Kept,
    backend: Backend,
    geometry: KvGeometry,
) -> WorkerLimits:
    """Return what fits where the KV memory is to lie. On a device with memory of its own a largest step is computed
    first, and what it needs is left alone.
    """
    if not is_accelerator(join.device):
        return resolve(
            config,
            model.spec,
            geometry,
            _within_nodes(join, memory_left(join.memory_share, binding, mine.own, join.kv_there)),
        )
    if config.kv.kv_cache_memory is None:
        room = _device_room(config, join, model, backend, geometry)
        config = replace(config, kv=replace(config.kv, kv_cache_memory=room))
    return resolve(config, model.spec, geometry, _LEFT_TO_THE_DEVICE)


def _device_room(config: EngineConfig, join: Join, model: LoadedModel, backend: Any, geometry: KvGeometry) -> int:
    part = join.part
    limits = resolve(
        replace(config, kv=replace(config.kv, kv_cache_memory=_LEFT_TO_THE_DEVICE // 2)),
        model.spec,
        geometry,
        _LEFT_TO_THE_DEVICE,
    )
    return int(
        backend.kv_room(
            model.forward,
            geometry,
            step_limits(config, limits),
            config.compute.gpu_memory_utilization,
            rank=part.rank,
            ranks=part.ranks,
            hidden=None if part.first_stage else model.spec.handed_columns,
        )
    )
