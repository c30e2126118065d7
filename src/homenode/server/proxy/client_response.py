"""The response to a proxy's client: the decode server's, or a stream begun by the proxy while servers are still at
work.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from starlette.types import Send

from homenode.server.http.ignored import HEADER
from homenode.server.http.sse import STREAM_GRACE_S, STREAM_HEADERS, break_silences


class ClientResponse:
    """`started`: the head was sent; `early`: by the proxy itself, as that of a stream; `complete`: the last byte was
    sent.
    """

    def __init__(self, send: Send, half_closed: asyncio.Event) -> None:
        """`send` is the ASGI server's, which ends the connection of a client that does not read. `half_closed`: as
        `half_closed_of` gives it.
        """
        self._send, self._half_closed = send, half_closed
        self._last = time.monotonic()
        self.started = self.early = self.complete = False

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Send the head. Where the proxy has begun a stream the client has one already."""
        if self.started:
            return
        self.started = True  # before anything is awaited: one head only, whoever comes first
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, data: bytes, *, more: bool) -> None:
        """Send a part of the body, the last one unless `more`."""
        self.complete = not more
        self._last = time.monotonic()
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def keep_alive(self, every_s: float, waits_for: Callable[[], str]) -> None:
        """Until cancelled: begin a stream once a server's own status is not to be waited for any longer, then break its
        silence.

        A comment every `every_s` seconds (> 0) says what is waited for, and how long at most. Clients and proxies
        between take a stream that is silent for a minute for a dead one.
        """
        await asyncio.sleep(STREAM_GRACE_S)
        self.early = True
        await self.start(200, STREAM_HEADERS)
        await self._comment(waits_for())
        await break_silences(self._half_closed, every_s, lambda: self._last, lambda: self._comment(waits_for()))

    async def tell_ignored(self, headers: list[tuple[bytes, bytes]]) -> None:
        """Tell, where the proxy has begun the stream, what a server names as ignored in its own head, as a comment."""
        for name, value in headers:
            if name == HEADER:
                await self._comment(f"{name.decode()}: {value.decode('latin-1')}")

    async def look_for_client(self, between_events: Callable[[], bool]) -> None:
        """Until cancelled: while a server's stream is passed on, whose silences it breaks itself, comment on those
        after which a client that has closed its sending side may have left. `between_events`: a comment may come now.
        """

        async def comment() -> None:
            if between_events() and not self.complete:
                await self._comment("keep-alive")

        await break_silences(self._half_closed, 0, lambda: self._last, comment)

    async def _comment(self, text: str) -> None:
        await self.write(f": {text}\n\n".encode(), more=True)
