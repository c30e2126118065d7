"""Channel `tcp`: engines on any hosts. Nothing is mapped: KV comes as bytes after Data frames. Off loopback every frame
and payload has a MAC."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from collections.abc import Sequence

from homenode.errors import HostError, PeerError, UserError
from homenode.transfer.carriers.carrier import Caller, Listening, LocalBuffer, PeerBuffer, TcpAddress, parse_address
from homenode.transfer.wire.message import Buffer

_BACKLOG = 128
_SILENT_MS = 30_000  # for so long sent bytes may stay unacknowledged
_KEEPALIVE = {socket.TCP_KEEPIDLE: 10, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 4}


class TcpCarrier:
    """Frames and pages over TCP. With a secret MACs are made on loopback too."""

    name = "tcp"
    passes_memory = False
    reaches_memory = False

    def __init__(self, host: str, secret: str | None = None, allowed: Sequence[str] = ()) -> None:
        """`allowed`: networks that peers are in, apart from loopback; none: any who knows the secret.

        Raises UserError for a host that cannot be bound and published, or one off loopback without a secret.
        """
        self.secret = secret
        self._allowed = [ipaddress.ip_network(network) for network in allowed]
        self._host = _numeric(host)
        if not self._host.is_loopback and secret is None:
            raise UserError(
                f"pd_peer_host {host} can be reached from other machines, so frames need a MAC: set pd_secret to "
                "the same value on both "
                "sides, or bind 127.0.0.1.",
                param="pd_secret",
            )

    @property
    def host(self) -> str:
        """The address that others reach this process at."""
        return str(self._host)

    def listen(self, ports: Sequence[int]) -> list[Listening]:
        """Bind all of them, or none: UserError names the port that is taken."""
        bound: list[Listening] = []
        try:
            for port in ports or (0,):
                bound.append(self._bind(port))
        except BaseException:
            for listening in bound:
                listening.sock.close()
            raise
        return bound

    def _bind(self, port: int) -> Listening:
        sock = socket.socket(socket.AF_INET if self._host.version == 4 else socket.AF_INET6, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setblocking(False)
            sock.bind((str(self._host), port))
            sock.listen(_BACKLOG)
        except OSError as error:
            sock.close()
            what = (
                "is in use by another program"
                if error.errno == errno.EADDRINUSE
                else f"cannot be bound: {error.strerror}"
            )
            raise UserError(
                f"KV transfer: port {port} of {self._host} {what}. Choose another, or none for a free one."
            ) from error
        return Listening(sock, str(TcpAddress(str(self._host), sock.getsockname()[1])))

    def connect(self, address: str) -> socket.socket:
        """A connection under way; whether it was made shows when the socket can be written to."""
        where = parse_address(address)
        if not isinstance(where, TcpAddress):
            raise PeerError(f"{address} cannot be reached over transfer_channel {self.name}; set shm on both sides")
        if not where.loopback and self.secret is None:
            raise PeerError(
                f"{address} is on another machine, and no pd_secret is set; nothing is sent there without MACs"
            )
        if not self._is_allowed(where.host):
            raise PeerError(f"{address} is in none of pd_allowed_peers; nothing is sent there")
        try:
            sock = socket.socket(socket.AF_INET6 if ":" in where.host else socket.AF_INET, socket.SOCK_STREAM)
        except OSError as error:
            raise HostError(f"no connection to {address} can be made: {error.strerror}") from error
        sock.setblocking(False)
        code = sock.connect_ex((where.host, where.port))
        if code not in (0, errno.EINPROGRESS):
            sock.close()
            raise PeerError(f"nobody takes connections at {address}: {os.strerror(code)}")
        return sock

    def vet(self, sock: socket.socket) -> Caller:
        """Anybody may connect; the greeting shows who knows the secret. Sets what makes a dead machine show."""
        try:
            host = sock.getpeername()[0]
            if not self._is_allowed(host):
                raise PeerError(f"{host} connected, which is in none of pd_allowed_peers", code="not allowed")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEPALIVE.items():
                sock.setsockopt(socket.IPPROTO_TCP, name, value)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENT_MS)
            return Caller(host)
        except OSError as error:
            raise PeerError(f"a connection ended before it began: {error.strerror}", code="lost") from error

    def _is_allowed(self, host: str) -> bool:
        """Whoever asks a server may name an address to hand KV over to: the operator says which ones are ours."""
        address = ipaddress.ip_address(host)
        return not self._allowed or address.is_loopback or any(address in network for network in self._allowed)

    def identity(self, exported: Sequence[LocalBuffer]) -> bytes:
        """Nothing."""
        return b""

    def meet(self, caller: Caller, carrier: bytes) -> Caller:
        """Nothing to add."""
        return caller

    def attach(self, buffer: Buffer, fds: Sequence[int], carrier: bytes, *, writable: bool) -> PeerBuffer | None:
        """Nothing to reach: None."""
        for fd in fds:
            os.close(fd)
        return None

    def close(self) -> None:
        """Nothing is held."""


def _numeric(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The address a host name stands for; it is what is published, so it must be one others can connect to."""
    try:
        found = ipaddress.ip_address(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except (OSError, UnicodeError, ValueError) as error:
        raise UserError(
            f"pd_peer_host {host!r} is no address of this machine: {error}", param="pd_peer_host"
        ) from error
    if found.is_unspecified:
        raise UserError(
            f"pd_peer_host {host} stands for all addresses, and others must be told one of them. Name it.",
            param="pd_peer_host",
        )
    return found
