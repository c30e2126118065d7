"""Drafted tokens out of a model beside the one that is served: a smaller one, or a block of it that predicts.

It computes what the steps computed, one step behind: positions that have become tokens, and then one token after the
other behind the last. Its keys and values are in memory of its own, in blocks of the same numbers, so that what is
found in the prefix cache is found here as well. What it says is verified by the next step: where it lacks something, or
has something that is no longer so, drafts are worse and no answer is another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from homenode.compute.ops import Backend, FloatArray, Logits, SamplingArrays, StepArrays, StepLimits
from homenode.engine.step import Advance, StartSequence, StepItem
from homenode.engine.worker.draft_blocks import DraftBlocks, extend_texts
from homenode.engine.worker.sampler import sampling_arrays
from homenode.engine.worker.sequences import SequenceTable, SlotArray

_KEPT_ROWS = 64  # of a sequence that is not drafted for a while, until they are computed all the same
_CATCH_UP = 256  # positions that a step makes up for at least, where a sequence was not followed


class DraftingProgram(Protocol):
    """The program that computes drafts. `behind`: 1 where a position is computed from the token behind its own and the
    model's row of it, 0 where it is from its token alone. `columns`: of the logits; `max_length`: positions that it
    can compute.
    """

    behind: int
    columns: int
    max_length: int

    def run(self, arrays: StepArrays) -> tuple[Logits, FloatArray | None]:
        """Logits of the sampled rows, and the rows themselves where the position behind is computed from them."""


@dataclass(eq=False)
class _Followed:
    """A sequence. Positions from `origin` on, the beginning of a block, are computed up to `past`, and behind them
    `guesses` as if they were right, as far as the `blocks` go. `rows`: the model's, of positions from `past` on.
    `wanted`: somebody asked for drafts before.
    """

    seq: int
    slot: int
    tokens: list[int]
    texts: list[int] = field(default_factory=list)  # of whole blocks of these, see `extend_texts`
    origin: int = 0
    past: int = 0
    guesses: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    spare: list[int] = field(default_factory=list)  # behind the blocks, for this step
    rows: list[FloatArray] = field(default_factory=list)
    began: bool = False
    wanted: bool = False

    @property
    def num_rows(self) -> int:
        """How many are kept."""
        return sum(map(len, self.rows))

    def take_rows(self, count: int) -> FloatArray | None:
        """The first of the rows, which are kept no more; None where nothing needs any."""
        if not self.rows:
            return None
        rows = self.rows[0] if len(self.rows) == 1 else np.concatenate(self.rows)
        self.rows = [rows[count:]] if count < len(rows) else []
        return rows[:count]


@dataclass(frozen=True, eq=False)
class _PositionRange:
    """Positions of a sequence that are computed next, from tokens `ids` and perhaps rows. `sampled`: the last leads to
    a token.
    """

    followed: _Followed
    first: int
    ids: Sequence[int]
    rows: FloatArray | None
    sampled: bool

    @property
    def past(self) -> int:
        """The position behind the last."""
        return self.first + len(self.ids)

    def cut(self, count: int) -> tuple[_PositionRange, _PositionRange]:
        """The first `count` positions, and the others."""
        mine, others = (None, None) if self.rows is None else (self.rows[:count], self.rows[count:])
        head = replace(self, ids=self.ids[:count], rows=mine, sampled=False)
        return head, replace(self, first=head.past, ids=self.ids[count:], rows=others)


class ModelDrafter:
    """Follows the sequences of a worker. For one thread."""

    def __init__(
        self,
        program: DraftingProgram,
        backend: Backend,
        table: SequenceTable,
        blocks: DraftBlocks,
        limits: StepLimits,
        vocab_size: int,
    ) -> None:
        """`limits`: of a run of the program. `vocab_size`: of the model."""
        self._program, self._backend, self._table = program, backend, table
        self._blocks, self._limits, self._vocab_size = blocks, limits, vocab_size
        self._followed: dict[int, _Followed] = {}

    def start(self, start: StartSequence) -> None:
        """Follow a sequence that the table knows, unless rows stand in places of tokens, or it has tokens that what
        drafts has none of.
        """
        if min(start.token_ids) >= 0 and max(start.token_ids) < self._program.columns:
            self._followed[start.seq] = _Followed(start.seq, self._table.slot(start.seq), list(start.token_ids))

    def end(self, seq: int) -> None:
        """Forget it."""
        self._followed.pop(seq, None)

    def draft(
        self, items: Sequence[StepItem], advances: Sequence[Advance], rows: FloatArray | None
    ) -> Mapping[int, tuple[int, ...]]:
        """Tokens that are expected behind those of `advances`, by sequence: as many as its item asks for at most.
        `rows`: the model's, of all positions of the items.
        """
        accepted = {advance.seq: advance.tokens for advance in advances}
        spans: list[_PositionRange] = []
        budget, at = max(_CATCH_UP, 2 * sum(item.count for item in items)), 0
        for item in items:
            own = None if rows is None else rows[at : at + item.count]
            at += item.count
            tokens = accepted.get(item.seq, [])
            if not self.can_follow(item.seq, tokens):
                self.end(item.seq)
            if (followed := self._followed.get(item.seq)) is not None:
                past = self._take_in(followed, item, tokens, own)
                if (span := self._span(followed, item, min(past, followed.past + budget), past)) is not None:
                    budget -= len(span.ids)
                    spans.append(span)
        if not spans:
            return {}
        drafted = self._first_tokens(spans)
        self._further_tokens(drafted, {item.seq: item.expected for item in items})
        self._blocks.give_back_spare()
        return {followed.seq: tuple(tokens) for followed, (tokens, _) in drafted.items()}

    def follows(self, seq: int) -> bool:
        """Return whether tokens of a sequence may be drafted."""
        return seq in self._followed

    def can_follow(self, seq: int, tokens: Sequence[int]) -> bool:
        """Return whether what drafts knows these tokens, and has memory for all blocks: none for those that are read in
        place in another engine's.
        """
        if max(tokens, default=0) >= self._program.columns:
            return False
        followed = self._followed.get(seq)
        if followed is None or followed.began:
            return True
        blocks = self._table.blocks[followed.slot, : self._table.num_blocks[followed.slot]]
        return int(blocks.max(initial=0)) < self._blocks.count

    def _take_in(self, followed: _Followed, item: StepItem, tokens: Sequence[int], rows: FloatArray | None) -> int:
        """Take in what a step brought a sequence. The position up to which it could be computed now."""
        followed.tokens += tokens
        extend_texts(followed.texts, followed.tokens, self._blocks.size)
        known = len(followed.tokens) - self._program.behind if item.draws else item.start + item.count
        self._look_at_guesses(followed, tokens)
        self._look_at_blocks(followed, item)
        if rows is not None:
            self._keep_rows(followed, item, rows[: known - item.start])
        return min(known, self._program.max_length)

    def _look_at_guesses(self, followed: _Followed, tokens: Sequence[int]) -> None:
        """Count those as computed that were right, where they are in blocks. Those that are computed from rows were
        computed from other rows than the model's.
        """
        if not self._program.behind:
            guesses = zip(followed.guesses, tokens, strict=False)
            right = next((n for n, (guess, token) in enumerate(guesses) if guess != token), None)
            right = min(len(followed.guesses), len(tokens)) if right is None else right
            first, room = followed.past, max(followed.past, self._blocks.size * len(followed.blocks))
            followed.past = min(first + right, room)
            self._blocks.note(followed.blocks, followed.texts, first, followed.past)
        followed.guesses = []

    def _look_at_blocks(self, followed: _Followed, item: StepItem) -> None:
        """Take in which blocks the sequence has now; of the first, which were found in the prefix cache, what is
        computed.
        """
        size = self._blocks.size
        blocks = self._table.blocks[followed.slot, : self._table.num_blocks[followed.slot]].tolist()
        if not followed.began:
            followed.began = True
            found = blocks[: -(-item.start // size)]
            followed.past = min(self._blocks.num_computed(found, followed.texts), item.start)
            if self._program.behind and followed.past < item.start:
                followed.origin, end = self._blocks.first_after_gaps(found, followed.texts), size * len(found)
                followed.past = end if followed.origin == end else item.start
        else:
            followed.past = min(followed.past, size * len(followed.blocks))
        followed.blocks, followed.spare = blocks, []

    def _keep_rows(self, followed: _Followed, item: StepItem, rows: FloatArray) -> None:
        """Keep rows of positions that the model has computed now, for when they are asked for. Where some before them
        are missing, what is computed begins behind these.
        """
        begin, size = item.start, self._blocks.size
        if followed.past + followed.num_rows != begin:
            followed.rows = []
            if followed.past < begin:
                followed.origin = followed.past = size * -(-begin // size)
            rows = rows[max(0, followed.past - begin) :]
        if not item.expected and (item.count > 1 + len(item.drafted) or not followed.wanted):
            followed.rows = []  # nobody drafts behind this prompt
        elif len(rows):
            followed.rows.append(rows if item.expected else rows.copy())

    def _span(self, followed: _Followed, item: StepItem, past: int, known: int) -> _PositionRange | None:
        """The positions up to `past`, if they are to be computed now. `known`: the position up to which all could."""
        followed.wanted |= item.expected > 0
        if not item.expected and followed.num_rows < _KEPT_ROWS:
            return None
        while past > followed.past and not self._has_block(followed, past - 1):
            past -= 1
        if past <= followed.past:
            return None
        first, behind = followed.past, self._program.behind
        ids = followed.tokens[first + behind : past + behind]
        sampled = item.draws > 0 and item.expected > 0 and past == known == len(followed.tokens) - behind
        return _PositionRange(followed, first, ids, followed.take_rows(len(ids)), sampled)

    def _has_block(self, followed: _Followed, position: int) -> bool:
        """Return whether a position has a block, perhaps one that is taken now."""
        while position >= self._blocks.size * (len(followed.blocks) + len(followed.spare)):
            if (spare := self._blocks.take_spare()) is None:
                return False
            followed.spare.append(spare)
        return position < self._program.max_length

    def _first_tokens(self, spans: list[_PositionRange]) -> dict[_Followed, tuple[list[int], FloatArray | None]]:
        """Compute the spans, and draw behind those that are sampled: the tokens of each, and the row that the position
        behind is computed from.
        """
        drafted: dict[_Followed, tuple[list[int], FloatArray | None]] = {}
        for run in self._runs(spans):
            for followed, token, row in self._drawn(run, 0):
                drafted[followed] = ([token], row)
        for span in spans:
            span.followed.past = span.past
            self._blocks.note(span.followed.blocks, span.followed.texts, span.first, span.past)
        return drafted

    def _further_tokens(
        self, drafted: dict[_Followed, tuple[list[int], FloatArray | None]], expected: Mapping[int, int]
    ) -> None:
        """Go on behind the first tokens."""
        going = list(drafted)
        for index in range(1, max(expected.values(), default=0)):
            at = index - 1
            going = [f for f in going if expected[f.seq] > index and self._has_block(f, f.past + at)]
            if not going:
                return
            spans = [_PositionRange(f, f.past + at, drafted[f][0][-1:], drafted[f][1], sampled=True) for f in going]
            going = []
            for followed, token, row in self._drawn(spans, index):
                tokens, _ = drafted[followed]
                followed.guesses = tokens.copy()
                tokens.append(token)
                drafted[followed] = (tokens, row)
                going.append(followed)

    def _runs(self, spans: Sequence[_PositionRange]) -> Iterator[list[_PositionRange]]:
        """The spans in runs that the program can take, some of them cut."""
        run: list[_PositionRange] = []
        room = self._limits.max_tokens
        for span in spans:
            rest = span
            while len(rest.ids) > room:
                head, rest = rest.cut(room) if room else (None, rest)
                yield run if head is None else [*run, head]
                run, room = [], self._limits.max_tokens
            run.append(rest)
            room -= len(rest.ids)
            if len(run) == self._limits.max_sequences:
                yield run
                run, room = [], self._limits.max_tokens
        if run:
            yield run

    def _drawn(self, spans: Sequence[_PositionRange], index: int) -> Iterator[tuple[_Followed, int, FloatArray | None]]:
        """Compute these positions: whose they are, and the token, the `index`-th of its draft, behind each that is
        sampled, drawn as the model will draw its own: the same chance makes them alike more often than the likeliest
        token is.
        """
        logits, rows = self._program.run(self._arrays(spans))
        sampled = [span.followed for span in spans if span.sampled]
        if not sampled:
            return
        how = self._how(np.array([followed.slot for followed in sampled], np.intp))
        how.counter = how.counter + np.uint64(index)
        tokens = self._backend.sample(logits, how).tokens.tolist()
        for at, (followed, token) in enumerate(zip(sampled, tokens, strict=True)):
            if 0 <= token < self._vocab_size:
                yield followed, token, None if rows is None else rows[at : at + 1]

    def _how(self, slots: SlotArray) -> SamplingArrays:
        """How to draw behind these; without what is about tokens where the program knows fewer of them."""
        how = sampling_arrays(slots, self._table)
        if self._program.columns >= self._vocab_size:
            return how
        nothing = np.zeros(len(slots) + 1, np.int32)
        return replace(how, bias_start=nothing, seen_start=nothing)

    def _arrays(self, spans: Sequence[_PositionRange]) -> StepArrays:
        size = self._blocks.size
        counts = np.array([len(span.ids) for span in spans], np.int32)
        ends = np.array([span.past - span.followed.origin for span in spans], np.int32)
        query_start = np.zeros(len(spans) + 1, np.int32)
        np.cumsum(counts, out=query_start[1:])
        block_table = np.zeros((len(spans), -(-int(ends.max()) // size)), np.int32)
        for row, span, end in zip(block_table, spans, ends.tolist(), strict=True):
            followed = span.followed
            needed = -(-end // size)
            first = followed.origin // size
            row[:needed] = (followed.blocks + followed.spare)[first : first + needed]
        rows = [span.rows for span in spans if span.rows is not None]
        sampled = np.array([span.sampled for span in spans], np.bool_)
        return StepArrays(
            ids=np.array([token for span in spans for token in span.ids], np.int32),
            positions=np.arange(query_start[-1], dtype=np.int32) + np.repeat(ends - query_start[1:], counts),
            query_start=query_start,
            context_len=ends,
            block_table=block_table,
            sample_rows=query_start[1:][sampled] - 1,
            hidden=np.ascontiguousarray(np.concatenate(rows), np.float32) if rows else None,
        )
