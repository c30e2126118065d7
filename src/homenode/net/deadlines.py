"""Bytes of a blocking socket with a deadline for all of them, however they trickle. Deadlines are moments of
time.monotonic()."""

from __future__ import annotations

import socket
import time

from homenode.errors import PeerError


def read_exactly(sock: socket.socket, size: int, deadline: float) -> bytes:
    """So many bytes. PeerError when the stream ends before, or `deadline` passes."""
    data = bytearray(size)
    read_into(sock, memoryview(data), deadline)
    return bytes(data)


def read_into(sock: socket.socket, view: memoryview, deadline: float) -> None:
    """Fill `view`. PeerError as in `read_exactly`."""
    while len(view):
        left = deadline - time.monotonic()
        if left <= 0:
            raise PeerError("the other end did not say all it had to in time")
        try:
            sock.settimeout(left)
            count = sock.recv_into(view)
        except TimeoutError:
            continue
        except OSError as error:
            raise PeerError(f"the connection failed: {error}") from error
        if not count:
            raise PeerError("the other end closed the connection")
        view = view[count:]


def write_all(sock: socket.socket, data: bytes, deadline: float) -> None:
    """Write all of it. PeerError when the stream ends before, or `deadline` passes."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise PeerError("the other end did not take all it had to in time")
    try:
        sock.settimeout(left)
        sock.sendall(data)  # in all no longer than that
    except TimeoutError:
        raise PeerError("the other end did not take all it had to in time") from None
    except OSError as error:
        raise PeerError(f"the connection failed: {error}") from error
