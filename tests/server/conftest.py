"""A server on a free port in a thread of its own, over the scripted engine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from homenode.server.http.config import ServerConfig
from homenode.server.models.served_model import ModelParts
from homenode.server.run import serve
from tests.server.fakes import ByteTokenizer, ScriptedClient


@dataclass
class Running:
    """A server that takes requests at `url`."""

    url: str
    client: ScriptedClient
    loop: asyncio.AbstractEventLoop
    http: httpx.Client

    def post(self, path: str, body: Any, **rest: Any) -> httpx.Response:
        if isinstance(body, bytes):
            return self.http.post(path, content=body, headers={"Content-Type": "application/json"}, **rest)
        return self.http.post(path, json=body, **rest)

    def complete(self, **fields: Any) -> httpx.Response:
        return self.post("/v1/completions", {"prompt": "hi", **fields})

    def chat(self, **fields: Any) -> httpx.Response:
        return self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], **fields})

    def call(self, function: Callable[[], object]) -> None:
        """Runs `function` in the server's loop and waits for it."""
        done = threading.Event()
        self.loop.call_soon_threadsafe(lambda: (function(), done.set()))
        assert done.wait(10)

    def metric(self, name: str) -> float:
        found = [
            line for line in self.http.get("/metrics").text.splitlines() if line.startswith((f"{name}{{", f"{name} "))
        ]
        return sum(float(line.rsplit(" ", 1)[1]) for line in found)


Start = Callable[..., Running]


@pytest.fixture(scope="module")
def start() -> Iterator[Start]:
    """Starts servers; all of them end with the test module."""
    threads: list[tuple[threading.Thread, Running]] = []

    def begin(client: ScriptedClient | None = None, tokenizer: ByteTokenizer | None = None, **settings: Any) -> Running:
        listening, found = threading.Event(), []
        scripted = client or ScriptedClient()

        async def run() -> None:
            def announce(url: str) -> None:
                found.extend((url, asyncio.get_running_loop()))
                listening.set()

            config = ServerConfig(**{"port": 0, **settings})
            await serve([ModelParts(scripted, tokenizer or ByteTokenizer(), config)], config, on_listening=announce)

        thread = threading.Thread(target=lambda: asyncio.run(run()))
        thread.start()
        assert listening.wait(20)
        running = Running(found[0], scripted, found[1], httpx.Client(base_url=found[0], timeout=20, verify=False))
        threads.append((thread, running))
        return running

    yield begin
    for thread, running in threads:
        running.http.close()
        if thread.is_alive():
            running.call(lambda client=running.client: client.on_engine_lost("the tests are over"))
        thread.join(15)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def server(start: Start) -> Running:
    return start()
