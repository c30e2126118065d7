"""What a server tells of the tokens of an answer to a proxy that asks."""

from __future__ import annotations

from typing import Any

import pytest

from homenode.server.keys.told_usage import ToldUsage, usage_of_header, usage_of_line, without_usage
from tests.server.written_answers import Writer

HELLO = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "hi", "max_tokens": 3},
    "/v1/chat/completions": {"messages": HELLO, "max_tokens": 3},
    "/v1/responses": {"input": "hi", "max_output_tokens": 3},
    "/v1/messages": {"model": "story-teller", "messages": HELLO, "max_tokens": 3},
}


@pytest.mark.parametrize("path", BODIES)
def test_every_api_tells(path: str) -> None:
    writer, asks = Writer("Hello."), {"x-homenode-usage": "?"}
    whole = writer.ask(path, BODIES[path], **asks)
    told = usage_of_header(whole.headers["x-homenode-usage"].encode())
    assert whole.status_code == 200 and told is not None and told.generated == 3 and told.prompt > 1
    stream = {**BODIES[path], "stream": True}
    events, found = without_usage(writer.ask(path, stream, **asks).content)
    assert found == told and b"x-homenode" not in events and events.count(b"data: ") > 3
    assert b"x-homenode-usage" not in writer.ask(path, stream).content
    assert "x-homenode-usage" not in writer.ask(path, BODIES[path]).headers


def test_lines_of_ollama_have_it_anyway() -> None:
    body = {"model": "story-teller", "messages": HELLO, "options": {"num_predict": 3}}
    last = Writer("Hello.").ask("/api/chat", body, **{"x-homenode-usage": "?"}).content.splitlines()[-1]
    found = usage_of_line(last)
    assert found is not None and found.generated == 3


@pytest.mark.parametrize("value", [b"", b"3", b"3 x", b"-1 2", b"1 2 3", b"9" * 40 + b" 1"])
def test_what_is_no_usage(value: bytes) -> None:
    assert usage_of_header(value) is None
    assert without_usage(b": x-homenode-usage: " + value + b"\n\n")[1] is None
    assert ToldUsage(3, 4).header() == "3 4"
