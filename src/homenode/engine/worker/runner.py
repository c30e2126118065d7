"""Computes one step at a time: sequences, arrays, program, tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from homenode.compute.ops import Backend, Program
from homenode.engine.step import Step, StepResult
from homenode.engine.worker.continued import Batches
from homenode.engine.worker.sampler import Sampler, score
from homenode.engine.worker.sequences import SequenceTable


class Runner:
    """A worker without its process: keeps the sequences and runs steps on a compiled program. For one thread."""

    def __init__(
        self,
        program: Program,
        backend: Backend,
        block_size: int,
        clock: Callable[[], float] = time.perf_counter,
        eos_token_ids: Sequence[int] = (),
    ) -> None:
        """`eos_token_ids` are what a sequence with `min_tokens` may not draw before it has them."""
        self._program = program
        self._backend = backend
        self._table = SequenceTable(block_size, eos_token_ids)
        self._batches = Batches(self._table)
        self._sampler = Sampler(backend, self._table)
        self._clock = clock

    @property
    def num_sequences(self) -> int:
        """Sequences there is state of."""
        return len(self._table)

    def execute(self, step: Step) -> StepResult:
        """Run a step: ends, starts, items. Drawn tokens are appended to their sequences.

        Raises what the arrays, the program or the sampler raise (ValueError, MemoryError, HostError...). The sequences of a failed step
        are in no defined state afterwards; they are to be ended.
        """
        begin = self._clock()
        if step.ends or step.starts:
            self._batches.forget()
        for seq in step.ends:
            self._table.end(seq)
        for start in step.starts:
            self._table.start(start)
        if not step.items:
            return StepResult(step.number, [])
        batch = self._batches.build(step.items)
        logits = self._program.run(batch.arrays)
        scored = score(self._backend, logits, batch, self._table)
        sampled = self._sampler.draw(logits, batch)
        self._batches.drawn(batch, step.items)
        return StepResult(step.number, sampled, scored, self._clock() - begin)
