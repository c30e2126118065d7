"""Masks of the tokens that the grammars of a worker's sequences allow next: computed by llguidance while the model
computes, on threads beside those that compute, into memory that the sampler reads.

A sequence that was preempted, or that another worker had, comes with its tokens so far: its matcher is made again from
them. What is computed depends on a sequence's own tokens only.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from homenode.compute.ops import IntArray
from homenode.engine.step import StartSequence
from homenode.engine.worker.sequences import SequenceTable, SlotArray
from homenode.errors import HomenodeError
from homenode.grammars.end_steering import EndSteering, can_be_steered, short_end
from homenode.grammars.matcher import make_matcher, reason_of
from homenode.grammars.short_ends import LONGEST_END, End, ShortEnds
from homenode.grammars.vocabulary import Vocabulary
from homenode.host.bind.base.syscalls import thread_cpus

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher

MOST_KEPT = 32  # grammars whose matchers are kept at their beginning, to be copied
_FIRST_ROWS = 8
_MOST_THREADS = 8
_NEVER = -1
_LEAST_FORCED = 2  # bytes
_LOOKS_AHEAD = 128  # of a search, every so many tokens before that
_NEAR, _MOST_NEAR = 32, 1024  # tokens before the last one, and at most, from which on ends are kept within reach

EndBits = tuple[tuple[int, int], ...]  # (word, bit) of each token that ends an answer besides those of the vocabulary


@dataclass(frozen=True, slots=True)
class Beginning:
    """A matcher that has no token yet. `end`: a short text of its grammar, None where none was found; `steerable`:
    whether it takes tokens back.
    """

    matcher: LLMatcher
    end: End | None
    steerable: bool

    def near(self, most: int) -> int:
        """The tokens before the last one from which on the end of an answer of `most` tokens is kept within reach;
        never that of one which cannot have it, by far.
        """
        if not self.steerable or (2 * most < LONGEST_END if self.end is None else 4 * most < len(self.end)):
            return _NEVER
        return min(_MOST_NEAR, _NEAR + 2 * len(self.end or ()))


@dataclass(slots=True)
class BoundMatcher:
    """The place of a sequence in its grammar. `near`: tokens before the last one from which on its end is kept within
    reach, by `steering`, which is there from then on. `look`: tokens before the last one with which it is looked at
    next whether the end has moved away.
    """

    matcher: LLMatcher
    near: int
    steering: EndSteering | None = None
    look: int = _NEAR + 2 * _LOOKS_AHEAD  # no end that is found with so many looks is farther away


@dataclass(slots=True)
class BoundSequence:
    """A sequence with a grammar. `made`: the result of `bound` once a mask was computed. `length`: its tokens, prompt
    included, that the matcher has or is about to get; there will be `last` at most.
    """

    bound: Future[BoundMatcher]
    row: int  # of the masks
    length: int
    last: int
    least: int  # tokens before which it does not end
    ends: EndBits
    made: BoundMatcher | None = None
    free: bool = False  # the mask of the next token leaves most tokens: the text is not bound there


@dataclass(frozen=True)
class StepMasks:
    """The masks that the grammars give about the rows of a step. Rows are those of the logits.

    `rows`: the mask of each, -1 for none. `forced`: rows whose mask leaves one token. `ending`: slots whose mask leaves
    nothing but the end. `failed`: rows whose grammar cannot go on, and why.
    """

    rows: IntArray
    forced: frozenset[int] = frozenset()
    ending: frozenset[int] = frozenset()
    failed: dict[int, str] = field(default_factory=dict)


class GrammarMasks:
    """Matchers by slot of the `SequenceTable`. For the thread that runs steps; work is done on threads of its own.

    `masks`: [rows, words] a bit for each token that may come next; a row belongs to one sequence.
    """

    def __init__(
        self,
        vocabulary: Callable[[], Vocabulary],
        vocab_size: int,
        cpus: Collection[int] = (),
        *,
        max_length: int = 2**31 - 1,
    ) -> None:
        """`vocabulary`: reads it, once, when the first grammar comes. `cpus`: where threads may run; empty: where the
        process may. `max_length`: the most tokens of a sequence.
        """
        self._read_vocabulary, self._vocab_size, self._cpus = vocabulary, vocab_size, frozenset(cpus)
        self.masks = np.zeros((0, -(-vocab_size // 32)), np.uint32)
        self._bound: dict[int, BoundSequence] = {}
        self._free: list[int] = []
        self._max_length = max_length
        self._kept: OrderedDict[str, Beginning] = OrderedDict()  # changed by the thread that makes matchers only
        self._vocabulary: Vocabulary | None = None  # likewise
        self._ends: ShortEnds | None = None  # made there, used by every thread that works on a matcher
        self._executor: LLExecutor | None = None  # touched by the thread of the masks only
        self._makers = self._threads("homenode-matchers")
        self._maskers = self._threads("homenode-masks")
        self._job: Future[StepMasks] | None = None

    def __len__(self) -> int:
        return len(self._bound)

    def prepare(self, grammar: str) -> Future[None] | None:
        """Begin to make the matcher of `grammar`, for sequences to come; None: it is there. From any thread."""
        return None if grammar in self._kept else self._makers.submit(self._keep, grammar)

    def start(self, slot: int, start: StartSequence) -> None:
        """Bind the sequence in `slot` by the grammar of its parameters: work on its matcher begins."""
        self._settle()
        grammar = start.params.grammar
        assert grammar is not None  # who calls has looked
        if not self._free:
            self._grow()
        answered, params = start.token_ids[start.num_prompt :], start.params
        last = min(start.num_prompt + params.max_tokens, self._max_length)
        made = self._makers.submit(self._make, grammar, answered, last - start.num_prompt)
        length, least = len(start.token_ids), start.num_prompt + params.min_tokens
        stops = self._end_bits(frozenset(params.stop_token_ids))
        self._bound[slot] = BoundSequence(made, self._free.pop(), length, last, least, stops)

    def end(self, slot: int | None) -> None:
        """The sequence in `slot` has ended; one without a grammar, or without a slot, is ignored."""
        if slot is not None and (bound := self._bound.pop(slot, None)) is not None:
            self._settle()
            self._free.append(bound.row)

    def forget(self) -> None:
        """Every sequence has ended."""
        for slot in tuple(self._bound):
            self.end(slot)

    def close(self) -> None:
        """End the threads."""
        self._makers.shutdown(wait=False, cancel_futures=True)
        self._maskers.shutdown(wait=False, cancel_futures=True)

    def begin(self, slots: SlotArray, table: SequenceTable) -> None:
        """Begin to compute the masks of a step that draws a token from a row for each of `slots`; 0 is no sequence."""
        self._settle()
        if not self._bound:
            return
        work = []
        for row, slot in enumerate(slots.tolist()):
            if (bound := self._bound.get(slot)) is not None:
                length = int(table.length[slot])
                token = int(table.last_token[slot]) if length > bound.length else None
                bound.length = length
                work.append((row, slot, bound, token))
        if work:
            self._job = self._maskers.submit(self._compute, len(slots), work)

    def finish(self) -> StepMasks | None:
        """The masks of the step that `begin` was called for; None where no row has a grammar. Waits for them."""
        job, self._job = self._job, None
        return None if job is None else job.result()

    def keep_ends(self, slots: SlotArray, tokens: IntArray) -> dict[int, int]:
        """Take in what was drawn, a token for each row, where few tokens are left of a sequence: rows whose text could
        not be completed any more, and the token that each has to get instead.
        """
        replaced = {}
        for row, slot in enumerate(slots.tolist()) if self._bound else ():
            sequence = self._bound.get(slot)
            if sequence is None or sequence.made is None or sequence.made.steering is None or tokens[row] < 0:
                continue
            token = self._kept_end(sequence, sequence.made.matcher, sequence.made.steering, int(tokens[row]))
            if token != tokens[row]:
                replaced[row] = token
        return replaced

    def forced_after(self, slot: int, table: SequenceTable, most: int) -> list[int]:
        """Return at most `most` tokens that should spell what the grammar of a slot leaves as the only text behind the
        sequence's last token; none where it leaves a choice, or where its end is kept within reach.
        """
        bound = self._bound.get(slot)
        if bound is None or bound.made is None or bound.made.steering is not None or self._vocabulary is None:
            return []
        matcher, length = bound.made.matcher, int(table.length[slot])
        if length > bound.length:
            matcher.consume_token(int(table.last_token[slot]))
            bound.length = length
        if matcher.is_error() or matcher.is_stopped():
            return []
        text = matcher.compute_ff_bytes()
        if len(text) < _LEAST_FORCED:
            return []
        tokens: list[int] = self._vocabulary.library.greedy_tokenize(text.decode(errors="ignore"))
        return tokens[:-1][:most]

    def _kept_end(self, sequence: BoundSequence, matcher: LLMatcher, steering: EndSteering, token: int) -> int:
        """The token that counts of a sequence for which `token` was drawn."""
        left = sequence.last - sequence.length - 1
        if matcher.is_error() or token in self._end_tokens(sequence):
            return token
        if not steering.admits(matcher, token, left):
            if steering.end:
                token = steering.end[0]
            elif sequence.free or sequence.length < sequence.least:
                pass  # the text is complete, and goes on with what is cut
            else:
                return self._end_tokens(sequence)[0]
            steering.follow(matcher, token, left)
        sequence.length += 1
        return token

    def _end_tokens(self, sequence: BoundSequence) -> list[int]:
        own = self._vocabulary.end_bits if self._vocabulary is not None else ()
        return [32 * word + bit for word, bit in (*own, *sequence.ends)]

    def _settle(self) -> None:
        """Nobody writes to the masks any more: those of a step that failed were not asked for."""
        job, self._job = self._job, None
        if job is not None:
            with suppress(Exception):
                job.result()

    def _grow(self) -> None:
        count = len(self.masks)
        larger = np.zeros((max(_FIRST_ROWS, 2 * count), self.masks.shape[1]), np.uint32)
        larger[:count] = self.masks
        self.masks = larger
        self._free = list(range(len(larger) - 1, count - 1, -1))

    def _end_bits(self, stops: Iterable[int]) -> EndBits:
        return tuple((token // 32, token % 32) for token in stops if 0 <= token < self._vocab_size)

    def _threads(self, name: str) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, name, initializer=self._leave_compute_threads)

    def _leave_compute_threads(self) -> None:
        """A thread inherits where its starter may run, which may be the one CPU on which that computes."""
        with suppress(OSError):  # others than there are now: the kernel's choice is as good
            os.sched_setaffinity(0, self._cpus or thread_cpus(os.getpid()))

    # On the thread that makes matchers

    def _make(self, grammar: str, answered: Sequence[int], most: int) -> BoundMatcher:
        """`most`: tokens of the answer at most, of which `answered` are there."""
        kept = self._beginning(grammar)
        assert self._ends is not None  # made with the vocabulary
        bound = BoundMatcher(kept.matcher.deep_copy(), kept.near(most))
        if most <= bound.near:
            bound.steering = EndSteering(self._ends, bound.matcher, most, kept.end)
        for index, token in enumerate(answered):
            self._come_near(bound, most - index)
            if bound.steering is None:
                bound.matcher.consume_token(token)
            else:
                bound.steering.follow(bound.matcher, token, most - index - 1)
        return bound

    def _keep(self, grammar: str) -> None:
        self._beginning(grammar)

    def _beginning(self, grammar: str) -> Beginning:
        if self._vocabulary is None:
            self._vocabulary = self._read_vocabulary()
            self._ends = ShortEnds(self._vocabulary)
        kept = self._kept.get(grammar)
        if kept is None:
            kept = self._kept[grammar] = self._at_beginning(grammar)
            if len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(grammar)
        return kept

    def _at_beginning(self, grammar: str) -> Beginning:
        assert self._vocabulary is not None and self._ends is not None  # who calls has them
        matcher = make_matcher(self._vocabulary, grammar)
        steerable = can_be_steered(self._ends, matcher)
        return Beginning(matcher, short_end(self._ends, matcher) if steerable else None, steerable)

    def _come_near(self, bound: BoundMatcher, left: int) -> None:
        """Keep the end within reach from here on, where `left` tokens may still come and these are few."""
        if bound.steering is None and not bound.matcher.is_error() and self._is_near(bound, left):
            assert self._ends is not None  # made with the first matcher
            bound.steering = EndSteering(self._ends, bound.matcher, left)

    def _is_near(self, bound: BoundMatcher, left: int) -> bool:
        """Also sooner than at the beginning was to be expected, where the end has moved away since."""
        if left <= bound.near:
            return True
        assert self._ends is not None  # made with the first matcher
        if bound.near == _NEVER or left % _NEAR or left > bound.look:
            return False
        end = short_end(self._ends, bound.matcher, _LOOKS_AHEAD)
        bound.look = left // 2 if end is None else left - _NEAR
        return left <= _NEAR + 2 * len(end or ())

    # On the thread of the masks

    def _compute(self, count: int, work: list[tuple[int, int, BoundSequence, int | None]]) -> StepMasks:
        rows = np.full(count, -1, np.int32)
        failed: dict[int, str] = {}
        ready: list[tuple[int, int, BoundSequence, BoundMatcher]] = []
        consumed: list[tuple[LLMatcher, int]] = []
        for row, slot, bound, token in work:
            rows[row] = bound.row
            try:
                found = bound.bound.result()
            except HomenodeError as error:
                failed[row] = error.message
            except ValueError as error:
                failed[row] = str(error)
            else:
                bound.made = found
                ready.append((row, slot, bound, found))
                if token is not None:
                    consumed.append((found.matcher, token))
        if ready:
            self._fill([(found.matcher, bound.row) for _, _, bound, found in ready], consumed)
        for _, _, bound, found in ready:
            self._come_near(found, bound.last - bound.length)
        failed |= {row: reason_of(found.matcher) for row, _, _, found in ready if found.matcher.is_error()}
        return self._looked_through(rows, failed, ready)

    def _fill(self, filled: list[tuple[LLMatcher, int]], consumed: list[tuple[LLMatcher, int]]) -> None:
        from llguidance import LLExecutor

        if self._executor is None:
            self._executor = LLExecutor(min(_MOST_THREADS, len(thread_cpus())))
        if consumed:
            self._executor.consume_token_par(consumed)
        masks = self.masks
        self._executor.unsafe_compute_mask_ptr(filled, masks.ctypes.data, masks.strides[0], len(masks))

    def _looked_through(
        self, rows: IntArray, failed: dict[int, str], ready: list[tuple[int, int, BoundSequence, BoundMatcher]]
    ) -> StepMasks:
        assert self._vocabulary is not None or not ready
        forced, ending = set(), set()
        own = self._vocabulary.end_bits if self._vocabulary is not None else ()
        may_end = [any(self.masks[bound.row, word] >> bit & 1 for word, bit in own) for _, _, bound, _ in ready]
        for (_, _, bound, _), ends in zip(ready, may_end, strict=True):
            for word, bit in bound.ends if ends else ():
                self.masks[bound.row, word] |= np.uint32(1 << bit)
        counts = token_counts(self.masks[[bound.row for _, _, bound, _ in ready]])
        for (row, slot, bound, _), ends, count in zip(ready, may_end, counts, strict=True):
            bound.free = 2 * count > self._vocab_size
            if count == 1:
                forced.add(row)
            if ends and count <= len(own) + len(bound.ends):
                bits = {*own, *bound.ends}
                if count == sum(int(self.masks[bound.row, word] >> bit & 1) for word, bit in bits):
                    ending.add(slot)
        return StepMasks(rows, frozenset(forced), frozenset(ending), failed)


def token_counts(masks: npt.NDArray[np.uint32]) -> list[int]:
    """[rows] tokens that each of the masks leaves; `masks`: [rows, words]."""
    if hasattr(np, "bitwise_count"):  # NumPy 2
        counts: list[int] = np.bitwise_count(masks).sum(1, dtype=np.int64).tolist()
        return counts
    return [int(np.unpackbits(mask.view(np.uint8)).sum()) for mask in masks]
