"""Sockets that another thread may end at any moment."""

from __future__ import annotations

import contextlib
import socket
import threading

from homenode.errors import PeerError


class SocketSet:
    """The sockets of a channel. `ended`: it has ended, and so have they."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socks: list[socket.socket] = []
        self.ended = False

    def keep(self, sock: socket.socket) -> socket.socket:
        """The socket, to be ended with the others. PeerError when they have been already."""
        with self._lock:
            if self.ended:
                sock.close()
                raise PeerError("the channel is over")
            self._socks.append(sock)
        return sock

    def leave(self) -> None:
        """End all waiting in them, now and later."""
        with self._lock:
            self.ended = True
            for sock in self._socks:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
                sock.close()
            self._socks.clear()
