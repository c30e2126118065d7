"""Events cut out of a stream of bytes, so that a stream that breaks off ends between two of them. Pure."""

from __future__ import annotations

import re

from homenode.server.http.failures import ApiError
from homenode.server.http.sse import LINES
from homenode.server.keys.told_usage import ToldUsage, usage_of_line, without_usage
from homenode.server.proxy.forwarded_apis import CHAT_COMPLETIONS, ForwardedApi

_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_END_OF_LINE = re.compile(rb"\n")
_LARGEST_EVENT = 1 << 20  # bytes kept back; what is longer is passed on as it comes
_LONGEST_NAME = 64


def event_of(body: bytes, label: bytes = b"") -> bytes:
    """A whole answer, such as an error, as one event of a stream. `label`: lines that stand before it."""
    lines = b"".join(b"data: " + line + b"\n" for line in body.splitlines())
    return label + lines + b"\n"


class Events:
    """Passes whole events on and keeps the beginning of the next one back."""

    def __init__(self, api: ForwardedApi = CHAT_COMPLETIONS) -> None:
        """`api`: whose answer it is."""
        self._api = api
        self._end = _END_OF_LINE if api.form is LINES else _END
        self._rest = b""
        self._last = b""  # the last whole event; of one too long to be kept its beginning and its end
        self._begun = b""  # the beginning of one too long to be kept
        self._within = False  # an event too long to be kept was begun
        self.usage: ToldUsage | None = None  # what the stream said of its tokens

    def feed(self, chunk: bytes) -> bytes:
        """Return what can be passed on now: the same bytes in the same order, up to the end of an event, but for what
        the server tells of its tokens.
        """
        data = self._rest + chunk
        begin = end = 0
        for match in self._end.finditer(data, max(0, len(self._rest) - 3)):
            begin, end = end, match.end()
        if not end and len(data) > _LARGEST_EVENT:
            if not self._within:
                self._begun = data[:_LONGEST_NAME]
            self._within, self._rest = True, b""
            return data
        if end:
            self._last = (self._begun if self._within and not begin else b"") + data[begin:end]
            self._within = False
        self._rest = data[end:]
        return self._passed(data[:end])

    def _passed(self, events: bytes) -> bytes:
        if self._api.form is LINES:
            self.usage = self.usage or usage_of_line(self._last)
            return events
        passed, told = without_usage(events)
        self.usage = told or self.usage
        return passed

    def flush(self) -> bytes:
        """The rest, after the stream's own end."""
        rest, self._rest = self._rest, b""
        return rest

    @property
    def between(self) -> bool:
        """Return whether the bytes passed on so far end with a whole event."""
        return not self._within

    @property
    def done(self) -> bool:
        """The last event said that the answer is complete."""
        return self._api.is_last(self._last)

    def failure(self, error: ApiError) -> bytes:
        """The last event of a stream that broke off; what was begun of another is dropped."""
        self._rest = b""
        return (b"\n\n" if self._within else b"") + self._api.failure(error)
