"""The sender of the request that is being handled: the name of its key, and the limits that hold for it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from homenode.server.keys.counts import (
    GENERATED_TOKENS,
    OF_REQUESTS,
    OF_TOKENS,
    PROMPT_TOKENS,
    REFUSALS,
    REQUESTS,
    RUNNING,
    TICKS_PER_SECOND,
    KeyCounts,
)
from homenode.server.keys.named_key import UNNAMED_ROW, NamedKey
from homenode.server.keys.service_tiers import ALL_TIERS, BEHIND_ALL, AskedTier, ServiceRank, rank_of
from homenode.server.keys.told_usage import ToldUsage
from homenode.units import format_count

_LONGEST_S = 60.0  # after which all of a minute is free again
_TRY_AGAIN_S = 1.0  # when one of the requests under way may have ended


class KeyLimitError(Exception):
    """A key has used what it may use. `message`: for its client. `retry_after_s`: when it may come again."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.message, self.retry_after_s = message, retry_after_s


class KeyHolder:
    """One key, as a request comes with it. The limits hold for all fronts together."""

    def __init__(
        self, key: NamedKey | None = None, counts: KeyCounts | None = None, *, background: bool = False
    ) -> None:
        """`key`: None where no key is asked for. `background`: nobody waits for its answers."""
        self._key, self._counts, self.background = key, counts, background
        self._row = key.row if key is not None else UNNAMED_ROW

    @property
    def name(self) -> str:
        """The name of the key; empty where it has none."""
        return self._key.name if self._key is not None else ""

    @property
    def models(self) -> tuple[str, ...]:
        """The names of the models that it may use; empty: all."""
        return self._key.models if self._key is not None else ()

    @property
    def is_admin(self) -> bool:
        """Return whether it may load and unload models: a key that says so, one without a name, or none."""
        return self._key is None or self._key.admin or not self._key.name

    @property
    def has_tiers(self) -> bool:
        """Return whether it may have some tiers only, or has one that is not the others'."""
        return self._key is not None and self._key.service_tiers != ALL_TIERS

    def rank(self, asked: AskedTier | None, priority: int | None) -> ServiceRank:
        """Return the rank of a request which names this tier and this priority. Raises ServiceTierError."""
        if self.background:
            return BEHIND_ALL
        tiers = ALL_TIERS if self._key is None else self._key.service_tiers
        return rank_of(asked, priority, tiers, self.name)

    def uncounted(self) -> KeyHolder:
        """The same key, for a request that its limits are not about."""
        return KeyHolder(self._key)

    def in_background(self) -> KeyHolder:
        """The same key, for requests that nobody waits for, such as lines of a batch file; its limits are not about
        them.
        """
        return KeyHolder(self._key, background=True)

    @contextmanager
    def request(self) -> Iterator[None]:
        """Around the handling of one piece of work, its stream included. Raises KeyLimitError over a limit."""
        if self._counts is None:
            yield
            return
        self._enter(self._counts)
        try:
            yield
        finally:
            self._counts.add(self._row, RUNNING, -1)

    def take_prompt(self, tokens: int) -> None:
        """A prompt is about to be computed. Raises KeyLimitError when it has more tokens than are left."""
        if self._counts is None:
            return
        counts, row, limit, tick = self._counts, self._row, self._limit("tokens_per_minute"), _tick()
        counts.add_spent(row, OF_TOKENS, tick, tokens)
        if limit is not None and (spent := counts.spent(row, OF_TOKENS, tick)) > limit:
            counts.add_spent(row, OF_TOKENS, tick, -tokens)
            free = counts.free_at(row, OF_TOKENS, tick, max(0, limit - tokens))
            used = f"has used {spent - tokens} of its {format_count(limit, 'token')} of this minute"
            wait_s = _LONGEST_S if tokens > limit else _seconds_until(free)
            raise self._refused("tokens_per_minute", f"{used}, and this prompt has {tokens}", wait_s)
        counts.add(row, PROMPT_TOKENS, tokens)

    def take_generated(self, tokens: int) -> None:
        """Tokens of an answer have come. An answer that has begun goes on, whatever it uses."""
        if self._counts is not None and tokens:
            self._counts.add_spent(self._row, OF_TOKENS, _tick(), tokens)
            self._counts.add(self._row, GENERATED_TOKENS, tokens)

    @property
    def counted(self) -> bool:
        """Return whether its tokens are counted here."""
        return self._counts is not None

    def take_answer(self, guessed: int, usage: ToldUsage) -> None:
        """An answer is over, whose prompt was taken for `guessed` tokens (`take_prompt`)."""
        if self._counts is not None:
            used = usage.prompt + usage.generated
            self._counts.add_spent(self._row, OF_TOKENS, _tick(), max(0, used - guessed))
            self._counts.add(self._row, PROMPT_TOKENS, usage.prompt - guessed)
            self._counts.add(self._row, GENERATED_TOKENS, usage.generated)

    def _enter(self, counts: KeyCounts) -> None:
        row, tick = self._row, _tick()
        counts.add(row, RUNNING)
        limit = self._limit("concurrent_requests")
        if limit is not None and counts.total(row, RUNNING) > limit:
            counts.add(row, RUNNING, -1)
            raise self._refused("concurrent_requests", f"has {format_count(limit, 'request')} under way", _TRY_AGAIN_S)
        counts.add_spent(row, OF_REQUESTS, tick, 1)
        limit, field = self._limit("requests_per_minute"), OF_REQUESTS
        over = limit is not None and counts.spent(row, OF_REQUESTS, tick) > limit
        if not over:
            limit, field = self._limit("tokens_per_minute"), OF_TOKENS
            over = limit is not None and counts.spent(row, OF_TOKENS, tick) >= limit
        if over and limit is not None:
            counts.add(row, RUNNING, -1)
            counts.add_spent(row, OF_REQUESTS, tick, -1)
            what = "request" if field == OF_REQUESTS else "token"
            free = counts.free_at(row, field, tick, limit - 1)
            text = f"has used its {format_count(limit, what)} of this minute"
            raise self._refused(f"{what}s_per_minute", text, _seconds_until(free))
        counts.add(row, REQUESTS)

    def _limit(self, name: str) -> int | None:
        return getattr(self._key, name, None)

    def _refused(self, limit: str, text: str, retry_after_s: float) -> KeyLimitError:
        if self._counts is not None:
            self._counts.add(self._row, REFUSALS[limit])
        retry_after_s = min(_LONGEST_S, max(1.0, retry_after_s))
        message = f"the key `{self.name}` {text} ({limit}); try again in {retry_after_s:.0f} s"
        return KeyLimitError(message, retry_after_s)


_ANYBODY = KeyHolder()
_CALLER: ContextVar[KeyHolder] = ContextVar("homenode.caller", default=_ANYBODY)


def caller() -> KeyHolder:
    """Return who sent the request that the running task handles."""
    return _CALLER.get()


def set_caller(who: KeyHolder) -> None:
    """Note that from here on the running task, and those that it starts, handle a request of `who`."""
    _CALLER.set(who)


def _tick() -> int:
    """Now, on the clock that all processes of this machine share."""
    return int(time.monotonic() * TICKS_PER_SECOND)


def _seconds_until(tick: int) -> float:
    return tick / TICKS_PER_SECOND - time.monotonic()
