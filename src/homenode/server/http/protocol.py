"""HTTP/1.1 by uvicorn and h11, with what a server among strangers needs besides: deadlines for clients that send or
read too slowly, and JSON for what cannot be parsed.
"""

from __future__ import annotations

import asyncio
import fcntl
import http
import logging
import socket
import struct
import termios
from typing import Any, ClassVar

import h11
import msgspec
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from homenode.server.http.failures import ErrorBody, ErrorDetail
from homenode.server.http.framing import StrictConnection
from homenode.server.http.idle import IdleConnections

HALF_CLOSED = "half_closed"  # in a request's state: an asyncio.Event, set when its client has closed its sending side
FROM_RESERVE = "from_reserve"  # in a request's state, True: its connection is one too many, and there for /health only

_LOG = logging.getLogger("homenode.server")
_LOOKS = 4  # at a client that does not read, within its time
_LOOK_S = 0.5  # between looks at a client that has closed its sending side
_LOOKS_PER_PROBE = 10
# Seconds, seconds, number.
_KEEP_ALIVE_PROBES = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))


class BoundedProtocol(H11Protocol):
    """One connection. It is dropped when its client takes longer than `head_timeout_s` for a head, or for a body nobody
    wants any more, and when it takes nothing of an answer for `write_timeout_s`.

    A client may close its sending side and wait for the answer (RFC 9112, 9.6). That looks like one that has left,
    until something is sent to it: a whole answer is preceded by an interim response then, which every client skips;
    streams send comments.
    """

    head_timeout_s: ClassVar[float] = 30.0
    write_timeout_s: float = 60.0
    idle: ClassVar[IdleConnections]
    _head_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _half_closed_timer: asyncio.TimerHandle | None = None
    _below: asyncio.WriteTransport | None = None  # the transport that TLS writes to
    _unsent = 0  # bytes that the client had not taken at the last look
    _taken_at = 0.0  # when it last took some, by the loop's clock
    _looks = 0

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._half_closed = asyncio.Event()
        super().__init__(config, server_state, {**app_state, HALF_CLOSED: self._half_closed}, _loop)
        self.conn = StrictConnection()

    # Life

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Writing is paused exactly while there is something that the kernel does not take. A TLS transport counts what
        # is encrypted and what its own transport has separately, and takes a limit of 0 for one that is always reached.
        self._below = _transport_below(transport)
        if self._below is not None:
            self._below.set_write_buffer_limits(0)
        transport.set_write_buffer_limits(0 if self._below is None else 1)
        self._start_head_timer()
        self.idle.add(self, self.give_up)

    def data_received(self, data: bytes) -> None:
        self._start_head_timer()
        super().data_received(data)
        if not self._owes():
            self._stop_head_timer()
        if self._answering():
            self.idle.remove(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        self._stop_write_timer()
        if self._half_closed_timer is not None:
            self._half_closed_timer.cancel()
        self.idle.remove(self)
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self._stop_head_timer()  # from here on the keep-alive timer runs
        super().on_response_complete()
        if self._answering():  # the next request had come already
            return
        if self._half_closed.is_set():
            self.transport.close()
        elif not self.transport.is_closing():
            self.idle.add(self, self.give_up)
            if self.conn.their_state is h11.SEND_BODY:
                self._start_head_timer()

    def give_up(self) -> None:
        """Close it at once, whatever has not been sent yet."""
        self.transport.abort()

    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    # What is no HTTP

    def send_400_response(self, msg: str) -> None:
        """Say what is wrong, with the status that belongs to it, and close."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):  # an answer is on its way already
            self.transport.abort()
            return
        status, reason = self._problem(msg)
        detail = ErrorDetail(message=reason, type="invalid_request_error", param=None, code="invalid_http")
        body = msgspec.json.encode(ErrorBody(detail))
        headers: list[Any] = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        for event in (
            h11.Response(status_code=status, headers=headers, reason=http.HTTPStatus(status).phrase.encode()),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _problem(self, msg: str) -> tuple[int, str]:
        problem = self.conn.problem if isinstance(self.conn, StrictConnection) else None
        if problem is None:
            return 400, msg
        status = problem.error_status_hint
        return status if status in (400, 431, 501, 505) else 400, f"this is no valid HTTP request: {problem}"

    def _unsupported_upgrade_warning(self) -> None:
        """Nothing: a client that asks for a WebSocket gets an answer of HTTP, as the standard has it, and the operator
        has nothing to mend.
        """

    # Clients that send too slowly

    def _owes(self) -> bool:
        """The client has to go on: with a head, or with a body that was answered already. Other bodies have their
        reader's deadline.
        """
        unread = self.conn.their_state is h11.SEND_BODY and self.conn.our_state is h11.DONE
        return unread or self.conn.their_state is h11.IDLE

    def _start_head_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_timeout_s, self._too_slow)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _too_slow(self) -> None:
        self._head_timer = None
        self.transport.abort()

    # Clients that do not read

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unsent, self._taken_at = self._left(), self.loop.time()
        self._watch_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_write_timer()

    def shorten_write_timeout(self, seconds: float) -> None:
        """From now on a client that takes nothing for `seconds` is dropped, if it would not be sooner."""
        self.write_timeout_s = min(self.write_timeout_s, seconds)
        if self._write_timer is not None:
            self._watch_reader()

    def _watch_reader(self) -> None:
        self._stop_write_timer()
        self._write_timer = self.loop.call_later(self.write_timeout_s / _LOOKS, self._look_at_reader)

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _look_at_reader(self) -> None:
        left, now = self._left(), self.loop.time()
        if left < self._unsent:
            self._taken_at = now
        self._unsent = left
        if now - self._taken_at >= self.write_timeout_s:
            _LOG.warning(
                "a client at %s took nothing of its answer for %g s (--write-timeout); its connection is closed, "
                "%d bytes were left",
                self.client[0] if self.client else "an unknown address",
                self.write_timeout_s,
                left,
            )
            self.give_up()
        else:
            self._watch_reader()

    def _left(self) -> int:
        """Bytes that the client's side has not taken: those kept here, and those in the kernel that were not
        acknowledged.
        """
        kept = 0 if self.transport.is_closing() else self.transport.get_write_buffer_size()
        kept += self._below.get_write_buffer_size() if self._below is not None else 0
        try:
            (in_kernel,) = struct.unpack("i", fcntl.ioctl(self._socket(), termios.TIOCOUTQ, bytes(4)))
        except (OSError, ValueError):
            return kept
        return kept + int(in_kernel)

    def _socket(self) -> socket.socket:
        found: socket.socket = self.transport.get_extra_info("socket")
        return found

    # Clients that have closed their sending side

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Return whether to keep the connection: for an answer that is under way, or the next of several requests that
        have all come. TLS has no connections that are closed on one side.
        """
        if self._below is not None:
            return None
        if self._half_closed.is_set():
            return True
        if not self._answering() or self.cycle.more_body:
            return None
        self._half_closed.set()
        if self._socket().family != socket.AF_UNIX:
            # For those to whom nothing can be sent: a host that is there says within a minute who has left.
            for name, value in _KEEP_ALIVE_PROBES:
                self._socket().setsockopt(socket.IPPROTO_TCP, name, value)
            self._socket().setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._half_closed_timer = self.loop.call_later(_LOOK_S, self._look_for_client)
        return True

    def _look_for_client(self) -> None:
        """Drop a client that has turned out to have left: what is sent to a closed socket comes back as an error of
        ours.
        """
        if self.transport.is_closing():
            return
        if self._socket().getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.give_up()
            return
        self._looks += 1
        if self._looks % _LOOKS_PER_PROBE == 2:
            self._probe()
        self._half_closed_timer = self.loop.call_later(_LOOK_S, self._look_for_client)

    def _probe(self) -> None:
        """Send an interim response: 100, as some clients know no other one. Clients of HTTP/1.0 know none."""
        if self.conn.our_state is h11.SEND_RESPONSE and self.scope["http_version"] != "1.0":
            self.transport.write(
                self.conn.send(h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")) or b""
            )


def _transport_below(transport: asyncio.Transport) -> asyncio.WriteTransport | None:
    """The transport that a TLS transport writes to, which asyncio shows nowhere; None: this one is not of TLS."""
    below = getattr(getattr(transport, "_ssl_protocol", None), "_transport", None)
    return below if isinstance(below, asyncio.WriteTransport) else None


def bounded_protocol(head_timeout_s: float, write_timeout_s: float) -> type[BoundedProtocol]:
    """The protocol class with these deadlines and idle connections of its own: uvicorn makes the instances itself."""
    values = {"head_timeout_s": head_timeout_s, "write_timeout_s": write_timeout_s, "idle": IdleConnections()}
    return type("BoundedProtocol", (BoundedProtocol,), values)
