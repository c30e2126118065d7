"""What an engine is to be: its workers, how each keeps its weights, and its KV memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from homenode.compute.ops import Backend, KvGeometry
from homenode.engine.backend import make_backend
from homenode.engine.config import EngineConfig
from homenode.engine.devices import is_accelerator
from homenode.engine.experts.sizing import ExpertSharing, Kept, kept_of, missing_layout
from homenode.engine.kv_transfer.checks import kept_as, targets_of, transfer_problems
from homenode.engine.memory.node_capacity import KvCapacity, kv_capacity, weight_nodes_of
from homenode.engine.memory.sizing import problems, weights_problem
from homenode.engine.plan.layers import LayerCapacity
from homenode.engine.plan.layout import Layout, WorkerPlan
from homenode.engine.plan.node_policy import own_host
from homenode.engine.plan.placement import UNPINNED
from homenode.errors import UserError
from homenode.host.topology.host import Host
from homenode.model.spec import Checkpoint
from homenode.model.weights.layout import WeightLayout
from homenode.model.weights.load import plan_model
from homenode.model.weights.node_placement import WeightNodes


@dataclass(frozen=True)
class EnginePlan:
    """An engine before anything of it is loaded. `weights`: how each worker's matrices are kept; `geometries`: of their
    KV memory.

    `executor`: where its workers compute: `inline` (one worker, in the engine's own process), `processes` or `ray`.
    `common`: what it has to do with other engines' experts. `weight_nodes`: of an inline engine, what of its weights
    lies on which node; None on a host without nodes.
    """

    config: EngineConfig
    checkpoint: Checkpoint
    host: Host
    layout: Layout
    weights: tuple[WeightLayout, ...]
    geometries: tuple[KvGeometry, ...]
    kv_memory: int | None  # bytes of each CPU worker's KV memory, where set
    capacities: tuple[LayerCapacity, ...] = ()  # for layers, beside KV memory
    common: ExpertSharing | None = None
    executor: str = "processes"
    weight_nodes: WeightNodes | None = None

    @cached_property
    def node_capacity(self) -> KvCapacity | None:
        """What the nodes leave for KV memory, which is spread over them as the compute threads are; None where it may
        come from any.
        """
        return kv_capacity(self.weight_nodes, self.layout.workers[0].binding, self.checkpoint.spec.num_kv_heads)

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
        for problem in transfer_problems(
            self.config, self.whole_geometry, self._left_in_all(), [w.device for w in self.layout.workers]
        ):
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
            weight_nodes_of(own, own_host(self.host, worker.binding), worker.binding, layout, backend)
        except UserError as error:
            return error
        return None
