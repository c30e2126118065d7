"""HTTP/1.1 by uvicorn and h11, with two things added: a deadline for a request's head, and JSON for what cannot be parsed."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from homenode.server.responses import ErrorBody, ErrorDetail

LARGEST_HEAD = 64 * 1024  # bytes of request line and headers


class BoundedProtocol(H11Protocol):
    """Drops connections whose client takes longer than `head_timeout_s` for a head, or for a body nobody wants any more."""

    head_timeout_s = 30.0
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        self._start_timer()
        super().data_received(data)
        if not self._owes():
            self._stop_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self._stop_timer()  # from here on the keep-alive timer runs
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY:
            self._start_timer()

    def send_400_response(self, msg: str) -> None:
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):  # an answer is on its way already
            self.transport.abort()
            return
        detail = ErrorDetail(message=msg, type="invalid_request_error", param=None, code="invalid_http")
        body = msgspec.json.encode(ErrorBody(detail))
        headers: list[Any] = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        for event in (
            h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _owes(self) -> bool:
        """The client has to go on: with a head, or with a body that was answered already. Other bodies have their reader's deadline."""
        unread = self.conn.their_state is h11.SEND_BODY and self.conn.our_state is h11.DONE
        return unread or self.conn.their_state is h11.IDLE

    def _start_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_timeout_s, self._too_slow)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _too_slow(self) -> None:
        self._head_timer = None
        self.transport.abort()


def bounded_protocol(head_timeout_s: float) -> type[BoundedProtocol]:
    """The protocol class with this deadline: uvicorn makes the instances itself."""
    return type("BoundedProtocol", (BoundedProtocol,), {"head_timeout_s": head_timeout_s})
