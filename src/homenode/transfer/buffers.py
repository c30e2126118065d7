"""Registered KV memory: this process's own, with its epoch words, and what peers made reachable. For one thread."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from homenode.compute.kv_memory import KvMemory
from homenode.errors import HostError, PeerError
from homenode.transfer.carriers.carrier import Carrier, KvBackend, LocalBuffer, PeerBuffer
from homenode.transfer.carriers.mapped import MappedBuffer
from homenode.transfer.kv.pages import readable_in_place
from homenode.transfer.wire.message import Buffer

_log = logging.getLogger(__name__)
FDS_PER_BUFFER = 2
_KEPT_S = 60.0  # a lost peer's memory after its last use, if nobody says that it is done with


def register(memory: KvMemory, backend: KvBackend) -> LocalBuffer:
    """Give KV memory an id, and an epoch word for each block (0). HostError when there is no memory for them."""
    return LocalBuffer(Buffer(os.urandom(16), memory.layout), memory, backend.create_words(memory.layout.blocks))


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


@dataclass(frozen=True)
class InPlace:
    """What lets the engine's steps read a peer's memory where it is. `attach`: page p of the memory is block (the
    result) + p from then on; ValueError where that cannot be. `detach` ends it; no step may name its blocks any
    more."""

    attach: Callable[[KvMemory], int]
    detach: Callable[[int], None]


@dataclass
class _Attached:
    """A peer's buffer. `users`: numbers of the connections it came over (`lost` ones too); `jobs`: copies that use
    it."""

    memory: PeerBuffer
    owner: tuple[bytes, int]  # incarnation, pid
    users: set[int] = field(default_factory=set)
    lost: bool = False
    used_at: float = 0.0
    jobs: int = 0
    base: int | None = None  # steps may read it in place, from this block on


class Buffers:
    """All buffers, by id."""

    def __init__(self, local: Sequence[LocalBuffer], carrier: Carrier, in_place: InPlace | None = None) -> None:
        self._in_place = in_place
        self.local = {buffer.buffer.id: buffer for buffer in local}
        self._carrier = carrier
        self._peers: dict[bytes, _Attached] = {}

    def attach(
        self,
        peer: int,
        owner: tuple[bytes, int],
        carrier: bytes,
        buffers: Sequence[Buffer],
        fds: list[int],
        *,
        writable: bool,
    ) -> None:
        """A peer's Hello names these. PeerError for an id that is somebody else's, or memory that is not what it should
        be. Takes `fds` over."""
        wanted = FDS_PER_BUFFER * len(buffers) if self._carrier.passes_memory else 0
        try:
            if len(fds) != wanted:
                raise PeerError(
                    f"{len(fds)} descriptors came with a Hello that names {len(buffers)} buffers; {wanted} are due",
                    code="fds",
                )
            each = wanted // max(1, len(buffers))
            for buffer in buffers:
                mine, fds[:each] = fds[:each], []
                self._attach(peer, owner, carrier, buffer, mine, writable)
        finally:
            self.refuse(fds)

    def _attach(
        self, peer: int, owner: tuple[bytes, int], carrier: bytes, buffer: Buffer, fds: list[int], writable: bool
    ) -> None:
        known = self._peers.get(buffer.id)
        if buffer.id in self.local or (known is not None and known.owner != owner):
            for fd in fds:
                os.close(fd)
            raise PeerError("a buffer's id is already taken by another process", code="buffer")
        if known is None:
            memory = self._carrier.attach(buffer, fds, carrier, writable=writable)
            if memory is None:
                return
            known = self._peers[buffer.id] = _Attached(memory, owner)
        else:
            for fd in fds:
                os.close(fd)
        known.users.add(peer)
        known.lost = False

    def bases(self, buffers: Sequence[Buffer]) -> dict[bytes, int]:
        """Which of these can be read in place, and as which blocks."""
        found = {buffer.id: self._base_of(self._peers.get(buffer.id)) for buffer in buffers} if self._in_place else {}
        return {buffer_id: base for buffer_id, base in found.items() if base is not None}

    def _base_of(self, attached: _Attached | None) -> int | None:
        if attached is None or self._in_place is None or not isinstance(attached.memory, MappedBuffer):
            return None
        own = next(iter(self.local.values())).memory.layout  # the KV cache's
        if attached.base is None and readable_in_place(attached.memory.layout, own):
            try:
                attached.base = self._in_place.attach(attached.memory.memory)
            except ValueError as error:
                _log.warning("a peer's KV is copied, as it cannot be read in place: %s", error)
        return attached.base

    def refuse(self, fds: list[int]) -> None:
        """Close descriptors that came with a Hello that is not taken."""
        while fds:
            os.close(fds.pop())

    def borrow(self, buffer_id: bytes, now: float) -> LocalBuffer | PeerBuffer | None:
        """A buffer for a copy, to be given back with `give_back`; None when it is not (or no more) known."""
        local = self.local.get(buffer_id)
        if local is not None:
            return local
        attached = self._peers.get(buffer_id)
        if attached is None or not attached.users:
            return None
        attached.jobs += 1
        attached.used_at = now
        return attached.memory

    def within_reach(self, buffer_id: bytes) -> PeerBuffer | None:
        """A peer's buffer, as long as its memory is; who keeps it keeps that."""
        attached = self._peers.get(buffer_id)
        return attached.memory if attached is not None and attached.users else None

    def give_back(self, buffer_id: bytes, now: float) -> None:
        """The copy is over."""
        attached = self._peers.get(buffer_id)
        if attached is not None:
            attached.jobs -= 1
            attached.used_at = now
            self._drop_unused(buffer_id, attached)

    def lose(self, peer: int, now: float) -> None:
        """The connection has ended; its memory is kept until `release`, or a while."""
        for attached in self._peers.values():
            if peer in attached.users:
                attached.lost, attached.used_at = True, now

    def release(self, peer: int) -> list[bytes]:
        """Nothing of this connection's buffers is to be copied any more: the ids of those that nobody else uses."""
        unused = []
        for buffer_id, attached in list(self._peers.items()):
            attached.users.discard(peer)
            if not attached.users:
                unused.append(buffer_id)
                self._drop_unused(buffer_id, attached)
        return unused

    def close(self) -> None:
        """Give all mappings back; no copy may be under way. What is read in place stays in the engine's reach: its
        requests may go on."""
        for attached in self._peers.values():
            attached.memory.close()
        self._peers.clear()

    @property
    def lingering(self) -> bool:
        """Whether `retire` will have something to drop."""
        return any(attached.lost and attached.base is None for attached in self._peers.values())

    def retire(self, now: float) -> None:
        """Drop what lost peers left behind. What may be read in place is dropped by `release` alone."""
        for buffer_id, attached in list(self._peers.items()):
            if attached.lost and attached.base is None and now - attached.used_at > _KEPT_S:
                attached.users.clear()
                self._drop_unused(buffer_id, attached)

    def _drop_unused(self, buffer_id: bytes, attached: _Attached) -> None:
        if not attached.users and not attached.jobs:
            del self._peers[buffer_id]
            if attached.base is not None and self._in_place is not None:
                self._in_place.detach(attached.base)
            attached.memory.close()
