"""Events of one engine: made with it, given after each step by the thread of its loop, closed with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from homenode.engine.kv.allocator import KvAllocator
from homenode.engine.kv.block_journal import BlockChange, BlockJournal
from homenode.engine.kv_events.told_events import EventForm, StoreChanges
from homenode.engine.kv_events_config import KvEventsSettings
from homenode.model.spec import ModelSpec


class StoreContents(Protocol):
    """The part of a store that events need (`kv_disk.setup.KvDiskLink`)."""

    def begin_journal(self) -> Callable[[], StoreChanges]: ...


class Publisher(Protocol):
    """The part of `publisher.EventPublisher` that a link needs."""

    def start(self) -> None: ...

    def give(self, changes: Sequence[BlockChange], states: frozenset[bytes] | None = None) -> None: ...

    @property
    def described(self) -> dict[str, object]: ...

    @property
    def ended(self) -> bool: ...

    def close(self, seconds: float) -> None: ...


class KvEventsLink:
    """Begins the journal of an engine's prefix cache, and gives the publisher what is in it."""

    def __init__(self, publisher: Publisher, allocator: KvAllocator, has_store: bool = False) -> None:
        """`has_store`: blocks are also elsewhere, and the publisher knows where to look."""
        self._publisher, self._states, self._has_store = publisher, allocator.states, has_store
        self._pool = allocator.pool
        self._journal = allocator.pool.journal = BlockJournal(allocator.block_size)
        self._told: frozenset[bytes] = frozenset()  # states

    def start(self) -> None:
        """Begin to publish."""
        self._publisher.start()

    @property
    def described(self) -> dict[str, object]:
        """Where events are to be had, with vLLM's keys."""
        return self._publisher.described

    def pass_on(self) -> None:
        """Give what has changed. For the thread of the engine's loop."""
        if self._publisher.ended:
            self._pool.journal = None  # nobody reads it any more
            return
        changes = self._journal.take()
        if self._states is None:
            if changes:
                self._publisher.give(changes)
            return
        states = frozenset(self._states.snapshots)
        if changes or states != self._told:
            self._told = states
            self._publisher.give(changes, states)

    def look_at_stores(self) -> None:
        """Have told what a store has written or given up. For the same thread."""
        if self._has_store:
            self._publisher.give([], None if self._states is None else self._told)

    def close(self, seconds: float) -> None:
        """Publish what is left, as far as it goes in so many seconds."""
        self.pass_on()
        self._publisher.close(seconds)


def open_events(
    settings: KvEventsSettings,
    rank: int,
    allocator: KvAllocator,
    spec: ModelSpec,
    store: StoreContents | None = None,
) -> KvEventsLink:
    """The events of an engine of this model. `rank`: of one of several; `store`: keeps blocks besides. HostError where
    an endpoint cannot be had.
    """
    from homenode.engine.kv_events.publisher import EventPublisher  # only who publishes needs ZeroMQ

    form = event_form(spec, allocator.block_size, allocator.states is not None)
    publisher = EventPublisher(settings, rank, form, None if store is None else store.begin_journal())
    return KvEventsLink(publisher, allocator, store is not None)


def event_form(spec: ModelSpec, block_size: int, states: bool) -> EventForm:
    """The words of vLLM for what a model keeps. A block is of all layers together: where one of them sees all tokens
    before, so does the block.
    """
    kept = {layer: kv for layer in range(spec.num_layers) if (kv := spec.kv_of(layer)) is not None}
    windows = {spec.window_of(layer) for layer in kept}
    window = next(iter(windows)) if len(windows) == 1 else None
    alone = bool(kept) and all(kv.value_width == 0 for kv in kept.values())  # latents
    if window is None:
        return EventForm(block_size, "mla_attention" if alone else "full_attention", None, states)
    return EventForm(block_size, "sliding_window_mla" if alone else "sliding_window", window, states)
