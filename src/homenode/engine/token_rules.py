"""The wishes of sampling parameters about texts, said about tokens: the engine knows no text.

`bad_words` become automata over tokens, and `dry_sequence_breakers` the tokens that hold them. Both take a look at the
whole vocabulary, once for each text.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import lru_cache
from typing import Protocol

import msgspec

from homenode.sampling import ForbiddenText, SamplingParams

_REMEMBERED = 256  # texts


class RuledVocabulary(Protocol):
    """The part of a tokenizer that rules ask for."""

    @property
    def special_token_ids(self) -> Collection[int]: ...

    def token_bytes(self, token: int) -> bytes: ...


class TokenRules:
    """Rules for one vocabulary. Safe to use from several threads."""

    def __init__(self, tokenizer: RuledVocabulary, vocab_size: int) -> None:
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._texts: list[bytes] | None = None
        self.forbidden: Callable[[str], ForbiddenText] = lru_cache(_REMEMBERED)(self._forbidden)
        self.breakers: Callable[[tuple[str, ...]], tuple[int, ...]] = lru_cache(_REMEMBERED)(self._breakers)

    def resolved(self, params: SamplingParams) -> SamplingParams:
        """The parameters for an engine: without texts."""
        if not params.bad_words and not params.dry_multiplier:
            return params
        ids = self.breakers(params.dry_sequence_breakers) if params.dry_multiplier else ()
        forbidden = tuple(self.forbidden(word) for word in dict.fromkeys(params.bad_words) if word)
        return msgspec.structs.replace(
            params, bad_words=(), dry_sequence_breakers=(), dry_breaker_ids=ids, forbidden=forbidden
        )

    def _all_texts(self) -> list[bytes]:
        """The bytes that each token adds to a text; none for special tokens, which are not shown."""
        if self._texts is None:
            special, bytes_of = frozenset(self._tokenizer.special_token_ids), self._tokenizer.token_bytes
            self._texts = [b"" if token in special else bytes_of(token) for token in range(self._vocab_size)]
        return self._texts

    def _breakers(self, texts: tuple[str, ...]) -> tuple[int, ...]:
        wanted = [text.encode() for text in texts]
        return tuple(t for t, own in enumerate(self._all_texts()) if any(text in own for text in wanted))

    def _forbidden(self, word: str) -> ForbiddenText:
        text = word.encode("utf-8", "surrogatepass")
        whole: list[int] = []
        completing: list[list[int]] = [[] for _ in text[1:]]
        beginning: list[list[int]] = [[] for _ in text[1:]]
        inner: list[tuple[int, int, int]] = []
        for token, own in enumerate(self._all_texts()):
            if not own:
                continue
            if text in own:
                whole.append(token)
                continue
            inside = own in text
            for at in range(1, len(text)):
                if own.startswith(text[at:]):
                    completing[at - 1].append(token)
                elif inside and text.startswith(own, at):
                    inner.append((token, at, at + len(own)))
                if own.endswith(text[:at]):
                    beginning[at - 1].append(token)
        return ForbiddenText(tuple(whole), tuple(map(tuple, completing)), tuple(map(tuple, beginning)), tuple(inner))
