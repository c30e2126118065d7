"""Requests reach a server as they were sent, and mistakes in them are not held against the server."""

from __future__ import annotations

import asyncio
from urllib.parse import quote, unquote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from starlette.requests import Request

from homenode.server.proxy.upstreams import target_of
from tests.server.proxy.scripted import Scripted, Stage, run, stage, tells

NAMES = ("a b", "a?b", "a#b", "a%2Fb", "%", "\x1e", "\x7f", "é", "𜫶", "..", ".", "../../metrics", "a/./b", "http://a/b")


async def ask(on: Stage, target: bytes, headers: bytes = b"") -> int:
    """The status of an answer to a request that is sent byte for byte."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(on.url.rpartition(":")[2]))
    try:
        writer.write(b"GET " + target + b" HTTP/1.1\r\nhost: x\r\nconnection: close\r\n" + headers + b"\r\n")
        return int((await reader.read()).split(b" ", 2)[1])
    finally:
        writer.close()


@pytest.mark.parametrize("place", ["/v1/models/", "/v1/responses/"])
def test_a_name_stays_a_name(place: str) -> None:
    async def test() -> None:
        async with stage() as on:
            for name in NAMES:
                asked = len(on.decoders[0].asked)
                status = await ask(on, f"{place}{quote(name, '')}?limit=%3F%01%25".encode())
                sent = [each.path for each in on.decoders[0].asked[asked:]]
                if "/" in name and "models" not in place:
                    assert (status, sent) == (404, []), name  # that has no such paths
                    continue
                (path, _, query) = sent[0].partition("?")
                assert (len(sent), status, unquote(path), query) == (1, 200, place + name, "limit=%3F%01%25"), name
                assert "/../" not in path and not path.endswith("/..")
                assert (await on.health())["decode"][0]["state"] == "ready", name

    run(test)


def test_headers_of_any_bytes_are_passed_on() -> None:
    async def test() -> None:
        async with stage() as on:
            assert await ask(on, b"/v1/models/a", b"x-title: caf\xc3\xa9 \xe9\r\n") == 200
            assert on.decoders[0].asked[-1].headers["x-title"] == "cafÃ© é"

    run(test)


def test_a_key_of_any_letters_is_sent() -> None:
    async def test() -> None:
        servers = [Scripted("receiver", tells, key="ключ à".encode().decode("latin-1"))]
        async with stage([], servers, upstream_api_key="ключ à") as on:
            assert (await on.complete()).status_code == 200

    run(test)


def test_what_cannot_be_passed_on_is_no_fault_of_a_server() -> None:
    async def test() -> None:
        async with stage() as on:
            assert await ask(on, b"/v1/models/" + b"%ff" * 10_000) == 400  # written anew it is too long
            assert not on.decoders[0].asked and (await on.health())["decode"][0]["state"] == "ready"

    run(test)


@given(st.text(max_size=20), st.binary(max_size=20))
@example("/..//./%2e", b"?#%")
def test_whatever_is_passed_on_is_found_there_as_it_was_here(name: str, query: bytes) -> None:
    path = "/v1/models/" + name.encode("utf-8", "replace").decode()
    target = target_of(Request({"type": "http", "path": path, "query_string": query, "headers": []}))
    assert target.isascii() and target.isprintable() and "#" not in target
    there, mark, asked = target.partition("?")
    assert unquote(there) == path and bool(mark) == bool(query)
    assert not {".", ".."} & set(there.split("/"))
    assert unquote(asked, "latin-1") == unquote(query, "latin-1")
