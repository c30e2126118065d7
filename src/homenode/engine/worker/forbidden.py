"""Texts that an answer must not hold (`bad_words`): which tokens would complete one of them now."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from homenode.compute.ops import FloatArray, IntArray
from homenode.sampling import ForbiddenText


class _ForbiddenWatch:
    """One text, and how many of its bytes the answer ends with: all numbers for which that holds."""

    def __init__(self, text: ForbiddenText) -> None:
        self._whole = np.array(text.whole, np.int32)
        self._completing = [np.array(tokens, np.int32) for tokens in text.completing]
        self._begins: dict[int, list[int]] = {}
        for at, tokens in enumerate(text.beginning, start=1):
            for token in tokens:
                self._begins.setdefault(token, []).append(at)
        self._inner: dict[int, list[tuple[int, int]]] = {}
        for token, at, to in text.inner:
            self._inner.setdefault(token, []).append((at, to))
        self._reached: frozenset[int] = frozenset()

    def add(self, token: int) -> None:
        further = [to for at, to in self._inner.get(token, ()) if at in self._reached]
        self._reached = frozenset((*self._begins.get(token, ()), *further))

    def tokens(self) -> list[IntArray]:
        return [self._whole, *(self._completing[at - 1] for at in self._reached)]


class ForbiddenTexts:
    """The forbidden texts of one sequence."""

    def __init__(self, texts: Iterable[ForbiddenText], answer: Iterable[int]) -> None:
        """`answer`: the tokens of the answer so far."""
        self._watched = [_ForbiddenWatch(text) for text in texts]
        for token in answer:
            self.add(token)

    def add(self, token: int) -> None:
        """A token that was drawn."""
        for watched in self._watched:
            watched.add(token)

    def penalties(self) -> tuple[IntArray, FloatArray]:
        """The tokens that would complete a text, each once, and minus infinity for each."""
        found = np.unique(np.concatenate([part for watched in self._watched for part in watched.tokens()]))
        return found.astype(np.int32), np.full(len(found), -np.inf, np.float32)
