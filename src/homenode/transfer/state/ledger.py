"""The pages of one buffer: who keeps each of them, in which state it is, and under which epoch it was lent.

    free -> reserved -> filling -> ready -> free      poisoned: its bytes were not what had been promised; never ready
                                                      again before it is free

A page may be kept by several owners (hand-overs that share a prefix); it is free when the last of them has let go. Then
its epoch grows, so that a reader who comes late, or is still at it, sees that what he read is not what was lent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import numpy.typing as npt

from homenode.errors import InternalError
from homenode.transfer.wire.message import Ready, places_of
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
    """Pages 0 .. pages - 1. Either the pages are told of by whoever allocates them (`pin`), or they are allocated here
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
        """Return what a reader's epoch words must be as long as the pages are lent."""
        found: list[int] = self._epoch[pages].tolist()
        return found

    def pin(self, owner: str, pages: Sequence[int], state: PageState) -> None:
        """Keep these pages for one more owner. InternalError for one out of range or twice for the same owner."""
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
        self.pin(owner, pages, PageState.FILLING)
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


@dataclass(slots=True)
class PageWindow:
    """Pages of one transfer at its receiver, as a value. Those before `announced` were announced; for those before
    `requested`, but for those in `retry`, bytes were asked for; those before `verified` are in place. `failed`: those
    that were wrong once."""

    pages: int
    announced: int = 0
    requested: int = 0
    verified: int = 0
    retry: deque[int] = field(default_factory=deque)
    failed: set[int] = field(default_factory=set)
    _right: bytearray = field(default_factory=bytearray)  # 1 for each page that was verified

    @property
    def is_complete(self) -> bool:
        """Every page is in place."""
        return self.verified == self.pages

    @property
    def is_level(self) -> bool:
        """Nothing that was announced is still to be verified."""
        return self.announced == self.requested == self.verified and not self.retry

    def hold(self, held: int) -> None:
        """Count the first pages as in place."""
        self._right = bytearray(b"\1" * held + b"\0" * (self.pages - held))
        self.verified = self.requested = held

    def announce(self, count: int) -> None:
        """Count further pages as announced."""
        self.announced += count

    def request(self, first: int, count: int) -> None:
        """Count the page that heads `retry`, if there is one, or else further pages, as requested."""
        if self.retry:
            self.retry.popleft()
        else:
            self.requested = first + count

    def verify(self, first: int, count: int = 1) -> None:
        """Count pages as verified, though earlier ones may not be."""
        self._right[first : first + count] = b"\1" * count

    def fail(self, page: int) -> bool:
        """Tell whether a page that was wrong is to be requested once more, which is now due."""
        if page in self.failed:
            return False
        self.failed.add(page)
        self.retry.append(page)
        return True

    def advance(self) -> int:
        """Move `verified` up to the first page that is not; its value before."""
        before = self.verified
        wrong = self._right.find(0, before)
        self.verified = self.pages if wrong < 0 else wrong
        return before


@dataclass
class PagesRequested:
    """Pages under way to a receiver; `peer`: from where their bytes come."""

    first: int
    count: int
    begun: float
    peer: int = -1


@dataclass
class PageSources:
    """Places in which the sender has the pages it announced, from page `first` on, with their epochs and digests."""

    first: int = 0
    buffer: bytes = b""
    places: list[int] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)  # those in places

    def add(self, ready: Ready, digest_bytes: int) -> None:
        """Add further pages."""
        places, epochs = places_of(ready)
        self.buffer = ready.buffer
        self.places.extend(places)
        self.epochs.extend(epochs)
        self.seen.update(places)
        self.digests.extend(
            [ready.digests[at : at + digest_bytes] for at in range(0, len(ready.digests), digest_bytes)]
        )

    def cut(self, first: int, count: int) -> slice:
        """The part of the lists that is of these pages."""
        return slice(first - self.first, first - self.first + count)


@dataclass
class PagesInFlight:
    """Pages under way from a sender: a copy, or bytes given to the kernel."""

    first: int
    count: int
    begun: float
