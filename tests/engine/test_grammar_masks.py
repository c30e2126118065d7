"""A worker's masks: matchers that follow sequences, come again with their tokens, and fail alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from homenode.engine.step import StartSequence
from homenode.engine.worker.grammar_masks import Beginning, GrammarMasks, StepMasks, token_counts
from homenode.engine.worker.sequences import SequenceTable
from homenode.errors import CheckpointError
from homenode.grammars.compile import compile_grammar
from homenode.grammars.spec import GrammarSpec, Lark, Regex
from homenode.grammars.vocabulary import Vocabulary
from homenode.sampling import SamplingParams
from tests.pure.grammars.vocabularies import BYTES, END, ByteTexts
from tests.waiting import PATIENCE_S

SIZE = 300


class Bound:
    """A table and the masks beside it, as a runner drives them."""

    def __init__(self) -> None:
        self.table = SequenceTable(16, eos_token_ids=(END,))
        self.masks = GrammarMasks(lambda: Vocabulary(ByteTexts(), SIZE, [END]), SIZE)

    def start(self, seq: int, spec: GrammarSpec | str | None, answered: bytes = b"", **params: Any) -> None:
        grammar = spec if spec is None or isinstance(spec, str) else compile_grammar(spec, BYTES, "field").text
        start = StartSequence(seq, [1, 2, *answered], 2, SamplingParams(grammar=grammar, **params))
        self.table.start(start)
        if grammar is not None:
            self.masks.start(self.table.slot(seq), start)

    def end(self, seq: int) -> None:
        self.masks.end(self.table.find(seq))
        self.table.end(seq)

    def step(self, *seqs: int) -> StepMasks | None:
        self.masks.begin(np.array([self.table.slot(seq) if seq else 0 for seq in seqs], np.intp), self.table)
        return self.masks.finish()

    def draw(self, seq: int, token: int) -> None:
        self.table.append(np.array([self.table.slot(seq)]), np.array([token], np.int32))

    def allowed(self, *seqs: int) -> list[set[int] | None]:
        found = self.step(*seqs)
        assert found is not None
        bits = [np.unpackbits(mask.view(np.uint8), bitorder="little") for mask in self.masks.masks]
        return [None if row < 0 else set(np.flatnonzero(bits[row]).tolist()) for row in found.rows.tolist()]


@pytest.fixture
def bound() -> Iterator[Bound]:
    made = Bound()
    yield made
    made.masks.close()


def test_masks_follow_the_tokens_of_their_sequences(bound: Bound) -> None:
    bound.start(1, Regex("ab?"))
    bound.start(2, None)
    bound.start(3, Regex("[x-z]{2}"))
    assert bound.allowed(1, 2, 0, 3) == [set(b"a"), None, None, set(b"xyz")]
    bound.draw(1, ord("a"))
    bound.draw(3, ord("y"))
    assert bound.allowed(3, 1) == [set(b"xyz"), {ord("b"), END}]
    assert bound.allowed(1) == [{ord("b"), END}]  # nothing was drawn meanwhile
    bound.draw(1, ord("b"))
    found = bound.step(1)
    assert found is not None and found.forced == {0} and found.ending == {bound.table.slot(1)} and not found.failed


def test_a_sequence_that_comes_back_brings_its_tokens(bound: Bound) -> None:
    bound.start(1, Regex("abc"))
    bound.draw(1, ord("a"))
    bound.end(1)
    bound.start(2, Regex("abc"), b"ab")
    assert bound.allowed(2) == [set(b"c")]
    bound.draw(2, ord("c"))
    assert bound.allowed(2) == [{END}]


def test_many_sequences_of_one_grammar_do_not_share_their_places(bound: Bound) -> None:
    for seq in range(1, 41):
        bound.start(seq, Regex("[a-z]*!"), b"a" * (seq % 5))
    for seq in range(1, 41, 2):
        bound.draw(seq, ord("!"))
    found = bound.allowed(*range(1, 41))
    assert found == [{END} if seq % 2 else {*b"abcdefghijklmnopqrstuvwxyz!"} for seq in range(1, 41)]


def test_stop_tokens_of_a_request_come_where_the_grammar_may_end(bound: Bound) -> None:
    bound.start(1, Regex("ab?"), stop_token_ids=(256,))
    assert bound.allowed(1) == [set(b"a")]
    bound.draw(1, ord("a"))
    assert bound.allowed(1) == [{ord("b"), END, 256}]
    bound.draw(1, ord("b"))
    found = bound.step(1)
    assert found is not None and found.ending == {bound.table.slot(1)} and not found.forced


def test_what_cannot_go_on_fails_alone(bound: Bound) -> None:
    bound.start(1, 'start: "a" nothing')
    bound.start(2, Regex("[ab]c"))
    found = bound.step(1, 2)
    assert found is not None and found.failed.keys() == {0} and "nothing" in found.failed[0]
    bound.draw(2, ord("!"))  # which the mask did not have
    found = bound.step(2)
    assert found is not None and found.failed.keys() == {0}


def test_a_vocabulary_that_cannot_be_read_fails_the_sequence() -> None:
    def fail() -> Vocabulary:
        raise CheckpointError("there is no tokenizer")

    bound = Bound()
    bound.masks = GrammarMasks(fail, SIZE)
    bound.start(1, Regex("a"))
    found = bound.step(1)
    assert found is not None and found.failed == {0: "there is no tokenizer"}
    bound.masks.close()


def test_masks_of_a_failed_step_are_waited_for(bound: Bound) -> None:
    bound.start(1, Regex("abc"))
    bound.masks.begin(np.array([bound.table.slot(1)]), bound.table)  # nobody asks for them
    bound.end(1)
    assert len(bound.masks) == 0
    assert bound.masks.finish() is None
    bound.start(2, Regex("x"))
    assert bound.allowed(2) == [set(b"x")]


def test_token_counts() -> None:
    assert token_counts(np.array([[0, 5, 2**32 - 1], [0, 0, 1]], np.uint32)) == [34, 1]
    assert token_counts(np.zeros((0, 3), np.uint32)) == []


def test_ends_are_kept_within_reach_also_by_who_takes_a_sequence_up(bound: Bound) -> None:
    bound.start(1, Regex("[0-9]+x"), max_tokens=4)
    bound.start(2, Regex("[0-9]+x"), b"12", max_tokens=4)
    bound.start(3, Regex("[0-9]+x"), max_tokens=40)

    def kept(*seqs: int) -> dict[int, int]:
        """What becomes of another digit for each."""
        slots = np.array([bound.table.slot(seq) for seq in seqs], np.intp)
        bound.step(*seqs)
        replaced = bound.masks.keep_ends(slots, np.full(len(seqs), ord("7"), np.int32))
        for row, seq in enumerate(seqs):
            bound.draw(seq, replaced.get(row, ord("7")))
        return replaced

    assert [kept(1, 3), kept(1), kept(1, 2, 3)] == [{}, {}, {}]
    assert kept(2, 1, 3) == {0: ord("x"), 1: ord("x")}
    assert bound.allowed(1, 2) == [{END}, {END}]


def test_a_text_that_is_complete_ends_before_what_could_not_be_completed(bound: Bound) -> None:
    bound.start(1, Regex("[0-9]( [a-z]{5})*"), max_tokens=4)
    bound.start(2, Lark('start: /(.|\\n)*/ ("<" /[a-z]{5}/ ">")?'), max_tokens=4)
    slots = np.array([bound.table.slot(1), bound.table.slot(2)], np.intp)
    bound.step(1, 2)
    assert bound.masks.keep_ends(slots, np.array([ord("7"), ord("a")], np.int32)) == {}
    bound.draw(1, ord("7"))
    bound.draw(2, ord("a"))
    bound.step(1, 2)
    assert bound.masks.keep_ends(slots, np.array([ord(" "), ord("<")], np.int32)) == {0: END}  # the other one is free


def test_an_end_that_moves_away_is_kept_within_reach_as_well(bound: Bound) -> None:
    nested = Lark('start: "(" start ")" | "x"')
    bound.start(1, nested, max_tokens=100)
    slots, text = np.array([bound.table.slot(1)], np.intp), b""
    while len(text) < 100:
        found = bound.allowed(1)[0]
        assert found is not None
        drawn = ord("(") if ord("(") in found else min(found)
        if drawn == END:
            break
        token = bound.masks.keep_ends(slots, np.array([drawn], np.int32)).get(0, drawn)
        bound.draw(1, token)
        text += bytes([token])
        if len(text) == 70:  # somebody else takes it up there
            bound.end(1)
            bound.start(1, nested, text, max_tokens=100)
            slots = np.array([bound.table.slot(1)], np.intp)
    assert len(text) > 90 and text.count(b"(") == text.count(b")") > 40 and b"x" in text


def test_an_answer_that_is_far_too_short_for_its_form_is_not_steered() -> None:
    matcher: Any = None
    long, unknown = Beginning(matcher, (7,) * 30, steerable=True), Beginning(matcher, None, steerable=True)
    assert long.near(7) < 0 < long.near(8) and unknown.near(128) < 0 < unknown.near(300)
    assert Beginning(matcher, (), steerable=True).near(1) > 0 > Beginning(matcher, (), steerable=False).near(1)


def test_what_cannot_take_tokens_back_is_cut_as_it_is(bound: Bound) -> None:
    bound.start(1, 'start: thoughts "!"\nthoughts[max_tokens=3]: /[a-z]*/', max_tokens=4)
    slots = np.array([bound.table.slot(1)], np.intp)
    for token in b"abc":
        found = bound.step(1)
        assert found is not None and not found.failed
        assert bound.masks.keep_ends(slots, np.array([token], np.int32)) == {}
        bound.draw(1, token)
    assert bound.allowed(1) == [{ord("!")}]


def test_a_grammar_is_made_before_anybody_comes_with_it(bound: Bound) -> None:
    grammar = compile_grammar(Regex("ab?"), BYTES, "field").text
    made = bound.masks.prepare(grammar)
    assert made is not None
    made.result(PATIENCE_S)
    assert bound.masks.prepare(grammar) is None
    bound.start(1, grammar)
    assert bound.allowed(1) == [set(b"a")]
    wrong = bound.masks.prepare("start: nothing")
    assert wrong is not None and isinstance(wrong.exception(PATIENCE_S), ValueError)
