"""The memory that a model takes while it is loaded, by its settings and the headers of its files."""

from __future__ import annotations

from dataclasses import dataclass, replace

from homenode.compute.ops import KvGeometry
from homenode.engine.assignment import EngineAssignment
from homenode.engine.backend import make_backend
from homenode.engine.config import EngineConfig
from homenode.engine.memory.sizing import model_length, step_bytes
from homenode.engine.memory.state_sizing import least_kv_memory
from homenode.engine.plan.opened_model import as_asked
from homenode.engine.plan.placement import UNPINNED
from homenode.engine.plan.pooling import for_runner
from homenode.model.checkpoint.index import OpenedCheckpoint
from homenode.model.spec import ModelSpec
from homenode.model.weights.load import kv_geometry_of, plan_model


@dataclass(frozen=True)
class ModelSize:
    """Bytes of all engines of a model together: weights, the KV memory that they may take, the buffers of a step."""

    weights: int
    kv: int
    buffers: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.kv + self.buffers


def size_model(config: EngineConfig, checkpoint: OpenedCheckpoint) -> tuple[EngineConfig, ModelSize]:
    """The settings with the size of KV memory, where they leave it open, and what the model takes with them. Raises
    what planning an engine of the model raises, UserError and CheckpointError among them.

    Left open, KV memory may be as large as the weights, and holds one sequence of full length at least: that depends on
    the model alone, and not on who else is there.
    """
    checkpoint = as_asked(checkpoint, config, drafts=False)
    config = for_runner(EngineAssignment(config), checkpoint.spec).config
    backend = make_backend(config.compute, (UNPINNED,))
    layout = plan_model(checkpoint, backend, quantize=config.model.quantize, dtype=config.model.dtype)
    geometry = kv_geometry_of(checkpoint.spec, layout, config.kv.block_size, config.kv.kv_cache_dtype)
    engines, workers = config.parallel.data_parallel_size, config.parallel.workers
    kv = config.kv.kv_cache_memory
    if kv is None:
        kv = _kv_memory(config, checkpoint.spec, geometry, layout.target_bytes)
        config = replace(config, kv=replace(config.kv, kv_cache_memory=kv))
    buffers = step_bytes(config, checkpoint.spec)
    size = ModelSize(engines * layout.target_bytes, engines * workers * kv, engines * workers * buffers)
    return config, size


def _kv_memory(config: EngineConfig, spec: ModelSpec, geometry: KvGeometry, weights: int) -> int:
    length = min(model_length(config, spec), spec.max_position)
    sequence = -(-length // geometry.block_size) * geometry.block_bytes
    return max(least_kv_memory(config, geometry, sequence), min(config.scheduler.max_num_seqs * sequence, weights))
