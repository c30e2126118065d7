"""Server-sent events: a response whose body is a stream of JSON chunks."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from homenode.server.exchange import disconnected
from homenode.server.failures import failure_of

DONE = b"data: [DONE]\n\n"

_LOG = logging.getLogger("homenode.server")
STREAM_GRACE_S = 1.0  # an error this early still gets its own HTTP status, because nothing was sent yet
STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


def event(chunk: msgspec.Struct) -> bytes:
    """One event on the wire."""
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"


class EventStream(Response):
    """Sends `events` as they come, and closes the generator when the client leaves or stops reading.

    The status line waits for the first event, or for a second: a request the engine refuses at once is answered with the right status. A
    failure after that is sent as an event with an error body, and the stream ends without [DONE].
    """

    def __init__(
        self, request: Request, events: AsyncGenerator[bytes, None], *, keep_alive_s: float, write_timeout_s: float
    ) -> None:
        super().__init__()
        self._events, self._request = events, request
        self._keep_alive_s, self._write_timeout_s = keep_alive_s, write_timeout_s
        self._started = False
        self._last = time.monotonic()
        self._writing_since: float | None = None
        self._unread = False  # the client left a write waiting for too long

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pump = asyncio.ensure_future(self._pump(scope, receive, send))
        timer = _Repeated(lambda: self._watch(pump))
        timer.start(self._write_timeout_s)
        helpers = [asyncio.ensure_future(disconnected(receive)), asyncio.ensure_future(self._keep_alive(send))]
        try:
            await asyncio.wait({pump, helpers[0]}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.stop()
            for task in (pump, *helpers):
                task.cancel()
            await asyncio.gather(pump, *helpers, return_exceptions=True)
            await self._events.aclose()

    async def _pump(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async for chunk in self._events:
                await self._send(send, chunk)
        except asyncio.CancelledError:
            if not self._unread:
                raise
            _LOG.warning(
                "request %s: the client left its stream unread for %g s; dropped", self._id, self._write_timeout_s
            )
            return
        except Exception as error:  # a stream has begun: its client is told within it
            failure = failure_of(error, self._id)
            failure.__traceback__ = None  # or the frames that it leads to, this one among them, would be kept
            if not self._started:
                self._started = True
                await failure.response()(scope, receive, send)
                return
            await self._send(send, event(failure.body))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _keep_alive(self, send: Send) -> None:
        """Commits to a stream after the grace, then breaks long silences, which proxies and clients take for a dead server."""
        await asyncio.sleep(STREAM_GRACE_S)
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
            await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})

    async def _send(self, send: Send, data: bytes) -> None:
        if not self._started:
            await self._start(send)
        if self._writing_since is None:  # a comment may wait behind an event
            self._writing_since = time.monotonic()
        await send({"type": "http.response.body", "body": data, "more_body": True})
        self._writing_since, self._last = None, time.monotonic()

    def _watch(self, pump: asyncio.Future[None]) -> float:
        """Drop a client that does not read. A timer of its own for each event would cost more than the event. Seconds to the next look."""
        if self._writing_since is None:
            return self._write_timeout_s
        left = self._write_timeout_s - (time.monotonic() - self._writing_since)
        if left <= 0:
            self._unread = True
            pump.cancel()
        return left if left > 0 else self._write_timeout_s

    @property
    def _id(self) -> str:
        return str(self._request.state.request_id)


class _Repeated:
    """Calls a function again and again, each time after the seconds it returned."""

    def __init__(self, look: Callable[[], float]) -> None:
        self._look = look
        self._handle: asyncio.TimerHandle | None = None

    def start(self, seconds: float) -> None:
        """The first call is `seconds` from now."""
        self._handle = asyncio.get_running_loop().call_later(seconds, self._again)

    def stop(self) -> None:
        """No further calls."""
        if self._handle is not None:
            self._handle.cancel()

    def _again(self) -> None:
        self.start(self._look())
