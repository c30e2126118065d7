"""A `BlockSource` in memory: it keeps what lies in blocks by their identities, and gives it back.

It works when `work` is called, a page at a time and in any order, and writes rubbish into blocks that it was given
until their content has arrived, as a slow source may.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from homenode.engine.kv.block_source import BlockOffer
from homenode.engine.scheduler.events import BlocksArrived, BlocksFailed, BlocksStored

StoreEvent = BlocksArrived | BlocksFailed | BlocksStored


@dataclass
class PagesIn:
    """What is to be brought under one key."""

    identities: list[bytes]
    blocks: list[int] = field(default_factory=list)
    done: int = 0  # pages
    fetched: bool = False
    stopped: bool = False
    slot: int = -1  # which gets the state behind them


@dataclass
class PagesOut:
    """What is to be kept under one key, from page `first` on."""

    identities: list[bytes]
    first: int = 0
    blocks: list[int] = field(default_factory=list)
    lost: bool = False
    states: list[tuple[bytes, int]] = field(default_factory=list)  # what they are known by, and their slots


class MemoryStore:
    """`read` and `write` move what lies in a block; `rubbish` is written first, if given. `most`: pages that are kept;
    those that were kept first give way. `slots`: of the state memory, what lies in each.
    """

    def __init__(
        self,
        size: int,
        read: Callable[[int], Any],
        write: Callable[[int, Any], None],
        *,
        rubbish: Any = None,
        most: int = 10_000,
        rng: random.Random | None = None,
        slots: Callable[[], list[Any]] = list,
    ) -> None:
        self._slots = slots
        self.kept: dict[bytes, Any] = {}
        self.coming: dict[str, PagesIn] = {}
        self.going: dict[str, PagesOut] = {}
        self.pinned: dict[str, list[bytes]] = {}
        self.offered: tuple[str, PagesOut] = ("", PagesOut([]))
        self.pages_in = self.pages_out = 0  # moved so far
        self._size, self._read, self._write, self._rubbish, self._most = size, read, write, rubbish, most
        self._rng = rng or random.Random(1)
        self._numbers = itertools.count()

    # What the scheduler asks for

    def find(self, identities: Sequence[bytes], states: bool = False) -> BlockOffer | None:
        known = list(itertools.takewhile(self.kept.__contains__, identities))
        while states and known and _state_of(known[-1]) not in self.kept:
            known.pop()
        if not known:
            return None
        key = f"found/{next(self._numbers)}"
        self.coming[key] = PagesIn(known)
        return BlockOffer(key, len(known) * self._size, self._size, known)

    def reserve(self, key: str, blocks: list[int], held: int) -> None:
        raise AssertionError("it offers nothing by itself")

    def refuse(self, key: str, free_blocks: int, reason: str) -> None:
        raise AssertionError("it offers nothing by itself")

    def unuse(self, key: str) -> None:
        raise AssertionError("nothing is read where it is")

    def fetch(self, key: str, blocks: list[int], held: int, slot: int = -1) -> None:
        self.coming[key].slot = slot
        coming = self.coming[key]
        assert not coming.fetched and not coming.stopped and len(blocks) == len(coming.identities)
        coming.blocks, coming.done, coming.fetched = blocks, held, True
        self._scribble(coming)
        if slot >= 0 and self._rubbish is not None:
            self._slots()[slot] = (-1, -1)  # of other tokens than any

    def stop(self, key: str) -> None:
        self.coming[key].stopped = True

    def release(self, key: str, tokens: int) -> None:
        coming = self.coming.pop(key)
        assert not coming.fetched or coming.done == len(coming.identities), "released while it is written to"

    def offer(self, key: str, to: bytes, tokens: int, identities: list[bytes], compute_s: float) -> int:
        assert tokens == len(identities) * self._size
        held = len(list(itertools.takewhile(self.kept.__contains__, identities)))
        self.offered = key, PagesOut(identities)
        return held

    def lacks_states(self, identities: Sequence[bytes], counts: Sequence[int]) -> list[int]:
        return [count for count in counts if _state_of(identities[count - 1]) not in self.kept]

    def store(
        self, key: str, first: int, blocks: list[int], last: bool, slots: Mapping[int, int] | None = None
    ) -> None:
        offered, going = self.offered
        assert offered == key
        self.going[key] = going
        assert last and first + len(blocks) == len(going.identities)
        going.first, going.blocks = first, blocks
        going.states = [(_state_of(going.identities[count - 1]), slot) for count, slot in (slots or {}).items()]

    def pin(self, session: str, identities: Sequence[bytes]) -> None:
        self.pinned[session] = list(identities)

    def abandon(self, key: str, reason: str) -> None:
        assert reason
        self.going[key].lost = True

    # Its own work

    @property
    def busy(self) -> bool:
        """There is something to do."""
        return bool(self.going) or any(coming.fetched or coming.stopped for coming in self.coming.values())

    def work(self, now: float) -> list[StoreEvent]:
        """Do one piece of what is to be done, if anything is; what to tell the scheduler."""
        keys = [*self.going, *(k for k, each in self.coming.items() if each.stopped or self._lacks(each))]
        if not keys:
            return []
        key = self._rng.choice(keys)
        return self._keep(now, key) if key in self.going else self._bring(now, key)

    def _lacks(self, coming: PagesIn) -> bool:
        return coming.fetched and (coming.done < len(coming.identities) or coming.slot >= 0)

    def _keep(self, now: float, key: str) -> list[StoreEvent]:
        going = self.going[key]
        if going.blocks and not going.lost:
            block = going.blocks.pop(0)
            self.kept[going.identities[going.first]] = self._read(block)
            going.first += 1
            self.pages_out += 1
            while len(self.kept) > self._most:
                del self.kept[next(iter(self.kept))]
            if going.blocks:
                return []
        if going.states and not going.blocks and not going.lost:
            name, slot = going.states.pop()
            self.kept[name] = self._slots()[slot]
            if going.states:
                return []
        del self.going[key]
        return [BlocksStored(now, key)]

    def _bring(self, now: float, key: str) -> list[StoreEvent]:
        coming = self.coming[key]
        if coming.slot >= 0 and coming.done == len(coming.identities) and not coming.stopped:
            return self._bring_state(now, key)
        content = None if coming.stopped else self.kept.get(coming.identities[coming.done])
        if content is None:  # nobody wants it, or it has given way since it was found
            coming.done, coming.fetched = len(coming.identities), False
            if coming.stopped:
                del self.coming[key]
            return [BlocksFailed(now, key)]
        self._write(coming.blocks[coming.done], content)
        coming.done += 1
        self.pages_in += 1
        self._scribble(coming)
        if coming.slot >= 0 and coming.done == len(coming.identities):
            return []
        return [BlocksArrived(now, key, coming.done * self._size)]

    def _bring_state(self, now: float, key: str) -> list[StoreEvent]:
        coming = self.coming[key]
        coming.fetched = False
        content = self.kept.get(_state_of(coming.identities[-1]))
        if content is None:
            return [BlocksFailed(now, key)]
        self._slots()[coming.slot] = content
        return [BlocksArrived(now, key, coming.done * self._size)]

    def _scribble(self, coming: PagesIn) -> None:
        for block in coming.blocks[coming.done :] if self._rubbish is not None else ():
            self._write(block, self._rubbish)


def _state_of(identity: bytes) -> bytes:
    """What the state behind a block is known by."""
    return b"state" + identity
