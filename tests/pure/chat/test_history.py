"""Conversations with calls, as templates get them."""

from __future__ import annotations

import json
from typing import Any

from homenode.chat.choice import choose
from homenode.chat.history import conversation_for

from .messages import TOOLS

CALL = {"id": "a", "type": "function", "function": {"name": "book_seat", "arguments": '{"seats": 2}'}}
HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "Book."},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "Booked."}]},
    {"role": "user", "content": "And now?"},
]


def conversation(template: str) -> list[dict[str, Any]]:
    return conversation_for(template, choose(template).tools, HISTORY, TOOLS)


def test_arguments_are_objects_where_the_template_shows_tools() -> None:
    said = conversation("{% for tool in tools %}<tool_call>{{ message.tool_calls }}")
    assert said[1]["tool_calls"][0]["function"] == {"name": "book_seat", "arguments": {"seats": 2}}
    assert [said[0], *said[2:]] == [HISTORY[0], *HISTORY[2:]]
    assert HISTORY[1]["tool_calls"] == [CALL]


def test_arguments_that_are_no_object_stay_as_they_are() -> None:
    broken = {**CALL, "function": {"name": "x", "arguments": '{"a'}}
    message = {"role": "assistant", "tool_calls": [broken]}
    assert conversation_for("{{ tools }}{{ tool_calls }}", choose("").tools, [message], TOOLS) == [message]
    (said,) = conversation_for("{{ tools }}{% for k, v in call.arguments|items %}", choose("").tools, [message], TOOLS)
    assert json.loads(said["content"])["arguments"] == {"INVALID_JSON": '{"a'}


def test_a_template_that_shows_tools_but_no_calls_gets_them_as_text() -> None:
    said = conversation("{{ tools }}<|tool_call|>")
    assert said[1]["content"] == '<|tool_call|>[{"name": "book_seat", "arguments": {"seats": 2}}]'
    assert "tool_calls" not in said[1]
    assert conversation("{{ tools }}")[1]["content"] == '{"name": "book_seat", "arguments": {"seats": 2}}'


def test_a_template_that_knows_no_tools_gets_words() -> None:
    system, asked, called, told = conversation("{{ messages }}")
    assert all(json.dumps(tool["function"]) in system["content"] for tool in TOOLS)
    assert asked == HISTORY[0]
    assert called == {"role": "assistant", "content": '{"name": "book_seat", "arguments": {"seats": 2}}'}
    assert told == {"role": "user", "content": "Result of the tool:\nBooked.\n\nAnd now?"}


def test_a_template_without_system_messages_gets_the_words_before_the_question() -> None:
    said = conversation("{{ raise_exception('System role not supported') }}")
    assert said[0]["role"] == "user"
    assert "list_trains" in said[0]["content"] and said[0]["content"].endswith("\n\nBook.")


def test_a_template_that_knows_calls_but_no_tools_keeps_the_calls() -> None:
    said = conversation("<｜tool▁calls▁begin｜>{{ message['tool_calls'] }}")
    assert "<｜tool▁sep｜>" in said[0]["content"]
    assert said[2]["tool_calls"][0]["function"]["arguments"] == {"seats": 2}
    assert said[3] == HISTORY[2]


def test_a_template_that_looks_for_tools_in_the_system_message_finds_them_there() -> None:
    said = conversation("{% if 'tools' in message and message['tools'] %}<|tool|>{{ message['tools'] }}<|/tool|>")
    assert json.loads(said[0]["tools"]) == [tool["function"] for tool in TOOLS]
    assert said[1:2] == HISTORY[:1]
