"""The interface of a channel. Every channel carries frames over stream sockets; they differ in who may connect and how
KV bytes move. Also the addresses that channels use: of sockets, of processes, of memory."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from homenode.compute.kv_memory import TILE_TOKENS, Copier, EpochWords, KvLayout, KvMemory, KvRegion
from homenode.errors import HostError, PeerError
from homenode.transfer.wire.lane import Lanes
from homenode.transfer.wire.message import Buffer
from homenode.transfer.wire.stream import PageStreams


class KvBackend(Protocol):
    """Interface of what maps and copies KV memory (`kv_backend.NativeKv`). Descriptors stay the caller's. UserError for
    memory that is not what is said of it."""

    @property
    def copy(self) -> Copier:
        """The copy loop."""

    @property
    def lanes(self) -> Lanes | None:
        """Lanes, where there are any."""

    @property
    def streams(self) -> PageStreams | None:
        """Streams, where sockets can be read and written past the interpreter."""

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
    """The process at the other end. `address`: what limits are counted by; `pidfd`: of a process on this host, owned by
    the holder of this, or None."""

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
        """Return who is at the other end of a connected socket; PeerError for somebody who may not be."""

    def protect(self, sock: socket.socket, *, connects: bool) -> socket.socket:
        """Return the socket to go on with, which does not block, and whose stream others can neither read nor change;
        `sock` itself where nothing is needed, else it is taken over. How the stream ends tells whether it could be
        (`net.secure_stream.failure_of`)."""

    def identity(self, exported: Sequence[LocalBuffer]) -> bytes:
        """Return what goes into `Hello.carrier`."""

    def meet(self, caller: Caller, carrier: bytes) -> Caller:
        """Return what a greeted peer's `Hello.carrier` adds to what is known of it. PeerError for one that cannot be
        read."""

    def attach(self, buffer: Buffer, fds: Sequence[int], carrier: bytes, *, writable: bool) -> PeerBuffer | None:
        """Make a peer's buffer reachable; None where only its own process can read it. Takes the descriptors over.
        PeerError for one that is not what its layout says."""

    def close(self) -> None:
        """Give back what belongs to the channel itself."""


_MOST_NAME = 107  # bytes of sun_path


@dataclass(frozen=True)
class UnixAddress:
    """A socket in the abstract namespace; no file, gone with its last holder."""

    name: str

    def __str__(self) -> str:
        return f"unix:@{self.name}"


@dataclass(frozen=True)
class TcpAddress:
    """Host by number, and port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"tcp:[{self.host}]:{self.port}" if ":" in self.host else f"tcp:{self.host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """Tell whether it can only be reached from this host."""
        return ipaddress.ip_address(self.host).is_loopback


def parse_address(text: str) -> UnixAddress | TcpAddress:
    """PeerError for anything else than the two forms above."""
    scheme, _, rest = text.partition(":")
    if scheme == "unix" and rest.startswith("@") and 1 < len(rest.encode()) <= _MOST_NAME and "\0" not in rest:
        return UnixAddress(rest[1:])
    if scheme == "tcp":
        host, _, port = rest.rpartition(":")
        host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        try:
            number = int(port) if port.isascii() and port.isdigit() else 0
            if 0 < number < 65536:
                return TcpAddress(str(ipaddress.ip_address(host)), number)
        except ValueError:
            pass
    raise PeerError(
        f"{text[:120]!r} is no transfer address; wanted unix:@NAME or tcp:HOST:PORT with the host as a number"
    )


class ProcessIdentity(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`host`: the boot and the PID namespace in which `pid` counts; `started`: in clock ticks after the boot, so that a
    pid used again is noticed."""

    host: str
    pid: int
    started: int


def this_process() -> ProcessIdentity:
    """The identity of this process."""
    return ProcessIdentity(_host(), os.getpid(), _started(os.getpid()))


def find_process(process: ProcessIdentity) -> int | None:
    """A pidfd, owned by the caller; None for a process that is not on this host, not this user's, or that has ended."""
    if process.host != _host() or not process.host or not 0 < process.pid < 1 << 22:
        return None
    try:
        found = os.pidfd_open(process.pid)
    except OSError:
        return None
    try:
        if _started(process.pid) == process.started and Path(f"/proc/{process.pid}").stat().st_uid == os.geteuid():
            return found
    except OSError:
        pass
    os.close(found)
    return None


def _host() -> str:
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _started(pid: int) -> int:
    """proc(5): field 22 of stat; the second may hold anything. -1: unknown."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return -1


Addresses = NDArray[np.uint64]


@dataclass(frozen=True)
class Addressed:
    """KV memory by its addresses: `bases` of the regions of `layout`, in the process that has it."""

    layout: KvLayout
    bases: tuple[int, ...]


@dataclass(frozen=True)
class Part:
    """Tiles first .. past - 1 of a block here and of the block there that it corresponds to."""

    here: int
    there: int
    first: int
    past: int


def in_one_piece(layout: KvLayout) -> bool:
    """Tell whether its regions hold all layers, head after head, as everything here takes for granted."""
    heads = [0, *(region.past_head for region in layout.regions)]
    return all(
        layout.layers_of(region) == (0, layout.layers) and region.first_head == before
        for region, before in zip(layout.regions, heads, strict=False)
    )


def extent(layout: KvLayout, region: KvRegion) -> int:
    """Bytes from a region's first byte to behind its last."""
    heads = region.past_head - region.first_head
    strides = (
        (layout.layers - 1) * region.layer_stride
        + (layout.blocks - 1) * region.block_stride
        + (heads - 1) * region.head_stride
    )
    return strides + layout.head_bytes


def addressed(memory: KvMemory) -> Addressed:
    """This process's own memory: each region is one piece of its address space."""
    layout = memory.layout
    pieces = memory.pieces(0, layout.block_size // TILE_TOKENS)
    begins = (region.first_head * layout.head_bytes for region in layout.regions)
    return Addressed(layout, tuple(_address_at(pieces, begin) for begin in begins))


def _address_at(pieces: Sequence[memoryview], position: int) -> int:
    """Address of the byte at this position of the pieces' bytes, one piece after another."""
    for piece in pieces:
        if position < piece.nbytes:
            return int(np.frombuffer(piece, np.uint8).ctypes.data) + position
        position -= piece.nbytes
    raise ValueError("a region that begins behind its memory's first block")


def parts_of(table: Sequence[int], block_size: int, begin: int, end: int) -> list[Part]:
    """Positions begin .. end - 1 of a sequence, by the blocks there of `table`; here they are blocks 0, 1, ... from the
    one that holds `begin`."""
    first = begin // block_size
    found = []
    for index in range(first, -(-end // block_size)):
        at = index * block_size
        span = (max(begin, at) - at) // TILE_TOKENS, -(-(min(end, at + block_size) - at) // TILE_TOKENS)
        if table[index] >= 0:
            found.append(Part(index - first, table[index], *span))
    return found


def pairs(here: Addressed, there: Addressed, parts: Sequence[Part]) -> tuple[Addresses, Addresses]:
    """Descriptors (address, bytes, device 0) of both sides, in the same order; neighbours on both sides are one. Block
    sizes must be equal."""
    columns = [(_addresses(here, part.here, part), _addresses(there, part.there, part)) for part in parts]
    ours = np.concatenate([column[0] for column in columns])
    theirs = np.concatenate([column[1] for column in columns])
    sizes = np.concatenate(
        [np.full(len(column[0]), _piece_bytes(here.layout, part)) for column, part in zip(columns, parts, strict=True)]
    )
    begins = np.ones(len(ours), bool)
    begins[1:] = (ours[1:] != ours[:-1] + sizes[:-1]) | (theirs[1:] != theirs[:-1] + sizes[:-1])
    firsts = np.flatnonzero(begins)
    merged = np.add.reduceat(sizes, firsts)
    return _descriptors(ours[firsts], merged), _descriptors(theirs[firsts], merged)


def _whole(layout: KvLayout, part: Part) -> bool:
    return part.first == 0 and part.past == layout.block_size // TILE_TOKENS


def _piece_bytes(layout: KvLayout, part: Part) -> int:
    """Keys and values of a head lie side by side when all of a block is meant."""
    return (part.past - part.first) * layout.tile_bytes * (layout.sides if _whole(layout, part) else 1)


def _addresses(memory: Addressed, block: int, part: Part) -> NDArray[np.int64]:
    """Addresses of the pieces of a part, layer by layer, head by head, keys before values."""
    layout = memory.layout
    starts = []
    for region, base in zip(layout.regions, memory.bases, strict=True):
        heads = np.arange(region.past_head - region.first_head, dtype=np.int64) * region.head_stride
        starts.append(base + block * region.block_stride + heads[None, :] + _layers(layout, region)[:, None])
    heads_first = np.concatenate(starts, axis=1).reshape(-1)
    if _whole(layout, part):
        return heads_first
    values = (layout.block_size // TILE_TOKENS) * layout.tile_bytes
    begin = heads_first + part.first * layout.tile_bytes
    return np.stack([begin, begin + values][: layout.sides], axis=1).reshape(-1)


def _layers(layout: KvLayout, region: KvRegion) -> NDArray[np.int64]:
    return np.arange(layout.layers, dtype=np.int64) * region.layer_stride


def _descriptors(addresses: NDArray[np.int64], sizes: NDArray[np.int64]) -> Addresses:
    found = np.zeros((len(addresses), 3), np.uint64)
    found[:, 0], found[:, 1] = addresses, sizes
    return found


def exported_fds(buffers: Sequence[LocalBuffer], *, writable: bool) -> list[int]:
    """Descriptors to pass with Hello: each buffer's memory and epoch words; read-only ones unless the other side is to
    write. The caller closes them."""
    fds: list[int] = []
    try:
        for buffer in buffers:
            fds.append(_reopened(buffer.memory.fd, writable))
            if buffer.words is None:
                raise HostError("KV memory without epoch words cannot be passed to another process")
            fds.append(_reopened(buffer.words.fd, False))
    except OSError as error:
        for fd in fds:
            os.close(fd)
        raise HostError(f"KV memory cannot be passed to another process: {error}") from error
    return fds


def _reopened(fd: int, writable: bool) -> int:
    return os.open(f"/proc/self/fd/{fd}", (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
