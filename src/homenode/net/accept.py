"""Connections as they come to a listening socket, one after another."""

from __future__ import annotations

import errno
import logging
import socket
import threading
import time
from collections.abc import Callable

from homenode.errors import HostError
from homenode.host.refusals import start_thread

_log = logging.getLogger(__name__)
_ENDED = (errno.EBADF, errno.EINVAL)  # what a socket says that was closed, or shut down, while somebody waited at it
GREETING_S = 10.0  # for a greeting of workers, TLS included
_MOST_GREETINGS = 64
_AGAIN_S = 0.25  # before a system without descriptors is asked again


class CallServer:
    """Accepts connections in a thread of its own, and greets each in another one, a bounded number at once: a flood of
    strangers may keep peers waiting, not take the process's memory, and one that dawdles holds up nobody.
    """

    def __init__(
        self,
        server: socket.socket,
        serve: Callable[[socket.socket, Callable[[], None]], None],
        over: Callable[[], bool],
        name: str,
    ) -> None:
        """`serve` takes a connection over, raises nothing, and calls what it is given when the greeting is over, or has
        failed. `over`: nothing is accepted any more.
        """
        self._server, self._serve, self._over = server, serve, over
        self._greetings = threading.BoundedSemaphore(_MOST_GREETINGS)
        threading.Thread(target=self._listen, name=name, daemon=True).start()

    def _listen(self) -> None:
        while (sock := accept_next(self._server, self._over)) is not None:
            if not self._greetings.acquire(timeout=GREETING_S):
                sock.close()
                continue
            thread = threading.Thread(target=self._serve_one, args=(sock,), name="homenode-greeting", daemon=True)
            try:
                start_thread(thread)
            except HostError as error:
                self._greetings.release()
                sock.close()
                _log.warning("a connection was closed: %s", error.message)
                time.sleep(_AGAIN_S)

    def _serve_one(self, sock: socket.socket) -> None:
        greeted = _Once(self._greetings.release)
        try:
            self._serve(sock, greeted)
        finally:
            greeted()


class _Once:
    def __init__(self, call: Callable[[], None]) -> None:
        self._call: Callable[[], None] | None = call

    def __call__(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call()


def accept_next(server: socket.socket, over: Callable[[], bool]) -> socket.socket | None:
    """The next connection to a listening socket; None once that is closed, or `over`.

    A system that has no descriptor or memory for one is asked again a few times a second: were the listening thread to
    end by that, no worker could join any more.
    """
    while not over():
        try:
            return server.accept()[0]
        except OSError as error:
            if error.errno in _ENDED or over():
                return None
            _log.warning("no connection can be accepted: %s; trying again in %g s", error.strerror, _AGAIN_S)
            time.sleep(_AGAIN_S)
    return None
