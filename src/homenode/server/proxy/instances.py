"""A record of each server: whether it answers, what it publishes, whether its requests fail. Pure: the caller
gives times and what was seen.

starting -> ready <-> draining | unhealthy | unfit       what its answers say
            ready  -> suspect -> ready | down            a connection broke, no answer: the next look tells
            any    -> silent | down                      no answer in time | no connection
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from homenode.server.proxy.breaker import CircuitBreaker
from homenode.server.proxy.server_models import PublishedKv, ServerModels
from homenode.transfer.wire.message import Published, differences

Role = Literal["prefill", "decode"]
State = Literal["starting", "ready", "draining", "unhealthy", "unfit", "suspect", "silent", "down"]
STATES: tuple[State, ...] = ("starting", "ready", "draining", "unhealthy", "unfit", "suspect", "silent", "down")
_PUBLISHED_ROLE = {"prefill": "sender", "decode": "receiver"}


@dataclass(frozen=True)
class Sight:
    """The findings of one look. `document`: what it publishes, of several engines the first one; `raw`: as it came, if
    it publishes anything. `engines`: the document of each, where the server says that it has several. `models`: of a
    server of several, which publish one by one.
    """

    state: State
    reason: str = ""
    document: Published | None = None
    raw: bytes = b""
    engines: tuple[Published, ...] = ()
    models: ServerModels | None = None


@dataclass(eq=False)
class Instance:
    """One server. `lives`: incarnations seen, 1 for one that publishes none. `since`: in this state."""

    url: str
    role: Role
    breaker: CircuitBreaker
    state: State = "starting"
    reason: str = "not asked yet"
    document: Published | None = None
    raw: bytes = b""
    engines: tuple[Published, ...] = ()
    models: ServerModels | None = None
    lives: int = 1
    since: float = 0.0
    looked_at: bool = False
    busy_until: float = 0.0  # it asked to be left alone until then
    # When bytes of an answer came last: whoever answers is not frozen, however long a look may take.
    heard_at: float = float("-inf")

    def looked(self, now: float, sight: Sight) -> bool:
        """Take a sight in; whether anything changed."""
        sight = _fitting(self.role, sight)
        first, self.looked_at = not self.looked_at, True
        if sight.state == "ready" and self._is_another(sight):
            self.lives += 1
            self.breaker.succeeded()
            self.busy_until = 0.0
        new = sight.state == "ready" and (sight.raw, sight.models) != (self.raw, self.models)
        changed = first or new or (sight.state, sight.reason) != (self.state, self.reason)
        self._enter(now, sight.state, sight.reason)
        if sight.state == "ready":  # what a silent one published still holds for its life
            self.document, self.raw, self.engines = sight.document, sight.raw, sight.engines
            self.models = sight.models
        return changed

    def suspected(self, now: float, reason: str) -> None:
        """A connection to it broke, or it did not answer: nobody is sent there before the next look."""
        if self.state == "ready":
            self._enter(now, "suspect", reason)

    def kv(self, model: str | None) -> PublishedKv:
        """Return what it publishes of the model of this name; of None, and of a server of one model, what there is."""
        if self.models is None:
            return PublishedKv(self.document, self.raw, self.engines)
        return self.models.find(model)

    def loaded_model(self, model: str | None) -> str | None:
        """Return the model that it computes for a request that names this one, "" where it has but one; None where it
        is not loaded.
        """
        return "" if self.models is None else self.models.find_loaded(model)

    @property
    def all_engines(self) -> list[str]:
        """Return the incarnations of all engines of which it has several."""
        several = [self.engines, *(each.engines for each in self.models.published.values())] if self.models else []
        return [each.incarnation for engines in several or [self.engines] for each in engines]

    def usable(self, now: float) -> bool:
        """A request may go there."""
        return self.state == "ready" and now >= self.busy_until and not self.breaker.open(now)

    def lost_in(self, now: float, life: int, patience_s: float) -> float | None:
        """Seconds until those who have waited there since life `life` should give up; None while nothing speaks for
        that.
        """
        if self.lives != life:
            return 0.0
        if self.state in ("silent", "down"):
            return max(0.0, max(self.since, self.heard_at) + patience_s - now)
        return None

    def _is_another(self, sight: Sight) -> bool:
        """Of several engines one that is left keeps the server what it was: requests of those that were lost have gone
        to it.
        """
        before, now = _incarnations(self.document, self.engines), _incarnations(sight.document, sight.engines)
        return bool(before and now) and before.isdisjoint(now)

    def _enter(self, now: float, state: State, reason: str) -> None:
        if state != self.state:
            self.since = now
        self.state, self.reason = state, reason


def _incarnations(document: Published | None, engines: Sequence[Published]) -> frozenset[str]:
    return frozenset(each.incarnation for each in engines or (document,) if each is not None)


def _fitting(role: Role, sight: Sight) -> Sight:
    """A server that is not what it was given as is unfit. A decoder that hands nothing over can still compute
    everything.
    """
    wanted = _PUBLISHED_ROLE[role]
    if sight.state != "ready" or (sight.document is not None and sight.document.role == wanted):
        return sight
    if sight.models is not None:
        return _fitting_models(role, sight, sight.models)
    if sight.document is not None:
        return Sight(
            "unfit", f"given as --{role} but serves as {sight.document.role}; start it with --pd-role {wanted}"
        )
    if role == "prefill":
        return Sight("unfit", "publishes nothing at /kv_transfer; start it with --pd-role sender")
    return Sight("ready", "publishes nothing at /kv_transfer: it computes prompts itself", None, b"")


def _fitting_models(role: Role, sight: Sight, models: ServerModels) -> Sight:
    """Of a server of several models those count that have its part; any may compute its prompts itself."""
    fit = {
        name: each
        for name, each in models.published.items()
        if each.document is not None and each.document.role == _PUBLISHED_ROLE[role]
    }
    if role == "prefill" and models.published and not fit:
        return Sight("unfit", f"none of its models is of --pd-role {_PUBLISHED_ROLE[role]}")
    return Sight("ready", sight.reason, models=replace(models, published=fit))


def obstacle(prefiller: Published | None, decoder: Published | None) -> str | None:
    """Return why these two cannot hand KV over, in words; None when they can."""
    if prefiller is None or decoder is None:
        return "one of them publishes nothing at /kv_transfer"
    if prefiller.mode != decoder.mode:
        return f"mode is {prefiller.mode!r} at the prefill server and {decoder.mode!r} at the decode server"
    if prefiller.channel != decoder.channel:
        return f"channel is {prefiller.channel!r} at the prefill server and {decoder.channel!r} at the decode server"
    local = any(address.startswith("unix:") for address in decoder.alloc)
    if local and prefiller.host and decoder.host and prefiller.host != decoder.host:
        return f"channel {decoder.channel!r} reaches within one machine only, and these are two"
    found = differences(prefiller.fingerprint, decoder.fingerprint)
    return (
        "; ".join(found).replace(" here and ", " at the prefill server and ").replace(" there", " at the decode server")
        or None
    )
