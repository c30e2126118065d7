"""What comes of one prompt: ids, text, why it ended, how long it took."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from homenode.engine.messages import Output
from homenode.engine.request import TokenLogprob
from homenode.model.tokenizer.stops import StopStrings
from homenode.model.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class Timings:
    """Seconds from the submission on."""

    time_to_first_token_s: float | None
    total_s: float
    tokens_per_second: float | None  # of the tokens after the first


@dataclass(frozen=True)
class Completion:
    """The continuation of one prompt.

    `finish_reason`: `stop` (EOS, a stop token or a stop string) or `length`. `token_ids` include the token that ended it; `text` holds
    neither that nor the stop string. Log-probabilities are there if they were asked for.
    """

    text: str
    token_ids: list[int]
    prompt_token_ids: list[int]
    finish_reason: str
    cached_tokens: int
    timings: Timings
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob | None] | None = None


class Answer:
    """Builds a Completion from outputs, piece by piece."""

    def __init__(
        self,
        prompt_ids: list[int],
        tokenizer: Tokenizer,
        stop: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.finish_reason: str | None = None
        self._prompt_ids, self._clock = prompt_ids, clock
        self._stream = tokenizer.stream(prompt_ids)
        self._stops = StopStrings(stop)
        self._hidden = tokenizer.special_tokens_in(stop) if stop else {}
        self._pieces: list[str] = []
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._prompt_logprobs: list[TokenLogprob | None] | None = None
        self._cached_tokens = 0
        self._begun, self._first, self._last = clock(), 0.0, 0.0

    def feed(self, output: Output) -> str:
        """The text that became certain. When a stop string matched, `finish_reason` is set although the engine goes on."""
        self._last = self._clock()
        if output.tokens and not self._tokens:
            self._first = self._last
        self._cached_tokens = max(self._cached_tokens, output.cached_tokens)
        self._prompt_logprobs = self._prompt_logprobs or output.prompt_logprobs
        piece = self._text(output)
        self._pieces.append(piece)
        return piece

    def completion(self, *, logprobs: bool) -> Completion:
        """The result; after `finish_reason` is set."""
        spent, tokens = self._last - self._first, len(self._tokens)
        timings = Timings(
            time_to_first_token_s=self._first - self._begun if tokens else None,
            total_s=self._last - self._begun,
            tokens_per_second=(tokens - 1) / spent if tokens > 1 and spent > 0 else None,
        )
        return Completion(
            text="".join(self._pieces),
            token_ids=self._tokens,
            prompt_token_ids=self._prompt_ids,
            finish_reason=self.finish_reason or "abort",
            cached_tokens=self._cached_tokens,
            timings=timings,
            logprobs=self._logprobs if logprobs else None,
            prompt_logprobs=self._prompt_logprobs,
        )

    def _text(self, output: Output) -> str:
        shown = ""
        for i, token in enumerate(output.tokens):
            self._tokens.append(token)
            self._logprobs += output.logprobs[i : i + 1]
            if output.stop_token is not None and i == len(output.tokens) - 1:
                continue  # the token that ended it has no text
            piece, matched = self._stops.feed(self._stream.push((token,)))
            shown += piece
            if matched is None and token in self._hidden:
                piece, matched = self._stops.feed(self._hidden[token], hidden=True)
                shown += piece
            if matched is not None:
                self.finish_reason = "stop"
                return shown
        if output.finish_reason is None:
            return shown
        piece, matched = self._stops.feed(self._stream.flush())
        self.finish_reason = "stop" if matched is not None else output.finish_reason
        return shown + piece + self._stops.flush()
