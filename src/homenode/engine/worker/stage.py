"""Computes one stage of each step: arrays from the step, rows from the stage before, and rows for the one after or tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from homenode.compute.ops import Backend, Program, StepArrays
from homenode.engine.channels.base import WorkerChannels
from homenode.engine.step import Step, StepResult
from homenode.engine.worker.continued import Batches
from homenode.engine.worker.sampler import Sampler, score
from homenode.engine.worker.sequences import SequenceTable
from homenode.model.part import ModelPart


class StageRunner:
    """A worker without its process: `worker.runner.Runner` for a part of a model. For one thread."""

    def __init__(
        self,
        part: ModelPart,
        program: Program,
        backend: Backend,
        links: WorkerChannels,
        block_size: int,
        columns: int,
        eos_token_ids: Sequence[int] = (),
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`columns`: of the rows between stages. `eos_token_ids`: see `Runner`."""
        self._columns = columns
        self._part, self._program, self._backend, self._links, self._clock = part, program, backend, links, clock
        self._table = SequenceTable(block_size, eos_token_ids)
        self._batches = Batches(self._table)
        self._sampler = Sampler(backend, self._table)

    def execute(self, step: Step, drawn: Sequence[tuple[int, int]] = ()) -> tuple[StepResult, float]:
        """Run a step: tokens drawn elsewhere, ends, starts, items. Its result, and seconds it waited for the stage before; the result's own seconds are
        without them. Every rank of the last stage draws the tokens, the first gives them out.

        Raises what `Runner.execute` raises, and PeerError when another worker did not come.
        """
        begin = self._clock()
        self._learn(drawn)
        if step.ends or step.starts:
            self._batches.forget()
        for seq in step.ends:
            self._table.end(seq)
        for start in step.starts:
            self._table.start(start)
        if not step.items:
            return StepResult(step.number, []), 0.0
        batch = self._batches.build(step.items)
        waited = self._receive(step.number, batch.arrays)
        rows = self._program.run(batch.arrays)
        if self._links.inlet is not None:
            self._links.inlet.free()
        if not self._part.last_stage:
            if self._links.outlet is not None:
                self._links.outlet.put(step.number, rows)
            return StepResult(step.number, [], [], self._clock() - begin - waited), waited
        scored = score(self._backend, rows, batch, self._table)
        sampled = self._sampler.draw(rows, batch)
        self._batches.drawn(batch, step.items)
        seconds = self._clock() - begin - waited
        return StepResult(step.number, sampled, scored, seconds) if self._part.rank == 0 else StepResult(
            step.number, [], [], seconds
        ), waited

    def _learn(self, drawn: Sequence[tuple[int, int]]) -> None:
        """Append tokens of sequences that are still here; a batch that carries on needs them all."""
        known = [(slot, token) for seq, token in drawn if (slot := self._table.find(seq)) is not None]
        if known:
            slots, tokens = zip(*known, strict=True)
            self._table.append(np.array(slots, np.intp), np.array(tokens, np.int32))

    def _receive(self, number: int, arrays: StepArrays) -> float:
        """Seconds it took the rows of the stage before to come."""
        if self._links.inlet is None:
            return 0.0
        begin = self._clock()
        arrays.hidden = self._links.inlet.take(number, len(arrays.ids), self._columns)
        return self._clock() - begin
