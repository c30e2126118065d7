"""Puts an engine of several workers together: who computes what and where, the workers themselves, and the scheduler over them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from homenode.compute.ops import Backend, KvGeometry
from homenode.engine.build import Engine, Progress, counting, make_backend, weights_problem, with_variables
from homenode.engine.config import EngineConfig
from homenode.engine.executor.processes import ProcessExecutor
from homenode.engine.executor.protocol import Executor
from homenode.engine.executor.worker_process import PROGRAM
from homenode.engine.expert_counts import counts_problem
from homenode.engine.expert_room import ExpertsInCommon, Kept, kept_of, missing_layout
from homenode.engine.expert_seat import expert_problem
from homenode.engine.location import located
from homenode.engine.messages import Ready
from homenode.engine.node_room import check_homes
from homenode.engine.pairing import kept_as, targets_of, transfer_problems
from homenode.engine.place import EnginePlace
from homenode.engine.placement import UNPINNED
from homenode.engine.replicas.places import meet
from homenode.engine.schedule.scheduler import Scheduler
from homenode.engine.settle import keep_to, memory_room
from homenode.engine.sizing import Sizes, problems, resolve
from homenode.engine.workers.calibrate import layer_seconds
from homenode.engine.workers.channels import Channels, MakeChannels
from homenode.engine.workers.cost import stage_costs
from homenode.engine.workers.devices import is_accelerator
from homenode.engine.workers.kv_file import KvFile, joined
from homenode.engine.workers.layer_room import layer_rooms, weight_needs, with_the_rest
from homenode.engine.workers.layer_seconds import cache_file, keep_seconds, key_of, read_seconds
from homenode.engine.workers.layers import Room, balanced_layers
from homenode.engine.workers.layout import Layout, WorkerPlan, config_of, lay_out, with_memory
from homenode.engine.workers.messages import Fits, Join
from homenode.engine.workers.node_policy import own_host
from homenode.engine.workers.places import worker_places
from homenode.engine.workers.there import memory_of
from homenode.errors import CapacityError, UserError
from homenode.host.topology.allowance import Allowance
from homenode.host.topology.finding import Finding
from homenode.host.topology.host import Host
from homenode.host.topology.read import read_host
from homenode.host.topology.source import LiveSource
from homenode.model.checkpoint import Checkpoint, open_checkpoint
from homenode.model.checkpoint.spec import ModelSpec
from homenode.model.expert_placement import read_placement
from homenode.model.part import ModelPart
from homenode.model.parts import Division, plan_parts, read_layer_split
from homenode.model.weights.grains import grains_of
from homenode.model.weights.layout import WeightLayout
from homenode.model.weights.load import kv_geometry_of, plan_model
from homenode.transfer.fingerprint import fingerprint_of

if TYPE_CHECKING:
    from homenode.engine.handing_over import Sharing


@dataclass(frozen=True)
class Planned:
    """An engine of several workers before any of them is there. `weights`: how each one's matrices are kept; `geometries`: of their KV memory. `common`:
    what it has to do with other engines' experts."""

    config: EngineConfig
    checkpoint: Checkpoint
    host: Host
    layout: Layout
    weights: tuple[WeightLayout, ...]
    geometries: tuple[KvGeometry, ...]
    kv_memory: int | None  # bytes of each CPU worker's KV memory, where set
    rooms: tuple[Room, ...] = ()  # for layers, beside KV memory
    common: ExpertsInCommon | None = None

    def kept(self, worker: WorkerPlan) -> Kept:
        """What a worker has of its weights itself."""
        return kept_of(self.weights[worker.number], worker.part, self.common, worker.number)

    def left(self, worker: WorkerPlan) -> int | None:
        """Bytes for the buffers and the KV memory of a worker; None on a device with memory of its own."""
        return None if worker.memory is None else max(0, worker.memory - self.kept(worker).own)

    def problems(self) -> list[UserError]:
        """What keeps these settings from working, beside what `plan_engine` raises."""
        found: dict[str, UserError] = {}
        for worker in self.layout.workers:
            if (problem := self._home_problem(worker)) is not None:
                found.setdefault(problem.param or problem.message, problem)
            left = self.left(worker)
            if worker.memory is not None and self.kept(worker).own > worker.memory:
                problem = weights_problem(self.config, self.checkpoint.spec, self.kept(worker), worker.memory)
                found.setdefault(problem.param or problem.message, problem)
            elif left is not None:
                config = replace(self.config, kv=replace(self.config.kv, kv_cache_memory=self.kv_memory))
                for problem in problems(config, self.checkpoint.spec, self.geometries[worker.number], left):
                    found.setdefault(problem.param or problem.message, problem)
        for problem in transfer_problems(self.config, self.whole_geometry, self._left_in_all(), [w.device for w in self.layout.workers]):
            found.setdefault(problem.param or problem.message, problem)
        return list(found.values())

    @property
    def whole_geometry(self) -> KvGeometry:
        """Of the KV memory of all workers together."""
        spec = self.checkpoint.spec
        return replace(self.geometries[0], layers=spec.num_layers, kv_heads=spec.num_kv_heads)

    def kept_as(self, backend: Backend) -> str:
        """How the weights are kept, in words: those of a whole model where that comes to the same."""
        kept = self.config.model
        whole = plan_model(self.checkpoint, backend, quantize=kept.quantize, dtype=kept.dtype)
        return kept_as(self.config, targets_of(whole, self.weights))

    def _left_in_all(self) -> int | None:
        """Bytes for buffers and KV memory of all workers of this host; None where one has memory of its own."""
        left = [self.left(worker) for worker in self.layout.workers]
        return None if None in left else sum(size for size in left if size is not None)

    def _home_problem(self, worker: WorkerPlan) -> UserError | None:
        """Why a node has no room for what --numa puts there."""
        if worker.place.numa is None or is_accelerator(worker.device) or not self.host.nodes:
            return None
        placement = replace(self.config.placement, numa=worker.place.numa, numa_nodes=None, reserve_cpus=0, numa_strict=False)
        own = replace(self.config, placement=placement, compute=replace(self.config.compute, threads=len(worker.place.team)))
        try:
            backend = make_backend(self.config.compute, (UNPINNED,))
            layout = missing_layout(self.weights[worker.number], worker.part, self.common, worker.number)
            check_homes(own, own_host(self.host, worker.place), worker.place, layout, backend)
        except UserError as error:
            return error
        return None


def plan_engine(
    config: EngineConfig,
    checkpoint: Checkpoint,
    host: Host,
    devices: Sequence[str],
    devices_memory: Mapping[str, int] = MappingProxyType({}),
    common: ExpertsInCommon | None = None,
) -> Planned:
    """Decide everything. `devices_memory`: bytes that workers may take of accelerators, as far as known. `common`: where several engines keep experts in
    common. UserError, naming the setting, for what the model cannot be cut into or the host cannot hold."""
    if found := transfer_problems(config, workers=devices):
        raise found[0] if len(found) == 1 else UserError("; ".join(problem.message for problem in found), param=found[0].param)
    if problem := expert_problem(config, checkpoint.spec) or counts_problem(config.parallel.expert_counts, checkpoint.spec):
        raise problem
    memory = with_variables(config, host).kv.kv_cache_memory
    places = worker_places(host, config, devices)
    backend, kept = make_backend(config.compute, (UNPINNED,)), config.model
    whole = plan_model(checkpoint, backend, quantize=kept.quantize, dtype=kept.dtype)
    missing = missing_layout(whole, ModelPart.whole(checkpoint.spec), common)
    weights_alone = weight_needs(checkpoint.spec, missing, config.parallel.pipeline_parallel_size, config.parallel.tensor_parallel_size)
    geometry = kv_geometry_of(checkpoint.spec, whole, config.kv.block_size, config.kv.kv_cache_dtype)
    needs = with_the_rest(weights_alone, config, checkpoint.spec, geometry, memory)
    rooms, without_kv = (layer_rooms(host, config, devices, places.places, devices_memory, need) for need in (needs, weights_alone))
    layers = read_layer_split(config.parallel.layer_split)
    if layers is None:
        split = _same_split if common is not None else _split
        layers = split(config, checkpoint.spec, whole, devices, places.places, (rooms, without_kv))
    parts = plan_parts(checkpoint.spec, grains_of(checkpoint, kept.quantize), _division(config, checkpoint, layers, devices))
    weights = tuple(plan_model(checkpoint, backend, quantize=kept.quantize, dtype=kept.dtype, part=part) for part in parts)
    geometries = tuple(
        kv_geometry_of(checkpoint.spec, kept_as, config.kv.block_size, config.kv.kv_cache_dtype, part)
        for part, kept_as in zip(parts, weights, strict=True)
    )
    return Planned(config, checkpoint, host, lay_out(config, parts, devices, places), weights, geometries, memory, rooms, common)


def _split(
    config: EngineConfig,
    spec: ModelSpec,
    whole: WeightLayout,
    devices: Sequence[str],
    places: Sequence[EnginePlace],
    rooms: tuple[tuple[Room, ...], tuple[Room, ...]],
) -> tuple[int, ...]:
    """The layers of each stage, within the first rooms if there is a way. Where only KV memory and buffers are too large, within the others: that is
    said of the settings they come from (`Planned.problems`)."""
    seen = read_seconds(cache_file())
    keys = [key_of(spec, whole, device, len(place.team)) for device, place in zip(devices, places, strict=True)]
    costs = stage_costs(spec, whole, devices, places, config.parallel.tensor_parallel_size, [seen.get(key) for key in keys])
    try:
        return balanced_layers(costs, spec.num_layers, rooms[0])
    except CapacityError:
        return balanced_layers(costs, spec.num_layers, rooms[1])


def _same_split(
    config: EngineConfig,
    spec: ModelSpec,
    whole: WeightLayout,
    devices: Sequence[str],
    places: Sequence[EnginePlace],
    rooms: tuple[tuple[Room, ...], tuple[Room, ...]],
) -> tuple[int, ...]:
    """The same of engines that keep experts in common: whatever CPUs and memory each has, all come to one division."""
    alike = [EnginePlace((UNPINNED,))] * len(places)
    costs = stage_costs(spec, whole, devices, alike, config.parallel.tensor_parallel_size, [None] * len(places))
    layers = balanced_layers(costs, spec.num_layers)
    return layers if all(room.holds(layers) for room in rooms[1]) else balanced_layers(costs, spec.num_layers, rooms[1])


def with_room(planned: Planned) -> Planned:
    """The plan with the memory that each worker may take of what is free on this host now."""
    config, layout = planned.config, planned.layout
    rooms = [memory_room(worker.place) for worker in layout.workers]
    mine = [planned.kept(worker) for worker in layout.workers]
    held = sum(each.held for each in mine)  # it is where it will be again, and no less free for being taken already
    total = Allowance.of_process().memory_available + held
    if config.replica is not None and config.replica.memory is not None:
        total = min(total, config.replica.memory)
    near = [sum(other.held for other, there in zip(mine, rooms, strict=True) if meet(room.nodes, there.nodes)) for room in rooms]
    sizes = [(room.size + more, room.nodes) for room, more in zip(rooms, near, strict=True)]
    return replace(planned, layout=with_memory(layout, [each.own for each in mine], sizes, total))


def build_engine_of_workers(
    config: EngineConfig,
    devices: Sequence[str],
    progress: Progress | None,
    lookahead: int,
    own_process: bool,
    micro_batches: int = 0,
    common: ExpertsInCommon | None = None,
    findings: Sequence[Finding] = (),
) -> Engine:
    """`build.build_engine` for an engine with these devices. `findings`: to be told with those of its layout. Raises what that raises, and what a worker
    could not start for, under its own name."""
    begin = time.monotonic()
    config = located(config)
    checkpoint = open_checkpoint(Path(str(config.model.path)))
    if config.replica is not None and config.replica.allowed:
        keep_to(config.replica.allowed)
    host = read_host(LiveSource(), accelerators=any(map(is_accelerator, devices)))
    memory = memory_of(devices, config)
    planned = with_room(plan_engine(config, checkpoint, host, devices, memory, common))
    if calibrated(planned):
        planned = with_room(plan_engine(config, checkpoint, host, devices, memory, common))
    planned = replace(planned, layout=replace(planned.layout, findings=(*findings, *planned.layout.findings)))
    if found := planned.problems():
        raise found[0]
    if own_process and planned.layout.loop:
        keep_to(planned.layout.loop)
    workers = make_executor(planned)
    executor = counting(workers, config, checkpoint.spec)
    try:
        fits = workers.start(progress)
        sizes = _sizes(planned, fits)
        file = KvFile(planned.geometries, sizes.num_blocks) if config.transfer.on else None
        workers.lay(sizes.worker_limits(), file)
        sharing = _sharing(planned) if file is not None else None
        engine = _engine(planned, executor, sizes, fits, Pacing(lookahead, micro_batches), time.monotonic() - begin, sharing)
        if sharing is None or file is None:
            return engine
        parts = [worker.part for worker in planned.layout.workers]
        handing_over = sharing.hand_over_file(file.fd, joined(parts, workers.kv_layouts(), file.shares), workers)
        engine.ready.details["kv_transfer"] = msgspec.to_builtins(handing_over.published)
        return replace(engine, handing_over=handing_over)
    except BaseException:
        executor.close()
        raise


def calibrated(planned: Planned) -> bool:
    """Measure what a layer takes on devices that are unlike each other, and keep it for the next start; whether anything was measured."""
    config, spec = planned.config, planned.checkpoint.spec
    if (
        read_layer_split(config.parallel.layer_split) is not None
        or config.parallel.pipeline_parallel_size == 1
        or planned.common is not None
    ):
        return False
    backend, kept = make_backend(config.compute, (UNPINNED,)), config.model
    whole = plan_model(planned.checkpoint, backend, quantize=kept.quantize, dtype=kept.dtype)
    kinds = {key_of(spec, whole, worker.device, len(worker.place.team)): worker for worker in planned.layout.workers}
    missing = {key: worker for key, worker in kinds.items() if key not in read_seconds(cache_file())}
    if len(kinds) == 1 or not missing:
        return False
    found = {key: layer_seconds(config_of(config, planned.layout, worker), spec, worker) for key, worker in missing.items()}
    keep_seconds(cache_file(), {key: seconds for key, seconds in found.items() if seconds is not None})
    return True


def check_engine_of_workers(config: EngineConfig, devices: Sequence[str], common: ExpertsInCommon | None = None) -> list[UserError]:
    """Everything wrong with these settings, as `build.check_config` finds it for one worker."""
    checkpoint = open_checkpoint(Path(str(config.model.path)))
    host = read_host(LiveSource(), accelerators=any(map(is_accelerator, devices)))
    try:
        return with_room(plan_engine(config, checkpoint, host, devices, memory_of(devices, config), common)).problems()
    except UserError as error:
        return [error]


def make_executor(planned: Planned, make_channels: MakeChannels | None = None, program: str = PROGRAM) -> ProcessExecutor:
    """The workers of a plan, not started yet. `make_channels` and `program`: what they have in place of shared memory, and run."""
    config, layout, common = planned.config, planned.layout, planned.common
    seat = common.seat if common is not None and common.memories else None

    def join_of(worker: WorkerPlan) -> Join:
        own = config_of(config, layout, worker)
        memory = config.kv.kv_cache_memory if is_accelerator(worker.device) else planned.kv_memory
        return Join(worker.number, 0, own, worker.device, worker.part, worker.place, [], memory, experts=seat)

    def memories_of(worker: WorkerPlan) -> Sequence[int]:
        return () if seat is None or common is None else (common.memories[worker.number],)

    def shared(generation: int) -> Channels:
        from homenode.engine.workers.shared import SharedChannels  # maps memory by the native core

        return SharedChannels(layout.workers, planned.checkpoint.spec.hidden_size, config.scheduler.max_num_batched_tokens)

    if config.parallel.executor == "ray" and make_channels is None:
        return _on_ray(planned, join_of)
    return ProcessExecutor(
        layout.workers,
        join_of,
        make_channels or shared,
        config.parallel.worker_timeout,
        program,
        experts=_counted(planned),
        memories_of=memories_of,
        lends=config.transfer.on,
    )


def _on_ray(planned: Planned, join_of: Callable[[WorkerPlan], Join]) -> ProcessExecutor:
    from homenode.engine.executor.ray import RayLauncher  # needs an extra
    from homenode.engine.workers.tcp import TcpChannels

    workers, parallel = planned.layout.workers, planned.config.parallel
    launcher = RayLauncher(workers, parallel, planned.config.replica)

    def channels(generation: int) -> Channels:
        return TcpChannels(workers, generation, launcher.rendezvous.forget)

    return ProcessExecutor(
        workers, join_of, channels, parallel.worker_timeout, launch=launcher, on_end=launcher.close, experts=_counted(planned)
    )


def _counted(planned: Planned) -> ModelSpec | None:
    """The model, if it has experts."""
    return planned.checkpoint.spec if planned.checkpoint.spec.mixture else None


def _division(config: EngineConfig, checkpoint: Checkpoint, layers: tuple[int, ...], devices: Sequence[str]) -> Division:
    parallel = config.parallel
    return Division(
        stages=parallel.pipeline_parallel_size,
        ranks=parallel.tensor_parallel_size,
        layers=layers,
        experts_whole=parallel.enable_expert_parallel,
        placement=read_placement(parallel.expert_placement, checkpoint.spec),
        accelerators=[number for number, device in enumerate(devices) if is_accelerator(device)],
    )


def _sizes(planned: Planned, fits: Sequence[Fits]) -> Sizes:
    """What the engine is laid out for: the fewest blocks over all workers."""
    spec, geometry = planned.checkpoint.spec, planned.geometries[0]
    blocks = min(fit.num_blocks for fit in fits)
    enough = replace(planned.config, kv=replace(planned.config.kv, kv_cache_memory=blocks * geometry.block_bytes))
    sizes = resolve(enough, spec, geometry, 2 * blocks * geometry.block_bytes + _MANY)
    return replace(sizes, num_blocks=blocks)


_MANY = 1 << 62  # bytes: that there is memory enough was looked at by each worker


@dataclass(frozen=True)
class Pacing:
    """How far the scheduler is ahead of results: see `schedule.pace.Pace`."""

    lookahead: int
    micro_batches: int


def _sharing(planned: Planned) -> Sharing:
    """What makes this engine's KV known to others."""
    from homenode.engine.handing_over import Sharing  # needs the native core

    config, geometry, backend = planned.config, planned.whole_geometry, make_backend(planned.config.compute, (UNPINNED,))
    fingerprint = fingerprint_of(config.transfer, planned.checkpoint, geometry, planned.kept_as(backend))
    return Sharing(config.transfer, backend, geometry, fingerprint)


def _engine(
    planned: Planned,
    executor: Executor,
    sizes: Sizes,
    fits: Sequence[Fits],
    pacing: Pacing,
    seconds: float,
    sharing: Sharing | None = None,
) -> Engine:
    config, checkpoint = planned.config, planned.checkpoint
    stages = planned.layout.workers[-1].stage + 1
    scheduler = Scheduler(
        config.scheduler,
        config.kv,
        executor.limits(),
        checkpoint.spec.eos_token_ids,
        lookahead=pacing.lookahead if stages == 1 else 0,
        stages=stages,
        micro_batches=pacing.micro_batches,
        seeds=None if config.model.seed is None else random.Random(config.model.seed),
        hash_seed=sharing.hash_seed if sharing is not None else None,
    )
    return Engine(scheduler, executor, _ready(planned, executor, sizes, fits, seconds))


def _ready(planned: Planned, executor: Executor, sizes: Sizes, fits: Sequence[Fits], seconds: float) -> Ready:
    config, layout = planned.config, planned.layout
    notes = dict.fromkeys(note for fit in fits for note in fit.notes)
    notes |= dict.fromkeys(finding.text for finding in layout.findings if finding.severity != "info")
    return Ready(
        model=config.model_name,
        max_model_len=sizes.max_model_len,
        vocab_size=sizes.vocab_size,
        num_blocks=sizes.num_blocks,
        block_size=sizes.block_size,
        max_num_batched_tokens=sizes.max_num_batched_tokens,
        max_num_seqs=sizes.max_num_seqs,
        chunked_prefill=config.scheduler.enable_chunked_prefill,
        sampling_defaults=dict(planned.checkpoint.spec.generation),
        details={
            "architecture": planned.checkpoint.spec.architecture,
            "load_seconds": round(seconds, 3),
            "weight_bytes": sum(fit.weight_bytes for fit in fits),
            "shared_weight_bytes": sum(fit.shared_weight_bytes for fit in fits),
            "notes": list(notes),
            "kv_bytes": sum(sizes.num_blocks * geometry.block_bytes for geometry in planned.geometries),
            "kv_dtype": planned.geometries[0].dtype,
            "compute": executor.statistics(),
            "numa": next((worker.place.numa for worker in layout.workers if worker.place.numa), None),
            "free_cpus": list(layout.loop),
            "stages": [_stage(worker) for worker in layout.workers],
        },
    )


def _stage(worker: WorkerPlan) -> dict[str, Any]:
    part, place = worker.part, worker.place
    layers = [part.layers.first, part.layers.end - 1]
    return {
        "worker": worker.number,
        "stage": part.stage,
        "rank": part.rank,
        "device": worker.device,
        "layers": layers,
        "cpus": list(place.team),
        "numa": place.numa,
    }
