"""Which requests bind the calls of an answer, and what is refused of their schemas."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.server.written_answers import Writer

SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
STRICT = {"type": "function", "function": {**WEATHER["function"], "strict": True}}  # type: ignore[dict-item]
CLOCK = {"type": "function", "function": {"name": "clock"}}
NAMED = {"type": "function", "function": {"name": "clock"}}


def ask(writer: Writer, **fields: Any) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 400, **fields}
    return writer.ask("/v1/chat/completions", body)


def grammar(**fields: Any) -> str | None:
    """That of the request for which the engine is asked."""
    writer = Writer("Yes.")
    answer = ask(writer, **fields)
    assert answer.status_code == 200, answer.text
    return writer.requests[-1].params.grammar


def test_calls_are_bound_where_they_must_come_or_fit() -> None:
    required = grammar(tools=[WEATHER, CLOCK], tool_choice="required") or ""
    assert "weather" in required and "clock" in required and '"Oslo"' in required
    named = grammar(tools=[WEATHER, CLOCK], tool_choice=NAMED) or ""
    assert "clock" in named and "weather" not in named
    assert '"Oslo"' in (grammar(tools=[STRICT, CLOCK]) or "")


@pytest.mark.parametrize("fields", [{}, {"tool_choice": "none"}, {"parallel_tool_calls": False}])
def test_calls_are_free_elsewhere(fields: dict[str, Any]) -> None:
    assert grammar(tools=[WEATHER, CLOCK], **fields) is None


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"type": "object", "properties": {"zeppelin": {"type": "strin"}}}, "properties.zeppelin.type"),
        ({"type": "object", "properties": {"a": {"minLength": -1}}}, "properties.a.minLength"),
    ],
)
def test_schemas_that_cannot_be_kept_are_refused_with_their_place(schema: dict[str, Any], place: str) -> None:
    wrong = {"type": "function", "function": {"name": "x", "parameters": schema}}
    answer = ask(Writer("Yes."), tools=[CLOCK, wrong], tool_choice="required")
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"].startswith("tools[1].function.parameters"), error
    assert place in error["message"]
    assert ask(Writer("Yes."), tools=[CLOCK, wrong]).status_code == 200


def test_bound_arguments_are_streamed_from_their_first_character() -> None:
    text = '{"name": "look", "arguments": {"at": "the sea"}}'
    writer = Writer(text)
    look = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    free, bound = (
        ask(writer, stream=True, tools=[look], tool_choice=choice).text.count('"arguments"')
        for choice in ("auto", "required")
    )
    assert bound > free
