"""Token ids to text as they arrive, never cutting a character.

A token may end inside a UTF-8 character, and some decoders treat the first token of a text differently. So a stream decodes a short window
that begins one step back, and gives out what the window gained; while the window ends in an incomplete character it waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

_INCOMPLETE = "�"
_LONGEST_CHARACTER = 4  # bytes of a UTF-8 character, so the most tokens a valid one can be spread over


class TextStream:
    """Incremental decoder of one sequence. `decode` turns ids into text; `context` are ids that stand before the first pushed one."""

    def __init__(self, decode: Callable[[Sequence[int]], str], context: Sequence[int] = ()) -> None:
        self._decode = decode
        self._window = list(context[-_LONGEST_CHARACTER - 2 :])  # ids still needed to decode the next one
        self._given = len(self._window)  # how many of them have been given out as text

    def push(self, ids: Iterable[int]) -> str:
        """Text that became certain with these ids; may be empty."""
        return "".join(self._push_one(token) for token in ids)

    def flush(self) -> str:
        """What is left at the end of the sequence: an incomplete character comes out as U+FFFD."""
        text = self._gained(self._decode(self._window))
        self._window, self._given = [], 0
        return text

    def _push_one(self, token: int) -> str:
        self._window.append(token)
        whole = self._decode(self._window)
        waiting = len(self._window) - self._given
        if whole.endswith(_INCOMPLETE) and waiting <= _LONGEST_CHARACTER:
            return ""
        text = self._gained(whole)
        self._window = self._window[self._given :]
        self._given = len(self._window)
        return text

    def _gained(self, whole: str) -> str:
        before = self._decode(self._window[: self._given])
        return whole[len(before) :]
