"""Pairs of connected sockets, over which processes of a service talk, and the threads of an event loop
(socketpair(2))."""

from __future__ import annotations

import errno
import socket

from homenode.errors import HostError
from homenode.host.refused_errors import REFUSALS, REMEDY

NEEDED_FOR = "servers, and the processes that read models, do not run without it"


def open_socket_pair(kind: int = socket.SOCK_STREAM) -> tuple[socket.socket, socket.socket]:
    """Both ends. OSError, which names the call where a filter refuses it."""
    try:
        return socket.socketpair(socket.AF_UNIX, kind)
    except OSError as error:
        if error.errno not in REFUSALS:
            raise
        seen = f"socketpair is refused here ({errno.errorcode.get(error.errno, error.errno)})"
        raise OSError(error.errno, f"{seen}: {NEEDED_FOR}. {REMEDY}") from None


def require_socket_pairs() -> None:
    """Raise HostError where there are none, before an event loop is made, whose error would not say so."""
    try:
        for end in open_socket_pair():
            end.close()
    except OSError as error:
        raise HostError(error.strerror or str(error), errno=error.errno) from None
