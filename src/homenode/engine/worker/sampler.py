"""Sampling parameters of a step as arrays, and log-probabilities as values.

A token's randomness depends on its sequence's seed and its place in the sequence only, never on what shares the batch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from homenode.compute.ops import NO_TOKEN, Backend, FloatArray, IntArray, Logits, SampledRows, SamplingArrays
from homenode.engine.request import TokenLogprob
from homenode.engine.step import Advance, PromptScores, num_accepted
from homenode.engine.worker.batch import Batch
from homenode.engine.worker.sequences import SequenceTable, SlotArray

if TYPE_CHECKING:
    from homenode.engine.worker.grammar_masks import GrammarMasks

_NO_SLOTS: frozenset[int] = frozenset()
_NO_MASKS = np.zeros((0, 0), np.uint32)
_NO_TOKENS = np.zeros(0, np.int32)
_NO_VALUES = np.zeros(0, np.float32)


class Sampler:
    """Draws the tokens of successive batches. How is put together once for rows that stay the same from step
    to step.
    """

    def __init__(self, backend: Backend, table: SequenceTable) -> None:
        self._backend, self._table = backend, table
        self.failed: list[tuple[int, str]] = []  # of the last draw, sequences whose grammar cannot go on, and why
        self._slots: SlotArray | None = None  # the rows the following is about
        self._how = sampling_arrays(np.zeros(0, np.intp), table)
        self._rows: SlotArray | None = None  # those with a sequence; None: all
        self._num_logprobs: IntArray = _NO_TOKENS  # log-probabilities, for each row
        self._most_logprobs = -1
        self._steered: SlotArray | None = None  # rows under Mirostat

    def draw(self, logits: Logits, batch: Batch, grammars: GrammarMasks | None = None) -> list[Advance]:
        """Draw a token for every sequence of the batch that wants one, and append it to the sequence; and a further one
        for each drafted token that is what was drawn. `grammars`: has begun with the masks of this batch.
        """
        self.failed = []
        if not batch.sampled:
            return []
        table = self._table
        if batch.drafted and grammars is None and not (table.num_biased or table.num_counted or table.num_steered):
            return self._draw_all(logits, batch)
        advances = self._draw_one(logits, batch.row_slots, batch.sampled, grammars)
        return self._draw_further(logits, batch, advances, grammars) if batch.drafted else advances

    def _draw_all(self, logits: Logits, batch: Batch) -> list[Advance]:
        """Draw from all rows at once, behind drafted tokens as well: no draw depends on the tokens before but by its
        logits.
        """
        firsts = np.flatnonzero(batch.row_slots)
        counts = np.array([1 + len(drafted) for drafted in batch.drafted])
        further = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        rows = np.repeat(firsts, counts) + further
        slots = np.zeros_like(batch.row_slots)
        slots[rows] = np.repeat(batch.row_slots[firsts], counts)
        self._look_at(slots)
        self._how.counter[rows] += further.astype(np.uint64)
        drawn = self._backend.sample(logits, self._how, self._most_logprobs)
        tokens, advances = drawn.tokens.tolist(), []
        logprobs = self._logprobs_of(logits, drawn, slots)
        for seq, first, drafted in zip(batch.sampled, firsts.tolist(), batch.drafted, strict=True):
            past = first + num_accepted(drafted, tokens[first : first + 1 + len(drafted)])
            wanted = self._num_logprobs[first] >= 0
            advances.append(Advance(seq, tokens[first:past], tuple(logprobs[first:past]) if wanted else ()))
        found = zip(batch.row_slots[firsts].tolist(), advances, strict=True)
        self._table.extend({slot: advance.tokens or [NO_TOKEN] for slot, advance in found})
        return advances

    def _draw_further(
        self, logits: Logits, batch: Batch, advances: list[Advance], grammars: GrammarMasks | None
    ) -> list[Advance]:
        """Draw behind each accepted token, position by position: penalties, masks and bounds follow from the tokens
        before, and are what they would have been without drafts. A draw that fails is left to the next step.
        """
        rows = np.flatnonzero(batch.row_slots)  # the first of each sequence
        failed, going = self.failed, list(range(len(advances)))
        for index in range(max(map(len, batch.drafted))):
            going = [i for i in going if advances[i].tokens[index:] == list(batch.drafted[i][index : index + 1]) != []]
            if not going:
                break
            slots = np.zeros_like(batch.row_slots)
            slots[rows[going] + index + 1] = batch.row_slots[rows[going]]
            if grammars is not None:
                grammars.begin(slots, self._table)
            further = self._draw_one(logits, slots, [batch.sampled[i] for i in going], grammars, certain=False)
            for i, advance in zip(going, further, strict=True):
                advances[i] = _joined_advances(advances[i], advance)
        self.failed = failed
        return advances

    def _draw_one(
        self,
        logits: Logits,
        slots: SlotArray,
        sequences: list[int],
        grammars: GrammarMasks | None = None,
        *,
        certain: bool = True,
    ) -> list[Advance]:
        """Draw a token for each of `sequences`, from the rows whose slot is not 0. Not `certain`: for whom nothing can
        be drawn nothing is appended.
        """
        self.failed, table = [], self._table
        masks = None if grammars is None else grammars.finish()
        table.ending = _NO_SLOTS if masks is None else masks.ending
        if slots is not self._slots:
            self._look_at(slots)
        elif table.num_biased or table.num_counted or table.num_steered:
            self._how = sampling_arrays(slots, table)
        else:
            self._how.counter = self._how.counter + np.uint64(1)  # everybody drew a token since
        if masks is not None and grammars is not None:
            self._how.mask_row, self._how.masks = masks.rows, grammars.masks
        drawn = self._backend.sample(logits, self._how, self._most_logprobs)
        kept: dict[int, int] = {}
        if masks is not None and grammars is not None:
            drawn.tokens[list(masks.failed)] = NO_TOKEN
            kept = grammars.keep_ends(slots, drawn.tokens)
        if kept:
            drawn = self._replaced(logits, drawn, kept)
        tokens = drawn.tokens if self._rows is None else drawn.tokens[self._rows]
        limits = self._steer(slots, drawn) if self._steered is not None else None
        drawing = slots if self._rows is None else slots[self._rows]
        if certain or tokens.min() >= 0:
            table.append(drawing, tokens)
        else:
            table.append(drawing[tokens >= 0], tokens[tokens >= 0])
        if self._most_logprobs < 0 and masks is None:
            found = zip(sequences, tokens.tolist(), strict=True)
            return [Advance(seq, [token]) if token >= 0 else Advance(seq, []) for seq, token in found]
        forced = frozenset(kept) if masks is None else masks.forced | kept.keys()
        failed = {} if masks is None else masks.failed
        logprobs = self._logprobs_of(logits, drawn, slots)
        return self._advances(sequences, drawn, logprobs, forced, failed, limits or {})

    def _advances(
        self,
        sequences: list[int],
        drawn: SampledRows,
        logprobs: Sequence[TokenLogprob],
        forced: Collection[int],
        failed: Mapping[int, str],
        limits: Mapping[int, float],
    ) -> list[Advance]:
        """Say what a draw brought each of `sequences`. By row: those that were `forced`, why some `failed`, and new
        bounds under Mirostat.
        """
        rows = range(len(drawn.tokens)) if self._rows is None else self._rows.tolist()
        self.failed = [(seq, failed[row]) for seq, row in zip(sequences, rows, strict=True) if row in failed]
        tokens = drawn.tokens[rows].tolist()
        return [
            Advance(
                seq,
                [token] if token >= 0 else [],
                (logprobs[row],) if token >= 0 and self._num_logprobs[row] >= 0 else (),
                (0,) if row in forced else (),
                limits.get(row),
            )
            for seq, token, row in zip(sequences, tokens, rows, strict=True)
        ]

    def _logprobs_of(self, logits: Logits, drawn: SampledRows, slots: SlotArray) -> list[TokenLogprob]:
        """Return the log-probabilities of each row; none where nobody wants any."""
        if self._most_logprobs < 0:
            return []
        found = token_logprobs(drawn, self._num_logprobs)
        wanted = self._table.wanted_tokens
        if wanted and (rows := [row for row in np.flatnonzero(slots).tolist() if int(slots[row]) in wanted]):
            for row, top in self._wanted_logprobs(logits, {row: wanted[int(slots[row])] for row in rows}).items():
                found[row] = TokenLogprob(found[row].logprob, top)
        return found

    def _wanted_logprobs(self, logits: Logits, wanted: Mapping[int, IntArray]) -> dict[int, list[tuple[int, float]]]:
        """Return, for each row, the log-probabilities of the tokens that are asked for there."""
        rows = np.concatenate([np.full(len(tokens), row, np.int32) for row, tokens in wanted.items()])
        scored = self._backend.score(logits, rows, np.concatenate(list(wanted.values())), 0)
        pairs = iter(zip(scored.tokens.tolist(), scored.logprobs.tolist(), strict=True))
        return {row: list(islice(pairs, len(tokens))) for row, tokens in wanted.items()}

    def _look_at(self, slots: SlotArray) -> None:
        """`slots` is the very array a batch and those that carry on with it share, see `continued`."""
        self._slots = slots
        self._how = sampling_arrays(slots, self._table)
        self._rows = None if slots.all() else np.flatnonzero(slots)
        self._num_logprobs = self._table.logprobs[slots]
        self._most_logprobs = int(self._num_logprobs.max())
        steered = np.flatnonzero(self._table.mirostat[slots])
        self._steered = steered if len(steered) else None
        if self._steered is not None:
            self._most_logprobs = max(self._most_logprobs, 0)

    def _replaced(self, logits: Logits, drawn: SampledRows, kept: dict[int, int]) -> SampledRows:
        """The same with the tokens that rows have to get, and their log-probabilities."""
        if self._most_logprobs < 0:
            drawn.tokens[list(kept)] = list(kept.values())
            return drawn
        for row, token in kept.items():
            mask = self._how.masks[self._how.mask_row[row]]
            mask[:] = 0
            mask[token // 32] = 1 << token % 32
        failed = drawn.tokens == NO_TOKEN
        drawn = self._backend.sample(logits, self._how, self._most_logprobs)
        drawn.tokens[failed] = NO_TOKEN
        return drawn

    def _steer(self, slots: SlotArray, drawn: SampledRows) -> dict[int, float]:
        """Move the bounds of rows under Mirostat by what they drew; the new bounds, by row."""
        rows = self._steered
        assert rows is not None
        surprises = np.nan_to_num(drawn.logprobs[rows] / -np.log(2.0), nan=0.0, posinf=100.0).astype(np.float32)
        self._table.steer(slots[rows], surprises)
        limits = self._table.settings["max_surprise"][slots[rows]]
        return dict(zip(rows.tolist(), limits.tolist(), strict=True))


def _joined_advances(before: Advance, further: Advance) -> Advance:
    """Join what two draws brought a sequence."""
    if not further.tokens:
        return before
    first = len(before.tokens)
    return Advance(
        before.seq,
        before.tokens + further.tokens,
        before.logprobs + further.logprobs,
        before.forced + tuple(first + index for index in further.forced),
        further.surprise_limit,
    )


def score(backend: Backend, logits: Logits, batch: Batch, table: SequenceTable) -> list[PromptScores]:
    """Log-probabilities of the prompt tokens the batch's spans are about."""
    if not batch.spans:
        return []
    rows = np.concatenate([np.arange(s.row, s.row + s.count, dtype=np.int32) for s in batch.spans])
    targets = np.concatenate([table.known[s.slot][s.first : s.first + s.count] for s in batch.spans])
    num_logprobs = np.repeat([table.prompt_logprobs[s.slot] for s in batch.spans], [s.count for s in batch.spans])
    values = token_logprobs(backend.score(logits, rows, targets, max(0, int(num_logprobs.max()))), num_logprobs)
    scores, at = [], 0
    for span in batch.spans:
        scores.append(PromptScores(span.seq, span.first, values[at : at + span.count]))
        at += span.count
    return scores


def token_logprobs(rows: SampledRows, num_logprobs: IntArray) -> list[TokenLogprob]:
    """One value for each row, with the `num_logprobs[i]` most likely tokens of row i."""
    tops = zip(rows.top_tokens.tolist(), rows.top_logprobs.tolist(), num_logprobs.tolist(), strict=True)
    pairs = [list(zip(tokens[: max(n, 0)], values[: max(n, 0)], strict=True)) for tokens, values, n in tops]
    return [TokenLogprob(logprob, top) for logprob, top in zip(rows.logprobs.tolist(), pairs, strict=True)]


def sampling_arrays(slots: SlotArray, table: SequenceTable) -> SamplingArrays:
    """Return how to draw from each row of the logits; rows of slot 0 are drawn greedily, which costs least, and
    ignored.
    """
    bias_start, bias_token, bias_value = _biases(slots, table)
    seen_start, seen_token, seen_count = _seen(slots, table)
    return SamplingArrays(
        settings={name: values[slots] for name, values in table.settings.items()},
        seed=table.seed[slots],
        counter=table.length[slots].astype(np.uint64),
        bias_start=bias_start,
        bias_token=bias_token,
        bias_value=bias_value,
        seen_start=seen_start,
        seen_token=seen_token,
        seen_count=seen_count,
        mask_row=np.full(len(slots), -1, np.int32),
        masks=_NO_MASKS,
    )


def _biases(slots: SlotArray, table: SequenceTable) -> tuple[IntArray, IntArray, FloatArray]:
    if not table.num_biased:
        return np.zeros(len(slots) + 1, np.int32), _NO_TOKENS, _NO_VALUES
    found = [table.bias_of(slot) for slot in slots.tolist()]
    return (
        _starts([tokens for tokens, _ in found]),
        _joined([t for t, _ in found]),
        np.concatenate([v for _, v in found]),
    )


def _seen(slots: SlotArray, table: SequenceTable) -> tuple[IntArray, IntArray, IntArray]:
    if not table.num_counted:
        return np.zeros(len(slots) + 1, np.int32), _NO_TOKENS, _NO_TOKENS
    found = [(c.tokens, c.counts) if (c := table.seen[slot]) else (_NO_TOKENS, _NO_TOKENS) for slot in slots.tolist()]
    return _starts([tokens for tokens, _ in found]), _joined([t for t, _ in found]), _joined([c for _, c in found])


def _starts(parts: Sequence[IntArray]) -> IntArray:
    starts = np.zeros(len(parts) + 1, np.int32)
    np.cumsum([len(part) for part in parts], out=starts[1:])
    return starts


def _joined(parts: Sequence[IntArray]) -> IntArray:
    return np.concatenate(parts).astype(np.int32, copy=False)
