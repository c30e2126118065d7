"""Texts of models in every format, and the messages they are."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from .messages import parse

SEAT = {"train": "ICE 5", "seats": 2}
SEAT_JSON = json.dumps(SEAT)
HARD: dict[str, Any] = {
    "train": 'a "b" {c} [d] \\ é 🦊\n',
    "options": {"x": [1, {"y": None}], "z": -1.5},
    "window": True,
}
HARD_JSON = json.dumps(HARD)


@dataclass(frozen=True)
class Case:
    """`calls`: name and arguments of each."""

    label: str
    format: str
    text: str
    content: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)
    ids: list[str] | None = None


CASES = [
    Case(
        "a call",
        "hermes",
        f'<tool_call>\n{{"name": "book_seat", "arguments": {SEAT_JSON}}}\n</tool_call>',
        "",
        [("book_seat", SEAT)],
    ),
    Case(
        "content around calls",
        "hermes",
        f'Now.\n<tool_call>{{"name": "book_seat", "arguments": {HARD_JSON}}}</tool_call>\nThen.\n\n'
        '<tool_call>{"arguments": {}, "name": "list_trains"}</tool_call>  Done.',
        "Now.\nThen.\n\nDone.",
        [("book_seat", HARD), ("list_trains", {})],
    ),
    Case("no arguments", "hermes", '<tool_call>{"name": "list_trains"}', "", [("list_trains", {})]),
    Case(
        "cut",
        "hermes",
        'So: <tool_call>{"name": "book_seat", "arguments": {"tr',
        'So: <tool_call>{"name": "book_seat", "arguments": {"tr',
    ),
    Case(
        "wrong escape",
        "hermes",
        '<tool_call>{"name": "book_seat", "arguments": {"train": "\\q"}}</tool_call>',
        '<tool_call>{"name": "book_seat", "arguments": {"train": "\\q"}}</tool_call>',
    ),
    Case(
        "line break within a string",
        "hermes",
        '<tool_call>{"name": "book_seat", "arguments": {"train": "a\nb"}}</tool_call>',
        "",
        [("book_seat", {"train": "a\nb"})],
    ),
    Case(
        "in the way of OpenAI",
        "json",
        '{"type": "function", "function": {"name": "book_seat", "arguments": "{\\"seats\\": 1}"}}',
        "",
        [("book_seat", {"seats": 1})],
    ),
    Case(
        "a list",
        "json",
        f'[{{"name": "book_seat", "arguments": {SEAT_JSON}}}, {{"name": "list_trains", "arguments": null}}]',
        "",
        [("book_seat", SEAT), ("list_trains", {})],
    ),
    Case(
        "behind a sentence",
        "json",
        f'Sure:\n{{"name": "book_seat", "arguments": {SEAT_JSON}}}',
        "Sure:",
        [("book_seat", SEAT)],
    ),
    Case(
        "within a sentence",
        "json",
        'Say {"name": "list_trains", "arguments": {}}.',
        'Say {"name": "list_trains", "arguments": {}}.',
    ),
    Case(
        "of no tool", "json", '{"name": "Ada", "arguments": {}}\n{"a": 1}', '{"name": "Ada", "arguments": {}}\n{"a": 1}'
    ),
    Case(
        "two calls",
        "llama3_json",
        f'{{"name": "book_seat", "parameters": {SEAT_JSON}}};{{"name": "list_trains", "parameters": {{}}}}',
        "",
        [("book_seat", SEAT), ("list_trains", {})],
    ),
    Case(
        "behind its tag",
        "llama3_json",
        'Ok.<|python_tag|>{"name": "other", "parameters": {"a": []}}',
        "Ok.",
        [("other", {"a": []})],
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.format}: {case.label}")
def test_a_text_is_understood(case: Case) -> None:
    whole = parse(case.text, case.format)
    assert whole.content == case.content
    assert [(call.name, json.loads(call.arguments)) for call in whole.calls] == case.calls
    if case.ids is not None:
        assert [call.id for call in whole.calls] == case.ids
    assert parse(list(case.text), case.format) == whole


def test_calls_are_shown_as_they_come_where_they_are_bound_to_be_whole() -> None:
    from homenode.chat.choice import choose
    from homenode.chat.parser import MessageParser
    from homenode.chat.reading.parts import CallDelta

    from .messages import TOOLS

    text = f'<tool_call>{{"name": "book_seat", "arguments": {SEAT_JSON}}}</tool_call>'
    parser = MessageParser(choose("", tool_parser="hermes"), tools=TOOLS, eager=True)
    deltas = [delta for letter in text for delta in parser.feed(letter)]
    assert all(isinstance(delta, CallDelta) and delta.index == 0 for delta in deltas)
    assert len(deltas) > 10


def test_a_long_call_is_shown_before_it_is_whole_and_what_breaks_it_is_content() -> None:
    text = '<tool_call>{"name": "book_seat", "arguments": {"train": "' + "a" * 400 + '" oops'
    message = parse(text, "hermes")
    assert message.content == "oops"
    assert message.calls[0].arguments == '{"train": "' + "a" * 400 + '"'


def test_without_tools_nothing_is_a_call() -> None:
    text = f'<tool_call>\n{{"name": "book_seat", "arguments": {SEAT_JSON}}}\n</tool_call>'
    assert parse(text, "hermes", tools=[]).content == text
