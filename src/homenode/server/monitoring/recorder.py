"""The stopwatch of a sequence: what the front times of it, and counts where it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from prometheus_client import Histogram

from homenode.server.monitoring.metric_table import CACHED_SHARES

Exemplar = dict[str, str] | None  # labels that name one request behind a count: the id of its trace


class SequenceHistograms(NamedTuple):
    """The histograms of one model's sequences."""

    queue: Histogram
    prefill: Histogram
    decode: Histogram
    inference: Histogram
    first_token: Histogram
    between_tokens: Histogram
    per_token: Histogram
    whole: Histogram
    prompt_tokens: Histogram
    generated_tokens: Histogram
    most_tokens: Histogram


class Recorder:
    """Times one sequence. `arrival`, `first_token_at`: by `time.monotonic`; the latter None before the first token, or
    before the end of one that draws none. `queued_s`: until the engine began it. `generated`: tokens so far.
    """

    def __init__(
        self,
        into: SequenceHistograms,
        first_token_by_share: Mapping[str, Histogram],
        finished: Callable[[str], None],
        prompt_tokens: int = 0,
        most_tokens: int = 0,
        exemplar: Exemplar = None,
    ) -> None:
        """`first_token_by_share`: for each of `CACHED_SHARES`. `most_tokens`: those it may generate. `exemplar`: None
        where no trace has it.
        """
        self._into, self._by_share = into, first_token_by_share
        self._finished, self._exemplar = finished, exemplar
        self._prompt_tokens, self._most_tokens = prompt_tokens, most_tokens
        self.arrival = time.monotonic()
        self.first_token_at: float | None = None
        self.queued_s = 0.0
        self.generated = 0
        self.last: float | None = None
        self._ended = False

    def tokens(self, count: int, queued_s: float = 0.0, cached_tokens: int = 0) -> None:
        """`count` tokens arrived together. With the first of them: `queued_s`, seconds until the engine began it, and
        `cached_tokens`, those of the prompt whose KV was there.
        """
        if not count:
            return
        now = time.monotonic()
        if self.last is None:
            self._begin(now, queued_s)
            share = cached_share(cached_tokens, self._prompt_tokens)
            self._into.first_token.observe(now - self.arrival, self._exemplar)
            self._by_share[share].observe(now - self.arrival, self._exemplar)
        else:
            between = (now - self.last) / count
            for _ in range(count):
                self._into.between_tokens.observe(between)
        self.last = now
        self.generated += count

    def computed(self, queued_s: float) -> None:
        """Its prompt is computed, and no token is drawn behind it: the KV goes to another engine."""
        if self.last is None:
            self.last = time.monotonic()
            self._begin(self.last, queued_s)

    def _begin(self, now: float, queued_s: float) -> None:
        self.first_token_at, self.queued_s = now, queued_s
        self._into.queue.observe(queued_s, self._exemplar)

    @property
    def prefill_s(self) -> float:
        """Seconds from arrival to the first token, or until now."""
        return (time.monotonic() if self.first_token_at is None else self.first_token_at) - self.arrival

    @property
    def decode_s(self) -> float:
        """Seconds from the first token to the last one so far."""
        return 0.0 if self.first_token_at is None or self.last is None else self.last - self.first_token_at

    def end(self, reason: str) -> None:
        """The sequence ended for `reason`; only the first call counts."""
        if self._ended:
            return
        self._ended = True
        self._into.whole.observe(time.monotonic() - self.arrival, self._exemplar)
        if reason in ("stop", "length") and self.first_token_at is not None:
            self._observe_phases(max(0.0, self.prefill_s - self.queued_s))
        self._finished(reason)

    def _observe_phases(self, prefill_s: float) -> None:
        into, exemplar, decode_s = self._into, self._exemplar, self.decode_s
        into.prefill.observe(prefill_s, exemplar)
        into.decode.observe(decode_s, exemplar)
        into.inference.observe(prefill_s + decode_s, exemplar)
        into.per_token.observe(decode_s / (self.generated - 1) if self.generated > 1 else 0.0, exemplar)
        into.prompt_tokens.observe(self._prompt_tokens, exemplar)
        into.generated_tokens.observe(self.generated, exemplar)
        into.most_tokens.observe(self._most_tokens, exemplar)


def cached_share(cached_tokens: int, prompt_tokens: int) -> str:
    """Return which of `CACHED_SHARES` the part of a prompt belongs to whose KV was there."""
    none, some, much, nearly_all = CACHED_SHARES
    share = cached_tokens / prompt_tokens if prompt_tokens else 0.0
    return none if share <= 0 else some if share <= 0.5 else much if share <= 0.9 else nearly_all
