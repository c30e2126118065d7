"""Connections as they come to a listening socket, one after another."""

from __future__ import annotations

import errno
import logging
import socket
import time
from collections.abc import Callable

_log = logging.getLogger(__name__)
_ENDED = (errno.EBADF, errno.EINVAL)  # what a socket says that was closed, or shut down, while somebody waited at it
_AGAIN_S = 0.25  # before a system without descriptors is asked again


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
