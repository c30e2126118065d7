"""A vocabulary to try grammars with: few tokens, which spell what all of them do."""

from __future__ import annotations

import itertools

import pytest

from homenode.grammars.compile import compile_grammar
from homenode.grammars.matcher import try_grammar_text
from homenode.grammars.spec import GrammarSpec, JsonSchema, Lark, Regex
from homenode.grammars.vocabulary import TrialVocabulary, Vocabulary

pytest.importorskip("llguidance")
_MISSING = b"\x04z"  # bytes that are no token by themselves
_TEXTS = [bytes([byte]) for byte in range(256) if byte not in _MISSING]
_TEXTS += [b"ab", b"abc", b"\xc3\xa9", b"zz", b"za", b"a\x04", b"cab"]
_SPECIAL = [b"<|end|>", b"<|call|>"]


class Texts:
    """Some bytes, some words, and two tokens that are no text."""

    bytes_are_text = True
    stop_token_ids = (len(_TEXTS),)
    special_token_ids = (len(_TEXTS), len(_TEXTS) + 1)

    def token_bytes(self, token: int) -> bytes:
        return (_TEXTS + _SPECIAL)[token] if token < len(_TEXTS) + len(_SPECIAL) else b""


def vocabularies() -> tuple[Vocabulary, TrialVocabulary]:
    size, ends = len(_TEXTS) + len(_SPECIAL) + 3, (len(_TEXTS),)
    return Vocabulary(Texts(), size, ends), TrialVocabulary(Texts(), size, ends)


def test_every_text_is_spelled_and_few_tokens_are_there() -> None:
    whole, trial = vocabularies()
    kept = [token for token, text in enumerate(trial.texts) if text]
    assert [trial.texts[token] for token in kept if len(trial.texts[token]) > 1] == [b"zz", b"za", b"a\x04", *_SPECIAL]
    assert all(trial.texts[token] == whole.texts[token] for token in kept) and trial.special == whole.special
    assert len(trial.texts) == len(whole.texts)


@pytest.mark.parametrize(
    "spec",
    [
        Regex("(ab|cab)+"),
        Regex("zzza?"),
        Regex("z"),  # which no token spells
        Regex("z[zb]b"),
        Regex("é+"),
        Regex("\x04"),
        Lark('start: "abc" <|call|> /[^z]+/'),
        Lark('start: "abc" <|other|>'),
        Lark('start: "abc" nothing'),
        JsonSchema({"type": "object", "properties": {"z": {"type": "integer"}}, "required": ["z"]}),
        JsonSchema({"enum": ["ab", "zz", 5]}),
        JsonSchema({"type": "integer", "minimum": 5, "maximum": 4}),
    ],
)
def test_a_grammar_is_taken_or_refused_as_with_the_whole_vocabulary(spec: GrammarSpec) -> None:
    answers = []
    for vocabulary in vocabularies():
        try:
            answers.append(compile_grammar(spec, vocabulary, "field").text)
        except Exception as error:  # whatever it says, both say it
            answers.append(f"{type(error).__name__}: {error}")
    assert answers[0] == answers[1]


@pytest.mark.parametrize("text", [b"".join(each) for each in itertools.product([b"a", b"za", b"zz", b"b"], repeat=2)])
def test_a_text_can_be_written_with_either(text: bytes) -> None:
    for vocabulary in vocabularies():
        try_grammar_text(vocabulary, f'start: "{text.decode()}"')
