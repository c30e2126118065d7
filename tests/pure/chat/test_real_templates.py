"""What clients send, rendered by real chat templates: nothing is refused, and every word is shown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from homenode.chat.choice import choose
from homenode.chat.history import conversation_for
from homenode.chat.template_messages import template_tools
from homenode.model.sandbox.renderer import TemplateRenderer
from homenode.model.tokenizer.chat import ChatTemplate
from homenode.model.tokenizer.template_traits import read_traits
from tests.paths import DATA, needs_data

TEMPLATES = sorted((DATA / "chat-templates").glob("*.jinja")) if DATA.is_dir() else []
VALUES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a place.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    },
}


def call(number: int, place: str) -> dict[str, Any]:
    arguments = f'{{"place": "{place}"}}'
    return {"id": f"call_{number}", "type": "function", "function": {"name": "weather", "arguments": arguments}}


def result(number: int, words: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call_{number}", "name": "weather", "content": words}


CUT = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{'pl"}}
ASKED = {"role": "user", "content": "Weather in Oslo and Rome?"}
CALLED = {"role": "assistant", "content": None, "tool_calls": [call(1, "Oslo"), call(2, "Rome")]}
CONVERSATIONS: dict[str, tuple[list[dict[str, Any]], list[str]]] = {
    "one call": (
        [ASKED, {**CALLED, "tool_calls": [call(1, "Oslo")]}, result(1, "snow")],
        ["Oslo", "snow", "weather"],
    ),
    "two calls, results in another order": (
        [ASKED, {**CALLED, "content": ""}, result(2, "sun"), result(1, "snow")],
        ["Oslo", "Rome", "snow", "sun"],
    ),
    "results as parts": (
        [ASKED, CALLED, {**result(1, ""), "content": [{"type": "text", "text": "snow"}]}, result(2, "sun")],
        ["snow", "sun"],
    ),
    "thoughts, an answer, and the next question": (
        [
            ASKED, {**CALLED, "reasoning_content": "I look."}, result(1, "snow"), result(2, "sun"),
            {"role": "assistant", "content": "Cold and warm.", "reasoning_content": "Easy."},
            {"role": "user", "content": "Thanks, and Bern?"},
        ],
        ["Cold and warm.", "Thanks, and Bern?"],
    ),
    "systems and developers": (
        [
            {"role": "system", "content": "Be brief."}, {"role": "developer", "content": "Be kind."},
            {"role": "user", "content": "Hello."}, {"role": "user", "content": "Anybody?"},
            {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Good."},
        ],
        ["Be brief.", "Be kind.", "Hello.", "Anybody?", "Yes.", "Good."],
    ),
    "a system message in the middle": (
        [{"role": "user", "content": "Hello."}, {"role": "system", "content": "Be kind."},
         {"role": "user", "content": "Anybody?"}],
        ["Hello.", "Be kind.", "Anybody?"],
    ),
    "calls without results, results without calls, and questions between them": (
        [
            {"role": "assistant", "content": "Welcome."}, ASKED, {**CALLED, "tool_calls": [call(1, "Oslo")]},
            {"role": "user", "content": "Well?"}, {**CALLED, "tool_calls": [call(2, "Rome")]}, result(2, "sun"),
            {"role": "user", "content": "And?"}, {"role": "assistant", "content": "Warm."}, result(3, "rain"),
            {"role": "user", "content": "Thanks."},
        ],
        ["Welcome.", "Oslo", "Well?", "Rome", "sun", "And?", "Warm.", "rain", "Thanks."],
    ),
    "text beside a call": (
        [ASKED, {**CALLED, "content": "Let me.", "tool_calls": [call(1, "Oslo")]}, result(1, "snow")],
        ["Let me.", "Oslo", "snow"],
    ),
    "texts beside calls, one after the other": (
        [
            {"role": "system", "content": "Be brief."}, ASKED,
            {**CALLED, "content": "Let me.", "tool_calls": [call(1, "Oslo")]}, result(1, "snow"),
            {**CALLED, "content": "One more.", "tool_calls": [call(2, "Rome")]}, result(2, "sun"),
        ],
        ["Be brief.", "Let me.", "Oslo", "snow", "One more.", "Rome", "sun"],
    ),
    "arguments that were cut": (
        [ASKED, {**CALLED, "content": "", "tool_calls": [CUT]}, result(1, "snow")], ["pl", "snow"],
    ),
}  # fmt: skip
FUNCTIONS: list[dict[str, Any]] = [
    {"name": "weather"},
    {"name": "weather", "description": None, "parameters": {}},
    {"name": "weather", "parameters": {"type": "object", "required": None}},
    {"name": "weather", "parameters": {"type": "object", "properties": {"place": {}}}},
    {"name": "weather", "parameters": {"type": "object", "properties": {"place": {"type": ["string", "null"]}}}},
    {"name": "weather", "parameters": {"type": "object", "properties": {"place": {"anyOf": [{"type": "string"}]}}}},
]


@pytest.fixture(scope="module")
def renderer() -> Iterator[TemplateRenderer]:
    found = TemplateRenderer()
    yield found
    found.close()


@needs_data
@pytest.mark.parametrize("name", CONVERSATIONS)
@pytest.mark.parametrize("file", TEMPLATES, ids=lambda file: file.stem)
@pytest.mark.parametrize("tools", [[TOOL], []], ids=["tools", "no tools"])
def test_every_word_is_shown(file: Path, name: str, tools: list[Any], renderer: TemplateRenderer) -> None:
    source = file.read_text()
    template = ChatTemplate(source, VALUES, renderer)
    if "tool_use" in file.stem and not tools:
        pytest.skip("this template is for conversations with tools")
    messages, words = CONVERSATIONS[name]
    tools = template_tools(tools, source)
    said = conversation_for(source, choose(source).tools, messages, tools)
    traits = read_traits(lambda some, follows: template.render(some, add_generation_prompt=follows), [], [])
    shown = template.render(traits.conform(said), tools=tools or None)
    lost = [word for word in words if word not in shown]
    assert not lost, shown
    assert "None" not in shown


@needs_data
@pytest.mark.parametrize("file", TEMPLATES, ids=lambda file: file.stem)
def test_tools_of_few_words_are_shown(file: Path, renderer: TemplateRenderer) -> None:
    source = file.read_text()
    template = ChatTemplate(source, VALUES, renderer)
    for function in FUNCTIONS:
        tools = template_tools([{"type": "function", "function": function}], source)
        said = conversation_for(source, choose(source).tools, [ASKED], tools)
        assert "weather" in template.render(said, tools=tools)
