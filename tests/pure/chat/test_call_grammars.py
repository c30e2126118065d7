"""Grammars of messages: what they accept is read as calls whose arguments fit, and what they do not accept is no call."""

from __future__ import annotations

import json
from typing import Any

import pytest

from homenode.chat.choice import choose
from homenode.chat.grammars.message import call_grammar
from homenode.chat.offer import ToolOffer, ToolUse
from homenode.chat.parser import MessageParser, parse_message
from homenode.chat.reading.parts import Message
from tests.pure.chat.vocabularies import ByteVocabulary, accepts


def tool(name: str, *, strict: bool = False, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "parameters": schema, "strict": strict}}


WEATHER = tool("get_weather", city={"enum": ["Oslo", "Rome"]}, days={"type": "integer", "minimum": 1, "maximum": 7})
CLOCK = {"type": "function", "function": {"name": "clock"}}
REQUIRED = ToolOffer([WEATHER, CLOCK], ToolUse.REQUIRED)
GOOD = json.dumps({"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}})
BAD = json.dumps({"name": "get_weather", "arguments": {"city": "Paris", "days": 3}})


def read(name: str, text: str, offer: ToolOffer, prompt: str = "") -> Message:
    return parse_message(MessageParser(choose(None, tool_parser=name), prompt, offer.tools), text)


def bound(name: str, offer: ToolOffer, **more: Any) -> str:
    grammar = call_grammar(choose(None, tool_parser=name), offer, **more)
    assert grammar is not None
    return grammar


def test_nothing_is_bound_without_need() -> None:
    chosen = choose(None)
    assert call_grammar(chosen) is None
    assert call_grammar(chosen, ToolOffer([WEATHER])) is None
    assert call_grammar(chosen, ToolOffer([WEATHER], ToolUse.NONE, parallel=False)) is None
    assert call_grammar(chosen, ToolOffer([WEATHER], parallel=False)) is None


@pytest.mark.parametrize(("name", "form"), [("hermes", "<tool_call>\n{}\n</tool_call>"), ("json", "{}")])
def test_required_gives_calls_only(name: str, form: str) -> None:
    grammar = bound(name, REQUIRED)
    good, bad = form.replace("{}", GOOD), form.replace("{}", BAD)
    assert accepts(grammar, good) and accepts(grammar, f"{good}\n{good}")
    assert not accepts(grammar, bad) and not accepts(grammar, f"Hello {good}") and not accepts(grammar, "Hello")
    assert [call.name for call in read(name, f"{good}\n{good}", REQUIRED).calls] == ["get_weather"] * 2
    one = bound(name, ToolOffer(REQUIRED.tools, named="clock", parallel=False))
    clock = form.replace("{}", '{"name": "clock", "arguments": {}}')
    assert accepts(one, clock) and not accepts(one, good) and not accepts(one, f"{clock}\n{clock}")


@pytest.mark.parametrize(("name", "form"), [("hermes", "<tool_call>\n{}\n</tool_call>"), ("json", "{}")])
def test_strict_tools_leave_text_free_up_to_a_call(name: str, form: str) -> None:
    strict = tool("get_weather", strict=True, **WEATHER["function"]["parameters"]["properties"])
    grammar = bound(name, ToolOffer([strict, CLOCK]))
    good, bad = form.replace("{}", GOOD), form.replace("{}", BAD)
    assert accepts(grammar, 'Hello {"name": "Ada"}') and accepts(grammar, '{"name": "Ada"}')
    assert accepts(grammar, f"Let me see.\n{good}") and not accepts(grammar, f"Let me see.\n{bad}")
    assert accepts(grammar, f"{good}\nand\n{good}")


def test_a_budget_ends_thoughts_written_as_text() -> None:
    chosen = choose(None, reasoning_parser="deepseek_r1")
    grammar = call_grammar(chosen, prompt="<think>\n", thinking_budget=20)
    assert grammar is not None
    assert accepts(grammar, "short</think>answer") and accepts(grammar, "x" * 20 + "</think>\n\nanswer")
    assert not accepts(grammar, "x" * 21 + "</think>answer") and not accepts(grammar, "x" * 20)
    free = call_grammar(choose(None, reasoning_parser="think"), thinking_budget=20)
    assert free is not None
    assert accepts(free, "x" * 40) and accepts(free, "<think>short</think>" + "x" * 40)
    assert not accepts(free, "<think>" + "x" * 21)


def test_a_budget_ends_thoughts_by_their_token() -> None:
    chosen = choose(None, reasoning_parser="deepseek_r1")
    vocabulary = ByteVocabulary(["<think>", "</think>", "<other>"])
    grammar = call_grammar(
        chosen,
        prompt="<think>\n",
        thinking_budget=5,
        output='start: %json {"type": "object"}',
        special_tokens=vocabulary.ids,
    )
    assert grammar is not None
    assert accepts(grammar, "12345</think>{}", vocabulary) and accepts(grammar, "</think>\n{}", vocabulary)
    assert not accepts(grammar, "123456</think>{}", vocabulary) and not accepts(grammar, "1</think>2", vocabulary)
