"""The outputs of one sequence turned into the events of one choice."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from homenode.engine.messages import Output
from homenode.engine.request import TokenLogprob
from homenode.engine.sequence_text import SequenceText, TextStream
from homenode.server.interfaces.tokenizer import TokenizerLike

_ITEMS_OF_AN_EVENT = 8  # what it costs besides its tokens
_MOST_OF_STEP = 256  # tokens: more than one step brings to a sequence


class ScoredToken(NamedTuple):
    """A token of the choice, its log-probability (None for the first of a prompt) and the characters before it."""

    token: int
    logprob: TokenLogprob | None
    offset: int


class GenerationEvent(NamedTuple):
    """The part that one output of the engine adds to a choice; the last event of a choice has a finish reason, `stop`
    or `length`.

    `choice`: the number of the choice, from 0 on. `stop_text`: the stop string that ended it, if one did.
    `prompt_scores`: log-probabilities of the prompt's tokens, once, where they are wanted.
    """

    choice: int
    text: str
    token_ids: list[int]
    scored: list[ScoredToken]
    finish_reason: str | None
    stop_text: str | None = None
    prompt_scores: list[TokenLogprob | None] | None = None

    @property
    def empty(self) -> bool:
        """Nothing a client would notice."""
        return not (self.text or self.token_ids or self.scored or self.finish_reason or self.prompt_scores)

    def items(self, top: int) -> int:
        """Tokens and log-probabilities in it, where each token has `top` others."""
        scored = len(self.scored) + len(self.prompt_scores or ())
        return _ITEMS_OF_AN_EVENT + len(self.token_ids) + scored * (top + 1)


def join_events(events: list[GenerationEvent]) -> GenerationEvent:
    """All events of one choice, at least one of them, as a single one."""
    return GenerationEvent(
        events[0].choice,
        "".join(event.text for event in events),
        [token for event in events for token in event.token_ids],
        [scored for event in events for scored in event.scored],
        events[-1].finish_reason,
        events[-1].stop_text,
        next((event.prompt_scores for event in events if event.prompt_scores is not None), None),
    )


def single_token_outputs(output: Output) -> list[Output]:
    """Return the outputs that bring the tokens of `output` one by one: what goes with its first token is in the first,
    and its end in the last. One of more tokens than a step brings stays as it is: one by one these would keep the event
    loop for too long.
    """
    last = len(output.tokens) - 1
    if not 1 <= last < _MOST_OF_STEP:
        return [output]
    return [
        Output(
            output.id,
            [token],
            output.logprobs[i : i + 1],
            output.prompt_logprobs if i == 0 else None,
            output.finish_reason if i == last else None,
            output.stop_token if i == last else None,
        )
        for i, token in enumerate(output.tokens)
    ]


@dataclass(frozen=True)
class PromptEcho:
    """The prompt as the beginning of the choice. `offsets`: characters before each of its tokens; empty when no
    logprobs are wanted.
    """

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
    # A normaliser may have shortened the text that was given.
    return PromptEcho(shown, ids, [min(place, len(shown)) for place in places])


class ChoiceText:
    """Text, ids and log-probabilities of one sequence as they come. Work per token does not grow with the text's
    length.
    """

    def __init__(
        self,
        stream: TextStream,
        *,
        index: int = 0,
        stops: Sequence[str] = (),
        hidden: Mapping[int, str] | None = None,
        echo: PromptEcho | None = None,
        logprobs: bool = False,
        shows_stop: bool = False,
    ) -> None:
        """`hidden`: the special tokens, by id, whose names are in stop strings although their text is not shown.
        `shows_stop`: the text ends with the stop string that ended it.
        """
        self._text = SequenceText(stream, stops, hidden, offsets=logprobs)
        self._shows_stop = shows_stop
        self._index, self._echo, self._logprobs = index, echo, logprobs
        self._echo_length = len(echo.text) if echo else 0
        self._released = self._echo_length  # characters given out
        self._pending: deque[ScoredToken] = deque()  # tokens whose text is still held back
        self.num_tokens = 0
        self.finish_reason: str | None = None

    @property
    def echo_left(self) -> int:
        """Characters of the prompt with which the next event begins."""
        return 0 if self._echo is None else self._echo_length

    def feed(self, output: Output) -> GenerationEvent:
        """Return what `output` adds. After a stop string, `finish_reason` is set although the engine may not have
        finished.
        """
        part = self._text.feed(output)
        text = part.text
        scored: list[ScoredToken] = []
        if self._echo is not None:
            text, scored = self._echoed(self._echo, output, text)
            self._echo = None
        shown = part.text
        if self._shows_stop and part.matched is not None:
            text, shown = text + part.matched, shown + part.matched
        self.finish_reason = part.finish_reason
        self.num_tokens += part.num_tokens
        if self._logprobs:
            for i, offset in enumerate(part.offsets):
                self._pending.append(ScoredToken(output.tokens[i], output.logprobs[i], self._echo_length + offset))
            self._released += len(shown)
            scored += self._release(part.matched is not None and not self._shows_stop)
        ids = output.tokens[: part.num_tokens]
        scores = output.prompt_logprobs
        return GenerationEvent(self._index, text, ids, scored, self.finish_reason, part.matched, scores)

    def _echoed(self, echo: PromptEcho, output: Output, text: str) -> tuple[str, list[ScoredToken]]:
        """The first text with the prompt before it, and the prompt's tokens where they are scored."""
        scores = output.prompt_logprobs
        if not self._logprobs or scores is None:
            return echo.text + text, []
        return echo.text + text, [ScoredToken(*entry) for entry in zip(echo.ids, scores, echo.offsets, strict=True)]

    def _release(self, matched: bool) -> list[ScoredToken]:
        """The tokens whose text has been given out. Tokens that lie wholly in a matched stop string are dropped."""
        everything = not self._text.has_stops or (self.finish_reason is not None and not matched)
        released = []
        while self._pending and (everything or self._pending[0].offset < self._released):
            released.append(self._pending.popleft())
        return released
