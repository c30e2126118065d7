"""The pages of one buffer: who keeps each of them, in which state it is, and under which epoch it was lent.

    free -> reserved -> filling -> ready -> free      poisoned: its bytes were not what had been promised; never ready
                                                      again before it is free

A page may be kept by several owners (hand-overs that share a prefix); it is free when the last of them has let go. Then
its epoch grows, so that a reader who comes late, or is still at it, sees that what he read is not what was lent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from homenode.errors import InternalError
from homenode.units import format_count

Pages = npt.NDArray[np.int64]
_SHARED = -1  # has several owners


class PageState(Enum):
    FREE = "free"
    RESERVED = "reserved"
    FILLING = "filling"
    READY = "ready"
    POISONED = "poisoned"


_STATES = tuple(PageState)
_NUMBER_OF = {state: number for number, state in enumerate(_STATES)}
_POISONED = _NUMBER_OF[PageState.POISONED]


class Ledger:
    """Pages 0 .. pages - 1. Either the pages are told of by whoever allocates them (`lend`), or they are allocated here
    (`take`).

    What a hand-over keeps may be thousands of pages, so all of them are seen to at once: there is an array of each
    thing known of a page.
    """

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self.pinned = 0  # pages somebody keeps
        self._owner = np.zeros(pages, np.int64)  # the number of the one there is, 0: none, or _SHARED
        self._sharers: dict[int, dict[str, None]] = {}  # of a page that has several
        self._state = np.zeros(pages, np.uint8)
        self._epoch = np.zeros(pages, np.int64)
        self.by_owner: dict[str, tuple[int, list[Pages]]] = {}  # an owner's number, and what it keeps
        self._names: dict[int, str] = {}
        self._last = 0
        self._free = list(range(pages - 1, -1, -1))

    def state(self, page: int) -> PageState:
        return _STATES[int(self._state[page])]

    def owners(self, page: int) -> tuple[str, ...]:
        owner = int(self._owner[page])
        if owner == _SHARED:
            return tuple(self._sharers[page])
        return (self._names[owner],) if owner else ()

    def kept(self, owner: str) -> tuple[int, ...]:
        return tuple(self._kept_by(owner).tolist())

    def epochs(self, pages: Sequence[int]) -> list[int]:
        """What a reader's epoch words must be as long as the pages are lent."""
        found: list[int] = self._epoch[pages].tolist()
        return found

    def lend(self, owner: str, pages: Sequence[int], state: PageState) -> None:
        """These pages are kept for one more owner. InternalError for one out of range or twice for the same owner."""
        new, before = np.array(pages, np.int64), self._kept_by(owner)
        if len(new):
            low, high = int(new.min()), int(new.max())
            if (
                low < 0
                or high >= self.pages
                or len(set(pages)) < len(new)
                or (len(before) and np.isin(new, before).any())
            ):
                raise InternalError(
                    f"KV pages {low} to {high} lent to {owner!r}: there are {self.pages}, and it has {len(before)}"
                )
        number, kept = self.by_owner.get(owner) or self._enter(owner)
        kept.append(new)
        of = self._owner[new]
        for page in new[of != 0].tolist():
            self._share(owner, page, state)
        new = new[of == 0]
        self._owner[new] = number
        self._state[new] = _NUMBER_OF[state]
        self.pinned += len(new)

    def _enter(self, owner: str) -> tuple[int, list[Pages]]:
        self._last += 1
        self._names[self._last] = owner
        return self.by_owner.setdefault(owner, (self._last, []))

    def _kept_by(self, owner: str) -> Pages:
        kept = self.by_owner.get(owner, (0, []))[1]
        return kept[0] if len(kept) == 1 else np.concatenate([np.empty(0, np.int64), *kept])

    def _share(self, owner: str, page: int, state: PageState) -> None:
        """A page that others keep already gets one more owner."""
        if self._owner[page] != _SHARED:
            self._sharers[page] = {self._names[int(self._owner[page])]: None}
            self._owner[page] = _SHARED
        self._sharers[page][owner] = None
        if self._state[page] != _POISONED:
            self._state[page] = _NUMBER_OF[state]

    def take(self, owner: str, count: int) -> list[int]:
        """Allocate pages, to be filled. InternalError if too few are free: room is reserved before (`PageQuota`)."""
        if count > len(self._free):
            raise InternalError(
                f"{format_count(count, 'page')} of the KV buffer wanted, {len(self._free)} are free", wanted=count
            )
        pages = [self._free.pop() for _ in range(count)]
        self.lend(owner, pages, PageState.FILLING)
        return pages

    def mark(self, pages: Sequence[int], state: PageState) -> None:
        """Kept pages change state; a poisoned one stays poisoned."""
        which = np.array(pages, np.int64)
        nobodys = which[self._owner[which] == 0]
        if len(nobodys):
            raise InternalError(f"KV page {nobodys[0]} is {state.value}, but nobody keeps it", page=int(nobodys[0]))
        self._state[which[self._state[which] != _POISONED]] = _NUMBER_OF[state]

    def end(self, owner: str) -> tuple[list[int], list[int]]:
        """Let go of all an owner keeps: returns the pages nobody keeps any more and their new epochs."""
        freed = self._kept_by(owner)
        number, _ = self.by_owner.pop(owner, (0, []))
        self._names.pop(number, None)
        others = self._owner[freed] != number
        if others.any():
            others[others] = [not self._is_last(owner, page) for page in freed[others].tolist()]
            freed = freed[~others]
        new = self._epoch[freed] + 1
        self._epoch[freed], self._owner[freed], self._state[freed] = new, 0, 0
        self.pinned -= len(freed)
        return freed.tolist(), new.tolist()

    def _is_last(self, owner: str, page: int) -> bool:
        """Let go of a page that had several owners; whether nobody else keeps it."""
        sharers = self._sharers[page]
        del sharers[owner]
        if not sharers:
            del self._sharers[page]
        return not sharers

    def give_back(self, pages: Iterable[int]) -> None:
        """Freed pages can be taken again; only where pages are allocated here."""
        self._free.extend(pages)


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
