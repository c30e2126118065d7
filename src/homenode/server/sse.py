"""Server-sent events: a response whose body is a stream of JSON chunks."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from homenode.server.exchange import disconnected
from homenode.server.failures import failure_of

DONE = b"data: [DONE]\n\n"

_LOG = logging.getLogger("homenode.server")
_GRACE_S = 1.0  # an error this early still gets its own HTTP status, because nothing was sent yet
_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]


def event(chunk: msgspec.Struct) -> bytes:
    """One event on the wire."""
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"


class EventStream(Response):
    """Sends `events` as they come, and closes the generator when the client leaves or stops reading.

    The status line waits for the first event, or for a second: a request the engine refuses at once is answered with the right status. A
    failure after that is sent as an event with an error body, and the stream ends without [DONE].
    """

    def __init__(self, request: Request, events: AsyncGenerator[bytes, None], *, keep_alive_s: float, write_timeout_s: float) -> None:
        super().__init__()
        self._events, self._request = events, request
        self._keep_alive_s, self._write_timeout_s = keep_alive_s, write_timeout_s
        self._started = False
        self._last = time.monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pump = asyncio.ensure_future(self._pump(scope, receive, send))
        helpers = [asyncio.ensure_future(disconnected(receive)), asyncio.ensure_future(self._keep_alive(send))]
        try:
            await asyncio.wait({pump, helpers[0]}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (pump, *helpers):
                task.cancel()
            await asyncio.gather(pump, *helpers, return_exceptions=True)
            await self._events.aclose()

    async def _pump(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async for chunk in self._events:
                await self._send(send, chunk)
        except TimeoutError:
            _LOG.warning("request %s: the client left its stream unread for %g s; dropped", self._id, self._write_timeout_s)
            return
        except Exception as error:  # a stream has begun: its client is told within it
            failure = failure_of(error, self._id)
            if not self._started:
                self._started = True
                await failure.response()(scope, receive, send)
                return
            await self._send(send, event(failure.body))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _keep_alive(self, send: Send) -> None:
        """Commits to a stream after the grace, then breaks long silences, which proxies and clients take for a dead server."""
        await asyncio.sleep(_GRACE_S)
        await self._start(send)
        while self._keep_alive_s:
            silent = time.monotonic() - self._last
            if silent >= self._keep_alive_s:
                await self._send(send, b": keep-alive\n\n")
                silent = 0.0
            await asyncio.sleep(self._keep_alive_s - silent)

    async def _start(self, send: Send) -> None:
        if not self._started:
            self._started = True
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})

    async def _send(self, send: Send, data: bytes) -> None:
        await self._start(send)
        async with asyncio.timeout(self._write_timeout_s):
            await send({"type": "http.response.body", "body": data, "more_body": True})
        self._last = time.monotonic()

    @property
    def _id(self) -> str:
        return str(self._request.state.request_id)
