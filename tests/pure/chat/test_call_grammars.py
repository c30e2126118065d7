"""Grammars of messages: what they accept is read as calls whose arguments fit, and what they do not accept
is no call.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from homenode.chat.call_grammar import call_grammar
from homenode.chat.choice import choose
from homenode.chat.grammars.thoughts import ThoughtsBegin, thoughts_begin
from homenode.chat.offer import ToolOffer, ToolUse
from homenode.chat.parser import MessageParser, parse_message
from homenode.chat.syntax.parts import Message
from homenode.chat.syntax.reasoning import FORMS
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


def test_what_ends_other_turns_does_not_end_thoughts() -> None:
    form, asked = FORMS["solar_open"], "<|begin|>user<|content|>Hi<|end|><|begin|>assistant"
    assert thoughts_begin(form, asked) is ThoughtsBegin.FREE
    assert thoughts_begin(form, "<|begin|>assistant<|think|><|end|><|begin|>assistant") is ThoughtsBegin.CLOSED
    assert thoughts_begin(FORMS["glm45"], "<|assistant|></think>") is ThoughtsBegin.CLOSED


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


FORMS_WITH_MARKS = sorted(name for name, form in FORMS.items() if form.begin)


@pytest.mark.parametrize("special", [False, True], ids=["marks as text", "marks as tokens"])
@pytest.mark.parametrize("name", [*FORMS_WITH_MARKS, "openai"])
def test_a_budget_holds_for_every_form_of_thoughts(name: str, special: bool) -> None:
    chosen = choose(None, tool_parser="openai" if name == "openai" else "hermes", reasoning_parser=name)
    begin, end = chosen.thoughts.begin, chosen.thoughts.end
    answer = "answer"
    marks = [*chosen.tools.marks, *chosen.thoughts.marks]
    if name == "openai":
        begin, end = "<|channel|>analysis<|message|>", "<|end|>"
        answer = "<|start|>assistant<|channel|>final<|message|>answer"
    vocabulary = ByteVocabulary(marks if special else ())
    budget = 60  # spelled out as text, the mark at the end is of it
    for opened in (False, True) if name != "openai" else (False,):
        prompt = begin + "\n" if opened else ""
        written = "" if opened or chosen.thoughts.opened else begin
        for limit in (budget, 0):
            grammar = call_grammar(chosen, prompt=prompt, thinking_budget=limit, special_tokens=vocabulary.ids)
            assert grammar is not None
            thoughts = f"{written}{'x' * limit}{end}{answer}"
            if limit or not written:
                assert accepts(grammar, thoughts, vocabulary), grammar
                assert accepts(grammar, f"{written}{'x' * min(limit, 5)}{end}{answer}", vocabulary)
                message = parse_message(MessageParser(chosen, prompt), thoughts)
                assert (message.reasoning, message.content) == ("x" * limit, "answer")
            assert not accepts(grammar, f"{written}{'x' * (limit + 1)}{end}{answer}", vocabulary), grammar
        grammar = call_grammar(
            chosen,
            prompt=prompt,
            thinking_budget=budget,
            output='start: %json {"type": "object"}',
            special_tokens=vocabulary.ids,
        )
        assert grammar is not None
        assert accepts(grammar, f"{written}xyz{end}{answer.replace('answer', '{}')}", vocabulary)
        assert not accepts(grammar, f"{written}xyz{end}{answer}", vocabulary)


@pytest.mark.parametrize("special", [False, True], ids=["marks as text", "marks as tokens"])
@pytest.mark.parametrize("budget", [None, 40])
def test_thoughts_come_before_calls_that_must_come(special: bool, budget: int | None) -> None:
    chosen = choose(None, tool_parser="hermes", reasoning_parser="qwen3")
    vocabulary = ByteVocabulary([*chosen.tools.marks, *chosen.thoughts.marks] if special else ())
    call = f"<tool_call>\n{GOOD}\n</tool_call>"
    for prompt, begin in (("<think>\n", ""), ("", "<think>\n")):
        grammar = call_grammar(chosen, REQUIRED, prompt=prompt, thinking_budget=budget, special_tokens=vocabulary.ids)
        assert grammar is not None
        assert accepts(grammar, f"{begin}Let me see.</think>\n\n{call}", vocabulary)
        assert not accepts(grammar, f"{begin}Let me see.</think>\n\nHello", vocabulary)
        assert accepts(grammar, call, vocabulary) is (begin != "")
        if budget:
            assert not accepts(grammar, f"{begin}{'x' * 41}</think>{call}", vocabulary)
    closed = call_grammar(chosen, REQUIRED, prompt="<think>\n\n</think>\n\n", special_tokens=vocabulary.ids)
    assert closed is not None
    assert accepts(closed, call, vocabulary) and not accepts(closed, f"<think>x</think>{call}", vocabulary)


def test_calls_that_write_one_id_twice_get_two() -> None:
    call = "<|tool_call_begin|>functions.clock:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
    calls = read("kimi_k2", f"<|tool_calls_section_begin|>{call}{call}<|tool_calls_section_end|>", REQUIRED).calls
    assert calls[0].id == "functions.clock:0" and len({one.id for one in calls}) == 2
