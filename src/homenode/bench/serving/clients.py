"""Clients of a server that speaks the OpenAI API: each streams one completion after the other and notes when its tokens
came.

They do little for each token, so that on a machine that serves and asks at once the server keeps the processor: one
write for a request, and of the answer only the events are counted. Any server will do that takes token ids as a prompt.
Fields that not every server has (`ignore_eos`, `stream_options`) are left out where one refuses them by name.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

import msgspec

from homenode.errors import HostError, PeerError, UserError
from homenode.net.api_keys import header_with

_EVENT = b"data: "
_DONE = b"data: [DONE]"
_USAGE = re.compile(rb'"completion_tokens":\s*(\d+)')
_KEPT = 4096  # bytes of the end of an answer, which hold its usage
_FIRST_ID = 100  # below are the special tokens of many vocabularies
_OPTIONAL = ("ignore_eos", "stream_options")
_REFUSED = re.compile(rb"HTTP/1\.[01] 4\d\d ")


@dataclass(frozen=True)
class ClientLoad:
    """The load that clients make: `clients` of them at once, each for `requests` completions of one length, prompts all
    different.
    """

    clients: int
    requests: int = 1
    prompt_tokens: int = 256
    gen_tokens: int = 128
    vocab_size: int = 30_000
    model: str | None = None
    seed: int = 0
    api_key: str | None = None
    left_out: tuple[str, ...] = ()  # optional fields that the server does not take


class FieldRefusedError(PeerError):
    """The server names a field that it does not take, and can do without."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass
class TimedCompletion:
    """One completion as its client saw it: seconds of time.monotonic()."""

    started_at: float
    events: list[float] = field(default_factory=list)  # when each event with a token came, or with several
    tokens: int = 0
    ended_at: float = 0.0

    @property
    def token_seconds(self) -> float:
        """Return the time of each token after the first, however many came in one event; 0 where there is none."""
        return (self.events[-1] - self.events[0]) / (self.tokens - 1) if self.tokens > 1 else 0.0


async def run_load(url: str, load: ClientLoad, timeout_s: float = 600.0) -> list[TimedCompletion]:
    """All completions of all clients. UserError for a URL that is none, HostError when nobody listens, PeerError for
    any other failure."""
    server = _server_at(url)
    try:
        async with asyncio.timeout(timeout_s):
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(_client(server, load, number)) for number in range(load.clients)]
    except* OSError as errors:
        error = errors.exceptions[0]
        raise (
            PeerError(f"{url}: not done within {timeout_s:g} s")
            if isinstance(error, TimeoutError)
            else HostError(f"{url}: {error}")
        ) from None
    except* PeerError as errors:
        raise errors.exceptions[0] from None
    return [exchange for task in tasks for exchange in task.result()]


async def run_accepted_load(
    url: str, load: ClientLoad, timeout_s: float = 600.0
) -> tuple[ClientLoad, list[TimedCompletion]]:
    """The load without those optional fields that the server refuses by name, and what came of it. Raises as
    `run_load`.
    """
    while True:
        try:
            return load, await run_load(url, load, timeout_s)
        except FieldRefusedError as error:
            if error.field in load.left_out:
                raise
            load = replace(load, left_out=(*load.left_out, error.field))


@dataclass(frozen=True)
class _ServerAddress:
    host: str
    port: int
    path: str  # before /v1
    tls: bool


def _server_at(url: str) -> _ServerAddress:
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = -1
    if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
        raise UserError(f"{url!r} is no address such as http://127.0.0.1:8000", param="url")
    tls = parts.scheme == "https"
    path = parts.path.rstrip("/").removesuffix("/v1")
    return _ServerAddress(parts.hostname, port or (443 if tls else 80), path, tls)


async def _client(server: _ServerAddress, load: ClientLoad, number: int) -> list[TimedCompletion]:
    loop, found = asyncio.get_running_loop(), []
    draw = random.Random(load.seed * 1_000_003 + number)
    for _ in range(load.requests):
        request = _request(
            server, load, [draw.randrange(_FIRST_ID, load.vocab_size) for _ in range(load.prompt_tokens)]
        )
        answer = _CompletionConnection(request, loop.create_future())
        await loop.create_connection(
            lambda answer=answer: answer,
            server.host,
            server.port,
            ssl=server.tls or None,
        )
        found.append(await answer.done)
    return found


def _request(server: _ServerAddress, load: ClientLoad, prompt: list[int]) -> bytes:
    body: dict[str, object] = {
        "prompt": prompt,
        "max_tokens": load.gen_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    body["stream_options"] = {"include_usage": True}
    if load.model is not None:
        body["model"] = load.model
    text = msgspec.json.encode({name: value for name, value in body.items() if name not in load.left_out})
    host = f"[{server.host}]" if ":" in server.host else server.host
    given = {} if load.api_key is None else header_with(load.api_key)
    key = "".join(f"{name}: {value}\r\n" for name, value in given.items()).encode("latin-1")
    first = f"POST {server.path}/v1/completions HTTP/1.1\r\nHost: {host}:{server.port}\r\n".encode()
    last = f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n".encode()
    return first + key + last + text


class _CompletionConnection(asyncio.Protocol):
    """One connection: sends the request, counts the events of the answer."""

    def __init__(self, request: bytes, done: asyncio.Future[TimedCompletion]) -> None:
        self._request, self.done = request, done
        self._exchange = TimedCompletion(time.monotonic())
        self._head = True
        self._tail = b""
        self._status = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._exchange.started_at = time.monotonic()
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        if self._head:
            data = self._tail + data
            self._tail = data
            if b"\r\n\r\n" not in data:
                return
            self._head = False
            self._status, self._tail = data[:16], b""
        # An event may be cut by the network: its beginning waits with the tail.
        before = self._tail[-len(_EVENT) + 1 :]
        self._exchange.events += [now] * (before + data).count(_EVENT)
        self._tail = (self._tail + data)[-_KEPT:]
        if not self._exchange.events and len(self._tail) >= _KEPT:
            self._fail()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.done.done():
            return
        usage = _USAGE.findall(self._tail)
        exchange = self._exchange
        if _DONE not in self._tail or len(exchange.events) < 2:
            self._fail()
            return
        # Without usage each event counts as a token, but those of the end and [DONE].
        exchange.tokens = int(usage[-1]) if usage else len(exchange.events) - 2
        exchange.ended_at = exchange.events[-1]
        # The last events are the usage and [DONE]; a server that reports the end by itself has one more, without a
        # token.
        del exchange.events[min(exchange.tokens, len(exchange.events) - 2) :]
        self.done.set_result(exchange)

    def _fail(self) -> None:
        if self.done.done():
            return
        message = f"the server did not stream a completion; its answer ends in {self._tail[-500:]!r}"
        named = next((name for name in _OPTIONAL if name.encode() in self._tail), None)
        if named is not None and _REFUSED.match(self._status):
            self.done.set_exception(FieldRefusedError(message, named))
        else:
            self.done.set_exception(PeerError(message))
