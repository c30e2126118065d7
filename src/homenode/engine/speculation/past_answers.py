"""Answers that have ended, from which those to similar requests are drafted: those of one `cache_salt` are nothing to
draft from for another. Bounded: the oldest are forgotten.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from homenode.engine.speculation.text_index import SEPARATOR, TextIndex

_TOKENS: Final = 32768  # of all salts together
_OF_ANSWER: Final = 4096  # tokens of one answer that are kept, those at its beginning
_OF_PROMPT: Final = 8  # tokens before it: where it begins


class PastAnswers:
    """Indexed texts by salt, the one used last at the end."""

    def __init__(self, most: int = _TOKENS) -> None:
        self._most, self._texts = most, OrderedDict[str, TextIndex]()

    def of(self, salt: str) -> TextIndex | None:
        """Return those of a salt; None: there are none."""
        return self._texts.get(salt)

    def add(self, salt: str, tokens: Sequence[int], num_prompt: int) -> None:
        """An answer has ended; it is read when it is looked up. What is indexed is never changed but at its end: who
        reads a text may go on doing so. Where there is no memory for it, all are forgotten.
        """
        try:
            self._index(salt, tokens, num_prompt)
        except MemoryError:
            self._texts.clear()

    def _index(self, salt: str, tokens: Sequence[int], num_prompt: int) -> None:
        answer = [SEPARATOR, *tokens[max(0, num_prompt - _OF_PROMPT) : num_prompt + _OF_ANSWER]]
        known = self._texts.get(salt)
        kept = [] if known is None else known.tokens
        if len(kept) + len(answer) > self._most:
            known, kept = None, kept[-self._most // 2 :]
        if known is None or known.is_crowded:
            known = self._texts[salt] = TextIndex(kept.copy(), len(answer))
        known.tokens += answer
        self._texts.move_to_end(salt)
        while sum(len(text.tokens) for text in self._texts.values()) > self._most and len(self._texts) > 1:
            self._texts.popitem(last=False)
