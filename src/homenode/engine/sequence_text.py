"""The text of one sequence, from the tokens that an engine puts out: detokenised as they come, and ended by stop
strings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from homenode.engine.messages import Output
from homenode.model.tokenizer.stops import StopStrings


class TextStream(Protocol):
    """Turns the ids of one sequence into text, never half a character."""

    def push(self, ids: Iterable[int]) -> str:
        """The text that became complete with `ids`."""

    def flush(self) -> str:
        """The rest of the text at its end; bytes that are no character become U+FFFD."""


class DecodedText(NamedTuple):
    """The part that one output adds to a sequence's text.

    `num_tokens`: how many of the output's tokens belong to the sequence, fewer than there are where a stop string ended
    it. `offsets`: for each of these tokens the characters decoded before it, if they were asked for. `finish_reason`:
    `stop` or what the engine says, once the sequence has ended. `matched`: the stop string that ended it.
    """

    text: str
    num_tokens: int
    offsets: list[int]
    finish_reason: str | None
    matched: str | None


class SequenceText:
    """Detokenises one sequence. The work for a token does not grow with the length of the text."""

    def __init__(
        self,
        stream: TextStream,
        stops: Sequence[str] = (),
        hidden: Mapping[int, str] | None = None,
        *,
        offsets: bool = False,
    ) -> None:
        """`hidden`: the special tokens, by id, whose names occur in stop strings although their text is not shown."""
        self._stream, self._hidden, self._offsets = stream, hidden or {}, offsets
        self._stops = StopStrings(stops) if stops else None
        self._length = 0  # characters decoded, those that are still held back included

    @property
    def has_stops(self) -> bool:
        """Return whether some of the text may be held back because a stop string may begin with it."""
        return self._stops is not None

    def feed(self, output: Output) -> DecodedText:
        """The text that became certain with `output`. After a stop string the engine may not have finished yet."""
        last, text = len(output.tokens) - 1, ""
        offsets: list[int] = []
        for i, token in enumerate(output.tokens):
            if self._offsets:
                offsets.append(self._length)
            if i == last and output.stop_token is not None:
                continue  # the token that ended the sequence has no text
            shown, matched = self._take(self._stream.push((token,)), self._hidden.get(token, ""))
            text += shown
            if matched is not None:
                return DecodedText(text, i + 1, offsets, "stop", matched)
        if output.finish_reason is None:
            return DecodedText(text, last + 1, offsets, None, None)
        shown, matched = self._take(self._stream.flush())
        if matched is None and self._stops is not None:
            shown += self._stops.flush()
        reason = output.finish_reason if matched is None else "stop"
        return DecodedText(text + shown, last + 1, offsets, reason, matched)

    def _take(self, text: str, hidden: str = "") -> tuple[str, str | None]:
        """Return what may be shown of `text`, and the stop string that it, or the special token `hidden` after it,
        completes.
        """
        self._length += len(text)
        if self._stops is None:
            return text, None
        shown, matched = self._stops.feed(text)
        if hidden and matched is None:
            more, matched = self._stops.feed(hidden, hidden=True)
            shown += more
        return shown, matched
