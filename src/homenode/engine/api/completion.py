"""The result of one prompt: ids, text, why it ended, how long it took."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from homenode.engine.messages import Output
from homenode.engine.request import TokenLogprob
from homenode.engine.sequence_text import SequenceText
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

    `finish_reason`: `stop` (EOS, a stop token or a stop string) or `length`. `token_ids` include the token that ended
    it; `text` holds neither that nor the stop string. Log-probabilities are there if they were asked for.
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
        hidden = tokenizer.special_tokens_in(stop) if stop else {}
        self._text = SequenceText(tokenizer.stream(prompt_ids), stop, hidden)
        self._pieces: list[str] = []
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._prompt_logprobs: list[TokenLogprob | None] | None = None
        self._cached_tokens = 0
        self._begun, self._first, self._last = clock(), 0.0, 0.0

    def feed(self, output: Output) -> str:
        """The text that became certain. When a stop string matched, `finish_reason` is set although the
        engine goes on.
        """
        self._last = self._clock()
        if output.tokens and not self._tokens:
            self._first = self._last
        self._cached_tokens = max(self._cached_tokens, output.cached_tokens)
        self._prompt_logprobs = self._prompt_logprobs or output.prompt_logprobs
        part = self._text.feed(output)
        self.finish_reason = part.finish_reason
        self._tokens += output.tokens[: part.num_tokens]
        self._logprobs += output.logprobs[: part.num_tokens]
        self._pieces.append(part.text)
        return part.text

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
