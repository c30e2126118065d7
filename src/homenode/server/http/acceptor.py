"""Takes the connections of a listening socket, with an eye on the descriptors that are left.

asyncio's own server tries as often again as its backlog is long when there are none, and logs a traceback each time.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from homenode.server.doors.certificate import Certificate
from homenode.server.http.descriptors import descriptor_limit, descriptors_in_use, reserve_of
from homenode.server.http.idle import IdleConnections

_LOG = logging.getLogger("homenode.server")
_PAUSE_S = 0.25  # after the system has refused a connection
_TLS_CLOSING_S = 2.0  # for a client to answer the end of TLS
_CLOSED_IN_NEED = 8  # idle connections, when it refuses for lack of descriptors


@dataclass(frozen=True)
class DescriptorBudget:
    """The number of connections that there may be. A number from `first_reserved` on means that as many descriptors are
    open, whatever for.

    `max_connections`: how many, where each of them needs further descriptors later on.
    """

    first_reserved: int
    max_connections: int
    limit: int

    @staticmethod
    def now(descriptors_each: int) -> DescriptorBudget:
        """Return the budget for a process that has no connections yet. `descriptors_each`: how many one connection may
        come to need.
        """
        limit = descriptor_limit()
        free = limit - reserve_of(limit)
        return DescriptorBudget(free, max(1, (free - descriptors_in_use()) // descriptors_each), limit)


class Acceptor:
    """Accepts on one socket, as the servers of uvicorn do.

    While descriptors are short a new connection takes the place of the one that has been idle longest. Where none is
    idle it is made all the same, from the reserve, but told so (`make(True)`): it is for /health.
    """

    def __init__(
        self,
        listener: socket.socket,
        make: Callable[[bool], asyncio.Protocol],
        idle: IdleConnections,
        count: Callable[[], int],
        *,
        at_once: int,
        limits: DescriptorBudget,
        certificate: Certificate | None = None,
        handshake_timeout_s: float = 30.0,
    ) -> None:
        """`count`: how many connections there are. `at_once`: how many are accepted before others have a turn.
        `certificate`: they are encrypted, and their clients have `handshake_timeout_s` to agree on how.
        """
        self._listener, self._make, self._idle, self._count = listener, make, idle, count
        self._at_once, self._limits = at_once, limits
        self._loop = asyncio.get_running_loop()
        self._certificate, self._handshake_timeout_s = certificate, handshake_timeout_s
        self._connecting: set[asyncio.Task[None]] = set()
        self._handshaking: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._short = False  # the last connection was one too many
        self._closed = False

    def start(self, backlog: int) -> None:
        """Listen; `backlog` connections may wait to be accepted."""
        self._listener.setblocking(False)
        self._listener.listen(backlog)
        self._loop.add_reader(self._listener.fileno(), self._accept)

    def close(self) -> None:
        """Accept no more. The socket stays its owner's to close."""
        if self._closed:
            return
        self._closed = True
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener.fileno())

    async def wait_closed(self) -> None:
        """Wait until no connection is being made any more."""
        for task in self._handshaking:
            task.cancel()
        await asyncio.gather(*self._connecting, *self._handshaking, return_exceptions=True)

    def _accept(self) -> None:
        if self._short and self._connecting:
            return  # those under way are about to be idle, and may be closed then; the loop comes back at once
        self._short = False
        for _ in range(self._at_once):
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._refused(error)
                return
            connection.setblocking(False)
            under_way = self._count() + len(self._connecting) + len(self._handshaking)
            self._short = (
                connection.fileno() >= self._limits.first_reserved or under_way >= self._limits.max_connections
            )
            task = self._loop.create_task(self._connect(connection, self._short))
            if self._certificate is None:
                self._connecting.add(task)
                task.add_done_callback(self._connecting.discard)
            else:
                self._watch_handshake(task)
            if self._short:
                return

    async def _connect(self, connection: socket.socket, short: bool) -> None:
        from_reserve = short and not await self._close_idle()
        of_tls = {} if self._certificate is None else self._tls(self._certificate)
        try:
            await self._loop.connect_accepted_socket(lambda: self._make(from_reserve), connection, **of_tls)
        except OSError:  # the client has gone meanwhile, or does not speak TLS
            connection.close()

    def _tls(self, certificate: Certificate) -> dict[str, Any]:
        return {
            "ssl": certificate.context,
            "ssl_handshake_timeout": self._handshake_timeout_s,
            "ssl_shutdown_timeout": _TLS_CLOSING_S,
        }

    def _watch_handshake(self, task: asyncio.Task[None]) -> None:
        """Its client may take its time. Until it has agreed on how to encrypt, the connection counts as idle."""
        self._handshaking.add(task)
        self._idle.add(task, task.cancel)

        def ended(task: asyncio.Task[None]) -> None:
            self._handshaking.discard(task)
            self._idle.remove(task)

        task.add_done_callback(ended)

    async def _close_idle(self) -> bool:
        """Close the connection that has been idle longest. False when none is idle."""
        while len(self._connecting) > 1:  # the others, which are made in two rounds of the loop and are idle then
            await asyncio.sleep(0)
        made = self._idle.close_oldest()
        _LOG.warning(
            "the limit of %d open files is nearly reached: %s; raise it (ulimit -n, LimitNOFILE)",
            self._limits.limit,
            "the connection that was idle longest is closed for a new one" if made else "new requests get 503",
        )
        return made

    def _refused(self, error: OSError) -> None:
        """The system has no connection to give: wait a moment, as the socket stays readable."""
        _LOG.warning("no connection can be accepted: %s; trying again in %g s", error.strerror, _PAUSE_S)
        for _ in range(_CLOSED_IN_NEED):
            if not self._idle.close_oldest():
                break
        self._loop.remove_reader(self._listener.fileno())
        self._pause = self._loop.call_later(_PAUSE_S, self._go_on)

    def _go_on(self) -> None:
        self._pause = None
        if not self._closed:
            self._loop.add_reader(self._listener.fileno(), self._accept)
