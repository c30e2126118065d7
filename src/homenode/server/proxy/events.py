"""Server-sent events cut out of a stream of bytes, so that a stream that breaks off ends between two of them. Pure."""

from __future__ import annotations

import re

import msgspec

from homenode.server.http.failures import ErrorBody

_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_LARGEST_EVENT = 1 << 20  # bytes kept back; what is longer is passed on as it comes
_DONE = b"data: [DONE]"


def event_of(body: bytes) -> bytes:
    """A whole answer, such as an error, as one event of a stream."""
    lines = b"".join(b"data: " + line + b"\n" for line in body.splitlines())
    return lines + b"\n"


class Events:
    """Passes whole events on and keeps the beginning of the next one back."""

    def __init__(self) -> None:
        self._rest = b""
        self._last = b""
        self._within = False  # an event too long to be kept was begun

    def feed(self, chunk: bytes) -> bytes:
        """What can be passed on now: the same bytes in the same order, up to the end of an event."""
        data = self._rest + chunk
        end = 0
        for match in _END.finditer(data, max(0, len(self._rest) - 3)):
            end = match.end()
        if not end and len(data) > _LARGEST_EVENT:
            self._within, self._rest = True, b""
            return data
        if end:
            self._within = False
            self._last = data[max(0, end - 64) : end]
        self._rest = data[end:]
        return data[:end]

    def flush(self) -> bytes:
        """The rest, after the stream's own end."""
        rest, self._rest = self._rest, b""
        return rest

    @property
    def between(self) -> bool:
        """Whether the bytes passed on so far end with a whole event."""
        return not self._within

    @property
    def done(self) -> bool:
        """The last event said that the answer is complete."""
        return self._last.rstrip(b"\r\n").endswith(_DONE)

    def failure(self, body: ErrorBody) -> bytes:
        """The last event of a stream that broke off; what was begun of another is dropped."""
        self._rest = b""
        return (b"\n\n" if self._within else b"") + b"data: " + msgspec.json.encode(body) + b"\n\n"
