"""A model cut into parts, run in one process: each rank in a thread, the stages one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from homenode.compute.ops import Backend, Logits, Program, StepArrays, StepLimits
from homenode.compute.reference import ReferenceBackend, ThreadRanks
from homenode.model.part import ModelPart
from homenode.model.parts import PartitionSpec, plan_parts
from homenode.model.spec import Checkpoint
from homenode.model.state import state_geometry_of
from homenode.model.weights.alignment import alignments_of
from homenode.model.weights.load import LoadedModel, load_model
from tests.model.driver import STATE_SLOTS, Driver
from tests.waiting import PATIENCE_S

BLOCKS, BLOCK_SIZE = 64, 32


class SplitProgram:
    """`Program` of a whole model, made of the programs of its parts. All ranks of a stage must come to the
    same bits.
    """

    def __init__(self, stages: Sequence[Sequence[Program]]) -> None:
        self._stages = stages
        self._threads = ThreadPoolExecutor(max(map(len, stages)))

    def run(self, arrays: StepArrays) -> Logits:
        results: list[Logits] = []
        for ranks in self._stages:
            if results:
                arrays = replace(arrays, hidden=np.array(results[0]))
            running = [self._threads.submit(program.run, arrays) for program in ranks]
            results = [run.result(PATIENCE_S) for run in running]
            assert all(np.array_equal(np.asarray(results[0]), np.asarray(other)) for other in results[1:])
        return results[0]


def plan(checkpoint: Checkpoint, how: PartitionSpec, quantize: str | None = None) -> tuple[ModelPart, ...]:
    return plan_parts(checkpoint.spec, alignments_of(checkpoint, quantize), how)


def split_driver(
    checkpoint: Checkpoint,
    how: PartitionSpec,
    make_backend: Callable[[], Backend] = ReferenceBackend,
    *,
    kv_dtype: str = "auto",
    **settings: Any,
) -> Driver:
    """A driver of the model cut like this, each part on a backend of its own. `settings`: of `load_model`."""
    program, last = split_program(checkpoint, how, make_backend, kv_dtype=kv_dtype, **settings)
    return Driver(*last, block_size=BLOCK_SIZE, blocks=BLOCKS, program=program)


def split_program(
    checkpoint: Checkpoint,
    how: PartitionSpec,
    make_backend: Callable[[], Backend] = ReferenceBackend,
    *,
    kv_dtype: str = "auto",
    takes_rows: bool = False,
    **settings: Any,
) -> tuple[SplitProgram, tuple[LoadedModel, Backend]]:
    """The program of a model cut like this, and a rank of its last stage. `takes_rows`: see `LoadedModel.forward`."""
    stages: list[list[Program]] = []
    last: tuple[LoadedModel, Backend] | None = None
    for part in plan(checkpoint, how, settings.get("quantize")):
        backend = make_backend()
        model = load_model(checkpoint, backend, part=part, **settings)
        if part.rank == 0:
            group = ThreadRanks(how.ranks, PATIENCE_S)
            stages.append([])
            last = model, backend
        cache = backend.kv_cache(model.kv_geometry(BLOCK_SIZE, kv_dtype), BLOCKS)
        geometry = state_geometry_of(model.spec, model.part)
        state = None if geometry is None else backend.state_memory(geometry, STATE_SLOTS)
        limits = StepLimits(512, 16, 512, BLOCKS)
        stages[-1].append(
            backend.compile(
                model.forward(cache, state, takes_rows=takes_rows),
                limits,
                group.ranks[part.rank] if how.ranks > 1 else None,
            )
        )
    assert last is not None
    return SplitProgram(stages), last
