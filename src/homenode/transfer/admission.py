"""Room is reserved before anything is pinned: whole hand-overs or nothing, and no peer takes what the others need.

A peer may hold at most twice what would then still be free (the dynamic threshold of shared-memory switches), unless it
is the only one, or holds nothing. So some room is left for whoever comes, however slow those are that came before. Of
the peers that wait the one that holds least goes first; within a peer it is first come, first served. One that does not
fit lets others pass, but only so many times.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

_MOST_PASSES = 16


@dataclass
class _Waiter:
    owner: str
    need: int
    passed: int = 0


class PageQuota:
    """Counts `total` pages; up to (1 - reserve_pct / 100) of them are given to several owners, all of them to one
    alone."""

    def __init__(self, total: int, reserve_pct: float = 0.0) -> None:
        self.total = total
        self.mark = math.floor((1 - reserve_pct / 100) * total)
        self.used = 0
        self.waits = 0
        self._held: dict[str, tuple[str, int]] = {}  # owner -> peer, pages
        self._used: dict[str, int] = {}  # peer -> pages
        self._queues: dict[str, dict[str, _Waiter]] = {}  # peer -> owner -> waiter, in order

    @property
    def waiting(self) -> int:
        return sum(map(len, self._queues.values())) if self._queues else 0

    @property
    def free(self) -> int:
        return max(self.mark - self.used, 0)

    def fits_ever(self, need: int) -> bool:
        return need <= self.total

    def holds(self, owner: str) -> int:
        return self._held[owner][1] if owner in self._held else 0

    def wait(self, owner: str, peer: str, need: int) -> None:
        """Queue; `admit` tells when it is its turn. One place for each owner."""
        self._queues.setdefault(peer, {})[owner] = _Waiter(owner, need)

    def waits_for(self, peer: str) -> list[str]:
        return list(self._queues.get(peer, ()))

    def leave(self, owner: str, peer: str) -> bool:
        """Stop waiting; whether it did wait."""
        queue = self._queues.get(peer, {})
        found = queue.pop(owner, None) is not None
        if not queue:
            self._queues.pop(peer, None)
        return found

    def admit(self, may_go: Callable[[str, str], bool], peers: int) -> str | None:
        """The next owner, whose pages are reserved now; None when nobody can go. Call again until it says so.

        `may_go(peer, owner)`: whether the peer is to be served at all now. `peers`: how many there are, waiting or not.
        """
        if not self._queues:
            return None
        passed: list[_Waiter] = []
        for peer in (
            sorted(self._queues, key=lambda p: self._used.get(p, 0)) if len(self._queues) > 1 else list(self._queues)
        ):
            waiter = next(iter(self._queues[peer].values()))
            if not may_go(peer, waiter.owner) or not self._within_share(peer, waiter.need, peers):
                continue
            if self.has_room(waiter.need):
                for other in passed:
                    other.passed += 1
                self._take(peer, waiter)
                return waiter.owner
            if waiter.passed >= _MOST_PASSES:
                return None
            passed.append(waiter)
        return None

    def keep(self, owner: str, pages: int) -> None:
        """Give back all but `pages` of what an owner holds."""
        if owner not in self._held or self._held[owner][1] <= pages:
            return
        peer, held = self._held.pop(owner)
        self.used -= held - pages
        self._used[peer] -= held - pages
        if pages:
            self._held[owner] = (peer, pages)
        if not self._used[peer]:
            del self._used[peer]

    def release(self, owner: str) -> None:
        self.keep(owner, 0)

    def has_room(self, need: int) -> bool:
        return self.used + need <= self.mark or (self.used == 0 and need <= self.total)

    def _within_share(self, peer: str, need: int, peers: int) -> bool:
        mine = self._used.get(peer, 0)
        return peers <= 1 or mine == 0 or mine + need <= 2 * (self.mark - self.used - need)

    def _take(self, peer: str, waiter: _Waiter) -> None:
        self.leave(waiter.owner, peer)
        self._held[waiter.owner] = (peer, waiter.need)
        self._used[peer] = self._used.get(peer, 0) + waiter.need
        self.used += waiter.need
