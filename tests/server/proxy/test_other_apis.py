"""Messages of Anthropic and chats of Ollama through the proxy: handed over, streamed in their forms, and refused in
their words.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import pytest

from tests.server.proxy import scripted as by
from tests.server.proxy.scripted import Asked, Connection, Scripted, decoder, run, stage

HELLO = [{"role": "user", "content": "hi"}]


@dataclass(frozen=True)
class Streamed:
    """How an API streams. `streams`: what a request for a stream has besides."""

    path: str
    content_type: str
    parts: tuple[bytes, ...]
    streams: dict[str, Any]


MESSAGES = Streamed(
    "/v1/messages",
    "text/event-stream; charset=utf-8",
    (b'event: ping\ndata: {"type":"ping"}\n\n', b'event: message_stop\ndata: {"type":"message_stop"}\n\n'),
    {"stream": True},
)
OLLAMA = Streamed(
    "/api/chat", "application/x-ndjson", (b'{"done":false,"message":{}}\n', b'{"done":true,"message":{}}\n'), {}
)
BOTH = pytest.mark.parametrize("api", [MESSAGES, OLLAMA], ids=["messages", "ollama"])


def streaming(api: Streamed, *, whole: bool = True) -> by.Behaviour:
    """A decode server that streams as the API does; not `whole`: it dies within the last event."""

    async def behaviour(server: Scripted, asked: Asked, connection: Connection) -> None:
        head = f"HTTP/1.1 200 OK\r\ncontent-type: {api.content_type}\r\ntransfer-encoding: chunked\r\n\r\n"
        connection.writer.write(head.encode())
        first, last = api.parts
        connection.chunk(first)
        connection.chunk(last if whole else last[:7])
        await connection.writer.drain()
        if whole:
            connection.writer.write(b"0\r\n\r\n")
            return
        await asyncio.sleep(0.05)  # so that what was sent is read before the connection is reset
        connection.die()

    return behaviour


@BOTH
def test_a_stream_is_handed_over_and_passes_as_it_is(api: Streamed) -> None:
    async def test() -> None:
        async with stage(decoders=[decoder(behaviours=[streaming(api)])]) as on:
            answer = await on.http.post(api.path, json={"model": "m", "messages": HELLO, **api.streams})
            assert answer.content == b"".join(api.parts) and answer.headers["content-type"] == api.content_type
            (first,), (second,) = on.prefillers[0].asked, on.decoders[0].asked
            assert first.path == second.path == api.path
            assert first.params["do_remote_decode"] and second.params["do_remote_prefill"]
            assert first.json.get("stream", False) is False and second.json.get("stream") == api.streams.get("stream")
            await on.shows(1, "requests_total", way="handover", outcome="ok")

    run(test)


@BOTH
def test_a_stream_that_breaks_off_says_so_in_its_form(api: Streamed) -> None:
    async def test() -> None:
        async with stage(decoders=[decoder(behaviours=[streaming(api, whole=False)])]) as on:
            answer = await on.http.post(api.path, json={"model": "m", "messages": HELLO, **api.streams})
            first, rest = answer.content[: len(api.parts[0])], answer.content[len(api.parts[0]) :]
            assert first == api.parts[0]
            if api is OLLAMA:
                assert "lost" in json.loads(rest)["error"]
            else:
                name, data, *_ = rest.decode().split("\n")
                failed = json.loads(data.removeprefix("data: "))
                assert (name, failed["type"]) == ("event: error", "error") and "lost" in failed["error"]["message"]
            await on.shows(1, "requests_total", outcome="cut")

    run(test)


@BOTH
def test_nobody_answers_in_the_words_of_the_api(api: Streamed) -> None:
    async def test() -> None:
        async with stage(decoders=[decoder(behaviours=[by.dies] * 2)]) as on:
            answer = await on.http.post(api.path, json={"model": "m", "messages": HELLO, "stream": False})
            assert answer.status_code == 502
            if api is OLLAMA:
                assert isinstance(answer.json()["error"], str)
            else:
                assert answer.json()["type"] == "error" and answer.json()["error"]["message"]

    run(test)


def test_what_is_asked_about_models_goes_to_a_decoder() -> None:
    async def test() -> None:
        async with stage() as on:
            for method, path in (("GET", "/api/tags"), ("POST", "/api/show"), ("POST", "/v1/messages/count_tokens")):
                await on.http.request(method, path, json={} if method == "POST" else None)
                assert on.decoders[0].asked[-1].path == path

    run(test)


INFILL = Streamed(
    "/infill",
    "text/event-stream; charset=utf-8",
    (b'data: {"index":0,"content":"a","stop":false}\n\n', b'data: {"index":0,"content":"","stop":true}\n\n'),
    {"stream": True},
)


@pytest.mark.parametrize("whole", [True, False])
def test_the_middle_of_a_file_goes_to_a_decoder_alone(whole: bool) -> None:
    async def test() -> None:
        async with stage(decoders=[decoder(behaviours=[streaming(INFILL, whole=whole)])]) as on:
            body = {"input_prefix": "a", "input_suffix": "b", "stream": True}
            answer = await on.http.post("/infill", json=body)
            assert not on.prefillers[0].asked and on.decoders[0].asked[0].json == body
            if whole:
                assert answer.content == b"".join(INFILL.parts)
            else:
                assert "lost" in json.loads(answer.content.removeprefix(INFILL.parts[0])[6:])["error"]["message"]
            await on.shows(1, "direct_total", reason="infill")

    run(test)
