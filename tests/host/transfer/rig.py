"""An agent with a machine that does what a test says, over real sockets and real shared memory (in Python: no native
core needed).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import mmap
import os
import queue
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from homenode.compute.kv_memory import KvLayout
from homenode.net.admission import HandshakeLimits
from homenode.net.settings import NetConfig
from homenode.transfer.agent.agent import TransferAgent
from homenode.transfer.agent.buffers import register
from homenode.transfer.carriers.carrier import Carrier, LocalBuffer
from homenode.transfer.carriers.sockets import ShmCarrier, TcpCarrier
from homenode.transfer.net.links import LinkLimits
from homenode.transfer.scheduler_events import TransferStats
from homenode.transfer.state.machine import Action, Foreseen, FromEngine, Input, Own
from homenode.transfer.state.pages import contiguous
from homenode.transfer.wire.greeting import Identity
from tests.peer_keys import shared_keys
from tests.waiting import PATIENCE_S

T = TypeVar("T")
FINGERPRINT = {"model": "toy", "dtype": "f16", "rope": "10000"}


def layout(blocks: int = 8, block_size: int = 32, layers: int = 2, kv_heads: int = 2) -> KvLayout:
    """A small geometry: tiles of 256 bytes."""
    like = KvLayout(layers, kv_heads, 8, block_size, "f16", 256, blocks, 0, ())
    return contiguous(like, block_size, blocks)


class PythonMemory:
    """`KvMemory` over a memfd, with digests by BLAKE2b."""

    def __init__(self, fd: int, layout: KvLayout, writable: bool) -> None:
        self.layout = layout
        self.fd = os.dup(fd)
        weakref.finalize(self, os.close, self.fd)
        self._map = mmap.mmap(fd, layout.nbytes, prot=mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0))
        self.bytes = memoryview(self._map)

    def head(self, block: int, layer: int, head: int, tiles: int) -> list[memoryview]:
        """The keys' first tiles, and the values'."""
        (region,) = self.layout.regions
        at = region.offset + layer * region.layer_stride + block * region.block_stride + head * region.head_stride
        half = self.layout.block_size // 16 * self.layout.tile_bytes
        return [self.bytes[at + half * part : at + half * part + tiles * self.layout.tile_bytes] for part in (0, 1)]

    def pieces(self, block: int, tiles: int) -> list[memoryview]:
        if not 0 <= block < self.layout.blocks:
            raise IndexError(f"block {block}")
        heads = [(layer, head) for layer in range(self.layout.layers) for head in range(self.layout.kv_heads)]
        return [piece for layer, head in heads for piece in self.head(block, layer, head, tiles)]

    @property
    def writable(self) -> bool:
        return not self.bytes.readonly

    def digests(
        self, table: Sequence[int], first_page: int, pages: int, tokens: int, page_tokens: int | None = None
    ) -> list[bytes]:
        size = page_tokens or self.layout.block_size
        return [
            self._digest(table, page * size, min(size, tokens - page * size))
            for page in range(first_page, first_page + pages)
        ]

    def _digest(self, table: Sequence[int], begin: int, tokens: int) -> bytes:
        size, tile, found = self.layout.block_size, self.layout.tile_bytes, b""
        places = [(table[at // size], at % size // 16 * tile) for at in range(begin, begin + tokens, 16)]
        if any(block < 0 for block, _ in places):
            return b""
        for head in range(self.layout.kv_heads):
            digest = hashlib.blake2b(digest_size=8)
            for layer in range(self.layout.layers):
                for part in (0, 1):
                    for block, at in places:
                        digest.update(self.head(block, layer, head, size // 16)[part][at : at + tile])
            found += digest.digest()
        return found


class PythonWords:
    """`EpochWords` in a memfd."""

    def __init__(self, fd: int, count: int, own: bool) -> None:
        self.fd = fd if own else -1
        if own:
            weakref.finalize(self, os.close, fd)
        self._count = count
        self._words = memoryview(mmap.mmap(fd, 8 * count, prot=mmap.PROT_READ | (mmap.PROT_WRITE if own else 0))).cast(
            "Q"
        )

    def __len__(self) -> int:
        return self._count

    def read(self, block: int) -> int:
        return self._words[block]

    def hold(self, blocks: Sequence[int], epochs: Sequence[int]) -> bool:
        return all(self._words[block] == epoch for block, epoch in zip(blocks, epochs, strict=True))

    def write(self, blocks: Sequence[int], epochs: Sequence[int]) -> None:
        for block, epoch in zip(blocks, epochs, strict=True):
            self._words[block] = epoch


class PythonKv:
    """`KvBackend`. A test may put its own `copy` there."""

    def __init__(self, copy: Any = None) -> None:
        self.copy = copy or copy_pages
        self.lanes = None
        self.streams = None

    def map_memory(self, fd: int, layout: KvLayout, *, writable: bool) -> PythonMemory:
        return PythonMemory(fd, layout, writable)

    def create_words(self, count: int) -> PythonWords:
        fd = os.memfd_create("test-epochs", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, 8 * count)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        return PythonWords(fd, count, True)

    def map_words(self, fd: int, count: int) -> PythonWords:
        return PythonWords(fd, count, False)


def new_memory(of: KvLayout, fill: bytes = b"") -> PythonMemory:
    """Sealed memory with random or given bytes."""
    fd = os.memfd_create("test-kv", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, of.nbytes)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    memory = PythonMemory(fd, of, True)
    memory.bytes[:] = (fill * of.nbytes)[: of.nbytes] if fill else os.urandom(of.nbytes)
    os.close(fd)
    return memory


def copy_pages(
    target: Any,
    target_table: Sequence[int],
    source: Any,
    source_table: Sequence[int],
    first_page: int,
    pages: int,
    tokens: int,
    source_heads: tuple[int, int] | None = None,
    target_first_head: int = 0,
    epochs: tuple[Any, Sequence[int]] | None = None,
    page_tokens: int | None = None,
) -> list[bytes] | None:
    """`Copier`, tile by tile."""
    size, tile = page_tokens or source.layout.block_size, source.layout.tile_bytes
    for page in range(first_page, first_page + pages):
        if source_table[page * size // source.layout.block_size] < 0:
            continue
        for at in range(page * size, min((page + 1) * size, tokens), 16):
            _copy_tile(target, target_table, source, source_table, at, tile)
    if epochs is not None:
        words, wanted = epochs
        blocks = source_table[first_page : first_page + pages]
        if any(words.read(block) != epoch for block, epoch in zip(blocks, wanted, strict=True) if block >= 0):
            return None
    return source.digests(source_table, first_page, pages, tokens, size)


def _copy_tile(
    target: Any, target_table: Sequence[int], source: Any, source_table: Sequence[int], at: int, tile: int
) -> None:
    for layer in range(source.layout.layers):
        for head in range(source.layout.kv_heads):
            ends = []
            for memory, table in ((target, target_table), (source, source_table)):
                size = memory.layout.block_size
                ends.append((memory.head(table[at // size], layer, head, size // 16), at % size // 16 * tile))
            (to, to_at), (from_, from_at) = ends
            for part in (0, 1):
                to[part][to_at : to_at + tile] = from_[part][from_at : from_at + tile]


@dataclass(frozen=True)
class Do:
    """Told to an agent by a test: perform these."""

    actions: list[Action]


@dataclass
class ScriptedMachine:
    """Keeps what it is given, and answers as told."""

    own: Own
    answer: Callable[[Input], list[Action]] = lambda _given: []
    inputs: queue.SimpleQueue[Input] = field(default_factory=queue.SimpleQueue)
    deadline: float | None = None
    ticks: list[float] = field(default_factory=list)
    idle: bool = True
    keeps: bool = True  # the inputs

    def handle(self, given: Input, now: float) -> list[Action]:
        if isinstance(given, FromEngine) and isinstance(given.message, Do):
            return given.message.actions
        actions = self.answer(given)
        if self.keeps:
            self.inputs.put(given)
        return actions

    def foresee(self, given: Input, now: float) -> Foreseen | None:
        return None

    def tick(self, now: float) -> list[Action]:
        self.ticks.append(now)
        self.deadline = None
        return []

    def next_deadline(self) -> float | None:
        return self.deadline

    def lent(self) -> frozenset[str]:
        return frozenset()

    def figures(self) -> TransferStats:
        return TransferStats()

    def drain(self, now: float) -> list[Action]:
        return []

    def expect(self, kind: type[T], timeout: float = PATIENCE_S) -> T:
        """The next input of this kind; others before it are dropped."""
        ends = time.monotonic() + timeout
        while True:
            given = self.inputs.get(timeout=max(0.001, ends - time.monotonic()))
            if isinstance(given, kind):
                return given


@dataclass
class Side:
    """An agent and what a test needs of it."""

    agent: TransferAgent
    machine: ScriptedMachine
    cache: LocalBuffer
    pool: LocalBuffer | None
    identity: Identity
    events: list[Any]

    def do(self, *actions: Action) -> None:
        """Have the agent perform these."""
        self.agent.tell(Do(list(actions)))  # type: ignore[arg-type]

    def address(self, name: str = "alloc") -> str:
        return self.agent.addresses[name][0]

    def refused(self) -> dict[str, int]:
        return self.agent.statistics().refused


def carrier(channel: str, of: KvLayout, secret: str | None = None) -> Carrier:
    """`tls`: TCP with keys."""
    if channel == "shm":
        return ShmCarrier(of, PythonKv())
    return TcpCarrier("127.0.0.1", secret, net=NetConfig(str(shared_keys()) if channel == "tls" else None))


@contextlib.contextmanager
def running(
    role: str,
    channel: str = "shm",
    mode: str = "pull-eager",
    *,
    of: KvLayout | None = None,
    secret: str | None = None,
    answer: Callable[[Input], list[Action]] = lambda _given: [],
    limits: LinkLimits | None = None,
    admission: HandshakeLimits | None = None,
    fingerprint: dict[str, str] | None = None,
    copier: Any = None,
    **identity: Any,
) -> Iterator[Side]:
    """One side, on sockets of its own."""
    of = of or layout()
    cache = register(new_memory(of), PythonKv())
    who = Identity(role, mode, channel, fingerprint or FINGERPRINT, **identity)  # type: ignore[arg-type]
    machines: list[ScriptedMachine] = []
    events: list[Any] = []

    def make(own: Own) -> ScriptedMachine:
        machines.append(ScriptedMachine(own, answer))
        return machines[0]

    names = ("done",) if role == "sender" else ("alloc", "init")
    agent = TransferAgent(
        carrier(channel, of, secret),
        who,
        cache,
        None,
        dict.fromkeys(names, ()),
        make,
        backend=PythonKv(copier),
        post=events.append,
        limits=limits,
        admission=admission,
    )
    agent.start()
    try:
        yield Side(agent, machines[0], cache, None, who, events)
    finally:
        assert agent.close(5.0) or agent.statistics().broken
