"""Vocabularies of bytes for matchers, and random texts that a grammar accepts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

llguidance = pytest.importorskip("llguidance")

END = 256
_STRUCTURE = b"\"'<>{}[]()|,:\n \\"
_LONGEST = 6000


class ByteVocabulary:
    """One token a byte, then the end, then special tokens."""

    bos_token_id = None
    eos_token_id = END

    def __init__(self, special: Sequence[str] = ()) -> None:
        names = ["<end>", *special]
        self.ids = {text: END + 1 + number for number, text in enumerate(special)}
        self.tokens = [bytes([byte]) for byte in range(256)] + [name.encode() for name in names]
        self.special_token_ids = [END, *self.ids.values()]
        self._library: Any = None

    def __call__(self, text: bytes) -> list[int]:
        return list(text)

    def matcher(self, grammar: str) -> Any:
        """At the beginning of a text of a Lark grammar, which must be right."""
        if self._library is None:
            self._library = llguidance.LLTokenizer(llguidance.TokenizerWrapper(self))
        matcher = llguidance.LLMatcher(self._library, llguidance.grammar_from("lark", grammar), log_level=0)
        assert not matcher.is_error(), f"{matcher.get_error()}\n{grammar}"
        return matcher

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, special ones where it has their names."""
        tokens: list[int] = []
        while text:
            found = next((name for name in self.ids if text.startswith(name)), None)
            tokens += [self.ids[found]] if found else text[0].encode()
            text = text[len(found or "x") :]
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens."""
        return b"".join(self.tokens[token] for token in tokens if token != END).decode()


def accepts(grammar: str, text: str, vocabulary: ByteVocabulary | None = None) -> bool:
    """Whether a text is a whole message of the grammar."""
    vocabulary = vocabulary or ByteVocabulary()
    matcher = vocabulary.matcher(grammar)
    return all(matcher.try_consume_tokens([token]) for token in vocabulary.encode(text)) and matcher.is_accepting()


def random_text(grammar: str, vocabulary: ByteVocabulary, rng: random.Random, marks: Sequence[str] = ()) -> str:
    """A whole text of the grammar: a walk over the masks of its matcher that hurries to an end. It writes some of
    `marks` as a whole, which chance does not.
    """
    matcher, tokens = vocabulary.matcher(grammar), list[int]()
    hurry, written = rng.choice((0.3, 0.6, 0.9)), [vocabulary.encode(mark) for mark in marks]
    while not matcher.is_stopped():
        assert len(tokens) < _LONGEST, f"no end: {vocabulary.decode(tokens)[-300:]!r}"
        following = _mark(matcher, written, rng, len(tokens))
        if not following:
            token = _choose(matcher.compute_bitmask(), len(vocabulary.tokens), rng, hurry, len(tokens))
            assert token is not None, f"nothing may follow {vocabulary.decode(tokens)[-300:]!r}\n{grammar}"
            following = [token]
        if following == [END]:
            break
        for token in following:
            assert matcher.consume_token(token), matcher.get_error()
        tokens += following
    assert matcher.is_accepting() or matcher.stop_reason() in ("NoExtension", "EndOfSentence"), matcher.get_error()
    return vocabulary.decode(tokens)


def _mark(matcher: Any, marks: Sequence[list[int]], rng: random.Random, length: int) -> list[int]:
    """A mark that may follow, sometimes, and more often in a long text."""
    if not marks or rng.random() < (0.9 if length < 400 else 0.6):
        return []
    mark = rng.choice(marks)
    return mark if matcher.validate_tokens(mark) == len(mark) else []


def _choose(mask: bytes, size: int, rng: random.Random, hurry: float, length: int) -> int | None:
    allowed = [token for token in range(size) if mask[token >> 3] >> (token & 7) & 1]
    if END in allowed and (rng.random() < 0.3 or length > 400):
        return END
    allowed = [token for token in allowed if token != END]
    special = [token for token in allowed if token > END]
    closers = [token for token in allowed if token < END and token in b'"}])>']
    if length > 400 and closers and rng.random() < 0.7:
        return rng.choice(closers)
    structure = [token for token in allowed if token < END and token in _STRUCTURE]
    if length > 400 and special:
        return rng.choice(special)
    if structure and (rng.random() < hurry or length > 800):
        return rng.choice(structure)
    plain = [token for token in allowed if 32 <= token < 127] if rng.random() < 0.9 else allowed
    if plain or allowed:
        return rng.choice(plain or allowed)
    return END if mask[END >> 3] >> (END & 7) & 1 else None
