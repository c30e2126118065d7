"""The pages of one buffer: who keeps each of them, in which state it is, and under which epoch it was lent.

    free -> reserved -> filling -> ready -> free      poisoned: its bytes were not what had been promised; never ready again before it is free

A page may be kept by several owners (hand-overs that share a prefix); it is free when the last of them has let go. Then its epoch grows, so
that a reader who comes late, or is still at it, sees that what he read is not what was lent.
"""

from __future__ import annotations

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
        self._owners: dict[int, dict[str, None]] = {}
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
        return tuple(self._owners.get(page, ()))

    def kept(self, owner: str) -> tuple[int, ...]:
        return tuple(self._kept.get(owner, ()))

    def epochs(self, pages: Iterable[int]) -> list[int]:
        """What a reader's epoch words must be as long as the pages are lent."""
        return [self._epochs[page] for page in pages]

    def lend(self, owner: str, pages: Sequence[int], state: PageState) -> None:
        """These pages are kept for one more owner. InternalError for one out of range or twice for the same owner."""
        mine = set(self._kept.get(owner, ()))
        for page in pages:
            if not 0 <= page < self.pages or page in mine:
                raise InternalError(f"KV page {page} lent to {owner!r}: there are {self.pages}, and it has {len(mine)}", page=page)
            mine.add(page)
        for page in pages:
            owners = self._owners.get(page)
            if owners is None:
                self._owners[page], self._states[page] = {owner: None}, state
                continue
            owners[owner] = None
            if self._states[page] is not PageState.POISONED:
                self._states[page] = state
        self._kept.setdefault(owner, []).extend(pages)

    def take(self, owner: str, count: int) -> list[int]:
        """Allocate pages, to be filled. InternalError if too few are free: room is reserved before (`Admission`)."""
        if count > len(self._free):
            raise InternalError(f"{count} pages of the KV buffer wanted, {len(self._free)} are free", wanted=count)
        pages = [self._free.pop() for _ in range(count)]
        self.lend(owner, pages, PageState.FILLING)
        return pages

    def mark(self, pages: Iterable[int], state: PageState) -> None:
        """Kept pages change state; a poisoned one stays poisoned."""
        for page in pages:
            if page not in self._owners:
                raise InternalError(f"KV page {page} is {state.value}, but nobody keeps it", page=page)
            if self._states[page] is not PageState.POISONED:
                self._states[page] = state

    def end(self, owner: str) -> tuple[list[int], list[int]]:
        """Let go of all an owner keeps: returns the pages nobody keeps any more and their new epochs."""
        freed = []
        for page in self._kept.pop(owner, ()):
            owners = self._owners[page]
            del owners[owner]
            if owners:
                continue
            del self._owners[page], self._states[page]
            self._epochs[page] += 1
            freed.append(page)
        return freed, self.epochs(freed)

    def give_back(self, pages: Iterable[int]) -> None:
        """Freed pages can be taken again; only where pages are allocated here."""
        self._free.extend(pages)
