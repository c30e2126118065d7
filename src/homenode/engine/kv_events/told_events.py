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

# Blocks that came to a place outside of KV memory, or went from it, by medium: whether each is there now.
StoreChanges = Mapping[str, Mapping[bytes, bool]]
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
        self._unknown: dict[str, set[bytes]] = {medium: set() for medium in self._stores}  # nobody has said what of
        self._left: OrderedDict[bytes, BlockContent] = OrderedDict()

    def built_again(
        self, changes: Sequence[BlockChange], states: Collection[bytes] | None, stores: StoreChanges
    ) -> ToldEvents:
        """The same from what is held, whatever readers were told, after changes of which any part may have been taken:
        the last one of a block counts. `stores`: such changes elsewhere.
        """
        made = ToldEvents(self._form)
        for block in self._memory.blocks:
            made._memory.add(block)
        for medium, (held, _) in self._stores.items():
            for block in held.blocks:
                made._stores[medium][0].add(block)
            made._unknown[medium] |= self._unknown[medium]
        made._left.update(self._left)
        made.take(changes, states)
        made.take_stores(stores)
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
        events += self._named_elsewhere(change for change in changes if isinstance(change, BlockContent))
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

    def take_stores(self, changes: StoreChanges) -> list[KvEvent]:
        """Events of what changed elsewhere. A block is told once it is known what it is of: those of an earlier process
        when they have been brought back.
        """
        events: list[KvEvent] = []
        for medium, digests in changes.items():
            held, place = self._stores[medium]
            gone = [digest for digest, there in digests.items() if not there]
            self._unknown[medium].difference_update(gone)
            if removed := [each for digest in gone for each in held.remove(digest)]:
                events.append(removed_event(removed, place))
            came = {digest: self._known(digest) for digest, there in digests.items() if there}
            self._unknown[medium].update(digest for digest, block in came.items() if block is None)
            told = [each for block in came.values() if block is not None for each in held.add(block)]
            events += stored_events(told, place)
        return events

    def _named_elsewhere(self, blocks: Iterable[BlockContent]) -> Iterator[KvEvent]:
        """Events of blocks that lie elsewhere, and of which it is known only now what they are of."""
        named = list(blocks)
        for medium, (held, place) in self._stores.items():
            unknown = self._unknown[medium]
            found = [block for block in named if block.digest in unknown]
            unknown.difference_update(block.digest for block in found)
            yield from stored_events([each for block in found for each in held.add(block)], place)

    def forget_stores(self) -> list[KvEvent]:
        """Events after which nothing is told to lie elsewhere, also of what is not known yet."""
        for unknown in self._unknown.values():
            unknown.clear()
        return self.take_stores(
            {medium: dict.fromkeys(held.digests, False) for medium, (held, _) in self._stores.items()}
        )

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
