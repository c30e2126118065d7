"""From changes of what an engine holds to the events that readers are told, and a snapshot of all of it. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from homenode.engine.kv.block_journal import AllGone, BlockChange, BlockContent, BlockGone
from homenode.engine.kv_events.events import (
    IN_COPIES,
    IN_KV_MEMORY,
    ON_DISK,
    AllBlocksCleared,
    BlockStored,
    KvEvent,
)
from homenode.engine.kv_events.held_blocks import BlockPlace, HeldBlocks, removed_event, stored_events

_REMEMBERED = 4096  # blocks that left KV memory and may still be found elsewhere a moment later


@dataclass(frozen=True)
class EventForm:
    """What events say of every block. `kind`: of keys and values; `window`: of a model all of whose layers have one;
    `states`: layers keep a state besides, which a beginning goes on from.
    """

    block_size: int
    kind: str = "full_attention"
    window: int | None = None
    states: bool = False


class ToldEvents:
    """What readers know of one engine: blocks in KV memory, states at their ends, copies, and blocks on disk."""

    def __init__(self, form: EventForm) -> None:
        self._form, size = form, form.block_size
        self._memory, self._place = HeldBlocks(), BlockPlace(IN_KV_MEMORY, size, 0, form.kind, form.window)
        self._states: dict[bytes, BlockContent] = {}
        self._state_place = BlockPlace(IN_KV_MEMORY, size, 1, "mamba")
        self._stores = {
            medium: (HeldBlocks(), BlockPlace(medium, size, 0, form.kind, form.window))
            for medium in (IN_COPIES, ON_DISK)
        }
        self._left: OrderedDict[bytes, BlockContent] = OrderedDict()

    def built_again(self, changes: Sequence[BlockChange], states: Collection[bytes] | None) -> ToldEvents:
        """The same from what is held, whatever readers were told, after changes of which any part may have been taken:
        the last one of a block counts.
        """
        made = ToldEvents(self._form)
        for block in self._memory.blocks:
            made._memory.add(block)
        for medium, (held, _) in self._stores.items():
            for block in held.blocks:
                made._stores[medium][0].add(block)
        made._left.update(self._left)
        made.take(changes, states)
        return made

    def take(self, changes: Sequence[BlockChange], states: Collection[bytes] | None = None) -> list[KvEvent]:
        """Events of what changed in KV memory. `states`: digests of all blocks behind which there is a state now; None:
        the model keeps none.
        """
        events: list[KvEvent] = []
        stored: list[BlockContent] = []
        gone: list[bytes] = []
        for change in changes:
            if not isinstance(change, BlockContent) and stored:
                events += stored_events(stored, self._place)
                stored = []
            if not isinstance(change, BlockGone) and gone:
                events.append(removed_event(gone, self._place))
                gone = []
            match change:
                case BlockContent():
                    stored += self._memory.add(change)
                case BlockGone(digest):
                    self._remember(digest)
                    gone += self._memory.remove(digest)
                case AllGone():
                    events += self._clear()
        events += stored_events(stored, self._place)
        if gone:
            events.append(removed_event(gone, self._place))
        return events if states is None else [*events, *self._state_changes(states)]

    def _clear(self) -> list[KvEvent]:
        """Say that nothing is held, and then again what a store still has: readers forget that, too."""
        for digest in self._memory.digests:
            self._remember(digest)
        self._memory.clear()
        self._states.clear()
        return [AllBlocksCleared(), *self._stored_elsewhere()]

    def _remember(self, digest: bytes) -> None:
        if (block := self._memory.content(digest)) is not None:
            self._left[digest] = block
            if len(self._left) > _REMEMBERED:
                self._left.popitem(last=False)

    def _state_changes(self, states: Collection[bytes]) -> Iterator[KvEvent]:
        there = {digest: block for digest in states if (block := self._memory.content(digest)) is not None}
        there = {digest: block for digest, block in there.items() if digest in self._memory.told}
        if gone := [digest for digest in self._states if digest not in there]:
            yield removed_event(gone, self._state_place)
        yield from stored_events(
            (block for digest, block in there.items() if digest not in self._states), self._state_place
        )
        self._states = there

    def look_at_stores(self, found: Mapping[str, Collection[bytes]]) -> list[KvEvent]:
        """Events of what lies elsewhere now, by medium. A block is told once it is known what it is of: those of an
        earlier process when they have been brought back.
        """
        events: list[KvEvent] = []
        for medium, digests in found.items():
            held, place = self._stores[medium]
            gone = [each for digest in list(held.digests) if digest not in digests for each in held.remove(digest)]
            if gone:
                events.append(removed_event(gone, place))
            news = [block for digest in digests if digest not in held and (block := self._known(digest)) is not None]
            told = [each for block in news for each in held.add(block)]
            events += stored_events(told, place)
        return events

    def _known(self, digest: bytes) -> BlockContent | None:
        block = self._memory.content(digest)
        return self._left.get(digest) if block is None else block

    def snapshot(self) -> Iterator[KvEvent]:
        """All that is held, for who knows nothing."""
        yield AllBlocksCleared()
        yield from stored_events(self._memory.in_order(), self._place)
        yield from stored_events(self._states.values(), self._state_place)
        yield from self._stored_elsewhere()

    def _stored_elsewhere(self) -> Iterable[BlockStored]:
        for held, place in self._stores.values():
            yield from stored_events(held.in_order(), place)
