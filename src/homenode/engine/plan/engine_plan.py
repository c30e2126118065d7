"""The plan of what an engine is to be: its workers, how each keeps its weights, and its KV memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from homenode.compute.ops import Backend, KvGeometry
from homenode.cpuset import format_cpu_list
from homenode.engine.assignment import EngineAssignment
from homenode.engine.backend import make_backend
from homenode.engine.binding import Replica
from homenode.engine.config import EngineConfig
from homenode.engine.devices import is_accelerator
from homenode.engine.experts.sizing import ExpertSharing, Kept, kept_of, missing_layout
from homenode.engine.kv_disk.checks import disk_problems
from homenode.engine.kv_events_config import events_problem
from homenode.engine.kv_transfer.checks import kept_as, targets_of, transfer_problems
from homenode.engine.memory.available import MemoryBudget
from homenode.engine.memory.node_capacity import KvCapacity, blocks_together, kv_capacity, weight_nodes_of
from homenode.engine.memory.sizing import problems, weights_problem
from homenode.engine.memory.state_sizing import state_handover_problem
from homenode.engine.plan.drafting import DraftingPlan
from homenode.engine.plan.node_policy import own_host
from homenode.engine.plan.placement import UNPINNED
from homenode.engine.plan.stages.layers import LayerCapacity
from homenode.engine.plan.worker_layout import WorkerLayout, WorkerPlan
from homenode.errors import CapacityError, UserError
from homenode.host.topology.host import Host
from homenode.model.part import ModelPart
from homenode.model.spec import Checkpoint
from homenode.model.state import state_geometry_of
from homenode.model.weights.layout import WeightLayout
from homenode.model.weights.load import layers_kv, plan_model
from homenode.model.weights.node_placement import WeightNodes
from homenode.units import format_bytes


@dataclass(frozen=True)
class EnginePlan:
    """An engine before anything of it is loaded. `weights`: how each worker's matrices are kept; `geometries`: of their
    KV memory.

    `executor`: where its workers compute: `inline` (one worker, in the engine's own process), `processes` or `ray`.
    `common`: what it has to do with other engines' experts. `weight_nodes`: of an inline engine, what of its weights
    lies on which node; None on a host without nodes. `drafting`: what each worker has of what drafts tokens, None: it
    has none; empty: nobody has.
    """

    assignment: EngineAssignment
    checkpoint: Checkpoint
    host: Host
    worker_layout: WorkerLayout
    weights: tuple[WeightLayout, ...]
    geometries: tuple[KvGeometry, ...]
    kv_memory: int | None  # bytes of each CPU worker's KV memory, where set
    capacities: tuple[LayerCapacity, ...] = ()  # for layers, beside KV memory
    common: ExpertSharing | None = None
    executor: str = "processes"
    weight_nodes: WeightNodes | None = None
    drafting: tuple[DraftingPlan | None, ...] = ()

    @cached_property
    def node_capacity(self) -> KvCapacity | None:
        """Return what the nodes leave for KV memory, which is spread over them as the compute threads are; None where
        it may come from any.
        """
        return kv_capacity(self.weight_nodes, self.worker_layout.workers[0].binding, self.whole_geometry)

    @property
    def group_blocks(self) -> int:
        """KV blocks that a sequence has next to each other for attention to read them on one node; 1: it reads them
        wherever they are.
        """
        if self.config.compute.backend != "native":
            return 1
        return max(
            1 if is_accelerator(worker.device) else blocks_together(worker.binding, self.host, geometry)
            for worker, geometry in zip(self.worker_layout.workers, self.geometries, strict=True)
        )

    @property
    def config(self) -> EngineConfig:
        """The settings it is planned for."""
        return self.assignment.config

    @property
    def replica(self) -> Replica | None:
        """Return which of several engines it is; None for one that is alone."""
        return self.assignment.replica

    def kept(self, worker: WorkerPlan) -> Kept:
        """Return what a worker has of its weights itself, what drafts among them."""
        kept = kept_of(self.weights[worker.number], worker.part, self.common, worker.number)
        drafting = self.drafting[worker.number] if self.drafting else None
        return kept if drafting is None else replace(kept, own=kept.own + drafting.nbytes)

    def left(self, worker: WorkerPlan) -> int | None:
        """Bytes for the buffers and the KV memory of a worker; None on a device with memory of its own."""
        return None if worker.memory is None else self.within_nodes(max(0, worker.memory - self.kept(worker).own))

    def within_nodes(self, size: int) -> int:
        """Bytes for the buffers and KV memory of what `size` bytes are free for, as far as the nodes that it is spread
        over have them.
        """
        return size if self.node_capacity is None else min(size, self.node_capacity.size)

    def problems(self) -> list[UserError]:
        """Return what keeps these settings from working, beside what `plan_engine` raises."""
        found: dict[str, UserError] = {}
        try:
            self.config.speculation.resolved()
        except UserError as error:
            found[error.param or error.message] = error
        for worker in self.worker_layout.workers:
            for problem in self._problems_of(worker):
                found.setdefault(problem.param or problem.message, problem)
        parts = [worker.part for worker in self.worker_layout.workers]
        devices = [worker.device for worker in self.worker_layout.workers]
        apart = [] if self.executor == "inline" else devices
        if no_states := state_handover_problem(self.config, self.checkpoint.spec, parts, self.geometries, devices):
            found.setdefault(no_states.param or no_states.message, no_states)
        for problem in disk_problems(self.config, self.whole_geometry, devices, self.executor == "inline"):
            found.setdefault(problem.param or problem.message, problem)
        if (no_events := events_problem(self.config.kv_events, self.replica.count if self.replica else 1)) is not None:
            found.setdefault(str(no_events.param), no_events)
        for problem in transfer_problems(self.config, self.replica, self.whole_geometry, self._left_in_all(), apart):
            found.setdefault(problem.param or problem.message, problem)
        return list(found.values())

    def _problems_of(self, worker: WorkerPlan) -> Iterator[UserError]:
        if (problem := self._home_problem(worker)) is not None:
            yield problem
        kept, left = self.kept(worker), self.left(worker)
        if worker.memory is None or left is None:
            return
        budget, spec = MemoryBudget(worker.memory, worker.memory_nodes), self.checkpoint.spec
        several = self.replica is not None
        config = replace(self.config, kv=replace(self.config.kv, kv_cache_memory=self.kv_memory))
        found: list[UserError] = (
            [weights_problem(self.config, spec, kept, worker.memory, several=several)]
            if kept.own > worker.memory
            else problems(config, spec, self.geometries[worker.number], left)
        )
        for problem in found:
            yield self.with_nodes_named(problem, budget, kept.own)

    def with_nodes_named(self, error: UserError, budget: MemoryBudget, weights: int) -> UserError:
        """Say on which nodes there is too little memory, as others may have plenty. `weights`: bytes of `budget` that
        these take.
        """
        if not isinstance(error, CapacityError):
            return error
        if (capacity := self.node_capacity) is not None and capacity.size < budget.size - weights:
            return capacity.explain(error)
        if not budget.nodes:
            return error
        where = (
            f"memory is bound to NUMA node {format_cpu_list(budget.nodes)}, "
            f"where {format_bytes(budget.size)} can be had"
        )
        return CapacityError(f"{error.message}; {where}", param=error.param, **error.facts)

    @property
    def whole_geometry(self) -> KvGeometry:
        """Return the geometry of the KV memory of all workers together."""
        spec = self.checkpoint.spec
        layers, state = layers_kv(spec, ModelPart.whole(spec)), state_geometry_of(spec)
        return replace(self.geometries[0], layers=layers, state=state)

    def kept_as(self, backend: Backend) -> str:
        """Return how the weights are kept, in words: those of a whole model where that comes to the same."""
        kept = self.config.model
        whole = plan_model(self.checkpoint, backend, quantize=kept.quantize, dtype=kept.dtype)
        return kept_as(self.config, targets_of(whole, self.weights))

    def _left_in_all(self) -> int | None:
        """Bytes for buffers and KV memory of all workers of this host; None where one has memory of its own."""
        left = [self.left(worker) for worker in self.worker_layout.workers]
        return None if None in left else sum(size for size in left if size is not None)

    def _home_problem(self, worker: WorkerPlan) -> UserError | None:
        """Return why a node has no room for what --numa puts there."""
        if self.executor == "inline":
            return None  # `weight_nodes` was made of its place as it is
        if worker.binding.numa is None or is_accelerator(worker.device) or not self.host.nodes:
            return None
        placement = replace(
            self.config.placement, numa=worker.binding.numa, numa_nodes=None, reserve_cpus=0, numa_strict=False
        )
        own = replace(
            self.config, placement=placement, compute=replace(self.config.compute, threads=len(worker.binding.team))
        )
        try:
            backend = make_backend(self.config.compute, (UNPINNED,))
            layout = missing_layout(self.weights[worker.number], worker.part, self.common, worker.number)
            weight_nodes_of(
                own,
                own_host(self.host, worker.binding),
                worker.binding,
                layout,
                backend,
                self.replica.number if self.replica else None,
            )
        except UserError as error:
            return error
        return None
