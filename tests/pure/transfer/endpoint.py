"""An engine's end of the network: connections that are slow, break and are closed, and a process that crashes or
freezes.

The frames of a connection arrive in order. Whatever is to happen while a process is frozen happens when it goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from homenode.compute.kv_memory import KvLayout
from homenode.transfer.state.machine import Connected, ConnectFailed, FromEngine, FromPeer, Own, PeerLost, Receive
from homenode.transfer.state.machines import ReceiverMachine, SenderMachine
from homenode.transfer.wire.message import Buffer, Envelope, Hello, Ready, decode, encode, places_of
from tests.pure.transfer.world import World
from tests.pure.transfer.world_memory import Memory, layout_of


@dataclass
class Link:
    """A connection: two directions, each in order."""

    ends: dict[Endpoint, int]  # the number each side knows it by
    queues: dict[Endpoint, list[tuple[Any, list[int | None] | None]]] = field(default_factory=dict)
    pumping: set[Endpoint] = field(default_factory=set)
    busy: dict[Endpoint, float] = field(default_factory=dict)  # until when bytes are being sent
    broken: bool = False

    def other(self, process: Endpoint) -> Endpoint:
        return next(end for end in self.ends if end is not process)


class Endpoint:
    """What others see of an engine with its agent, and its way to them."""

    role = ""

    def __init__(self, world: World, name: str, block_size: int, blocks: int, buffer_pages: int) -> None:
        self.world, self.name, self.block_size, self.blocks, self.buffer_pages = (
            world,
            name,
            block_size,
            blocks,
            buffer_pages,
        )
        self.incarnation = world.unique()
        self.layout = layout_of(block_size, blocks)
        self.memory = self._memory(self.layout)
        self.pool: Memory | None = None
        self.alive, self.frozen = True, False
        self.links: dict[int, Link] = {}  # by our number, until we close it
        self.inbox: list[tuple[Any, Any]] = []  # while frozen
        self.thawed: list[Callable[[], None]] = []
        self._peers = 0
        self._up = self._down = 0.0  # messages between engine and agent keep their order
        self._armed: float | None = None
        self.receiving: dict[int, Link] = {}
        self.address = f"unix:@{name}"
        world.listening[self.address] = self
        world.processes.append(self)
        self.machine: SenderMachine | ReceiverMachine = self.make()

    def _memory(self, layout: KvLayout) -> Memory:
        memory = Memory(self.world.unique(), layout)
        self.world.memories[memory.id] = memory
        return memory

    def make(self) -> Any:
        raise NotImplementedError

    def own(self) -> Own:
        cache = Buffer(self.memory.id, self.layout)
        pool = Buffer(self.pool.id, self.pool.layout) if self.pool is not None else None
        return Own(cache, pool, self.incarnation, self.address)

    def hello(self) -> Hello:
        raise NotImplementedError

    def feed(self, what: Any, then: Callable[[list[Any]], None] | None = None) -> None:
        """Handle an input now; when frozen, later."""
        raise NotImplementedError

    def receive(self, action: Receive, payload: list[int | None], then: Callable[[], None]) -> None:
        """Take the bytes that came with a header."""
        raise NotImplementedError

    def owner(self, block: int) -> Any:
        raise NotImplementedError

    def told(self, event: Any) -> None:
        raise NotImplementedError

    def watch(self) -> None:
        """After every step: what must hold at any time."""

    def later(self, what: Callable[[], None]) -> None:
        """On this process's own threads: not when it is dead, and not now when it is frozen."""
        if not self.alive:
            return
        if self.frozen:
            self.thawed.append(lambda: self.later(what))
            return
        what()

    def engine(self, message: Any) -> None:
        self._down = max(self._down, self.world.now + self.world.lag(0.01))
        self.world.after(self._down - self.world.now, lambda: self.feed(FromEngine(message)))

    # Network

    def number(self, link: Link) -> int:
        self._peers += 1
        link.ends[self] = self._peers
        self.links[self._peers] = link
        return self._peers

    def connect(self, address: str) -> None:
        world = self.world

        def reach() -> None:
            other = world.listening.get(address)
            if other is None or not other.alive:
                return self.feed(ConnectFailed(address, "connection refused"))
            if other.frozen:
                return world.after(1.0, lambda: self.feed(ConnectFailed(address, "no answer")))
            link = Link({})
            mine, theirs = self.number(link), other.number(link)
            other.feed(Connected(theirs, self.hello(), "", other.bases(self.hello())))
            there = other.hello()
            world.after(
                world.lag(),
                lambda: self.links.get(mine) is link and self.feed(Connected(mine, there, address, self.bases(there))),
            )
            return None

        world.after(world.lag(), reach)

    def bases(self, hello: Hello) -> dict[bytes, int]:
        """Where this engine can read the other one's memory in place."""
        return {}

    def transmit(self, peer: int, message: Any, payload: list[int | None] | None) -> None:
        link = self.links[peer]
        if link.broken:
            return
        message = decode(encode(Envelope(b"", message))).message  # whatever is sent fits the wire's bounds
        self.world.count[type(message).__name__] += 1
        if isinstance(message, Ready):
            for page, epoch in zip(*places_of(message), strict=True):
                self.world.memories[message.buffer].shown[page] = epoch
        to = link.other(self)
        link.queues.setdefault(to, []).append((message, payload))
        self.pump(link, to)

    def in_turn(self, peer: int, message: Any) -> None:
        """Behind the bytes that are being sent on the same connection."""
        link, now = self.links[peer], self.world.now
        if link.busy.get(self, 0.0) <= now:
            return self.transmit(peer, message, None)
        last = lambda: self.links.get(peer) is link and self.transmit(peer, message, None)  # noqa: E731
        return self.world.after(link.busy[self] - now, lambda: self.later(last))

    def pump(self, link: Link, to: Endpoint) -> None:
        """Deliver the next frame of a direction; a frame with bytes holds up those behind it until they are taken."""
        if to in link.pumping or not link.queues.get(to):
            return
        link.pumping.add(to)
        self.world.after(self.world.lag(), lambda: self.deliver(link, to))

    def deliver(self, link: Link, to: Endpoint) -> None:
        if link.broken or not to.alive:
            return None
        if to.frozen:
            to.thawed.append(lambda: self.deliver(link, to))
            return None
        message, payload = link.queues[to].pop(0)
        peer = link.ends[to]
        held_up: list[Receive] = []
        again = 2 if type(message).__name__ == "Done" and self.world.rng.random() < self.world.duplicate_done else 1
        for _ in range(again):
            if to.links.get(peer) is link:
                to.feed(
                    FromPeer(peer, message),
                    lambda actions: held_up.extend(a for a in actions if isinstance(a, Receive)),
                )
        if payload is not None and held_up:
            to.receiving[held_up[0].token] = link
            return to.receive(held_up[0], payload, lambda: self._next(link, to))
        return self._next(link, to)

    def _next(self, link: Link, to: Endpoint) -> None:
        link.pumping.discard(to)
        self.pump(link, to)

    def close(self, peer: int) -> None:
        link = self.links.pop(peer, None)
        assert link is not None, "closed twice"
        link.broken = True
        other = link.other(self)
        number = link.ends[other]
        if not self.alive:
            return
        self.world.after(
            self.world.lag(),
            lambda: other.links.get(number) is link and other.feed(PeerLost(number, "closed by the other", False)),
        )

    def broken(self, link: Link, dead: bool) -> None:
        """The link ended, for no fault of the two."""
        link.broken = True
        for process, number in link.ends.items():
            self.world.after(
                self.world.lag(),
                lambda process=process, number=number: (
                    process.links.get(number) is link and process.feed(PeerLost(number, "broken", dead))
                ),
            )

    def crash(self) -> None:
        self.alive = False
        for link in list(self.links.values()):
            self.broken(link, self.world.shared)

    def freeze(self) -> None:
        self.frozen = True

    def thaw(self) -> None:
        self.frozen = False
        thawed, self.thawed = self.thawed, []
        for what in thawed:
            what()
