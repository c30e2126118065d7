"""Engines, memory and a network for the transfer machines to be played in: every delay, loss, crash and corruption is drawn, time is simulated.

What is promised is asserted where it would break: whoever writes into a block that is not his, reads one that was given back, or lets a token
arrive whose value is not the right one, fails the test at once.
"""

from __future__ import annotations

import functools
import hashlib
import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from homenode.transfer import published
from homenode.transfer import seam as s
from homenode.transfer.limits import Limits
from homenode.transfer.machine import (
    Close,
    Connect,
    Connected,
    ConnectFailed,
    Copied,
    Copy,
    Epochs,
    FromEngine,
    FromPeer,
    Own,
    PeerLost,
    Receive,
    Send,
    SendPages,
    Sent,
    Tell,
)
from homenode.transfer.memory import KvLayout, KvRegion
from homenode.transfer.message import Buffer, Data, Envelope, Hello, Ready, decode, encode, places_of
from homenode.transfer.pages import first_target, page_count, span_bytes, tokens_in
from homenode.transfer.receiver import ReceiverMachine
from homenode.transfer.sender import SenderMachine
from homenode.transfer.settings import TransferConfig

HEADS = 2
LIMITS = Limits(
    chunk=1,  # one page
    connect=1.0,
    room=2.0,
    reply=4.0,
    heartbeat=0.3,
    silence=1.0,
    slowest=0.5,
    worst_rate=1e5,
    progress=6.0,
    drained=1.0,
    repeat=0.2,
    remembered=64,
    backoff=0.2,
)
TTL = 5.0


def layout_of(block_size: int, blocks: int) -> KvLayout:
    region = KvRegion(0, HEADS, 0, 0, 0, 0)
    return KvLayout(1, HEADS, 16, block_size, "float32", 64, blocks, 0, (region,))


@functools.cache
def value(prompt: tuple[int, ...], position: int) -> int:
    """What stands for the keys and values of a position: it depends on all tokens up to it."""
    return hash(prompt[: position + 1])


@functools.cache
def identities(prompt: tuple[int, ...], page_tokens: int) -> list[bytes]:
    n = len(prompt) - 1
    ends = [min((page + 1) * page_tokens, n) for page in range(page_count(n, page_tokens))]
    return [hashlib.blake2b(repr(prompt[:end]).encode(), digest_size=16).digest() for end in ends]


def digest(values: list[int | None]) -> bytes:
    return hashlib.blake2b(repr(values).encode(), digest_size=8 * HEADS).digest()


class Memory:
    """Values by block and position; None: garbage. Outlives the process that made it."""

    def __init__(self, name: bytes, layout: KvLayout) -> None:
        self.id = name
        self.layout = layout
        self.values: list[list[int | None]] = [[None] * layout.block_size for _ in range(layout.blocks)]
        self.epochs = [0] * layout.blocks
        self.scribbles = 0
        self.shown: dict[int, int] = {}  # the epochs under which blocks were announced to others

    def reused(self, block: int) -> None:
        """Whoever still reads it must be able to see that."""
        assert self.shown.get(block) != self.epochs[block], "a block is used again under the epoch it was announced with"

    def scribble(self, block: int) -> None:
        self.reused(block)
        self.scribbles += 1
        self.values[block] = [-self.scribbles] * self.layout.block_size

    def read(self, table: list[int], position: int, page_tokens: int) -> int | None:
        block = table[position // page_tokens]
        return self.values[block][position % page_tokens]

    def write(self, table: list[int], position: int, what: int | None) -> None:
        size = self.layout.block_size
        self.values[table[position // size]][position % size] = what


@dataclass
class Link:
    """A connection: two directions, each in order."""

    ends: dict[Process, int]  # the number each side knows it by
    queues: dict[Process, list[tuple[Any, list[int | None] | None]]] = field(default_factory=dict)
    pumping: set[Process] = field(default_factory=set)
    busy: dict[Process, float] = field(default_factory=dict)  # until when bytes are being sent
    broken: bool = False

    def other(self, process: Process) -> Process:
        return next(end for end in self.ends if end is not process)


class World:
    """Time, network and all processes."""

    def __init__(self, rng: random.Random, mode: str, channel: str, *, corruption: float = 0.0, offload: bool = False) -> None:
        self.rng = rng
        self.mode = mode
        self.channel = channel
        self.shared = channel == "shm"
        self.offload = offload
        self.corruption = corruption
        self.now = 0.0
        self.listening: dict[str, Process] = {}
        self.memories: dict[bytes, Memory] = {}
        self.count: Counter[str] = Counter()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._n = 0
        self.processes: list[Process] = []
        self.duplicate_done = 0.0
        self.in_place = False  # receivers whose engine can read pages where they are
        self.slowness = 0.02  # seconds a page takes at most
        self.limits = LIMITS
        self.full = 0.0  # how often the receiver's scheduler has no blocks

    def after(self, delay: float, what: Callable[[], None]) -> None:
        self._n += 1
        heapq.heappush(self._events, (self.now + delay, self._n, what))

    def lag(self, most: float = 0.05) -> float:
        return self.rng.random() * most

    def unique(self) -> bytes:
        self._n += 1
        return self._n.to_bytes(16, "big")

    def run(self, until: float) -> None:
        """Events and deadlines, in order."""
        while self._events and self._events[0][0] <= until:
            self.now, _, what = heapq.heappop(self._events)
            what()
            for process in self.processes:
                if process.alive:
                    process.watch()
        self.now = until

    def settings(self, role: str, buffer: int, **more: Any) -> TransferConfig:
        return TransferConfig(
            transfer_channel=self.channel,
            pd_role=role,
            pd_buffer_size=buffer,
            pd_pull_mode=self.mode != "push",
            pd_delay_pull=self.mode == "pull-delay",
            pd_use_cpu_offload=self.offload and role == "sender",
            pd_in_place=self.in_place and role == "receiver",
            pd_pull_pending_ttl=TTL,
            pd_alloc_fail_backoff_ttl=0.5,
            **more,
        )


class Process:
    """An engine with its agent; a crash ends it, and `again` makes the next at the same addresses."""

    role = ""

    def __init__(self, world: World, name: str, block_size: int, blocks: int, buffer_pages: int) -> None:
        self.world, self.name, self.block_size, self.blocks, self.buffer_pages = world, name, block_size, blocks, buffer_pages
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

    # Inputs and actions

    def feed(self, what: Any, then: Callable[[list[Any]], None] | None = None) -> None:
        """Handle an input now; when frozen, later."""
        if not self.alive:
            return
        if self.frozen:
            self.thawed.append(lambda: self.feed(what, then))
            return
        if then is None and self.answered_ahead(what):
            self.arm()
            return
        actions = self.machine.handle(what, self.world.now)
        self.act(actions)
        if then is not None:
            then(actions)
        self.arm()

    def answered_ahead(self, what: Any) -> bool:
        """Mostly, where the machine foresees its answer, what others wait for is done first; what the machine says then must be just that, and more."""
        foreseen = self.machine.foresee(what, self.world.now)
        if foreseen is None or self.world.rng.random() < 0.3:
            return False
        digests = [self.copied_now(copy) for copy in foreseen.copies]
        told = None if None in digests else foreseen.then([found for found in digests if found is not None])
        if told is None:
            return False
        self.world.count["ahead"] += 1
        self.act(told)  # type: ignore[arg-type]
        done, inputs, others = list(told), [what], list[Any]()
        while inputs:
            for action in self.machine.handle(inputs.pop(0), self.world.now):
                if isinstance(action, Copy) and digests:
                    inputs.append(Copied(action.token, digests.pop(0)))
                elif done and action == done[0]:
                    done.pop(0)
                else:
                    others.append(action)
        assert not digests and not done, "the machine did otherwise than it had foreseen"
        self.act(others)
        return True

    def copied_now(self, action: Copy) -> list[bytes] | None:
        """A copy that takes no time."""
        source, target = self.can_reach(action.source), self.can_reach(action.target)
        numbers = range(action.first_page, action.first_page + action.pages)
        if action.epochs is not None and [source.epochs[action.source_table[n]] for n in numbers] != action.epochs:
            return None
        self.owners(source, target, action)
        return [self.copied_page(source, target, action, number) for number in numbers]

    def arm(self) -> None:
        """See to the machine's next deadline."""
        when = self.machine.next_deadline()
        if when is None or (self._armed is not None and self._armed <= when and self._armed > self.world.now):
            return
        self._armed = when
        self.world.after(max(when - self.world.now, 0.0) + self.world.lag(0.001), self.tick)

    def tick(self) -> None:
        if not self.alive:
            return
        if self.frozen:
            self.thawed.append(self.tick)
            return
        self._armed = None
        self.act(self.machine.tick(self.world.now))
        self.arm()

    def act(self, actions: list[Any]) -> None:
        for action in actions:
            match action:
                case Tell(event):
                    self._up = max(self._up, self.world.now + self.world.lag(0.01))
                    self.world.after(self._up - self.world.now, lambda event=event: self.later(lambda: self.told(event)))
                case Send(peer, message):
                    self.in_turn(peer, message)
                case Connect(address):
                    self.connect(address)
                case Close(peer):
                    self.close(peer)
                case Epochs(buffer, blocks, epochs):
                    memory = self.world.memories[buffer]
                    for block, epoch in zip(blocks, epochs, strict=True):
                        assert epoch > memory.epochs[block]
                        memory.epochs[block] = epoch
                case Copy():
                    self.copy(action)
                case SendPages():
                    self.send_pages(action)
                case Receive():
                    pass  # seen to where the header was handled
                case _:
                    raise AssertionError(action)

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

    def told(self, event: Any) -> None:
        raise NotImplementedError

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
            world.after(world.lag(), lambda: self.links.get(mine) is link and self.feed(Connected(mine, there, address, self.bases(there))))
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

    def pump(self, link: Link, to: Process) -> None:
        """Deliver the next frame of a direction; a frame with bytes holds up those behind it until they are taken."""
        if to in link.pumping or not link.queues.get(to):
            return
        link.pumping.add(to)
        self.world.after(self.world.lag(), lambda: self.deliver(link, to))

    def deliver(self, link: Link, to: Process) -> None:
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
                to.feed(FromPeer(peer, message), lambda actions: held_up.extend(a for a in actions if isinstance(a, Receive)))
        if payload is not None and held_up:
            to.receiving[held_up[0].token] = link
            return to.receive(held_up[0], payload, lambda: self._next(link, to))
        return self._next(link, to)

    def _next(self, link: Link, to: Process) -> None:
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
            self.world.lag(), lambda: other.links.get(number) is link and other.feed(PeerLost(number, "closed by the other", False))
        )

    def broken(self, link: Link, dead: bool) -> None:
        """The link ended, for no fault of the two."""
        link.broken = True
        for process, number in link.ends.items():
            self.world.after(
                self.world.lag(),
                lambda process=process, number=number: process.links.get(number) is link and process.feed(PeerLost(number, "broken", dead)),
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

    # Bytes

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
                return self.feed(Copied(action.token, None if torn[0] else seen, "an epoch had changed" if torn[0] else ""))
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
            assert all(self.owner(action.source_table[page]) for page in pages), "a copy out of blocks that were given back"
        return found

    def owner(self, block: int) -> Any:
        raise NotImplementedError

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
            assert memory is not self.memory or all(self.owner(block) for block in action.table), "sent from blocks that were given back"
            values = [v for block, n in zip(action.table, action.tokens, strict=True) for v in memory.values[block][:n]]
            self.transmit(action.peer, header, self.corrupted(values))
            return self.feed(Sent(action.token, True))

        link.busy[self] = max(link.busy.get(self, 0.0), self.world.now) + self.world.lag(0.05)
        self.world.after(link.busy[self] - self.world.now, lambda: self.later(finish))

    def receive(self, action: Receive, payload: list[int | None], then: Callable[[], None]) -> None:
        link = self.receiving.pop(action.token)
        assert len(payload) == sum(
            tokens_in(p, action.tokens, action.page_tokens) for p in range(action.first_page, action.first_page + action.pages)
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
                assert self.owner(action.target_table[position // size]) is not None, "received into blocks that nobody has"
                self.memory.write(action.target_table, position, rest[position - first])
            seen.append(digest(rest[:count]))
            del rest[:count]
            return self.world.after(self.world.lag(self.world.slowness), lambda: self.later(lambda: page(number + 1)))

        self.world.after(self.world.lag(self.world.slowness), lambda: self.later(lambda: page(action.first_page)))

    def watch(self) -> None:
        """After every step: what must hold at any time."""


@dataclass
class Sending:
    """A request at a sender."""

    prompt: tuple[int, ...]
    blocks: list[int] = field(default_factory=list)
    next: int = 0
    admitted: bool = False
    told_last: bool = False
    end: str = ""


class SenderProcess(Process):
    """Computes prompts chunk by chunk; equal beginnings share blocks while somebody has them."""

    role = "sender"

    def make(self) -> SenderMachine:
        world = self.world
        if world.offload:
            self.pool = self._memory(layout_of(self.block_size, self.buffer_pages))
        self.requests: dict[str, Sending] = {}
        self.references: Counter[int] = Counter()
        self.known: dict[bytes, int] = {}
        self.free = list(range(self.blocks))
        size = self.buffer_pages * self.layout.block_bytes
        return SenderMachine(self.own(), world.settings("sender", size, pd_pull_backpressure_reserve_pct=0.0), self.world.limits)

    def hello(self) -> Hello:
        lent = self.pool or self.memory
        buffers = [] if self.world.mode == "push" else [Buffer(lent.id, lent.layout)]
        return Hello((1, 1), self.incarnation, "sender", self.world.mode, self.world.channel, {}, b"\0" * 16, buffers)  # type: ignore[arg-type]

    def owner(self, block: int) -> Any:
        return self.references[block] or None

    def submit(self, ticket: str, prompt: tuple[int, ...], receiver: ReceiverProcess) -> None:
        if not self.alive:
            return
        document = published.Published(
            role="receiver",
            mode=self.world.mode,  # type: ignore[arg-type]
            channel=self.world.channel,
            incarnation=receiver.incarnation.hex(),
            fingerprint={},
            block_size=receiver.block_size,
            alloc=[receiver.address],
        )
        self.requests[ticket] = Sending(prompt)
        wanted = s.SendWanted(ticket, published.encode(document), len(prompt) - 1, identities(prompt, self.block_size))
        self.engine(wanted)

    def told(self, event: Any) -> None:
        request = self.requests[event.ticket]
        self.world.count[type(event).__name__] += 1
        assert not request.end, f"{event} after {request.end}"
        match event:
            case s.SendAdmitted(_, ticket, held):
                assert not request.admitted
                request.admitted, request.next = True, held
                pages = page_count(len(request.prompt) - 1, self.block_size)
                request.blocks = [self.block_for(request.prompt, page) if page >= held else -1 for page in range(pages)]
                self.world.after(self.world.lag(0.1), lambda: self.later(lambda: self.compute(ticket)))
            case s.SendRefused():
                assert not request.admitted
                request.end = "refused"
            case s.Returned():
                assert not request.admitted or request.told_last, "the blocks of a request that computes were given back"
                request.end = "returned"
                self.let_go(request)

    def let_go(self, request: Sending) -> None:
        """The blocks nobody has any more are used for something else at once."""
        for block in request.blocks:
            if block < 0:
                continue
            self.references[block] -= 1
            if not self.references[block]:
                del self.references[block]
                self.known = {name: b for name, b in self.known.items() if b != block}
                self.memory.scribble(block)
                self.free.append(block)

    def block_for(self, prompt: tuple[int, ...], page: int) -> int:
        name = identities(prompt, self.block_size)[page]
        if name not in self.known:
            block = self.free.pop(0)
            self.known[name] = block
            self.memory.scribble(block)
        block = self.known[name]
        self.references[block] += 1
        return block

    def compute(self, ticket: str) -> None:
        request = self.requests[ticket]
        if request.told_last:
            return
        pages, first = len(request.blocks), request.next
        past = min(first + self.world.rng.randint(1, 3), pages)
        for page in range(first, past):
            start = page * self.block_size
            values = [value(request.prompt, start + i) for i in range(tokens_in(page, len(request.prompt) - 1, self.block_size))]
            self.memory.values[request.blocks[page]][: len(values)] = values
        request.next, request.told_last = past, past == pages
        self.engine(s.Computed(ticket, first, request.blocks[first:past], request.told_last))
        if not request.told_last:
            self.world.after(self.world.lag(0.2), lambda: self.later(lambda: self.compute(ticket)))

    def abandon(self, ticket: str) -> None:
        request = self.requests.get(ticket)
        if request is None or request.end or request.told_last:
            return
        request.told_last = True
        self.engine(s.Abandoned(ticket, "aborted"))

    def watch(self) -> None:
        ledger = self.machine._state.ledger
        for owner in ledger._kept:
            assert owner in self.machine._tickets or any(o.ticket == owner for o in self.machine._pulls.values())
        assert self.machine._state.admission.used <= self.machine._state.admission.total
        assert len(self.machine._state.ended) <= LIMITS.remembered


@dataclass
class Request:
    """A ticket at a receiver."""

    prompt: tuple[int, ...]
    state: str = "unknown"  # offered, ended
    blocks: list[int] = field(default_factory=list)
    mine: list[int] = field(default_factory=list)
    held: int = 0
    here: bool = False
    fetched: bool = False
    stopped: bool = False
    arrived: int = 0
    outcome: str = ""  # of the HTTP request: how many tokens it took over, in words


class ReceiverProcess(Process):
    """Takes what comes, checks what it takes."""

    role = "receiver"

    def make(self) -> ReceiverMachine:
        self.requests: dict[str, Request] = {}
        self.prompts: dict[str, tuple[int, ...]] = {}
        self.free = list(range(self.blocks))
        self.who: dict[int, str] = {}
        size = self.buffer_pages * self.layout.block_bytes
        return ReceiverMachine(self.own(), self.world.settings("receiver", size), self.world.limits)

    def hello(self) -> Hello:
        buffers = [Buffer(self.memory.id, self.layout)] if self.world.mode == "push" else []
        return Hello((1, 1), self.incarnation, "receiver", self.world.mode, self.world.channel, {}, b"\0" * 16, buffers)  # type: ignore[arg-type]

    def owner(self, block: int) -> Any:
        return self.who.get(block)

    def allocate(self, ticket: str, request: Request, page_tokens: int) -> bool:
        n = len(request.prompt) - 1
        count = page_count(n, self.block_size)
        if count > len(self.free):
            return False
        fresh = [self.free.pop(0) for _ in range(count)]
        held = self.world.rng.choice([0, 0, 0, 1, 2, 99])
        pages = page_count(n, page_tokens)
        held = min(held, pages)
        if held < pages and held * page_tokens % self.block_size:
            held = 0
        request.held, request.blocks, request.mine = held, fresh, fresh
        for position in range(min(held * page_tokens, n)):
            self.memory.write(fresh, position, value(request.prompt, position))
        first = first_target(held, page_tokens, self.block_size) if held < pages else count
        for index, block in enumerate(fresh):
            if index >= first:
                self.who[block] = ticket
        return True

    def let_go(self, request: Request) -> None:
        for block in request.mine:
            self.who.pop(block, None)
            self.memory.scribble(block)
            self.free.append(block)
        request.mine = []

    def told(self, event: Any) -> None:
        world, ticket = self.world, event.ticket
        world.count[type(event).__name__] += 1
        if isinstance(event, s.Offered):
            return self.offered(event)
        request = self.requests.get(ticket)
        if request is None or request.state == "ended":
            return None
        match event:
            case s.Arrived(_, _, tokens):
                assert tokens > request.arrived or tokens == len(request.prompt) - 1
                request.arrived = tokens
                self.check(request, tokens)
                if tokens == len(request.prompt) - 1 and (request.stopped or request.here):
                    self.end(ticket, "complete" if not request.stopped else "stopped")
            case s.Failed():
                if request.stopped or request.here:
                    self.end(ticket, f"failed at {request.arrived}")
                else:
                    request.state = "failed"
            case s.Quarantined(_, _, tokens):
                assert self.world.mode == "push" and self.world.shared
                self.check(request, tokens)
                request.state = "quarantined"
                request.outcome = request.outcome or "quarantined"
            case s.Forgotten():
                request.outcome = request.outcome or "forgotten"
                request.state = "ended"
                self.let_go(request)
        return None

    def check(self, request: Request, tokens: int) -> None:
        """The promise: what arrived is right."""
        size = self.block_size
        for position in range(tokens):
            assert self.memory.read(request.blocks, position, size) == value(request.prompt, position), f"position {position} is wrong"

    def end(self, ticket: str, outcome: str) -> None:
        """The request takes over what arrived."""
        request = self.requests[ticket]
        self.check(request, request.arrived)
        request.outcome = request.outcome or outcome
        if not request.stopped:
            self.engine(s.Claimed(ticket, request.arrived))
        request.state = "ended"
        self.let_go(request)

    def offered(self, event: s.Offered) -> None:
        prompt = self.prompts[event.ticket]
        assert event.identities == identities(prompt, event.page_tokens)
        assert event.ticket not in self.requests or self.requests[event.ticket].state in ("unknown", "ended")
        request = self.requests.setdefault(event.ticket, Request(prompt))
        request.page_tokens = event.page_tokens  # type: ignore[attr-defined]
        request.arrived = 0
        if not event.reserve:
            request.state = "offered"
        elif self.world.rng.random() < self.world.full or not self.allocate(event.ticket, request, event.page_tokens):
            request.state = "ended"
            request.outcome = "no room"
            self.engine(s.NoRoom(event.ticket, len(self.free), "full"))
        else:
            request.state = "offered"
            self.engine(s.Room(event.ticket, request.blocks, request.held))

    def ask(self, ticket: str, prompt: tuple[int, ...]) -> None:
        """The request with the ticket comes."""
        if not self.alive:
            return None
        if self.frozen:
            self.thawed.append(lambda: self.ask(ticket, prompt))
            return None
        request = self.requests.get(ticket)
        if request is None or request.state in ("unknown", "ended", "quarantined"):
            return None
        request.here = True
        if request.state == "failed" or request.arrived == len(prompt) - 1:
            return self.end(ticket, "late")
        if self.world.mode != "pull-delay":
            return self.engine(s.Fetch(ticket, request.blocks, request.held))
        self.world.after(self.world.lag(0.5), lambda: self.later(lambda: self.fetch(ticket)))
        return None

    def fetch(self, ticket: str) -> None:
        """Admission, with blocks for all of it."""
        request = self.requests[ticket]
        if request.state == "ended" or request.stopped:
            return
        if not self.allocate(ticket, request, request.page_tokens):  # type: ignore[attr-defined]
            self.world.after(0.3, lambda: self.later(lambda: self.fetch(ticket)))
            return
        self.engine(s.Fetch(ticket, request.blocks, request.held))

    def abort(self, ticket: str) -> None:
        request = self.requests.get(ticket)
        if request is None or request.state in ("unknown", "ended", "quarantined") or request.stopped:
            return None
        request.stopped = True
        if request.state == "failed":
            return self.end(ticket, "stopped")
        self.engine(s.Stopped(ticket))
        return None

    def watch(self) -> None:
        ledger = self.machine._state.ledger
        assert all(len(ledger.owners(page)) == 1 for page in ledger._owners)
        assert set(ledger._kept) <= set(self.machine._tickets)
        assert len(self.machine._state.dones) <= LIMITS.remembered


def nbytes_of(layout: KvLayout, tokens: int, page_tokens: int) -> int:
    return span_bytes(layout, 0, page_count(tokens, page_tokens), tokens, page_tokens)
