"""The cost of a layer on each stage's devices, by bytes and bandwidth: a step of few tokens reads every weight once.
Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from homenode.engine.binding import EngineBinding
from homenode.engine.devices import is_accelerator
from homenode.engine.plan.stages.layers import StageTime
from homenode.model.spec import ModelSpec
from homenode.model.weights.layout import WeightLayout

_LAYER = re.compile(r"\.layers\.\d+\.")
_EMBEDDING = "model.embed_tokens.weight"
# Bytes a second, typical: what one core reads, what a node's memory gives all of its cores, and what an accelerator's
# own memory gives.
_CORE, _NODE, _ACCELERATOR = 12e9, 100e9, 1000e9


def stage_costs(
    spec: ModelSpec,
    layout: WeightLayout,
    devices: Sequence[str],
    bindings: Sequence[EngineBinding],
    ranks: int,
    measured: Sequence[float | None],
) -> tuple[StageTime, ...]:
    """Return the time of each stage, whose ranks divide every layer evenly: the slowest of them counts. `layout`: of
    the whole model. `measured`: seconds of a whole layer on each worker; where one is not known, bytes and typical
    speeds count for all.
    """
    layer_bytes = in_layers(layout) / spec.num_layers
    output = sum(m.target_bytes for m in layout.matrices if is_output(m.name, spec))
    stages = len(devices) // ranks
    known = [seconds for seconds in measured if seconds]
    costs = []
    for stage in range(stages):
        own = range(stage * ranks, (stage + 1) * ranks)
        speed = ranks * min(read_speed(devices[worker], bindings[worker]) for worker in own)
        if len(known) == len(devices):
            speed = ranks * layer_bytes / max(known[worker] for worker in own)
        costs.append(StageTime(layer_bytes / speed, output / speed if stage == stages - 1 else 0.0))
    return tuple(costs)


def read_speed(device: str, binding: EngineBinding) -> float:
    """Bytes a second that a worker reads its weights at."""
    if is_accelerator(device):
        return _ACCELERATOR
    return min(max(1, len(binding.team)) * _CORE, max(1, len(binding.memory_nodes)) * _NODE)


def in_layers(layout: WeightLayout) -> int:
    """Bytes of the matrices of all layers."""
    return sum(m.target_bytes for m in layout.matrices if _LAYER.search(m.name))


def is_embedding(name: str) -> bool:
    """Return whether it is the table that tokens are looked up in."""
    return name == _EMBEDDING


def is_output(name: str, spec: ModelSpec) -> bool:
    """Return whether it makes the logits."""
    return not _LAYER.search(name) and is_embedding(name) == spec.tie_word_embeddings
