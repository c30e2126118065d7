"""Server-sent events: a response whose body is a stream of JSON chunks."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from homenode.server.http.exchange import disconnected
from homenode.server.http.failures import ApiError, failure_of
from homenode.server.http.protocol import HALF_CLOSED

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"  # a comment, which no client shows

_SILENCE_S = 1.0  # between comments to a client that may have left
STREAM_GRACE_S = 1.0  # an error this early still gets its own HTTP status, because nothing was sent yet
_HEADERS = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]
STREAM_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), *_HEADERS]


class StreamForm(NamedTuple):
    """The form of a stream on the wire. `keep_alive`: what is sent after a silence; nothing where it is empty."""

    headers: list[tuple[bytes, bytes]]
    keep_alive: bytes


EVENTS = StreamForm(STREAM_HEADERS, KEEP_ALIVE)
# A JSON object a line, in which nothing can be said that is no object.
LINES = StreamForm([(b"content-type", b"application/x-ndjson"), *_HEADERS], b"")


def event(chunk: msgspec.Struct) -> bytes:
    """One event on the wire."""
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"


def half_closed_of(request: Request) -> asyncio.Event:
    """Set once the request's client has closed its sending side: only what is sent to it shows whether it is there."""
    return getattr(request.state, HALF_CLOSED, None) or asyncio.Event()


async def break_silences(
    half_closed: asyncio.Event, every_s: float, last: Callable[[], float], comment: Callable[[], Awaitable[None]]
) -> None:
    """Until cancelled: await `comment` whenever nothing was sent for `every_s` seconds (0: never), and after every
    second of silence once `half_closed` is set. `last`: when something was sent last, by `time.monotonic`.
    """
    while True:
        limit = _SILENCE_S if half_closed.is_set() else every_s
        silent = time.monotonic() - last()
        if limit and silent >= limit:
            await comment()
        await _pause(half_closed, max(0.0, limit - silent) or limit)


async def _pause(half_closed: asyncio.Event, seconds: float) -> None:
    """Wait until `seconds` have passed (0: for ever), or the client closes its sending side."""
    if half_closed.is_set():
        await asyncio.sleep(seconds)
        return
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds or None):
            await half_closed.wait()


class EventStream(Response):
    """Sends `events` as they come, and closes the generator when the client leaves. One that stops reading is made to
    leave by its connection.

    The status line waits for the first event, or for a second: of a request that the engine refuses at once ApiError is
    raised, so that it is answered with the right status. A failure after that is sent as an event with an error body,
    and the stream ends without [DONE].
    """

    def __init__(
        self,
        request: Request,
        events: AsyncGenerator[bytes, None],
        failure: Callable[[ApiError], bytes],
        *,
        keep_alive_s: float,
        form: StreamForm = EVENTS,
        opening: Callable[[], bytes] | None = None,
    ) -> None:
        """`failure`: the event by which a client is told of an error once the stream has begun. `keep_alive_s`: the
        longest silence. `opening`: what a stream begins with whose first event takes long.
        """
        super().__init__()
        self._events, self._request, self._failure = events, request, failure
        self._keep_alive_s, self._form, self._opening = keep_alive_s, form, opening
        self._half_closed = half_closed_of(request)
        self._started = False
        self._last = time.monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pump = asyncio.ensure_future(self._pump(send))
        helpers = [asyncio.ensure_future(disconnected(receive)), asyncio.ensure_future(self._keep_alive(send))]
        try:
            await asyncio.wait({pump, helpers[0]}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (pump, *helpers):
                task.cancel()
            await asyncio.gather(pump, *helpers, return_exceptions=True)
            await self._events.aclose()
        if not pump.cancelled() and (failure := pump.exception()) is not None:
            raise failure

    async def _pump(self, send: Send) -> None:
        try:
            async for chunk in self._events:
                if chunk:
                    await self._send(send, chunk)
        except Exception as error:  # a stream has begun: its client is told within it
            failure = failure_of(error, self._id)
            failure.__traceback__ = None  # or the frames that it leads to, this one among them, would be kept
            if not self._started:
                self._started = True  # so that nothing else begins a stream
                raise failure from None
            await self._send(send, self._failure(failure))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _keep_alive(self, send: Send) -> None:
        """Commits to a stream after the grace, then breaks long silences, which proxies and clients take for a dead
        server.
        """
        await asyncio.sleep(STREAM_GRACE_S)
        if not self._started and self._opening is not None:
            await self._send(send, self._opening())
        await self._start(send)
        if self._form.keep_alive:
            await break_silences(
                self._half_closed,
                self._keep_alive_s,
                lambda: self._last,
                lambda: self._send(send, self._form.keep_alive),
            )

    async def _start(self, send: Send) -> None:
        if not self._started:
            self._started = True
            await send({"type": "http.response.start", "status": 200, "headers": self._form.headers})

    async def _send(self, send: Send, data: bytes) -> None:
        if not self._started:
            await self._start(send)
        await send({"type": "http.response.body", "body": data, "more_body": True})
        self._last = time.monotonic()

    @property
    def _id(self) -> str:
        return str(self._request.state.request_id)
