"""The pages of one buffer: who keeps each of them, in which state it is, and under which epoch it was lent.

    free -> reserved -> filling -> ready -> free      poisoned: its bytes were not what had been promised; never ready again before it is free

A page may be kept by several owners (hand-overs that share a prefix); it is free when the last of them has let go. Then its epoch grows, so
that a reader who comes late, or is still at it, sees that what he read is not what was lent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from enum import Enum

from homenode.errors import InternalError


class PageState(Enum):
    FREE = "free"
    RESERVED = "reserved"
    FILLING = "filling"
    READY = "ready"
    POISONED = "poisoned"


class Ledger:
    """Pages 0 .. pages - 1. Either the pages are told of by whoever allocates them (`lend`), or they are allocated here (`take`)."""

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self._owners: dict[int, str | dict[str, None]] = {}  # of a page that has several, a dictionary
        self._states: dict[int, PageState] = {}
        self._kept: dict[str, list[int]] = {}
        self._epochs = [0] * pages
        self._free = list(range(pages - 1, -1, -1))

    @property
    def pinned(self) -> int:
        """Pages somebody keeps."""
        return len(self._owners)

    def state(self, page: int) -> PageState:
        return self._states.get(page, PageState.FREE)

    def owners(self, page: int) -> tuple[str, ...]:
        owners = self._owners.get(page, ())
        return (owners,) if isinstance(owners, str) else tuple(owners)

    def kept(self, owner: str) -> tuple[int, ...]:
        return tuple(self._kept.get(owner, ()))

    def epochs(self, pages: Iterable[int]) -> list[int]:
        """What a reader's epoch words must be as long as the pages are lent."""
        epochs = self._epochs
        return [epochs[page] for page in pages]

    def lend(self, owner: str, pages: Sequence[int], state: PageState) -> None:
        """These pages are kept for one more owner. InternalError for one out of range or twice for the same owner."""
        kept = self._kept.get(owner, [])
        if not pages:
            self._kept.setdefault(owner, kept)
            return
        new = set(pages)
        if len(new) < len(pages) or min(new) < 0 or max(new) >= self.pages or not new.isdisjoint(kept):
            raise InternalError(f"KV pages {min(new)} to {max(new)} lent to {owner!r}: there are {self.pages}, and it has {len(kept)}")
        shared = self._owners.keys() & new
        if shared:
            self._share(owner, shared, state)
            new -= shared
        self._owners.update(dict.fromkeys(new, owner))
        self._states.update(dict.fromkeys(new, state))
        self._kept.setdefault(owner, kept).extend(pages)

    def _share(self, owner: str, pages: Iterable[int], state: PageState) -> None:
        """Pages that others keep already get one more owner."""
        for page in pages:
            owners = self._owners[page]
            if isinstance(owners, str):
                owners = self._owners[page] = {owners: None}
            owners[owner] = None
            if self._states[page] is not PageState.POISONED:
                self._states[page] = state

    def take(self, owner: str, count: int) -> list[int]:
        """Allocate pages, to be filled. InternalError if too few are free: room is reserved before (`Admission`)."""
        if count > len(self._free):
            raise InternalError(f"{count} pages of the KV buffer wanted, {len(self._free)} are free", wanted=count)
        pages = [self._free.pop() for _ in range(count)]
        self.lend(owner, pages, PageState.FILLING)
        return pages

    def mark(self, pages: Iterable[int], state: PageState) -> None:
        """Kept pages change state; a poisoned one stays poisoned."""
        states = self._states
        for page in pages:
            before = states.get(page)
            if before is None:
                raise InternalError(f"KV page {page} is {state.value}, but nobody keeps it", page=page)
            if before is not PageState.POISONED:
                states[page] = state

    def end(self, owner: str) -> tuple[list[int], list[int]]:
        """Let go of all an owner keeps: returns the pages nobody keeps any more and their new epochs."""
        freed, owners = self._kept.pop(owner, []), self._owners
        if [owners[page] for page in freed].count(owner) < len(freed):  # others keep some, too
            freed = [page for page in freed if self._is_last(owner, page)]
        new = [self._epochs[page] + 1 for page in freed]
        for each in (map(owners.__delitem__, freed), map(self._states.__delitem__, freed), map(self._epochs.__setitem__, freed, new)):
            deque(each, 0)
        return freed, new

    def _is_last(self, owner: str, page: int) -> bool:
        """Let go of a page; whether nobody else keeps it."""
        owners = self._owners[page]
        if isinstance(owners, str):
            return True
        del owners[owner]
        return not owners

    def give_back(self, pages: Iterable[int]) -> None:
        """Freed pages can be taken again; only where pages are allocated here."""
        self._free.extend(pages)
