"""A judgement whether a model fits a machine, by the code that plans engines there, and how fast it is predicted to
answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from homenode.engine.backend import make_backend
from homenode.engine.config import EngineConfig
from homenode.engine.memory.sizing import model_length
from homenode.engine.plan.placement import UNPINNED
from homenode.engine.scheduler.steps.step_load import StepLoad
from homenode.errors import HomenodeError, UnsupportedError, UserError
from homenode.host.topology.host import Host
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.spec import Checkpoint
from homenode.model.weights.load import plan_model
from homenode.simulate.deployment import engines_on
from homenode.simulate.speeds import Speeds
from homenode.units import format_bytes

_CONTEXT = 1024  # tokens of the request that the speed is predicted for, where the model has as many


@dataclass(frozen=True)
class Judgement:
    """`supported` and `fits`: None where that was not known. `reason`: of the first no. `tok_s`: tokens a second of one
    request, predicted."""

    supported: bool | None
    fits: bool | None = None
    reason: str = ""
    weights_bytes: int | None = None
    kv_bytes: int | None = None
    tok_s: float | None = None


def judge_path(path: Path, config: EngineConfig, host: Host) -> Judgement:
    """Judge a model on this machine's disk, whose headers are read."""
    try:
        checkpoint = open_checkpoint(path)
    except HomenodeError as error:
        return Judgement(False, reason=error.message.replace(f"{path}/", "").removeprefix(f"{path}: "))
    return judge(checkpoint, config, host)


def judge(checkpoint: Checkpoint, config: EngineConfig, host: Host) -> Judgement:
    """Judge an engine with these settings, which has room for the KV of at least one full context. `kv_bytes`: what it
    would take for KV memory.
    """
    try:
        specs = engines_on(host, config, checkpoint, Speeds())
    except UnsupportedError as error:
        return Judgement(False, reason=error.message)
    except UserError as error:
        if error.param == "node_memory":
            raise  # nothing says how much memory the host has
        weights, there = _weights(checkpoint, config), host.allowance.memory_available or _memory_of(host)
        if weights > there:
            told = f"the weights take {format_bytes(weights)}, and {format_bytes(there)} of memory are available"
            return Judgement(True, False, told, weights)
        return Judgement(True, False, error.message, weights)
    first = specs[0]
    context = min(_CONTEXT, model_length(config, checkpoint.spec))
    load = StepLoad.of_sequence(context - 1, 1, 1, first.stages[0].chosen)
    seconds = sum(stage.seconds(load) for stage in first.stages)
    seconds += sum(stage.handing_on(load) for stage in first.stages[:-1]) + first.back
    return Judgement(True, True, "", sum(first.weights.values()), first.kv_bytes, 1 / seconds)


def _weights(checkpoint: Checkpoint, config: EngineConfig) -> int:
    """Bytes of the weights as an engine keeps them."""
    backend = make_backend(config.compute, (UNPINNED,))
    return plan_model(checkpoint, backend, quantize=config.model.quantize, dtype=config.model.dtype).target_bytes


def _memory_of(host: Host) -> int:
    return sum(node.memory or 0 for node in host.nodes)
