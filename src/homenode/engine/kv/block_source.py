"""Sources of KV blocks besides the model that computes them, to which blocks go as well: another engine, a store.

A *key* names one passage of blocks, in or out; whoever begins it draws the key. Those of stores have a slash, which no
ticket of a client has. Positions lie in *pages*, which are the blocks of the side they come from. A page is known by
its identity: the hash of all tokens up to its end (`prefix.HashChain`), so that it can be spoken of before anything is
computed.

In                                                    Out
  find, or the source offers by itself (`reserve`,      offer     (nothing computed yet; it answers at once or later)
  `refuse` answer where it wants blocks at once)        store...  (as blocks are complete; they stay until it is done)
  fetch      (fill these blocks)                        abandon   (no more will come)
  stop       (the blocks are wanted back)
  release    (the passage is over)

A source answers later, in the methods of `scheduler.kv_coordinator.KvCoordinator`: arrived, failed, quarantined,
forgotten; admitted, refused, stored. Between `fetch` and `arrived` or `failed` it alone writes to the blocks it was
given; between `store` and `stored` nobody writes to those, and what it reads is what their identities say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class BlockOffer:
    """Blocks that a source can bring: the first `tokens` positions, in pages of `page_tokens`, known by `identities`.

    `reserve`: it wants blocks for them now, before a request comes. `in_place`: full pages can be read where they are:
    they want no blocks. Pages are then as large as blocks. `seconds`: what bringing them would probably take; 0: nobody
    knows.
    """

    key: str
    tokens: int
    page_tokens: int
    identities: list[bytes]
    reserve: bool = False
    in_place: bool = False
    seconds: float = 0.0


class BlockSource(Protocol):
    """Takes note of what it is asked for and returns at once. Keys that it does not know (any more) are passed over."""

    # In

    def find(self, identities: Sequence[bytes], states: bool = False) -> BlockOffer | None:
        """An offer of the longest beginning of these blocks, each as large as blocks are here, that it can bring; None:
        it has none of them. `states`: only as many as it also has the state behind. Where computing
        them takes less than `BlockOffer.seconds` it is not taken.
        """

    def reserve(self, key: str, blocks: list[int], held: int) -> None:
        """Blocks for an offer with `reserve`. The first `held` pages are there already and must not be written; -1: the
        page is to be read where it is.
        """

    def refuse(self, key: str, free_blocks: int, reason: str) -> None:
        """There are no blocks for an offer with `reserve`."""

    def fetch(self, key: str, blocks: list[int], held: int, slot: int = -1) -> None:
        """Bring the pages from `held` on into these blocks, if they are not under way yet: their request is here.
        `slot`: of the state memory, which gets the state behind them; -1: none is wanted.
        """

    def stop(self, key: str) -> None:
        """Bring no more. To be answered with `failed` when nothing writes to the blocks any more."""

    def release(self, key: str, tokens: int) -> None:
        """The passage is over; the first `tokens` positions were of use."""

    def unuse(self, key: str) -> None:
        """Pages that were read where they are are not read any more."""

    # Out

    def offer(self, key: str, to: bytes, tokens: int, identities: list[bytes], compute_s: float) -> int | None:
        """Announce the blocks of `tokens` positions. How many of the first need not be stored, all where it wants none;
        None: `admitted` or `refused` will tell, and nothing is computed before. `to`: whom they are for.
        `compute_s`: what computing them would take; 0: nobody knows.
        """

    def lacks_states(self, identities: Sequence[bytes], counts: Sequence[int]) -> list[int]:
        """Of the states behind so many of these blocks those that it wants to keep."""

    def store(
        self, key: str, first: int, blocks: list[int], last: bool, slots: Mapping[int, int] | None = None
    ) -> None:
        """Keep pages first, first + 1, ..., which lie in these blocks, complete. `last`: these are the last ones.
        `slots`: of the state memory, in which the states behind so many pages are.
        """

    def pin(self, session: str, identities: Sequence[bytes]) -> None:
        """Keep these blocks, the first of a beginning, as long as a session goes on."""

    def abandon(self, key: str, reason: str) -> None:
        """No more blocks will come, or what lies in those that came is lost: what was not read yet is worth nothing.
        `stored` follows all the same.
        """
