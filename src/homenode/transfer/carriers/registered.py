"""Parts that channels have in common whose library moves bytes between memory that both sides have registered: frames
over TCP as on channel `tcp`, KV by the library: the receiver reads (pull) or the sender writes (push) the other's
memory.

Bytes go by way of a staging buffer of this process: what is read is copied on, digested on the way, only when it is all
there, so a transfer that hangs, which not every library can abort, writes into nobody's blocks. A write that hangs is
not answered before it ends: its target blocks stay out of use. Epoch words cannot be read over such a channel. That a
page is not given to others while it is read is the sender's promise (it keeps pages until Done or the end of their
lease), and a page that was given away all the same has another digest than was announced and is not used.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import msgspec

from homenode.compute.kv_memory import Copier, KvLayout, KvMemory
from homenode.errors import PeerError
from homenode.transfer.carriers.carrier import (
    Addressed,
    Addresses,
    Caller,
    Chunk,
    KvBackend,
    Listening,
    LocalBuffer,
    Part,
    PeerBuffer,
    ProcessIdentity,
    StillWritingError,
    addressed,
    extent,
    find_process,
    in_one_piece,
    pairs,
    parts_of,
    this_process,
)
from homenode.transfer.carriers.sockets import TcpCarrier, check_layout, private_memory
from homenode.transfer.state.pages import contiguous
from homenode.transfer.wire.message import Buffer

_MOST_CARD = 128 << 10  # bytes
_MOST_METADATA = 96 << 10
_WORST_RATE = 4e6  # bytes a second
_MOST_ADDRESS = 1 << 63


class Registered(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Places of the regions of a buffer: `spans` are (address, bytes), one for each region of its layout; `device`: 0,
    host memory."""

    buffer: bytes
    spans: tuple[tuple[int, int], ...]
    device: int = 0


class LibraryTransfer(Protocol):
    """A transfer under way."""

    @property
    def good(self) -> bool:
        """Tell whether it ended well."""

    def ended(self) -> bool:
        """Tell whether it has."""


class LibraryEngine(Protocol):
    """A library that moves bytes between memory of two processes, with a name of its own for each."""

    name: str

    @property
    def metadata(self) -> bytes:
        """Return what another process must be given to reach this one's registered memory."""

    def register(self, spans: list[tuple[int, int]], *, exported: bool = True) -> None:
        """Memory of this process (address, bytes), until the end; others reach it where it is `exported`. HostError
        when the library will not have it."""

    def add_peer(self, metadata: bytes) -> str:
        """Its name. PeerError for metadata that is none."""

    def remove_peer(self, name: str) -> None:
        """Nothing of it is used any more."""

    def begin(self, operation: str, ours: Addresses, theirs: Addresses, peer: str) -> Any:
        """READ or WRITE, a `LibraryTransfer`. PeerError when it cannot be begun, so that nothing is written."""

    def wait(self, transfer: Any, seconds: float) -> bool:
        """Tell whether it has ended by then."""

    def expect_peers(self) -> None:
        """A connection is new."""

    def close(self, unended: int) -> None:
        """Give memory back, unless transfers are under way that use it."""


class Card(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`Hello.carrier`: the library's name of this process, its metadata (opaque), what is registered, and who the
    process is on its host."""

    agent: str
    metadata: bytes
    buffers: tuple[Registered, ...]
    process: ProcessIdentity


class RegisteredCarrier:
    """Frames over TCP, pages by a library that both sides register memory with. `title`: the library's name
    for people; `patience_s`: for what a transfer of no size takes."""

    name: str
    title: str
    patience_s = 5.0
    passes_memory = False
    reaches_memory = True

    def __init__(self, tcp: TcpCarrier, own: KvLayout, backend: KvBackend, engine: LibraryEngine) -> None:
        """`tcp`: carries the frames."""
        self._tcp, self._own, self._backend, self._engine = tcp, own, backend, engine
        self.secret = tcp.secret
        self._users: dict[str, int] = {}  # attached buffers of a peer's agent
        self._staging: dict[int, _Staging] = {}  # by block size
        self._late: list[tuple[LibraryTransfer, _Staging]] = []  # what hangs, with the memory that it may use

    def listen(self, ports: Sequence[int]) -> list[Listening]:
        """See `TcpCarrier`."""
        return self._tcp.listen(ports)

    def connect(self, address: str) -> socket.socket:
        """See `TcpCarrier`."""
        return self._tcp.connect(address)

    def vet(self, sock: socket.socket) -> Caller:
        """See `TcpCarrier`."""
        caller = self._tcp.vet(sock)
        self._engine.expect_peers()
        return caller

    def protect(self, sock: socket.socket, *, connects: bool) -> socket.socket:
        """See `TcpCarrier`."""
        return self._tcp.protect(sock, connects=connects)

    def identity(self, exported: Sequence[LocalBuffer]) -> bytes:
        """A `Card`. Registers the buffers."""
        buffers = []
        for one in exported:
            where = addressed(one.memory)
            spans = [
                (base, extent(where.layout, region))
                for base, region in zip(where.bases, where.layout.regions, strict=True)
            ]
            self._engine.register(spans)
            buffers.append(Registered(one.buffer.id, tuple(spans)))
        return msgspec.msgpack.encode(Card(self._engine.name, self._engine.metadata, tuple(buffers), this_process()))

    def meet(self, caller: Caller, carrier: bytes) -> Caller:
        """Return the caller with its pidfd, when the process is on this host and this user's: one that died writes no
        more."""
        found = find_process(_card(carrier, self.title).process)
        return caller if found is None else replace(caller, pidfd=found)

    def attach(self, buffer: Buffer, fds: Sequence[int], carrier: bytes, *, writable: bool) -> PeerBuffer | None:
        """Reach a peer's buffer. PeerError for a card that does not fit it."""
        for fd in fds:
            os.close(fd)
        check_layout(buffer.layout, self._own)
        if not in_one_piece(buffer.layout):
            raise PeerError(
                f"a peer's memory is that of several workers, which {self.title} is not told of", code="buffer"
            )
        card = _card(carrier, self.title)
        where = _find(card, buffer, self.title)
        if card.agent not in self._users and (name := self._engine.add_peer(card.metadata)) != card.agent:
            self._engine.remove_peer(name)
            raise PeerError(f"{self.title}'s metadata is another process's than the card says", code="buffer")
        self._users[card.agent] = self._users.get(card.agent, 0) + 1
        return RegisteredBuffer(self, card.agent, where)

    def leave(self, agent: str) -> None:
        """A buffer of a peer is used no more."""
        self._users[agent] -= 1
        if not self._users[agent]:
            del self._users[agent]
            self._engine.remove_peer(agent)

    def stage(self, like: KvLayout, blocks: int) -> _Staging:
        """A staging buffer for so many blocks of this size."""
        found = self._staging.get(like.block_size)
        if found is None or found.addressed.layout.blocks < blocks:
            memory = private_memory(self._backend, contiguous(like, like.block_size, blocks))
            found = self._staging[like.block_size] = _Staging(memory)
            where = found.addressed
            self._engine.register(
                [(base, extent(where.layout, r)) for base, r in zip(where.bases, where.layout.regions, strict=True)],
                exported=False,
            )
        return found

    def move(
        self, operation: str, staging: _Staging, there: Addressed, agent: str, parts: Sequence[Part]
    ) -> LibraryTransfer | None:
        """Move these parts, and wait for it. PeerError when that failed; the transfer when it is still under way after
        its time."""
        ours, theirs = pairs(staging.addressed, there, parts)
        transfer: LibraryTransfer = self._engine.begin(operation, ours, theirs, agent)
        if not self._engine.wait(transfer, self.patience_s + float(ours[:, 1].sum()) / _WORST_RATE):
            self._staging = {size: one for size, one in self._staging.items() if one is not staging}
            self._late.append((transfer, staging))
            return transfer
        if not transfer.good:
            raise PeerError(f"{self.title}: the peer is gone, or its memory cannot be reached", code="lost")
        return None

    def close(self) -> None:
        """Give everything back that is not in use by a transfer that hangs."""
        self._engine.close(sum(not transfer.ended() for transfer, _ in self._late))
        self._tcp.close()


class _Staging:
    """Registered memory of this process."""

    def __init__(self, memory: KvMemory) -> None:
        self.memory = memory
        self.addressed = addressed(memory)


class RegisteredBuffer:
    """A peer's KV memory. For the one thread that copies."""

    def __init__(self, carrier: RegisteredCarrier, agent: str, there: Addressed) -> None:
        self._carrier, self._agent, self._there = carrier, agent, there
        self.layout = there.layout
        self._hangs: LibraryTransfer | None = None

    def copy_from(self, copier: Copier, target: LocalBuffer, job: Chunk) -> list[bytes] | None:
        """Do as `PeerBuffer` says; epochs are not compared."""
        staging, table = self._read(job)
        where = (job.first_page, job.pages, job.tokens)
        return copier(target.memory, job.target_table, staging.memory, table, *where, page_tokens=job.page_tokens)

    def copy_to(self, copier: Copier, source: LocalBuffer, job: Chunk) -> list[bytes] | None:
        """Do as `PeerBuffer` says. StillWritingError when it is given up and may still be written."""
        staging, parts, table = self._plan(job, job.target_table)
        epochs = None if job.epochs is None or source.words is None else (source.words, job.epochs)
        where = (job.first_page, job.pages, job.tokens)
        digests = copier(
            staging.memory, table, source.memory, job.source_table, *where, epochs=epochs, page_tokens=job.page_tokens
        )
        if digests is None:
            return None
        if any(digest == b"" for digest in digests):
            raise ValueError("pages that are not there cannot be written to a peer")
        late = self._move("WRITE", staging, parts)
        if late is not None:
            raise StillWritingError(
                f"a write through {self._carrier.title} does not end; its target stays out of use until it does",
                late.ended,
            )
        return digests

    def digests(self, job: Chunk) -> list[bytes] | None:
        """Do as `PeerBuffer` says: of what a read brings."""
        staging, table = self._read(job)
        return staging.memory.digests(table, job.first_page, job.pages, job.tokens, job.page_tokens)

    def close(self) -> None:
        """Let the peer go."""
        self._carrier.leave(self._agent)

    def _read(self, job: Chunk) -> tuple[_Staging, list[int]]:
        staging, parts, table = self._plan(job, job.source_table)
        if parts and self._move("READ", staging, parts) is not None:
            raise PeerError(f"a read through {self._carrier.title} does not end", code="silent")
        return staging, table

    def _plan(self, job: Chunk, table: Sequence[int]) -> tuple[_Staging, list[Part], list[int]]:
        """The staging buffer, what goes where, and the table of the sequence in the staging buffer."""
        size = self.layout.block_size
        begin = job.first_page * job.page_tokens
        end = min(begin + job.pages * job.page_tokens, job.tokens)
        parts = parts_of(table, size, begin, end)
        if any(part.there >= self.layout.blocks for part in parts):
            raise ValueError("a block that the peer's memory does not have")
        first, past = begin // size, -(-end // size)
        staging = self._carrier.stage(self.layout, past - first)
        staged = [-1] * first + [index - first if table[index] >= 0 else -1 for index in range(first, past)]
        return staging, parts, staged

    def _move(self, operation: str, staging: _Staging, parts: Sequence[Part]) -> LibraryTransfer | None:
        if self._hangs is not None:
            if not self._hangs.ended():
                raise PeerError("an earlier transfer from or to this peer has not ended", code="silent")
            self._hangs = None
        self._hangs = self._carrier.move(operation, staging, self._there, self._agent, parts)
        return self._hangs


def _card(carrier: bytes, title: str) -> Card:
    if len(carrier) > _MOST_CARD:
        raise PeerError(f"{len(carrier)} bytes about {title}; at most {_MOST_CARD} are read", code="buffer")
    try:
        card = msgspec.msgpack.decode(carrier, type=Card)
    except msgspec.MsgspecError as error:
        raise PeerError(f"what a peer says of {title} cannot be read: {error}", code="buffer") from error
    if not 0 < len(card.agent) <= 64 or not 0 < len(card.metadata) <= _MOST_METADATA or len(card.buffers) > 8:
        raise PeerError(f"what a peer says of {title} is out of all measure", code="buffer")
    return card


def _find(card: Card, buffer: Buffer, title: str) -> Addressed:
    """PeerError unless the card has spans large enough for this buffer's regions."""
    for one in card.buffers:
        if one.buffer == buffer.id:
            break
    else:
        raise PeerError(f"a buffer that is not registered with {title}", code="buffer")
    layout = buffer.layout
    if one.device != 0 or len(one.spans) != len(layout.regions):
        raise PeerError(f"a buffer is registered with {title} in another shape than it has", code="buffer")
    for (address, nbytes), region in zip(one.spans, layout.regions, strict=True):
        if not (0 < address < _MOST_ADDRESS - nbytes and extent(layout, region) <= nbytes < _MOST_ADDRESS):
            raise PeerError(f"a region that reaches past what is registered with {title}", code="buffer")
    return Addressed(layout, tuple(address for address, _ in one.spans))
