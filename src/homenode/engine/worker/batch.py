"""The way from a step to arrays: which tokens, at which positions, in which blocks, and which rows of the logits are
wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from homenode.compute.ops import IntArray, StepArrays
from homenode.engine.step import StepItem
from homenode.engine.worker.pooler import pooled_rows
from homenode.engine.worker.sequences import SequenceTable, SlotArray
from homenode.model.pooling import PoolingKind
from homenode.units import format_count


@dataclass(frozen=True)
class ScoredSpan:
    """Rows of the logits that score prompt tokens: row `row + i` scores the token at position `first + i` of sequence
    `seq`.
    """

    seq: int
    slot: int
    first: int
    row: int
    count: int


@dataclass(frozen=True)
class Batch:
    """A step, ready to run. r rows of logits, in the order of the items; the rows of an item are its scored ones, then
    those that tokens are drawn from.
    """

    arrays: StepArrays
    row_slots: SlotArray  # [r] whose first token is drawn from the row; 0: nobody's, or a further one, or none at all
    sampled: list[int]  # sequences that draw a token, in row order
    spans: list[ScoredSpan]
    drafted: tuple[tuple[int, ...], ...] = ()  # drafted tokens of each of `sampled`; empty: none has any


def build_batch(
    items: Sequence[StepItem], table: SequenceTable, pooling: PoolingKind | None = None, *, takes_rows: bool = True
) -> Batch:
    """Arrays of a step over sequences in `table`, whose block tables are extended on the way. `pooling`: which rows
    are wanted where texts become vectors; nothing is drawn then. `takes_rows`: rows in place of embeddings are for this
    stage, else for one before it.

    ValueError when an item asks for positions whose tokens or blocks are not known here.
    """
    slots = np.fromiter((table.slot(item.seq) for item in items), np.intp, len(items))
    for slot, item in zip(slots.tolist(), items, strict=True):
        if item.new_blocks:
            table.add_blocks(slot, item.new_blocks)
    starts = np.fromiter((item.start for item in items), np.int32, len(items))
    counts = np.fromiter((item.count for item in items), np.int32, len(items))
    ends = starts + counts
    _check(items, slots, starts, ends, table)
    query_start = np.zeros(len(items) + 1, np.int32)
    np.cumsum(counts, out=query_start[1:])
    positions = np.arange(query_start[-1], dtype=np.int32) + np.repeat(starts - query_start[:-1], counts)
    if pooling is None:
        row_slots, sample_rows, spans = _rows(items, slots, query_start, table)
    else:
        row_slots, sample_rows, spans = np.zeros(0, np.intp), pooled_rows(pooling, items, query_start), []
    arrays = StepArrays(
        ids=_ids(items, slots, counts, ends, query_start, table),
        positions=positions,
        query_start=query_start,
        context_len=ends,
        block_table=block_table(slots, ends, table),
        sample_rows=sample_rows,
    )
    seconds = table.second_from[slots]
    if seconds.any():
        after = np.repeat(np.where(seconds > 0, seconds, np.iinfo(np.int32).max), counts)
        arrays.token_types = (positions >= after).astype(np.int32)
    adapters = table.adapter[slots]
    if adapters.any():
        arrays.adapters = adapters - 1
    if table.pictures:
        add_pictures(arrays, items, slots, table)
    if table.has_state:
        add_state(arrays, items, slots, table)
    if any(item.rows for item in items):
        add_rows(arrays, items, keep=takes_rows, neutral=table.neutral_token)
    drawing = [item for item in items if item.draws]
    drafted = tuple(item.drafted for item in drawing) if any(item.drafted for item in drawing) else ()
    return Batch(arrays, row_slots, [item.seq for item in drawing], spans, drafted)


def add_state(arrays: StepArrays, items: Sequence[StepItem], slots: SlotArray, table: SequenceTable) -> None:
    """Say in the arrays of a step where the states of its sequences lie, which begin, and which are copied."""
    arrays.state_slot = table.state_slot[slots]
    arrays.state_fresh = (arrays.positions[arrays.query_start[:-1]] == 0).astype(np.int32)
    copies = [(row, *copy) for row, item in enumerate(items) for copy in item.state_copies]
    if copies:
        arrays.state_copies = np.array(copies, np.int32)


def add_pictures(arrays: StepArrays, items: Sequence[StepItem], slots: SlotArray, table: SequenceTable) -> None:
    """Say in the arrays of a step by which positions rope with axes turns, and which rows see each other."""
    here = [(row, places) for row, slot in enumerate(slots.tolist()) if (places := table.pictures.get(slot))]
    if any(places.grids for _, places in here):
        arrays.rope_positions = np.repeat(arrays.positions[None], 3, axis=0)
    if any(places.spans for _, places in here):
        arrays.seen_spans = np.zeros((len(arrays.positions), 2), np.int32)
    for row, places in here:
        tokens = slice(int(arrays.query_start[row]), int(arrays.query_start[row + 1]))
        if arrays.rope_positions is not None:
            places.turn(arrays.rope_positions[:, tokens], items[row].start)
        if arrays.seen_spans is not None:
            places.see(arrays.seen_spans[tokens], items[row].start)


def add_rows(arrays: StepArrays, items: Sequence[StepItem], *, keep: bool, neutral: int | None = None) -> None:
    """Say in the arrays of a step which rows its items bring in places of embeddings, where a stage is to `keep` them.
    The id there is `neutral`, or where that is None any.

    ValueError where they are no positions of their item, or of several widths.
    """
    places, rows = [], []
    for first, item in zip(arrays.query_start.tolist(), items, strict=False):
        for brought in item.rows:
            values = brought.array()
            if not item.start <= brought.first <= brought.first + len(values) <= item.start + item.count:
                raise ValueError(
                    f"sequence {item.seq}: rows of positions {brought.first} to {brought.first + len(values) - 1} in "
                    f"an item of {item.start} to {item.start + item.count - 1}"
                )
            places.append(np.arange(len(values), dtype=np.int32) + (first + brought.first - item.start))
            rows.append(values)
    at = np.concatenate(places)
    arrays.ids[at] = np.maximum(arrays.ids[at], 0) if neutral is None else neutral
    if keep:
        arrays.row_places = at
        arrays.input_rows = np.ascontiguousarray(np.concatenate(rows), np.float32)


def _check(items: Sequence[StepItem], slots: SlotArray, starts: IntArray, ends: IntArray, table: SequenceTable) -> None:
    lengths = table.length[slots] + np.fromiter((len(item.drafted) for item in items), np.int32, len(items))
    room = table.num_blocks[slots] * table.block_size
    wrong = (starts < 0) | (ends <= starts) | (ends > lengths) | (ends > room)
    if wrong.any():
        i = int(np.argmax(wrong))
        raise ValueError(
            f"sequence {items[i].seq}: positions {starts[i]} to {ends[i] - 1} were asked for; "
            f"{format_count(lengths[i], 'token is', 'tokens are')} known and its blocks hold {room[i]}"
        )


def _ids(
    items: Sequence[StepItem],
    slots: SlotArray,
    counts: IntArray,
    ends: IntArray,
    query_start: IntArray,
    table: SequenceTable,
) -> IntArray:
    """Token ids of the step. A sequence that decodes computes its newest token, which is at hand; the others are given
    slices.
    """
    ids: IntArray = np.repeat(table.last_token[slots], counts)
    for i in np.flatnonzero((counts > 1) | (ends < table.length[slots])).tolist():
        known, item = table.known[slots[i]], items[i]
        if item.drafted:
            if item.start + 1 != table.length[slots[i]] or item.count != 1 + len(item.drafted):
                raise ValueError(f"sequence {item.seq}: drafted tokens do not follow its last one")
            ids[query_start[i] + 1 : query_start[i + 1]] = item.drafted
            continue
        if item.start + item.count > len(known):
            raise ValueError(
                f"sequence {item.seq}: of the tokens drawn here only the newest can be computed, not position "
                f"{item.start}"
            )
        ids[query_start[i] : query_start[i + 1]] = known[item.start : item.start + item.count]
    return ids


def block_table(slots: SlotArray, ends: IntArray, table: SequenceTable) -> IntArray:
    """[slots, widest] the blocks of each slot, as many as the longest of them needs."""
    widest = -(-int(ends.max(initial=1)) // table.block_size)
    return np.ascontiguousarray(table.blocks[:, :widest][slots])


def _rows(
    items: Sequence[StepItem], slots: SlotArray, query_start: IntArray, table: SequenceTable
) -> tuple[SlotArray, IntArray, list[ScoredSpan]]:
    """Return whose rows of logits, which rows of the step, and the spans among them that score prompt tokens."""
    if all(item.score_from < 0 and item.draws <= 1 for item in items):
        drawn = np.fromiter((item.draws for item in items), np.bool_, len(items))
        return slots[drawn], query_start[1:][drawn] - 1, []
    row_slots: list[int] = []
    rows: list[int] = []
    spans = []
    for item, slot, first_row in zip(items, slots.tolist(), query_start.tolist(), strict=False):
        if item.score_from >= 0:
            begin = max(item.start, item.score_from)
            count = min(item.start + item.count, int(table.num_prompt[slot]) - 1) - begin
            if count > 0:
                spans.append(ScoredSpan(item.seq, slot, begin + 1, len(rows), count))
                rows += range(first_row + begin - item.start, first_row + begin - item.start + count)
                row_slots += [0] * count
        if item.draws:
            rows += range(first_row + item.count - item.draws, first_row + item.count)
            row_slots += [slot] + [0] * (item.draws - 1)
    return np.array(row_slots, np.intp), np.array(rows, np.int32), spans
