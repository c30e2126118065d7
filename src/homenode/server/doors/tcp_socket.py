"""Listening TCP sockets. `localhost` is both loopback addresses, as clients try the one of IPv6 first."""

from __future__ import annotations

import errno
import socket

from homenode.errors import UserError

LOCALHOST = "localhost"
_TRIES = 16  # free ports that are asked for until one is free in both families


class TcpListener(socket.socket):
    """A bound TCP socket. `twin`: the one on the same port of the other family that belongs to it."""

    twin: socket.socket | None = None

    def listen(self, backlog: int = 128, /) -> None:
        """Both."""
        super().listen(backlog)
        if self.twin is not None:
            self.twin.listen(backlog)

    def close(self) -> None:
        """Both."""
        super().close()
        if self.twin is not None:
            self.twin.close()


def bare_host(host: str) -> str:
    """An address of IPv6 without the brackets that it has in a URL; every other host as it is."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def bind_tcp(host: str, port: int) -> TcpListener:
    """The listening address; it does not listen yet. UserError naming host and port when it cannot be had."""
    if bare_host(host) != LOCALHOST:
        return _bound(host, port)
    for left in reversed(range(_TRIES)):
        listener = _bound("127.0.0.1", port)
        try:
            listener.twin = _twin(listener.getsockname()[1])
        except OSError as error:
            listener.close()
            if port or not left:
                raise _taken(LOCALHOST, port, error) from error
        else:
            return listener
    raise AssertionError("the last try returns or raises")


def with_twins(listener: socket.socket) -> list[socket.socket]:
    """The listener, and the one that belongs to it."""
    twin = listener.twin if isinstance(listener, TcpListener) else None
    return [listener] if twin is None else [listener, twin]


def _bound(host: str, port: int) -> TcpListener:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            bare_host(host), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise UserError(f"--host {host}: no such address ({error.strerror or error})", param="host") from error
    listener = TcpListener(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise _taken(host, port, error) from error
    listener.setblocking(False)
    return listener


def _twin(port: int) -> socket.socket | None:
    """The loopback address of IPv6; None on a host without it. OSError where its port is taken."""
    try:
        twin = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    except OSError:
        return None
    try:
        twin.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        twin.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        twin.bind(("::1", port))
    except OSError as error:
        twin.close()
        if error.errno == errno.EADDRINUSE:
            raise
        return None
    twin.setblocking(False)
    return twin


def _taken(host: str, port: int, error: OSError) -> UserError:
    return UserError(
        f"cannot listen on {host} port {port}: {error.strerror}; choose another with --port (0 takes a free one) or "
        "--host",
        param="port",
    )
