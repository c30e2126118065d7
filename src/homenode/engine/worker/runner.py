"""Computes a model, or one stage of it, a step at a time: arrays from the step, a run of the program, and tokens or
rows for the next stage.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

import msgspec
import numpy as np

from homenode.compute.ops import Backend, Logits, Program, StateMemory, StepArrays
from homenode.engine.channels.base import WorkerChannels
from homenode.engine.step import Advance, StartSequence, Step, StepItem, StepResult
from homenode.engine.worker.batch import Batch
from homenode.engine.worker.continued import Batches
from homenode.engine.worker.forced_drafts import add_forced_drafts
from homenode.engine.worker.pooler import Pooler
from homenode.engine.worker.row_programs import RowsAndLogits
from homenode.engine.worker.sampler import Sampler, score
from homenode.engine.worker.sequences import SequenceTable
from homenode.engine.worker.state_pages import StatePages
from homenode.errors import InternalError
from homenode.model.part import ModelPart

if TYPE_CHECKING:
    from homenode.engine.worker.expert_reads import ExpertReads
    from homenode.engine.worker.grammar_masks import GrammarMasks
    from homenode.engine.worker.model_drafter import ModelDrafter


class Runner:
    """Keeps the sequences of a worker and runs steps on a compiled program. For one thread.

    `waited_s`: seconds that the last step waited for the rows of the stage before; 0 in a first stage.
    """

    def __init__(
        self,
        program: Program,
        backend: Backend,
        block_size: int,
        clock: Callable[[], float] = time.perf_counter,
        eos_token_ids: Sequence[int] = (),
        *,
        part: ModelPart | None = None,
        channels: WorkerChannels | None = None,
        columns: int = 0,
        state: StateMemory = None,
        grammars: Callable[[], GrammarMasks] | None = None,
        state_pages: StatePages | None = None,
        pooler: Pooler | None = None,
        takes_rows: bool = True,
        neutral_token: int | None = None,
        make_drafter: Callable[[SequenceTable], ModelDrafter] | None = None,
        expert_reads: ExpertReads | None = None,
    ) -> None:
        """`eos_token_ids`: what a sequence with `min_tokens` may not draw before it has them. `part`: of the model,
        None: all of it. `channels`: to other workers, None: there are none. `columns`: of the rows between stages.
        `state`: the state memory of the program, None: no layer here keeps a state. `grammars`: makes what computes the
        masks of sequences with a grammar, asked when the first comes; None: there are none. `state_pages`: how states
        lie in KV blocks where they are handed over. `pooler`: makes texts vectors in place of tokens.
        `takes_rows`: rows in place of embeddings are this stage's. `neutral_token`: see `PictureSpec`. `make_drafter`:
        makes what drafts for the sequences of the table; None: nothing does. `expert_reads`: counts the experts that
        steps read; None: there are none.
        """
        self._program, self._backend, self._clock = program, backend, clock
        self._draws = part is None or part.last_stage
        self._answers = part is None or part.rank == 0
        self._channels, self._columns = channels or WorkerChannels(), columns
        self._state, self._state_pages = state, state_pages
        self._table = SequenceTable(block_size, eos_token_ids, has_state=state is not None)
        self._table.neutral_token = neutral_token
        self._batches = Batches(self._table, None if pooler is None else pooler.kind, takes_rows=takes_rows)
        self._pooler = pooler
        self._sampler = Sampler(backend, self._table)
        self._drafter = None if make_drafter is None else make_drafter(self._table)
        self._expert_reads = expert_reads
        self._make_grammars, self._grammars = grammars, cast("GrammarMasks | None", None)
        self.waited_s = 0.0

    @property
    def num_sequences(self) -> int:
        """Sequences there is state of."""
        return len(self._table)

    def execute(self, step: Step, drawn: Sequence[tuple[int, int]] = ()) -> StepResult:
        """Run a step: tokens drawn elsewhere (sequence, token), ends, starts, items. Tokens drawn here are appended to
        their sequences.

        The seconds of the result are without those waited for the stage before. Every rank of the last stage draws the
        tokens, the first gives them out. Raises what the arrays, the program or the sampler raise (ValueError,
        MemoryError, HostError...), and PeerError when another worker did not come. The sequences of a failed step are
        in no defined state afterwards; they are to be ended.
        """
        begin, self.waited_s = self._clock(), 0.0
        if drawn:
            self._append(drawn)
        if step.ends or step.starts:
            self._batches.forget()
        for seq in step.ends:
            self._end(seq)
        for start in step.starts:
            self._start(start)
        if not step.items:
            return StepResult(step.number, [])
        batch = self._batches.build(step.items)
        if batch.drafted:
            self._table.begin_drafts(step.items)
        if self._grammars is not None:
            self._grammars.begin(batch.row_slots, self._table)
        self._receive(step.number, batch.arrays)
        rows = self._program.run(batch.arrays)
        self._store_states(batch.arrays, step.items)
        if self._channels.inlet is not None:
            self._channels.inlet.free()
        return self._result(step, batch, rows, begin)

    def _end(self, seq: int) -> None:
        if self._grammars is not None:
            self._grammars.end(self._table.find(seq))
        if self._pooler is not None:
            self._pooler.end(seq)
        if self._drafter is not None:
            self._drafter.end(seq)
        self._table.end(seq)

    def _start(self, start: StartSequence) -> None:
        self._table.start(start)
        if self._drafter is not None:
            self._drafter.start(start)
        if start.params.grammar is not None and self._draws:
            self._bind(start)
        if self._state is not None and start.state_source >= 0:
            self._state.copy_slot(start.state_source, start.state_slot)
        if self._state_pages is not None and start.state_pages:
            self._state_pages.load(start.state_pages, start.state_slot)

    def _store_states(self, arrays: StepArrays, items: Sequence[StepItem]) -> None:
        """Into the KV blocks in which they are handed over."""
        if self._state_pages is None or arrays.state_slot is None:
            return
        for slot, item in zip(arrays.state_slot.tolist(), items, strict=True):
            if item.state_pages:
                self._state_pages.store(slot, item.state_pages)

    def _result(self, step: Step, batch: Batch, rows: Logits, begin: float) -> StepResult:
        """Return what becomes of the program's rows: handed to the next stage, pooled, or tokens are drawn
        from them.
        """
        if not self._draws:
            if self._channels.outlet is not None:
                self._channels.outlet.put(step.number, rows)
            return StepResult(step.number, [], seconds=self._seconds_since(begin))
        if self._pooler is not None:
            pooled = self._pooler.take(np.asarray(rows), step.items) if self._answers else []
            return StepResult(step.number, [], seconds=self._seconds_since(begin), pooled=pooled)
        scored = score(self._backend, rows, batch, self._table)
        sampled = self._sampler.draw(rows, batch, self._grammars)
        self._table.cut_back()
        if self._grammars is not None and self._answers:
            sampled = add_forced_drafts(step.items, sampled, self._grammars, self._table)
        self._batches.drawn(batch, step.items)
        drafting = self._clock()
        sampled = self._with_drafts(step.items, sampled)
        drafting = self._clock() - drafting
        experts = 0.0 if self._expert_reads is None else self._expert_reads.take()
        seconds = self._seconds_since(begin)
        if not self._answers:
            return StepResult(step.number, [], seconds=seconds)
        return StepResult(
            step.number, sampled, scored, seconds, self._sampler.failed, draft_seconds=drafting, experts=experts
        )

    def _with_drafts(self, items: Sequence[StepItem], advances: list[Advance]) -> list[Advance]:
        """Add what is expected to follow."""
        if self._drafter is None:
            return advances
        rows = self._program.rows if isinstance(self._program, RowsAndLogits) else None
        drafted = self._drafter.draft(items, advances, rows)
        if not drafted:
            return advances
        return [
            advance
            if advance.forced_drafts or advance.seq not in drafted
            else msgspec.structs.replace(advance, drafted=drafted[advance.seq])
            for advance in advances
        ]

    def _seconds_since(self, begin: float) -> float:
        """Without those waited for the stage before."""
        return self._clock() - begin - self.waited_s

    def _bind(self, start: StartSequence) -> None:
        if self._grammars is None:
            if self._make_grammars is None:
                raise InternalError("a sequence came with a grammar, and nothing here knows grammars")
            self._grammars = self._make_grammars()
        self._grammars.start(self._table.slot(start.seq), start)

    def _append(self, drawn: Sequence[tuple[int, int]]) -> None:
        """Tokens of sequences that are still here; a batch that carries on needs them all."""
        accepted: dict[int, list[int]] = {}
        for seq, token in drawn:
            if (slot := self._table.find(seq)) is not None:
                accepted.setdefault(slot, []).append(token)
        self._table.extend(accepted)
        self._table.cut_back(accepted)

    def _receive(self, number: int, arrays: StepArrays) -> None:
        """The rows of the stage before, if there is one."""
        if self._channels.inlet is not None:
            begin = self._clock()
            arrays.hidden = self._channels.inlet.take(number, len(arrays.ids), self._columns)
            self.waited_s = self._clock() - begin
