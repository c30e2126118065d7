"""What the agent needs of a channel. Every channel carries frames over stream sockets; they differ in who may connect
and how KV bytes move."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from homenode.compute.kv_memory import Copier, EpochWords, KvLayout, KvMemory
from homenode.transfer.wire.lane import Lanes
from homenode.transfer.wire.message import Buffer
from homenode.transfer.wire.page_stream import PageStreams


class KvBackend(Protocol):
    """What maps and copies KV memory (`native_kv.NativeKv`). Descriptors stay the caller's. UserError for memory that
    is not what is said of it."""

    @property
    def copy(self) -> Copier:
        """The copy loop."""

    @property
    def lanes(self) -> Lanes | None:
        """Where there are any."""

    @property
    def streams(self) -> PageStreams | None:
        """Where sockets can be read and written past the interpreter."""

    def map_memory(self, fd: int, layout: KvLayout, *, writable: bool) -> KvMemory:
        """Memory in a memfd."""

    def create_words(self, count: int) -> EpochWords:
        """Epoch words of this process, all 0."""

    def map_words(self, fd: int, count: int) -> EpochWords:
        """Another process's."""


@dataclass(frozen=True)
class Listening:
    """A bound socket and the address others are told."""

    sock: socket.socket
    address: str


@dataclass(frozen=True)
class Caller:
    """Who is at the other end. `address`: what limits are counted by; `pidfd`: of a process on this host, owned by the
    holder of this, or None."""

    address: str
    pid: int = 0
    pidfd: int | None = None


@dataclass(frozen=True)
class LocalBuffer:
    """KV memory of this process that is registered, and the epoch words of its blocks."""

    buffer: Buffer
    memory: KvMemory
    words: EpochWords | None  # None: its pages are never reused while somebody reads


class StillWritingError(Exception):
    """A write into a peer's memory was given up on, but may go on until `ended` says that it has (asked from the copy
    thread)."""

    def __init__(self, message: str, ended: Callable[[], bool]) -> None:
        super().__init__(message)
        self.ended = ended


class PeerBuffer(Protocol):
    """A peer's KV memory, as far as the channel makes it reachable."""

    @property
    def layout(self) -> KvLayout: ...

    def copy_from(self, copier: Copier, target: LocalBuffer, job: Chunk) -> list[bytes] | None:
        """Read pages into local memory; as `Copier`."""

    def copy_to(self, copier: Copier, source: LocalBuffer, job: Chunk) -> list[bytes] | None:
        """Write pages of local memory into it; as `Copier`. StillWritingError when it is given up and may go on."""

    def digests(self, job: Chunk) -> list[bytes] | None:
        """Read pages where they are; None when an epoch has changed."""

    def close(self) -> None:
        """Give the mapping back."""


class Chunk(msgspec.Struct, frozen=True):
    """A part of a copy: pages first_page .. first_page + pages - 1 of a sequence of `tokens` positions; tables are of
    the whole sequence, `epochs` of these pages."""

    source_table: Sequence[int]
    target_table: Sequence[int]
    first_page: int
    pages: int
    tokens: int
    page_tokens: int
    epochs: Sequence[int] | None


class Carrier(Protocol):
    """A channel. `connect`, `listen` and `vet` raise PeerError, UserError, or HostError when the machine refuses."""

    name: str
    passes_memory: bool  # descriptors of memory go with Hello
    reaches_memory: bool  # `attach` gives buffers: one side reads or writes the other's memory
    secret: str | None  # frames carry MACs made with it

    def listen(self, ports: Sequence[int]) -> list[Listening]:
        """Bind, one socket for each port (0 or none at all: any that is free)."""

    def connect(self, address: str) -> socket.socket:
        """A non-blocking socket that connects, or has."""

    def vet(self, sock: socket.socket) -> Caller:
        """Who is at the other end of a connected socket; PeerError for somebody who may not be."""

    def identity(self, exported: Sequence[LocalBuffer]) -> bytes:
        """What goes into `Hello.carrier`."""

    def meet(self, caller: Caller, carrier: bytes) -> Caller:
        """What a greeted peer's `Hello.carrier` adds to what is known of it. PeerError for one that cannot be read."""

    def attach(self, buffer: Buffer, fds: Sequence[int], carrier: bytes, *, writable: bool) -> PeerBuffer | None:
        """Make a peer's buffer reachable; None where only its own process can read it. Takes the descriptors over.
        PeerError for one that is not what its layout says."""

    def close(self) -> None:
        """Give back what belongs to the channel itself."""
