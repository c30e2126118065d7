"""One sequence's outputs turned into the text of one choice."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from homenode.engine.messages import Output
from homenode.engine.request import TokenLogprob
from homenode.model.tokenizer.stops import StopStrings
from homenode.server.interfaces.tokenizer import TextStream, TokenizerLike

_ITEMS_OF_A_PIECE = 8  # what it costs besides its tokens


class Scored(NamedTuple):
    """A token of the choice, its log-probability (None for the first of a prompt) and the characters before it."""

    token: int
    logprob: TokenLogprob | None
    offset: int


class Piece(NamedTuple):
    """What one output adds to a choice; the last piece has a finish reason of `stop` or `length`."""

    text: str
    token_ids: list[int]
    scored: list[Scored]
    finish_reason: str | None

    @property
    def empty(self) -> bool:
        """Nothing a client would notice."""
        return not (self.text or self.token_ids or self.scored or self.finish_reason)

    def items(self, top: int) -> int:
        """Tokens and log-probabilities in it, where each token has `top` others."""
        return _ITEMS_OF_A_PIECE + len(self.token_ids) + len(self.scored) * (top + 1)


@dataclass(frozen=True)
class PromptEcho:
    """The prompt as the beginning of the choice. `offsets`: characters before each of its tokens; empty when no logprobs are wanted."""

    text: str
    ids: list[int]
    offsets: list[int]


def echo_prompt(tokenizer: TokenizerLike, ids: list[int], text: str | None, *, offsets: bool) -> PromptEcho:
    """The echo of a prompt given as `text`, or as token ids when that is None."""
    if not offsets:
        return PromptEcho(tokenizer.decode(ids) if text is None else text, ids, [])
    stream, decoded, places, length = tokenizer.stream(), [], [], 0
    for token in ids:
        places.append(length)
        decoded.append(stream.push((token,)))
        length += len(decoded[-1])
    decoded.append(stream.flush())
    shown = "".join(decoded) if text is None else text
    return PromptEcho(
        shown, ids, [min(place, len(shown)) for place in places]
    )  # a normaliser may have shortened the text that was given


class ChoiceText:
    """Text, ids and log-probabilities of one sequence as they come. Work per token does not grow with the length of the text."""

    def __init__(
        self,
        stream: TextStream,
        *,
        stops: Sequence[str] = (),
        hidden: Mapping[int, str] | None = None,
        echo: PromptEcho | None = None,
        logprobs: bool = False,
    ) -> None:
        """`hidden`: the special tokens, by id, whose names are in stop strings although their text is not shown."""
        self._stream, self._echo, self._logprobs = stream, echo, logprobs
        self._hidden = hidden or {}
        self._stops = StopStrings(stops) if stops else None
        self._length = self._released = len(echo.text) if echo else 0  # characters decoded, characters given out
        self._pending: deque[Scored] = deque()  # tokens whose text is still held back
        self._begun = False
        self.num_tokens = 0
        self.finish_reason: str | None = None

    def feed(self, output: Output) -> Piece:
        """What `output` adds. After a stop string matched, `finish_reason` is set although the engine may not have finished."""
        text, scored = self._begin(output)
        taken, shown, matched = self._take(output)
        text += shown
        self._released += len(shown)
        self.finish_reason = "stop" if matched else output.finish_reason
        scored += self._release(matched)
        self.num_tokens += taken
        return Piece(text, output.tokens[:taken], scored, self.finish_reason)

    def _begin(self, output: Output) -> tuple[str, list[Scored]]:
        """The echoed prompt, before the first token."""
        if self._begun or self._echo is None:
            return "", []
        self._begun = True
        echo, scores = self._echo, output.prompt_logprobs
        if not self._logprobs or scores is None:
            return echo.text, []
        return echo.text, [Scored(*entry) for entry in zip(echo.ids, scores, echo.offsets, strict=True)]

    def _take(self, output: Output) -> tuple[int, str, bool]:
        """How many tokens belong to the choice, the text that may be shown, and whether a stop string matched."""
        last, shown = len(output.tokens) - 1, ""
        for i, token in enumerate(output.tokens):
            if self._logprobs:
                self._pending.append(Scored(token, output.logprobs[i], self._length))
            if i == last and output.stop_token is not None:
                continue  # the token that ended the sequence has no text
            text, matched = self._watch(self._stream.push((token,)), self._hidden.get(token, ""))
            shown += text
            if matched:
                return i + 1, shown, True
        if output.finish_reason is None:
            return last + 1, shown, False
        text, matched = self._watch(self._stream.flush())
        if not matched and self._stops:
            text += self._stops.flush()
        return last + 1, shown + text, matched

    def _watch(self, text: str, hidden: str = "") -> tuple[str, bool]:
        """What may be shown of `text`, and whether it, or the special token `hidden` behind it, completes a stop string."""
        self._length += len(text)
        if self._stops is None:
            return text, False
        shown, matched = self._stops.feed(text)
        if hidden and matched is None:
            more, matched = self._stops.feed(hidden, hidden=True)
            shown += more
        return shown, matched is not None

    def _release(self, matched: bool) -> list[Scored]:
        """The tokens whose text has been given out. Tokens that lie wholly in a matched stop string are dropped."""
        everything = self._stops is None or (self.finish_reason is not None and not matched)
        released = []
        while self._pending and (everything or self._pending[0].offset < self._released):
            released.append(self._pending.popleft())
        return released
