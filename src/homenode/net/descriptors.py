"""Connected sockets handed from process to process, each with a label that says where it leads.

A door is a pair of sockets that keep messages apart; its ends are given to processes when they start (unix(7),
SCM_RIGHTS).
"""

from __future__ import annotations

import socket
from typing import TypeVar

import msgspec

from homenode.errors import PeerError
from homenode.host.socket_pair import open_socket_pair

T = TypeVar("T")
_LARGEST_LABEL = 4096


def door() -> tuple[socket.socket, socket.socket]:
    """Both ends of a door."""
    return open_socket_pair(socket.SOCK_SEQPACKET)


def send_fd(through: socket.socket, label: msgspec.Struct, connected: socket.socket) -> bool:
    """Hand a socket over; ours stays open. False when the other end is gone, or has not taken for so long that nothing
    more fits.
    """
    try:
        socket.send_fds(through, [msgspec.msgpack.encode(label)], [connected.fileno()], socket.MSG_DONTWAIT)
    except OSError:
        return False
    return True


def receive_fd(through: socket.socket, kind: type[T]) -> tuple[T, socket.socket] | None:
    """The next socket and its label; waits for it if `through` blocks, else BlockingIOError. None when the other end is
    closed.

    PeerError for a message that is no label of this kind with one socket.
    """
    data, descriptors, _, _ = socket.recv_fds(through, _LARGEST_LABEL, 1)
    taken = [socket.socket(fileno=descriptor) for descriptor in descriptors]
    for each in taken:
        each.set_inheritable(False)
    if not data and not taken:
        return None
    try:
        label = msgspec.msgpack.decode(data, type=kind)
        (connected,) = taken
    except (msgspec.DecodeError, ValueError) as error:
        for each in taken:
            each.close()
        raise PeerError(f"a message through a door is no socket with a {kind.__name__}: {error}") from error
    return label, connected
