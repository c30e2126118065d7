"""Measures what a layer takes on a device, where an engine has unlike ones: a worker with one layer of the model, then
with a few, and the difference.
"""

from __future__ import annotations

import logging
import statistics
from dataclasses import replace

from homenode.engine.backend import make_backend
from homenode.engine.channels.base import NoChannels
from homenode.engine.channels.messages import Join
from homenode.engine.config import EngineConfig
from homenode.engine.errors import StepError
from homenode.engine.executor.processes import ProcessExecutor
from homenode.engine.executor.worker_process import PROGRAM
from homenode.engine.plan.engine_plan import EnginePlan
from homenode.engine.plan.placement import UNPINNED
from homenode.engine.plan.stages.layer_seconds import cache_file, keep_seconds, key_of, read_seconds
from homenode.engine.plan.worker_layout import WorkerPlan, config_of_workers
from homenode.engine.step import StartSequence, Step, StepItem, StepResult, WorkerLimits
from homenode.errors import HomenodeError
from homenode.model.part import IndexRange, ModelPart
from homenode.model.parts import read_layer_split
from homenode.model.spec import ModelSpec
from homenode.model.weights.load import plan_model
from homenode.sampling import SamplingParams

_log = logging.getLogger(__name__)
_FEW_LAYERS = 3
_WARM, _MEASURED = 4, 16  # steps of one token
_STEP_S = 60.0


def layer_seconds(config: EngineConfig, spec: ModelSpec, worker: WorkerPlan, program: str = PROGRAM) -> float | None:
    """Seconds that one token of one layer takes a worker like this, alone; None where it cannot be measured (the reason
    is logged).
    """
    few = min(_FEW_LAYERS, spec.num_layers)
    try:
        times = {count: _step_seconds(config, worker, _first_layers(spec, count), program) for count in {1, few}}
    except (HomenodeError, StepError) as error:
        _log.warning("the time of a layer on %s could not be measured: %s", worker.device, error.message)
        return None
    if few == 1:
        return times[1]
    return max((times[few] - times[1]) / (few - 1), times[few] / few / 10)  # noise must not make a layer free


def _step_seconds(config: EngineConfig, worker: WorkerPlan, part: ModelPart, program: str) -> float:
    """The median second of a step of one token."""
    tokens = _WARM + _MEASURED
    small = replace(
        config,
        model=replace(config.model, max_model_len=tokens, packed_cache="off"),
        scheduler=replace(config.scheduler, max_num_batched_tokens=1, max_num_seqs=1),
    )
    plan = replace(worker, number=0, part=part)
    executor = ProcessExecutor(
        [plan],
        lambda w: Join(0, 0, small, w.device, part, w.binding, [], memory_share=w.memory),
        lambda _: NoChannels(),
        small.parallel.worker_timeout,
        program,
    )
    try:
        [fits] = executor.start()
        blocks = min(fits.num_blocks, -(-tokens // small.kv.block_size))
        executor.lay(
            WorkerLimits(
                num_blocks=blocks,
                block_size=small.kv.block_size,
                max_model_len=tokens,
                vocab_size=1,
                max_sampled_rows=1,
            )
        )
        return statistics.median([_one_step(executor, position, blocks) for position in range(tokens)][_WARM:])
    finally:
        executor.close()


def _one_step(executor: ProcessExecutor, position: int, blocks: int) -> float:
    start = StartSequence(0, [1] * (_WARM + _MEASURED), _WARM + _MEASURED, SamplingParams(seed=0))
    item = StepItem(0, position, 1, list(range(blocks)) if position == 0 else [], 0)
    executor.submit(Step(position + 1, [], [start] if position == 0 else [], [item]))
    result = executor.result(_STEP_S)
    if not isinstance(result, StepResult):
        raise StepError(f"no step was done within {_STEP_S:g} s", kind="PeerError")
    return max(result.seconds, 1e-9)


def _first_layers(spec: ModelSpec, layers: int) -> ModelPart:
    """The first ones whole, as a stage that has another after it, so that it needs no output matrix and nobody else."""
    whole = ModelPart.whole(spec)
    return replace(whole, layers=IndexRange(0, layers), stages=2, experts=whole.experts[:layers])


def calibrated(planned: EnginePlan) -> bool:
    """Measure what a layer takes on devices that are unlike each other, and keep it for the next start; whether
    anything was measured.
    """
    config, spec = planned.config, planned.checkpoint.spec
    if (
        read_layer_split(config.parallel.layer_split) is not None
        or config.parallel.pipeline_parallel_size == 1
        or planned.common is not None
    ):
        return False
    backend, kept = make_backend(config.compute, (UNPINNED,)), config.model
    whole = plan_model(planned.checkpoint, backend, quantize=kept.quantize, dtype=kept.dtype)
    kinds = {
        key_of(spec, whole, worker.device, len(worker.binding.team)): worker for worker in planned.worker_layout.workers
    }
    missing = {key: worker for key, worker in kinds.items() if key not in read_seconds(cache_file())}
    if len(kinds) == 1 or not missing:
        return False
    own = config_of_workers(config, planned.worker_layout)
    found = {key: layer_seconds(own, spec, worker) for key, worker in missing.items()}
    keep_seconds(cache_file(), {key: seconds for key, seconds in found.items() if seconds is not None})
    return True
