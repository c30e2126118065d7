"""How long the other side may count on something that lies still for it. Times are durations wherever another process
sees them."""

from __future__ import annotations

from collections.abc import Iterable

from homenode.transfer.deadlines import DeadlineHeap


class Leases:
    """Leases by number. Each has a time at which it ends unless it is renewed; whoever keeps a page has one."""

    def __init__(self, ttl: float, longest: float, deadlines: DeadlineHeap) -> None:
        """`longest`: seconds after which one ends however often it is renewed."""
        self.ttl = ttl
        self._longest = longest
        self._deadlines = deadlines
        self._live: dict[int, float] = {}  # since when

    def __contains__(self, number: int) -> bool:
        return number in self._live

    def __len__(self) -> int:
        return len(self._live)

    def grant(self, number: int, now: float) -> None:
        """Or renew: it ends `ttl` from now."""
        since = self._live.setdefault(number, now)
        self._deadlines.set(("lease", number), min(now + self.ttl, since + self._longest))

    def renew(self, numbers: Iterable[int], now: float) -> list[int]:
        """Those that are live; returns the others."""
        gone = []
        for number in numbers:
            if number in self._live:
                self.grant(number, now)
            else:
                gone.append(number)
        return gone

    def end(self, number: int) -> bool:
        """Whether it was live."""
        self._deadlines.drop(("lease", number))
        return self._live.pop(number, None) is not None
