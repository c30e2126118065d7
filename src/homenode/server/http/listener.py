"""The work that every HTTP server of ours does around its application: the listener, the signals, the drain,
the end.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, cast

import uvicorn

from homenode.server.doors.certificate import Certificate
from homenode.server.doors.tcp_socket import bare_host, bind_tcp
from homenode.server.doors.unix_socket import UnixListener
from homenode.server.http.acceptor import Acceptor, DescriptorBudget
from homenode.server.http.config import HttpConfig
from homenode.server.http.protocol import FROM_RESERVE, BoundedProtocol, bounded_protocol
from homenode.server.http.service_manager import ServiceManager

_LOG = logging.getLogger("homenode.server")
_LAST_WORDS_S = 2.0  # for the answers of aborted requests to get out
_BACKLOG = 2048
_CLOSING_S = 5  # for connections to close after that
_UNREAD_AT_THE_END_S = 2.0  # for a client that takes nothing of its answer while the server drains
_MOST_AT_ONCE = 64  # connections accepted before anything else has its turn


class Draining(Protocol):
    """The part of an application's state that its end needs."""

    lost: str | None  # why it cannot go on

    @property
    def draining(self) -> bool: ...

    @property
    def in_flight(self) -> int: ...

    def drain(self, timeout_s: float) -> None: ...

    async def abort_all(self) -> None: ...

    async def idle(self, timeout_s: float) -> bool: ...


def bind(config: HttpConfig) -> socket.socket:
    """The listening address, taken before a model is loaded so that a wrong one is known at once. It does not listen
    yet.

    Raises UserError naming host and port, or the path of a unix socket, when the address cannot be had.
    """
    if config.uds is not None:
        unix = UnixListener(config.uds, int(config.uds_permissions, 8))
        unix.setblocking(False)
        return unix
    return bind_tcp(config.host, config.port)


def url_of(listener: socket.socket, scheme: str = "http") -> str:
    """Return where a bound listener is reached."""
    if listener.family == socket.AF_UNIX:
        return f"{scheme}+unix://{listener.getsockname()}"
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def certificate_of(config: HttpConfig) -> Certificate | None:
    """Return what connections are encrypted with, if they are. Raises UserError that names the file which cannot be
    used.
    """
    if config.ssl_certfile is None or config.ssl_keyfile is None:
        return None
    return Certificate(config.ssl_certfile, config.ssl_keyfile, config.ssl_ca_certs)


class Server(uvicorn.Server):
    """uvicorn without its signal handlers, which end the process by the signal, and without its ten looks a second at a
    flag.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        on_listening: Callable[[], object] | None = None,
        *,
        descriptors_each: int = 1,
        certificate: Certificate | None = None,
    ) -> None:
        """`descriptors_each`: how many a request may need, its connection included. `certificate`: of connections that
        are encrypted.
        """
        super().__init__(config)
        self._on_listening = on_listening
        self._descriptors_each, self._certificate = descriptors_each, certificate
        self._watching: asyncio.Task[None] | None = None
        self.servers = []
        self._stop = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        limits = DescriptorBudget.now(self._descriptors_each)
        at_once = min(self.config.backlog, _MOST_AT_ONCE)
        for listener in sockets or ():
            acceptor = Acceptor(
                listener,
                self._connection,
                self._protocol.idle,
                self._count,
                at_once=at_once,
                limits=limits,
                certificate=self._certificate,
                handshake_timeout_s=self._protocol.head_timeout_s,
            )
            acceptor.start(self.config.backlog)
            self.servers.append(acceptor)  # type: ignore[arg-type]  # it has what uvicorn uses of a server
        if self._certificate is not None:
            self._watching = asyncio.ensure_future(self._certificate.watch())
        self.started = True
        if self._on_listening is not None:
            self._on_listening()

    @property
    def _protocol(self) -> type[BoundedProtocol]:
        return cast(type[BoundedProtocol], self.config.http_protocol_class)  # as uvicorn_config has it

    def _connection(self, from_reserve: bool) -> BoundedProtocol:
        state = {**self.lifespan.state, **({FROM_RESERVE: True} if from_reserve else {})}
        return self._protocol(config=self.config, server_state=self.server_state, app_state=state)

    def _count(self) -> int:
        return len(self.server_state.connections)

    def hurry_readers(self) -> None:
        """A drain waits for answers that are read, not for those that nobody takes."""
        for connection in tuple(self.server_state.connections):
            if isinstance(connection, BoundedProtocol):
                connection.shorten_write_timeout(_UNREAD_AT_THE_END_S)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.hurry_readers()
        if self._watching is not None:
            self._watching.cancel()
        await super().shutdown(sockets=sockets)

    async def main_loop(self) -> None:
        while not self._stop.is_set():
            await self.on_tick(0)  # the Date header of answers
            try:
                async with asyncio.timeout(1.0):
                    await self._stop.wait()
            except TimeoutError:
                pass

    def stop(self, *, at_once: bool) -> None:
        """Leave the main loop; `at_once` drops every connection."""
        self.should_exit = True
        self.force_exit = self.force_exit or at_once
        if at_once:
            for connection in tuple(self.server_state.connections):
                connection.transport.abort()
        self._stop.set()


class Ending:
    """The way in which serving ends, and with which exit code."""

    def __init__(
        self, state: Draining, server: Server, timeout_s: float, manager: ServiceManager | None = None
    ) -> None:
        """`manager`: hears that the end has begun."""
        self._state, self._server, self._timeout_s = state, server, timeout_s
        self._manager = manager or ServiceManager()
        self._task: asyncio.Task[None] | None = None
        self.exit_code = 0

    def signalled(self) -> None:
        """The first signal drains, the second ends at once."""
        if self._state.draining or self._state.lost is not None:
            _LOG.warning("second signal: ending at once")
            self._server.stop(at_once=True)
            return
        _LOG.warning(
            "draining: %d requests in flight have up to %g s; signal again to end at once",
            self._state.in_flight,
            self._timeout_s,
        )
        self.drain()

    def drain(self) -> None:
        """Take no more requests; the end comes when those in flight are done, or their time is over."""
        self._manager.stopping()
        self._state.drain(self._timeout_s)
        self._server.hurry_readers()
        self._task = asyncio.ensure_future(self._drain())

    def engine_lost(self, reason: str) -> None:
        """Pending requests are answered by the client; then the process ends with 1, for whoever watches it to start it
        again.
        """
        if self._state.lost is not None:
            return
        self._state.lost = reason
        if self._state.draining and not self._state.in_flight:
            return
        _LOG.error("the engine is gone: %s; the server ends", reason)
        self._manager.stopping()
        self.exit_code = 1
        self._task = asyncio.ensure_future(self._last_words())

    async def _drain(self) -> None:
        if not await self._state.idle(self._timeout_s):
            _LOG.warning("%d requests did not finish in %g s and are aborted", self._state.in_flight, self._timeout_s)
            await self._state.abort_all()
        await self._last_words()

    async def _last_words(self) -> None:
        await self._state.idle(_LAST_WORDS_S)
        self._server.stop(at_once=self._state.in_flight > 0)


def uvicorn_config(app: object, config: HttpConfig, backlog: int = _BACKLOG) -> uvicorn.Config:
    """Return the configuration for an `HttpApplication`. `backlog`: connections that may wait to be accepted, and are
    accepted at once.
    """
    made = uvicorn.Config(
        app,  # type: ignore[arg-type]
        backlog=backlog,
        http=bounded_protocol(config.request_read_timeout, config.write_timeout),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=config.access_log,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=config.keep_alive_timeout,  # type: ignore[arg-type]  # any number of seconds will do
        timeout_graceful_shutdown=_CLOSING_S,
    )
    if config.access_log:
        logging.getLogger("uvicorn.access").setLevel(logging.INFO)
    return made


def warn_if_open(config: HttpConfig) -> None:
    """An address that others reach wants a key."""
    if config.uds is not None:
        return
    try:
        loopback = ipaddress.ip_address(bare_host(config.host)).is_loopback
    except ValueError:
        loopback = config.host == "localhost"
    if not loopback and not config.asks_keys:
        _LOG.warning("--host %s without --api-key: everybody who reaches this address can use the model", config.host)
