"""Fields that are not known: left out, named in a header and once in the log, or refused where that is wanted."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from starlette.requests import Request

from homenode.server.http.ignored import IgnoredNames, note_ignored
from tests.server.written_answers import Writer

CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
HEADER = "x-homenode-ignored"


def test_unknown_fields_are_named_at_every_depth() -> None:
    writer = Writer("Yes.")
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": {"type": "x"}}], "mood": 1},
        {"role": "assistant", "content": "a", "mood": 2},
    ]
    answer = writer.ask(CHAT, {**HELLO, "messages": messages, "florp": 3, "stream_options": {"depth": 1}})
    assert answer.status_code == 200
    assert answer.headers[HEADER].split(", ") == ["cache_control", "mood", "florp", "depth"]
    plain = writer.ask(CHAT, {**HELLO, "user": "u", "store": False, "florp": None, "metadata": {"k": "v"}})
    assert plain.status_code == 200 and HEADER not in plain.headers


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/tokenize"])
def test_every_endpoint_and_streams_name_them(path: str) -> None:
    body = {"florp": 1, **(HELLO if path == CHAT else {"prompt": "hi"})}
    writer = Writer("Yes.")
    assert writer.ask(path, body).headers[HEADER] == "florp"
    if path != "/tokenize":
        assert writer.ask(path, {**body, "stream": True}).headers[HEADER] == "florp"
    assert HEADER in writer.ask(path, {**body, "model": "nobody"}).headers  # of refused requests, too


def test_what_stands_in_the_header_is_bounded_and_harmless() -> None:
    strange = {"a\r\nset-cookie: x": 1, "ключ, 猫": 1, "x" * 500: 1}
    found = Writer("Yes.").ask(CHAT, {**HELLO, **strange}).headers[HEADER]
    assert found.split(", ") == ["a__set-cookie:_x", "_______", "x" * 64]
    many = Writer("Yes.").ask(CHAT, {**HELLO, **{f"field_{i}": i for i in range(500)}}).headers[HEADER]
    assert len(many.split(", ")) == 64


def test_the_log_tells_each_name_once(caplog: pytest.LogCaptureFixture) -> None:
    names = IgnoredNames()
    with caplog.at_level(logging.WARNING):
        for name in ("florp", "florp", "wibble", "florp"):
            request = Request({"type": "http", "state": {}})
            names.begin(request)
            note_ignored(request, name)
    assert [record.getMessage().split("`")[1] for record in caplog.records] == ["florp", "wibble"]


def test_strict_servers_refuse_them_by_name() -> None:
    strict = Writer("Yes.", strict_requests=True)
    error = strict.ask(CHAT, {**HELLO, "messages": [{**HELLO["messages"][0], "mood": 1}]}).json()["error"]  # type: ignore[index]
    assert error["param"] == "messages[0].mood" and error["code"] == "unknown_parameter"
    assert strict.ask(CHAT, {**HELLO, "user": "u"}).status_code == 200
    tools = [{"type": "web_search"}]
    assert strict.ask(CHAT, {**HELLO, "tools": tools}).json()["error"]["param"] == "tools[0]"


@pytest.mark.parametrize(
    ("field", "neutral", "other"),
    [("tfs_z", 1, 0.5), ("use_beam_search", False, True)],
)
def test_what_would_change_the_answer_is_refused(field: str, neutral: object, other: object) -> None:
    writer = Writer("Yes.")
    assert writer.ask(CHAT, {**HELLO, field: neutral}).status_code == 200
    refused = writer.ask(CHAT, {**HELLO, field: other})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == field


def test_biases_may_be_texts() -> None:
    writer = Writer("Yes.")
    assert writer.ask(CHAT, {**HELLO, "logit_bias": {"5": "-100", "6": 1}}).status_code == 200
    assert writer.requests[-1].params.logit_bias == {5: -100.0, 6: 1.0}
    assert writer.ask(CHAT, {**HELLO, "logit_bias": {"5": "much"}}).status_code == 400
    assert writer.ask(CHAT, {**HELLO, "repeat_penalty": 1.5}).status_code == 200
    assert writer.requests[-1].params.repetition_penalty == 1.5


UNKEPT = {"type": "object", "properties": {"tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}}}
TOOL = {"type": "function", "function": {"name": "look", "parameters": UNKEPT}}
FORM = {"type": "json_schema", "json_schema": {"name": "x", "schema": UNKEPT}}
WISHES: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {**HELLO, "response_format": FORM}),
    (CHAT, {**HELLO, "tools": [TOOL], "tool_choice": "required"}),
    ("/v1/completions", {"prompt": "a", "max_tokens": 5, "response_format": FORM}),
    ("/v1/responses", {"input": "a", "text": {"format": {"type": "json_schema", "name": "x", "schema": UNKEPT}}}),
    ("/api/chat", {"model": "story-teller", "messages": HELLO["messages"], "format": UNKEPT}),
    ("/api/generate", {"model": "story-teller", "prompt": "a", "raw": True, "format": UNKEPT}),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), WISHES)
def test_words_of_schemas_that_are_not_kept_are_named(path: str, body: dict[str, Any], stream: bool) -> None:
    answer = Writer("{}").ask(path, {**body, "stream": stream})
    assert answer.status_code == 200, answer.text
    assert "tags.uniqueItems" in answer.headers[HEADER].split(", ")


def test_strict_schemas_and_strict_servers_refuse_such_words() -> None:
    strict = {**FORM, "json_schema": {**FORM["json_schema"], "strict": True}}
    for body, settings in (({"response_format": strict}, {}), ({"response_format": FORM}, {"strict_requests": True})):
        answer = Writer("{}", **settings).ask(CHAT, {**HELLO, **body})
        assert answer.status_code == 400 and "tags.uniqueItems" in answer.json()["error"]["message"]
    function = {"name": "look", "parameters": UNKEPT, "strict": True}
    answer = Writer("{}").ask(CHAT, {**HELLO, "tools": [{"type": "function", "function": function}]})
    assert answer.status_code == 400 and "tags.uniqueItems" in answer.json()["error"]["message"]
    free = Writer("{}").ask(CHAT, {**HELLO, "tools": [TOOL]})
    assert free.status_code == 200 and HEADER not in free.headers  # calls are not bound
