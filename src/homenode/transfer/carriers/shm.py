"""Channel `shm`: two processes of one user on one host. Frames go over Unix sockets, KV memory is passed as memfds and
mapped."""

from __future__ import annotations

import os
import secrets
import socket
import struct
from collections.abc import Sequence

from homenode.compute.kv_memory import KvLayout
from homenode.errors import HostError, PeerError
from homenode.transfer.carriers.address import UnixAddress, parse_address
from homenode.transfer.carriers.carrier import Caller, KvBackend, Listening, LocalBuffer, PeerBuffer
from homenode.transfer.carriers.mapped import MappedBuffer
from homenode.transfer.wire.message import Buffer

_SO_PEERPIDFD = 77  # Linux 6.5; socket(7)
_BACKLOG = 128


class ShmCarrier:
    """See the module."""

    name = "shm"
    passes_memory = True
    reaches_memory = True
    secret: str | None = None  # the kernel says who is there

    def __init__(self, own: KvLayout, backend: KvBackend) -> None:
        """`own`: this process's layout; a peer's must have the same geometry."""
        self._own, self._backend = own, backend

    def listen(self, ports: Sequence[int]) -> list[Listening]:
        """One abstract name for each port asked for; the numbers mean nothing here."""
        return [self._bind() for _ in range(max(1, len(ports)))]

    def _bind(self) -> Listening:
        address = UnixAddress(f"homenode-{secrets.token_hex(16)}")
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.bind("\0" + address.name)
            sock.listen(_BACKLOG)
        except OSError as error:
            sock.close()
            raise HostError(f"no Unix socket for KV transfer can be opened: {error}") from error
        return Listening(sock, str(address))

    def connect(self, address: str) -> socket.socket:
        """Connected when it returns: a Unix socket that somebody listens on takes no time, a full backlog is an
        error."""
        where = parse_address(address)
        if not isinstance(where, UnixAddress):
            raise PeerError(f"{address} cannot be reached over transfer_channel shm; set tcp on both sides")
        try:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as error:
            raise HostError(f"no connection to {address} can be made: {error.strerror}") from error
        try:
            sock.setblocking(False)
            sock.connect("\0" + where.name)
        except OSError as error:
            sock.close()
            raise PeerError(f"nobody takes connections at {address}: {error.strerror}") from error
        return sock

    def vet(self, sock: socket.socket) -> Caller:
        """Only processes of this process's user; others get no word."""
        pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid != os.geteuid():
            raise PeerError(f"a process of user {uid} connected; only those of user {os.geteuid()} may", code="uid")
        return Caller(f"pid {pid}", pid, _pidfd(sock, pid))

    def identity(self, exported: Sequence[LocalBuffer]) -> bytes:
        """Nothing: the descriptors say it all."""
        return b""

    def meet(self, caller: Caller, carrier: bytes) -> Caller:
        """Nothing to add."""
        return caller

    def attach(self, buffer: Buffer, fds: Sequence[int], carrier: bytes, *, writable: bool) -> PeerBuffer | None:
        """Map a peer's memory and its epoch words."""
        return MappedBuffer(buffer.layout, fds, self._own, self._backend, writable=writable)

    def close(self) -> None:
        """Nothing is held."""


def _pidfd(sock: socket.socket, pid: int) -> int | None:
    """A descriptor that becomes readable when the process has ended; None where the kernel gives none (or another PID
    namespace)."""
    try:
        return sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError:
        pass
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None
