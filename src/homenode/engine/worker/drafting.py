"""The parts of what drafts tokens in a worker: KV memory, programs, and what gives the model's rows to them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from homenode.compute.ops import Backend, GrowingBackend, KvCache, Program, StateMemory, StepLimits
from homenode.compute.ranks import RankGroup
from homenode.engine.worker.draft_blocks import DraftBlocks
from homenode.engine.worker.load import LoadedDrafting, LoadedPart
from homenode.engine.worker.model_drafter import DraftingProgram, ModelDrafter
from homenode.engine.worker.row_programs import DraftModelProgram, PredictionProgram, RowsAndLogits
from homenode.engine.worker.sequences import SequenceTable
from homenode.model.architectures.parameters import RowsKept


def drafting_cache(drafting: LoadedDrafting, backend: Backend, num_blocks: int, *, grows: bool) -> KvCache:
    """KV memory for what drafts, of the engine's blocks and its own, beside the model's. `grows`: as that does."""
    blocks, geometry = num_blocks + drafting.plan.spare_blocks, drafting.plan.geometry
    if isinstance(backend, GrowingBackend):
        return backend.kv_cache(geometry, blocks, touched=not grows, beside=True)
    return backend.kv_cache(geometry, blocks)


class DraftingPrograms:
    """The programs of a worker that drafts."""

    def __init__(self, drafting: LoadedDrafting, loaded: LoadedPart, cache: KvCache, group: RankGroup | None) -> None:
        """`cache`: KV memory for what drafts."""
        self._drafting, self._loaded, self._cache, self._group = drafting, loaded, cache, group

    def of_model(self, cache: KvCache, state: StateMemory, *, takes_rows: bool) -> Program:
        """The program of the model itself, which gives its rows as well where what drafts reads them."""
        model, limits, prediction = self._loaded.model, self._loaded.step_limits, self._drafting.model.spec.prediction
        if prediction is None:
            return self._compiled(model.forward(cache, state, takes_rows=takes_rows), limits)
        kept: RowsKept = "normed" if prediction.reads_normed else "all"
        layers = self._compiled(model.forward(cache, state, takes_rows=takes_rows, keeps_rows=kept), limits)
        return RowsAndLogits(layers, self._compiled(model.head_of_rows(kept), _of_rows(limits)))

    def drafting(self) -> DraftingProgram:
        """The program that drafts."""
        model, limits = self._drafting.model, limits_of_drafts(self._loaded)
        columns, length = model.spec.vocab_size, min(model.max_model_len, limits.max_blocks_per_sequence * self._size)
        if (prediction := model.spec.prediction) is None:
            return DraftModelProgram(self._compiled(model.forward(self._cache), limits), columns, length)
        model = model.with_tables_of(self._loaded.model)
        kept: RowsKept = "normed" if prediction.hands_normed else "all"
        block = self._compiled(model.forward(self._cache, keeps_rows=kept), limits)
        return PredictionProgram(block, self._compiled(model.head_of_rows(kept), _of_rows(limits)), columns, length)

    @property
    def _size(self) -> int:
        return self._loaded.limits.block_size

    def _compiled(self, forward: Any, limits: StepLimits) -> Program:
        return self._loaded.backend.compile(forward, limits, self._group)


def make_drafter(loaded: LoadedPart, program: DraftingProgram, table: SequenceTable) -> ModelDrafter:
    """The drafter of a worker, which knows of no sequence yet."""
    assert loaded.drafting is not None  # there is a program
    limits = loaded.limits
    blocks = DraftBlocks(limits.num_blocks, loaded.drafting.plan.spare_blocks, limits.block_size)
    return ModelDrafter(program, loaded.backend, table, blocks, limits_of_drafts(loaded), limits.vocab_size)


def limits_of_drafts(loaded: LoadedPart) -> StepLimits:
    """Bounds of a run of what drafts, whose last tokens may lie in blocks of its own."""
    assert loaded.drafting is not None
    limits = loaded.step_limits
    return replace(limits, max_blocks_per_sequence=limits.max_blocks_per_sequence + loaded.drafting.plan.spare_blocks)


def _of_rows(limits: StepLimits) -> StepLimits:
    """Bounds of a run over sampled rows alone."""
    rows = limits.max_sampled_rows
    return StepLimits(rows, rows, rows, 1)
