"""Whoever listens for workers goes on when the system has had no descriptor for a while, and ends when it is closed."""

from __future__ import annotations

import errno
import socket
import threading
from typing import Any

import pytest

from homenode.net.accept import accept_next
from tests.waiting import PATIENCE_S


class Short(socket.socket):
    """A listening socket that refuses once."""

    refusal: int | None = None

    def accept(self) -> tuple[socket.socket, Any]:
        if self.refusal is not None:
            code, self.refusal = self.refusal, None
            raise OSError(code, "refused")
        return super().accept()


@pytest.mark.parametrize("refusal", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED])
def test_a_refusal_of_the_system_is_no_end(refusal: int) -> None:
    with Short() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.refusal = refusal
        with socket.create_connection(server.getsockname()) as caller:
            accepted = accept_next(server, lambda: False)
            assert accepted is not None and accepted.getpeername() == caller.getsockname()
            accepted.close()


@pytest.mark.parametrize("told", [True, False])
def test_closing_ends_the_waiting(told: bool) -> None:
    server, found, over = socket.create_server(("127.0.0.1", 0)), list[object](), threading.Event()
    waiting = threading.Thread(target=lambda: found.append(accept_next(server, over.is_set)))
    waiting.start()
    if told:
        over.set()
    server.shutdown(socket.SHUT_RDWR)
    waiting.join(PATIENCE_S)
    server.close()
    assert found == [None]
