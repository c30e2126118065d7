"""The answer of a decode server: opened up to its first byte, then read on."""

from __future__ import annotations

import httpx

from homenode.server.keys.told_usage import USAGE_HEADER, usage_of_header
from homenode.server.proxy.upstreams import UpstreamError, chunks, passed_on

# Bytes of an answer that is no stream; up to there a server may die in the middle of it and another be asked.
_KEPT_WHOLE = 8 << 20
_STREAMS = ("text/event-stream", "application/x-ndjson")


class Opened:
    """`begin` reads a stream's first chunk, and any other answer whole as far as it is not too long for that. `url`: of
    the server. `usage`: what a whole answer says of its tokens, where it was asked.
    """

    def __init__(self, url: str, response: httpx.Response) -> None:
        self.url = url
        self._response = response
        self._chunks = chunks(response)
        self._ready: list[bytes] = []
        self._ended = False
        self.status = response.status_code
        self.headers = passed_on(response)
        self.usage = usage_of_header(response.headers.get(USAGE_HEADER, "").encode())
        self.is_stream = response.headers.get("content-type", "").lower().startswith(_STREAMS)

    async def begin(self) -> None:
        """Up to the first byte. Raises UpstreamError."""
        size = 0
        while not self._ended and (not size or (not self.is_stream and size < _KEPT_WHOLE)):
            if (chunk := await anext(self._chunks, None)) is None:
                self._ended = True
            else:
                self._ready.append(chunk)
                size += len(chunk)
        if self.is_stream and not size:
            raise UpstreamError("the stream ended before it began")

    @property
    def whole(self) -> bool:
        """Nothing more is to come from the server."""
        return self._ended

    async def next(self) -> bytes | None:
        """The next bytes, None at the end. Raises UpstreamError when the connection ends too early."""
        if self._ready:
            return self._ready.pop(0)
        if self._ended:
            return None
        chunk = await anext(self._chunks, None)
        self._ended = chunk is None
        return chunk

    async def close(self) -> None:
        """End the connection, unless everything was read."""
        await self._response.aclose()
