"""Ends of texts that are bound by a grammar: short, found within bounds, and kept within reach."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

import pytest

from homenode.grammars.compile import compile_grammar
from homenode.grammars.end_steering import EndSteering, short_end
from homenode.grammars.matcher import make_matcher
from homenode.grammars.short_ends import ShortEnds
from homenode.grammars.spec import GrammarSpec, JsonObject, JsonSchema, Lark, Regex
from homenode.grammars.vocabulary import Vocabulary
from tests.examples import seeds
from tests.pure.grammars.vocabularies import BYTES, END

LONGER = [b'""', b'"}', b'"}]}', b'","', b'":', b'":"', b"name", b'"name', b"00", b"aaaa", b"the", b"  ", b"\xe7\x8c"]


class WordTexts:
    """Bytes, and some longer tokens from 300 on."""

    bytes_are_text = True
    special_token_ids = (256, END)
    stop_token_ids = (END,)

    def token_bytes(self, token: int) -> bytes:
        if token >= 300:
            return LONGER[token - 300]
        return bytes([token]) if token < 256 else f"<{token}>".encode()


WORDS = Vocabulary(WordTexts(), 300 + len(LONGER), [END])
FORM = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "tags": {"type": "array", "items": {"type": "string", "minLength": 3}, "minItems": 1},
        "code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{1,3}$"},
        "inner": {"type": "object", "properties": {"n": {"type": "integer"}, "ok": {"type": "boolean"}},
            "required": ["n"]},
    },
    "required": ["name", "tags", "code"],
}  # fmt: skip
ADDRESS = {  # digits that are the only way on for a while, behind texts that may be anything
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "lines": {"type": "array", "items": {"type": "string"}},
        "city": {"type": "object", "properties": {"zip": {"type": "string", "pattern": "^[0-9]{5}$"}},
            "required": ["zip"]},
    },
    "required": ["name", "lines", "city"],
}  # fmt: skip
SPECS: list[tuple[GrammarSpec, int]] = [  # with the most tokens that an end from the beginning may have
    (JsonSchema(FORM), 60),
    (JsonObject(), 2),
    (Regex("(ab|cd){3} [0-9]+x{1,3}"), 9),
    (Regex("[^x]*x"), 1),
    (Regex("[a-z]{20}!"), 21),
    (JsonSchema(ADDRESS), 71),
    (JsonSchema({"type": "array", "items": {"type": "string", "format": "uuid"}, "minItems": 4, "maxItems": 4}), 160),
    (Lark('start: "(" start ")" | "x"'), 1),
]


@pytest.mark.parametrize("vocabulary", [BYTES, WORDS], ids=["bytes", "words"])
@pytest.mark.parametrize(("spec", "most"), SPECS, ids=lambda value: type(value).__name__)
def test_an_end_is_found_from_the_beginning(spec: GrammarSpec, most: int, vocabulary: Vocabulary) -> None:
    matcher = make_matcher(vocabulary, compile_grammar(spec, vocabulary, "field").text)
    end, looks = ShortEnds(vocabulary).find(matcher, 256)
    assert end is not None and len(end) <= most and looks <= 256
    assert matcher.try_consume_tokens(list(end)) == len(end) and matcher.is_accepting()  # it was where it had been


def test_what_has_no_end_within_bounds_is_told() -> None:
    matcher = make_matcher(BYTES, compile_grammar(Regex("[a-z]{600}"), BYTES, "field").text)
    end, looks = ShortEnds(BYTES).find(matcher, 64)
    assert end is None and looks == 64 and short_end(ShortEnds(BYTES), matcher) is None


class Interrupted:
    """A matcher; while it computes a mask another thread searches, here at once, with a matcher of its own."""

    def __init__(self, matcher: Any, others: Callable[[], object]) -> None:
        self._matcher, self._others = matcher, others

    def unsafe_compute_mask_ptr(self, address: int, size: int) -> None:
        self._matcher.unsafe_compute_mask_ptr(address, size)
        self._others()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._matcher, name)


def test_searches_of_several_threads_do_not_disturb_each_other() -> None:
    """One thread makes matchers, another one computes masks, and both look for ends."""
    ends = ShortEnds(WORDS)
    first, second = (
        make_matcher(WORDS, compile_grammar(spec, WORDS, "field").text) for spec in (JsonSchema(FORM), Regex("[^x]*x"))
    )
    alone = ends.find(first, 256)
    assert ends.find(Interrupted(first, lambda: ends.find(second, 8)), 256) == alone  # type: ignore[arg-type]


def written(spec: GrammarSpec, seed: int, most: int, vocabulary: Vocabulary) -> tuple[bytes, list[int]]:
    """A text by chance of at most so many tokens, kept by an `EndSteering` from its beginning on, and its tokens."""
    rng = random.Random(seed)
    matcher = make_matcher(vocabulary, compile_grammar(spec, vocabulary, "field").text)
    steering, tokens = EndSteering(ShortEnds(vocabulary), matcher, most), []
    words = -(-vocabulary.size // 32)
    for left in range(most - 1, -1, -1):
        mask = int.from_bytes(matcher.compute_bitmask()[: 4 * words], "little")
        token = rng.choice([token for token in range(vocabulary.size) if mask >> token & 1])
        if token == END:
            break
        if not steering.admits(matcher, token, left):
            if not steering.end:
                break  # the text is complete
            token = steering.end[0]
            steering.follow(matcher, token, left)
        tokens.append(token)
    texts = vocabulary.texts
    return b"".join(texts[token] for token in tokens), tokens


@pytest.mark.parametrize("vocabulary", [BYTES, WORDS], ids=["bytes", "words"])
@pytest.mark.parametrize("seed", seeds(6))
def test_texts_by_chance_end_in_time(seed: int, vocabulary: Vocabulary) -> None:
    text, tokens = written(JsonSchema(FORM), seed, 80, vocabulary)
    value: Any = json.loads(text)
    assert value["name"] is not None and re.fullmatch("[A-Z]{2}-[0-9]{1,3}", value["code"]) and len(tokens) <= 80
    text, tokens = written(Regex("(ab|cd){3} [0-9]+x{1,3}"), seed, 12, vocabulary)
    assert re.fullmatch("(ab|cd){3} [0-9]+x{1,3}", text.decode()) and len(tokens) <= 12
    text, _ = written(Regex("[0-9]+( [a-z]{5})*"), seed, 9, vocabulary)
    assert re.fullmatch("[0-9]+( [a-z]{5})*", text.decode())
    text, _ = written(JsonObject(), seed, 40, vocabulary)
    assert isinstance(json.loads(text), dict)


LOOPS = [  # whose first choices lead round and round, or words lead away from the end that was known
    "([0-9]+,)*[0-9]+END",
    "([a-z]=[0-9];)+#done",
    "(go )*(to (far ){3,9})?!",
]


@pytest.mark.parametrize("vocabulary", [BYTES, WORDS], ids=["bytes", "words"])
@pytest.mark.parametrize("pattern", LOOPS)
def test_ends_are_found_beside_the_ways_that_lead_round(pattern: str, vocabulary: Vocabulary) -> None:
    matcher = make_matcher(vocabulary, compile_grammar(Regex(pattern), vocabulary, "field").text)
    end = short_end(ShortEnds(vocabulary), matcher)
    assert end is not None and matcher.try_consume_tokens(list(end)) == len(end) and matcher.is_accepting()
    for seed in range(8):
        text, tokens = written(Regex(pattern), seed, 60, vocabulary)
        assert re.fullmatch(pattern, text.decode()) and len(tokens) <= 60, text


def test_words_in_a_text_are_not_looked_at_while_its_end_is_near() -> None:
    matcher = make_matcher(WORDS, compile_grammar(Regex('"[^"]*"[0-9]{3}'), WORDS, "field").text)
    assert matcher.consume_token(ord('"'))
    looks = 0

    def count() -> None:
        nonlocal looks
        looks += 1

    class Counted(Interrupted):
        def try_consume_tokens(self, tokens: list[int]) -> int:
            self._others()
            return int(self._matcher.try_consume_tokens(tokens))

    watched: Any = Counted(matcher, count)
    steering, seen = EndSteering(ShortEnds(WORDS), watched, 100), []
    the = 300 + LONGER.index(b"the")
    for left in range(99, 2, -1):
        before = looks
        assert steering.admits(watched, the, left)
        seen.append(looks > before)
    assert sum(seen[:40]) < 20 and all(seen[-16:])  # each of them, where few tokens are left
    assert not steering.admits(watched, the, 2) and steering.end is not None and len(steering.end) == 3


@pytest.mark.parametrize("seed", seeds(6))
@pytest.mark.parametrize(("spec", "most"), [(JsonSchema(FORM), 80), (JsonObject(), 150), (Regex(LOOPS[-1]), 60)])
def test_who_takes_up_a_text_goes_on_as_it_would_have(spec: GrammarSpec, most: int, seed: int) -> None:
    _, tokens = written(spec, seed, most, WORDS)
    ends, text = ShortEnds(WORDS), compile_grammar(spec, WORDS, "field").text
    matcher = make_matcher(WORDS, text)
    whole = EndSteering(ends, matcher, most)
    kept = [whole.end]
    for index, token in enumerate(tokens):
        whole.follow(matcher, token, most - index - 1)
        kept.append(whole.end)
    for cut in range(0, len(tokens), 7):
        again = make_matcher(WORDS, text)
        steering = EndSteering(ends, again, most)
        for index, token in enumerate(tokens[:cut]):
            steering.follow(again, token, most - index - 1)
        assert steering.end == kept[cut]


def test_many_brackets_are_closed_one_after_another() -> None:
    inner: dict[str, Any] = {"type": "array", "items": {"$ref": "#"}, "maxItems": 2}
    tree = {"type": "object", "properties": {"v": {"type": "integer"}, "kids": inner}, "required": ["v", "kids"]}
    for vocabulary in (BYTES, WORDS):
        matcher = make_matcher(vocabulary, compile_grammar(JsonSchema(tree), vocabulary, "field").text)
        assert matcher.consume_tokens(list(b'{"v":1,"kids":[' * 30))
        end, looks = ShortEnds(vocabulary).find(matcher, 128)
        assert end is not None and len(end) <= 60 and looks < 100
