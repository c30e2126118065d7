"""How the played processes copy, send and receive pages: with time passing in between, and not always without harm.

Whoever reads blocks that were given back, or writes into some that changed hands, fails the test.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from homenode.transfer.state.machine import Copied, Copy, Receive, SendPages, Sent
from homenode.transfer.state.pages import tokens_in
from homenode.transfer.wire.message import Data
from tests.pure.transfer.endpoint import Endpoint
from tests.pure.transfer.world_memory import Memory, digest


class Copier(Endpoint):
    """An engine whose agent moves bytes."""

    def can_reach(self, buffer: bytes) -> Memory:
        memory = self.world.memories[buffer]
        mine = memory in (self.memory, self.pool)
        mapped = any(memory in (p.memory, p.pool) for link in self.links.values() for p in link.ends)
        assert mine or (self.world.shared and mapped), "copied from or to memory that is not within reach"
        return memory

    def copy(self, action: Copy) -> None:
        """Page by page, with time passing in between."""
        source, target = self.can_reach(action.source), self.can_reach(action.target)
        pages = range(action.first_page, action.first_page + action.pages)
        epochs = action.epochs
        owners = self.owners(source, target, action)
        seen: list[bytes] = []
        torn = [epochs is not None and [source.epochs[action.source_table[p]] for p in pages] != epochs]

        def page(index: int) -> None:
            if index == action.pages:
                if epochs is not None and [source.epochs[action.source_table[p]] for p in pages] != epochs:
                    torn[0] = True
                return self.feed(
                    Copied(action.token, None if torn[0] else seen, "an epoch had changed" if torn[0] else "")
                )
            changed = not action.digest_only and self.owners(source, target, action) != owners
            assert not changed, "a copy wrote into blocks that had changed hands"
            seen.append(self.copied_page(source, target, action, pages[index]))
            return self.world.after(self.world.lag(self.world.slowness), lambda: self.later(lambda: page(index + 1)))

        if torn[0]:
            return self.world.after(0.001, lambda: self.feed(Copied(action.token, None, "an epoch had changed")))
        return self.world.after(self.world.lag(self.world.slowness), lambda: self.later(lambda: page(0)))

    def copied_page(self, source: Memory, target: Memory, action: Copy, number: int) -> bytes:
        """Its digest: the sender's is of what it computed; what goes wrong, goes wrong on the way."""
        first = number * action.page_tokens
        count = tokens_in(number, action.tokens, action.page_tokens)
        size = action.page_tokens if not action.digest_only else source.layout.block_size
        read = [source.read(action.source_table, position, size) for position in range(first, first + count)]
        values = self.corrupted(read)
        if not action.digest_only:
            if target is self.pool:
                target.reused(action.target_table[number])
            for position, what in enumerate(values, first):
                target.write(action.target_table, position, what)
        return digest(read if self.role == "sender" else values)

    def owners(self, source: Memory, target: Memory, action: Copy) -> list[Any]:
        """Who has the blocks a copy writes to, and those of its own engine it reads."""
        past = min((action.first_page + action.pages) * action.page_tokens, action.tokens)
        positions = range(action.first_page * action.page_tokens, past)
        size = target.layout.block_size
        found: list[Any] = []
        for process in self.world.processes:
            if process.memory is target and not action.digest_only:
                found += [process.owner(action.target_table[position // size]) for position in positions]
        assert None not in found, "a copy into blocks that nobody has"
        if source is self.memory and self.role == "sender":
            pages = range(action.first_page, action.first_page + action.pages)
            assert all(self.owner(action.source_table[page]) for page in pages), (
                "a copy out of blocks that were given back"
            )
        return found

    def corrupted(self, values: list[int | None]) -> list[int | None]:
        if values and self.world.rng.random() < self.world.corruption:
            self.world.count["corrupted"] += 1
            values = [*values[:-1], 0xBAD]
        return values

    def send_pages(self, action: SendPages) -> None:
        memory = self.world.memories[action.buffer]
        header = action.header
        assert isinstance(header, Data)
        link = self.links[action.peer]

        def finish() -> None:
            if self.links.get(action.peer) is not link or link.broken:
                return self.feed(Sent(action.token, False))
            assert memory is not self.memory or all(self.owner(block) for block in action.table), (
                "sent from blocks that were given back"
            )
            values = [v for block, n in zip(action.table, action.tokens, strict=True) for v in memory.values[block][:n]]
            self.transmit(action.peer, header, self.corrupted(values))
            return self.feed(Sent(action.token, True))

        link.busy[self] = max(link.busy.get(self, 0.0), self.world.now) + self.world.lag(0.05)
        self.world.after(link.busy[self] - self.world.now, lambda: self.later(finish))

    def receive(self, action: Receive, payload: list[int | None], then: Callable[[], None]) -> None:
        link = self.receiving.pop(action.token)
        assert len(payload) == sum(
            tokens_in(p, action.tokens, action.page_tokens)
            for p in range(action.first_page, action.first_page + action.pages)
        )
        seen: list[bytes] = []
        size, rest = self.layout.block_size, list(payload)

        def page(number: int) -> None:
            if link.broken:
                return self.feed(Copied(action.token, None, "the connection ended"))
            if number == action.first_page + action.pages:
                self.feed(Copied(action.token, seen))
                return then()
            first = number * action.page_tokens
            count = tokens_in(number, action.tokens, action.page_tokens)
            for position in range(first, first + count):
                assert self.owner(action.target_table[position // size]) is not None, (
                    "received into blocks that nobody has"
                )
                self.memory.write(action.target_table, position, rest[position - first])
            seen.append(digest(rest[:count]))
            del rest[:count]
            return self.world.after(self.world.lag(self.world.slowness), lambda: self.later(lambda: page(number + 1)))

        self.world.after(self.world.lag(self.world.slowness), lambda: self.later(lambda: page(action.first_page)))
