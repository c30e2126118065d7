"""Prefill and decode servers that do what a test tells them, down to the bytes on the connection; all in the test's own
event loop.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from homenode.server.proxy.config import ProxyConfig
from homenode.server.proxy.run import bind, serve
from tests.waiting import PATIENCE_S, wait_in_loop

FINGERPRINT = {"protocol": "1-1", "weights": "abc", "layers": "5"}
TOKENS = [b'data: {"token": %d}\n\n' % number for number in range(6)]
DONE = b"data: [DONE]\n\n"
SECONDS = 200  # a whole test
FREEZES = {"silent_after": 0.3, "lost_after": 0.6}


def run(test: Callable[[], Any]) -> None:
    """Runs an async test within a deadline."""

    async def bounded() -> None:
        async with asyncio.timeout(SECONDS):
            await test()

    asyncio.run(bounded())


@dataclass
class Asked:
    """A request a server got."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    gone: bool = False  # its client closed the connection before the answer was whole

    @property
    def json(self) -> dict[str, Any]:
        return dict(json.loads(self.body or b"{}"))

    @property
    def params(self) -> dict[str, Any]:
        return dict(self.json.get("kv_transfer_params") or {})


class Connection:
    """What a behaviour can do with the connection of a request."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def answer(self, status: int, body: Any, headers: str = "") -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = (
            f"HTTP/1.1 {status} Whatever\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n"
            f"{headers}\r\n"
        )
        self.writer.write(head.encode() + data)

    def begin_stream(self) -> None:
        self.writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
        )

    def chunk(self, data: bytes) -> None:
        self.writer.write(b"%x\r\n%s\r\n" % (len(data), data))

    def die(self) -> None:
        self.writer.transport.abort()


Behaviour = Callable[["Scripted", Asked, Connection], Any]


@dataclass
class Scripted:
    """A server. `behaviours`: of its next requests, one each; afterwards `usual`. Frozen it answers nothing at all."""

    role: str
    usual: Behaviour
    behaviours: list[Behaviour] = field(default_factory=list)
    document: dict[str, Any] | bytes | None = None
    models: dict[str, dict[str, Any]] | None = None  # of a server of several: what each publishes; {}: nothing
    health: tuple[int, Any] = (200, {"status": "ok"})
    key: str = ""
    asked: list[Asked] = field(default_factory=list)
    released: list[dict[str, Any]] = field(default_factory=list)
    looks: int = 0
    port: int = 0
    frozen: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)  # behaviours that wait go on
    _server: asyncio.Server | None = None
    _life: object = None  # of this process, None: killed
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    def __post_init__(self) -> None:
        if self.document is None:
            self.document = document(self.role)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        life = self._life = object()
        self._server = await asyncio.start_server(
            lambda reader, writer: self._serve(life, reader, writer), "127.0.0.1", self.port
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def kill(self) -> None:
        """As SIGKILL does: every connection is reset, the port closed."""
        assert self._server is not None
        self._life = None
        self._server.close()
        for writer in tuple(self._writers):
            writer.transport.abort()

    async def restart(self) -> None:
        """Another process on the same port."""
        self.document, self.frozen = document(self.role), asyncio.Event()
        await self.start()

    async def _serve(self, life: object, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._life is not life:  # accepted in time, but killed before this ran
            return writer.transport.abort()
        self._writers.add(writer)
        try:
            while True:
                asked = await self._read(reader)
                while self.frozen.is_set():
                    await asyncio.sleep(0.005)
                await self._answer(asked, Connection(reader, writer))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> Asked:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        return Asked(method, path, headers, body)

    async def _answer(self, asked: Asked, connection: Connection) -> None:
        if asked.path == "/health":
            self.looks += 1
            connection.answer(*self.health)
        elif self.key and asked.headers.get("authorization") != f"Bearer {self.key}":
            connection.answer(401, {"error": {"message": "no", "type": "x", "param": None, "code": "invalid_api_key"}})
        elif asked.path == "/v1/models" and self.models is not None:
            loaded = {"value": "loaded"}
            entries = [{"id": name, "aliases": [f"{name}-alias"], "status": loaded} for name in self.models]
            connection.answer(200, {"object": "list", "data": entries})
        elif asked.path.startswith("/kv_transfer") and self.models is not None:
            published = self.models.get(asked.path.removeprefix("/kv_transfer?model="))
            missing = {"error": {"message": "which?", "param": "model", "code": "kv_transfer_off"}}
            connection.answer(200 if published else 404, published or missing)
        elif asked.path == "/kv_transfer":
            connection.answer(404 if self.document == {} else 200, self.document)
        elif asked.path == "/kv_transfer/release":
            self.released.append(asked.json)
            connection.answer(200, {"ticket": asked.json["ticket"], "status": "released"})
        else:
            self.asked.append(asked)
            await self._behave(asked, connection)

    async def _behave(self, asked: Asked, connection: Connection) -> None:
        behaviour = self.behaviours.pop(0) if self.behaviours else self.usual
        work = asyncio.ensure_future(behaviour(self, asked, connection))
        gone = asyncio.ensure_future(_end(connection.reader))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            asked.gone = not work.done() or isinstance(work.exception(), ConnectionError)
            if work.done():
                work.result()
            else:
                raise ConnectionError
        finally:
            work.cancel()
            gone.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)


async def _end(reader: asyncio.StreamReader) -> None:
    while not reader.at_eof():
        await asyncio.sleep(0.005)


def document(role: str, **changes: Any) -> dict[str, Any]:
    address = {"alloc": ["unix:@a"]} if role == "receiver" else {"done": ["unix:@d"]}
    return {
        "role": role, "mode": "pull-eager", "channel": "shm", "incarnation": secrets.token_hex(16),
        "fingerprint": FINGERPRINT,
        "block_size": 64, "protocol": [1, 1], "host": "here", **address, **changes,
    }  # fmt: skip


# Behaviours of a prefill server


async def computes(server: Scripted, asked: Asked, connection: Connection) -> None:
    connection.answer(
        200,
        {"choices": [], "kv_transfer_params": {"ticket": asked.params["ticket"], "tokens": 3, "status": "computed"}},
    )


async def waits(server: Scripted, asked: Asked, connection: Connection) -> None:
    await server.go.wait()
    await server.usual(server, asked, connection)


async def refuses(server: Scripted, asked: Asked, connection: Connection) -> None:
    connection.answer(503, {"error": {"message": "no room", "code": "kv_transfer_refused"}}, "retry-after: 1\r\n")


async def fails(server: Scripted, asked: Asked, connection: Connection) -> None:
    connection.answer(500, {"error": {"message": "oops", "code": "internal_error"}})


async def talks_nonsense(server: Scripted, asked: Asked, connection: Connection) -> None:
    connection.writer.write(b"\x00\x01 nonsense \r\n\r\n")
    connection.writer.close()


async def answers_nonsense(server: Scripted, asked: Asked, connection: Connection) -> None:
    connection.answer(200, b"<html>")


async def rejects(server: Scripted, asked: Asked, connection: Connection) -> None:
    connection.answer(
        400,
        {"error": {"message": "`temperature` is wrong", "param": "temperature", "code": "invalid_value"}},
        "x-why: me\r\n",
    )


async def dies(server: Scripted, asked: Asked, connection: Connection) -> None:
    connection.die()


# Behaviours of a decode server


async def tells(server: Scripted, asked: Asked, connection: Connection) -> None:
    if not asked.json.get("stream"):
        connection.answer(200, {"choices": [{"text": "told"}], "usage": {"total": 6}})
        return
    connection.begin_stream()
    for token in (*TOKENS, DONE):
        connection.chunk(token)
        await connection.writer.drain()
        await asyncio.sleep(0)
    connection.writer.write(b"0\r\n\r\n")


async def is_busy(server: Scripted, asked: Asked, connection: Connection) -> None:
    connection.answer(503, {"error": {"message": "full", "code": "overloaded"}}, "retry-after: 3\r\n")


async def stalls(server: Scripted, asked: Asked, connection: Connection) -> None:
    """Two tokens and a half, then nothing until told to go on."""
    if not asked.json.get("stream"):
        connection.writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{")
    else:
        connection.begin_stream()
        connection.chunk(TOKENS[0] + TOKENS[1] + TOKENS[2][:9])
    await server.go.wait()


async def dies_midway(server: Scripted, asked: Asked, connection: Connection) -> None:
    server.go.set()
    await stalls(server, asked, connection)
    await connection.writer.drain()
    await asyncio.sleep(0.05)
    connection.die()


def prefiller(**rest: Any) -> Scripted:
    return Scripted("sender", computes, **rest)


def decoder(**rest: Any) -> Scripted:
    return Scripted("receiver", tells, **rest)


@dataclass
class Stage:
    """A proxy in front of scripted servers."""

    url: str
    http: httpx.AsyncClient
    prefillers: list[Scripted]
    decoders: list[Scripted]

    async def complete(self, **fields: Any) -> httpx.Response:
        return await self.http.post("/v1/completions", json={"prompt": "once upon a time", "max_tokens": 6, **fields})

    async def stream(self, **fields: Any) -> bytes:
        """The whole body of a stream."""
        return (await self.complete(stream=True, **fields)).content

    async def health(self) -> dict[str, Any]:
        return dict((await self.http.get("/health")).json())

    async def is_state(self, role: str, number: int, state: str, seconds: float = PATIENCE_S) -> None:
        async def looks() -> bool:
            return bool((await self.health())[role][number]["state"] == state)

        await wait_in_loop(looks, f"{role} {number} is {state}", seconds)

    async def metric(self, name: str, **labels: str) -> float:
        text = (await self.http.get("/metrics")).text
        lines = [
            line
            for line in text.splitlines()
            if line.startswith((f"homenode:proxy_{name}{{", f"homenode:proxy_{name} "))
        ]
        return sum(
            float(line.rsplit(" ", 1)[1])
            for line in lines
            if all(f'{key}="{value}"' in line for key, value in labels.items())
        )

    async def shows(self, value: float, name: str, **labels: str) -> None:
        """Waits for a metric to have a value: a request's end is counted after its client has seen it."""

        async def looks() -> bool:
            return await self.metric(name, **labels) == value

        await wait_in_loop(looks, f"{name} is {value}")

    def tickets(self) -> list[str]:
        """Those drawn, as prefill servers saw them."""
        return [asked.params["ticket"] for server in self.prefillers for asked in server.asked]


@asynccontextmanager
async def stage(
    prefillers: list[Scripted] | None = None,
    decoders: list[Scripted] | None = None,
    *,
    ready: bool = True,
    **settings: Any,
) -> AsyncIterator[Stage]:
    """A proxy with fast looks; by default over one server of each kind, and waited for until it is ready. `FREEZES`: it
    soon takes one for frozen.
    """
    prefillers = [prefiller()] if prefillers is None else prefillers
    decoders = [decoder()] if decoders is None else decoders
    for server in (*prefillers, *decoders):
        if not server.port:  # else it was, and is to come back
            await server.start()
    fast = {
        "poll_interval": 0.02,
        "silent_after": 10.0,
        "lost_after": 20.0,
        "wait_timeout": 5.0,
        "release_timeout": 3.0,
        "port": 0,
        "sse_keep_alive": 0,  # which bytes a client gets is not to depend on how busy the machine is
    }
    config = ProxyConfig(
        prefill=tuple(s.url for s in prefillers), decode=tuple(s.url for s in decoders), **{**fast, **settings}
    )
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve(config, listener=bind(config), on_listening=listening.set_result))
    url = await listening
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits, verify=False) as http:
        made = Stage(url, http, prefillers, decoders)
        if ready:

            async def healthy() -> bool:
                return (await http.get("/health")).status_code == 200

            await wait_in_loop(healthy)
        try:
            yield made
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            for server in (*prefillers, *decoders):
                await server.kill()
