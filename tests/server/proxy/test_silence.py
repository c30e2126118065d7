"""Streams through the proxy while nothing of their answer is there: whatever is waited for, the client hears of it, and
the wait ends.
"""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from tests.server.proxy import scripted as by
from tests.server.proxy.scripted import DONE, TOKENS, Stage, decoder, prefiller, run, stage

COMMENT = re.compile(rb": waiting up to \d+ s for [a-z ]+\n\n")
WAITED_FOR = {
    "the prompt to be computed": lambda: ([prefiller(behaviours=[by.waits])], None),
    "the answer to begin": lambda: (None, [decoder(behaviours=[by.waits])]),
}


async def _stream(on: Stage) -> tuple[int, str, bytes]:
    answer = await on.complete(stream=True)
    return answer.status_code, answer.headers["content-type"], answer.content


@pytest.mark.parametrize("what", WAITED_FOR)
def test_a_client_hears_what_is_waited_for_and_gets_the_answer(what: str) -> None:
    async def test() -> None:
        prefillers, decoders = WAITED_FOR[what]()
        async with stage(prefillers, decoders, sse_keep_alive=0.05) as on, asyncio.timeout(20):
            (waits,) = prefillers or decoders or []
            async with on.http.stream(
                "POST", "/v1/completions", json={"prompt": "once", "max_tokens": 6, "stream": True}
            ) as answer:
                assert answer.status_code == 200, "the head comes while the server is still at work"
                assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
                heard = b""
                async for data in answer.aiter_bytes():
                    heard += data
                    if heard.count(b"\n\n") >= 3:
                        waits.go.set()
            assert what.encode() in heard
            assert COMMENT.sub(b"", heard) == b"".join((*TOKENS, DONE))
            assert len(COMMENT.findall(heard)) >= 3

    run(test)


def test_a_client_hears_that_no_server_is_there_and_then_that_the_wait_is_over() -> None:
    async def test() -> None:
        async with stage([], [decoder()], sse_keep_alive=0.05, wait_timeout=1.6) as on, asyncio.timeout(20):
            await on.decoders[0].kill()
            await on.is_state("decode", 0, "down")
            status, kind, heard = await _stream(on)
            assert status == 200 and kind.startswith("text/event-stream")
            assert b": waiting up to 2 s for a decode server\n\n" in heard
            events = COMMENT.sub(b"", heard)
            assert events.startswith(b"data: ") and b"[DONE]" not in events
            assert json.loads(events[6:])["error"]["code"] == "no_decoder"

    run(test)


def test_a_client_that_has_a_head_hears_what_was_ignored() -> None:
    async def ignores(server: by.Scripted, asked: by.Asked, connection: by.Connection) -> None:
        await server.go.wait()
        head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nx-homenode-ignored: florp\r\n"
        connection.writer.write(f"{head}transfer-encoding: chunked\r\n\r\n".encode())
        connection.chunk(DONE)
        connection.writer.write(b"0\r\n\r\n")

    async def test() -> None:
        async with stage(None, [decoder(behaviours=[ignores])], sse_keep_alive=0.05) as on, asyncio.timeout(20):
            body = {"prompt": "once", "max_tokens": 6, "stream": True, "florp": 1}
            async with on.http.stream("POST", "/v1/completions", json=body) as answer:
                assert "x-homenode-ignored" not in answer.headers  # it was sent before the server's
                on.decoders[0].go.set()
                heard = b"".join([data async for data in answer.aiter_bytes()])
            assert b": x-homenode-ignored: florp\n\n" in heard and heard.endswith(DONE)

    run(test)


# How a decode server ends the wait -> the code that the client finds in the last event.
ENDS = {
    "busy": (by.is_busy, "overloaded"),
    "wrong": (by.rejects, "invalid_value"),
    "gone": (by.dies, "decoder_failed"),
    "broken": (by.fails, "internal_error"),
}


@pytest.mark.parametrize("how", ENDS)
def test_a_failure_after_the_head_is_an_event(how: str) -> None:
    behaviour, code = ENDS[how]

    async def test() -> None:
        slow = by.Scripted("receiver", behaviour, [by.waits])
        async with (
            stage([prefiller()], [slow], sse_keep_alive=0.05, decode_tries=1, wait_timeout=0.1) as on,
            asyncio.timeout(20),
        ):
            asyncio.get_running_loop().call_later(1.3, slow.go.set)
            status, kind, heard = await _stream(on)
            assert status == 200 and kind.startswith("text/event-stream") and COMMENT.search(heard)
            event = COMMENT.sub(b"", heard)
            assert event.startswith(b"data: ") and event.endswith(b"\n\n") and b"[DONE]" not in event
            assert json.loads(event[6:])["error"]["code"] == code

    run(test)


def test_a_quick_failure_keeps_its_own_status() -> None:
    async def test() -> None:
        async with stage([prefiller()], [by.Scripted("receiver", by.rejects)], sse_keep_alive=0.05) as on:
            answer = await on.complete(stream=True)
            assert answer.status_code == 400 and answer.json()["error"]["code"] == "invalid_value"

    run(test)
