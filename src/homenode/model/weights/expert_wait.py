"""The decision when to go on waiting for the shares of other engines, and when not. Pure: it is told the time and what
is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from homenode.errors import PeerError
from homenode.model.weights.expert_header import STATE_FAILED, STATE_FILLING, STATE_READY, ShareState

GONE_S = 60.0  # in which who keeps the engines starts one again


class ShareWait:
    """The wait for the shares of `members`, since `now`. `missing`: the members whose share is not ready."""

    def __init__(self, members: Iterable[int], timeout_s: float, now: float) -> None:
        self.missing = tuple(members)
        self._timeout_s, self._until = timeout_s, now + timeout_s
        self._failed_before: dict[int, ShareState] | None = None
        self._gone_since: dict[int, float] = {}

    def look(self, states: Mapping[int, ShareState], is_alive: Callable[[ShareState], bool], now: float) -> None:
        """Take in the states of those missing. PeerError, naming the engine, when there is no sense in waiting any
        longer.

        A failure from before the waiting is of a process that may be starting again just now: as one that is gone, it
        has some time.
        """
        if self._failed_before is None:
            self._failed_before = {m: s for m, s in states.items() if s.state == STATE_FAILED}
        self.missing = tuple(m for m in self.missing if states[m].state != STATE_READY)
        for member in self.missing:
            self._judge(member, states[member], is_alive, now)
        if self.missing and now > self._until:
            raise PeerError(
                f"{self._named()} not loaded within {self._timeout_s:.0f} s the experts that this one reads in place; "
                f"see what it says itself",
                engines=self.missing,
            )

    def _judge(self, member: int, state: ShareState, is_alive: Callable[[ShareState], bool], now: float) -> None:
        failed = state.state == STATE_FAILED
        if failed and (self._failed_before or {}).get(member) != state:
            raise PeerError(
                f"engine {member} has failed to load the experts that this one reads in place; its own error says why "
                f"(process {state.pid})",
                engines=(member,),
            )
        if not failed and not (state.state == STATE_FILLING and not is_alive(state)):
            self._gone_since.pop(member, None)
            return
        if now - self._gone_since.setdefault(member, now) > GONE_S:
            raise PeerError(
                f"engine {member} went away (process {state.pid}) while it loaded the experts that this one reads in "
                f"place, and has not come back "
                f"for {GONE_S:.0f} s; its own last lines say why",
                engines=(member,),
            )

    def _named(self) -> str:
        names = ", ".join(map(str, self.missing))
        return f"engine {names} has" if len(self.missing) == 1 else f"engines {names} have"
