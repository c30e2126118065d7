"""Every text that a client sends is in the prompt, or is named as left out: over chat templates of all kinds, roles,
parts, calls, results, thoughts and orders.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from homenode.chat.choice import choose
from homenode.chat.conversation_prompt import TemplateConversation, conversation_prompt
from homenode.chat.sent_texts import SentText, sent_texts, texts_left_out
from homenode.chat.whole_prompt import Arrangement, RenderedPrompt, render_whole
from homenode.errors import CapacityError, UserError
from homenode.model.sandbox.renderer import TemplateRenderer
from homenode.model.tokenizer.chat import ChatTemplate
from homenode.model.tokenizer.template_traits import TemplateTraits, read_traits
from tests.examples import examples
from tests.paths import DATA, needs_data
from tests.pure.chat.template_kinds import KINDS

FILES = sorted((DATA / "chat-templates").glob("*.jinja")) if DATA.is_dir() else []
VALUES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
LOOK = {"name": "look", "description": "Mark-of-a-tool.", "parameters": {"type": "object", "properties": {}}}
TOOLS = [{"type": "function", "function": LOOK}]
Conversation = tuple[list[dict[str, Any]], list[str], list[dict[str, Any]]]  # messages, marks in them, tools


@pytest.fixture(scope="module", autouse=True)
def renderer() -> Iterator[None]:
    yield
    shared().close()
    shared.cache_clear()
    prepared.cache_clear()


@cache
def shared() -> TemplateRenderer:
    return TemplateRenderer()


@cache
def prepared(source: str) -> tuple[ChatTemplate, TemplateTraits]:
    template = ChatTemplate(source, VALUES, shared())
    return template, read_traits(template.render_trial, [], [])


def prompt_of(source: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> RenderedPrompt:
    template, traits = prepared(source)
    return conversation_prompt(
        TemplateConversation(source, choose(source).tools, messages, tools),
        lambda said, shown: template.render(traits.conform(said), tools=shown),
    )


class Marks:
    """Texts that are nowhere twice."""

    def __init__(self) -> None:
        self.all: list[str] = []

    def text(self) -> str:
        self.all.append(f"mark{len(self.all):03d}end")
        return f"Say {self.all[-1]}."

    def content(self, parts: int) -> str | list[dict[str, str]]:
        return self.text() if not parts else [{"type": "text", "text": self.text()} for _ in range(parts)]


@st.composite
def conversations(draw: st.DrawFn) -> Conversation:
    """Conversations as clients send them: a call has its results behind it, the rest comes in any order."""
    marks, messages = Marks(), list[dict[str, Any]]()
    few = st.integers(0, 3)
    for number, kind in enumerate(draw(st.lists(st.sampled_from(
        ["system", "developer", "user", "user", "assistant", "call", "call"]
    ), min_size=1, max_size=6))):  # fmt: skip
        if kind != "call":
            message: dict[str, Any] = {"role": kind, "content": marks.content(draw(few))}
            if kind == "assistant" and draw(st.booleans()):
                message["reasoning_content"] = "Hm."
            messages.append(message)
            continue
        ids = [f"call_{number}_{i}" for i in range(draw(st.integers(1, 2)))]
        beside = draw(st.sampled_from(["", None, "text", "parts"]))
        content = marks.text() if beside == "text" else marks.content(2) if beside == "parts" else beside
        calls = [
            {"id": i, "type": "function", "function": {"name": "look", "arguments": json.dumps({"at": marks.text()})}}
            for i in ids
        ]
        messages.append({"role": "assistant", "content": content, "tool_calls": calls})
        messages += [
            {"role": "tool", "tool_call_id": i, "name": "look", "content": marks.content(draw(few))} for i in ids
        ]
    tools = draw(st.sampled_from([TOOLS, TOOLS, []]))
    return messages, [*marks.all, *(["Mark-of-a-tool"] if tools else [])], tools


def check(source: str, conversation: Conversation) -> None:
    messages, marks, tools = conversation
    made = prompt_of(source, messages, tools)
    named = {sent.name for sent in made.left_out if not sent.by_template}
    lost = [mark for mark in marks if mark not in made.text]
    assert not lost or named, (lost, made.text)
    assert "'type': 'text'" not in made.text and '"type": "text"' not in made.text


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(conversation=conversations())
def test_every_mark_is_shown_by_templates_of_all_kinds(kind: str, conversation: Conversation) -> None:
    check(KINDS[kind], conversation)
    assert not [
        sent for sent in prompt_of(KINDS[kind], conversation[0], conversation[2]).left_out if not sent.by_template
    ]


@needs_data
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
@settings(max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(conversation=conversations())
def test_every_mark_is_shown_by_templates_of_models(file: Path, conversation: Conversation) -> None:
    check(file.read_text(), conversation)


FORMS = {
    "as it is": ("a b", "x a b y"),
    "without the space around it": ("  a b\n", "xa by"),
    "as JSON": ('say "ü"\n', '"say \\"ü\\""'),
    "as JSON of ASCII": ('say "ü"', '"say \\"\\u00fc\\""'),
    "as JSON within JSON": ("a\nb", '"{\\"x\\": \\"a\\\\nb\\"}"'),
    "as Python": ("it's\t'so'", "\"it's\\t'so'\""),
    "as XML": ("a < b", "a &lt; b"),
    "without thoughts": ("<think>no</think>\n\nyes", "yes"),
    "with its lines indented": ("a\nb\n\nc", "  a\n  b\n  c"),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_in_which_a_text_is_shown(form: str) -> None:
    text, prompt = FORMS[form]
    sent = [SentText("messages.user", text)]
    assert texts_left_out(prompt, sent) == []
    assert texts_left_out("something else", sent) == sent


def test_a_text_that_was_sent_twice_is_to_be_shown_twice() -> None:
    sent = [
        SentText("messages.user", "Go on."),
        SentText("messages.assistant", "Yes."),
        SentText("messages.user", "Go on."),
    ]
    assert texts_left_out("Go on. Yes. Go on.", sent) == []
    assert [each.text for each in texts_left_out("Go on.", sent)] == ["Yes."]  # the order is not known then


def test_what_is_looked_for_in_a_conversation() -> None:
    call = {"function": {"name": "look", "arguments": '{"a": ["x", {"b": "y"}], "n": 3}'}}
    cut = {"function": {"name": "look", "arguments": '{"a'}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": " "}]},
        {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call, cut]},
    ]
    way = {"type": "object", "properties": {"deep": {"description": "How deep."}}}
    schema = {"type": "object", "properties": {"at": {"description": "Where."}, "ways": {"items": way}}}
    found = sent_texts(messages, [{"function": {"name": "look", "description": "Look.", "parameters": schema}}])
    told = ["at", "ways", "Where.", "deep", "How deep."]
    assert [(sent.name, sent.text) for sent in found] == [
        ("tools.look", "look"), ("tools.look", "Look."), *(("tools.look.parameters", text) for text in told),
        ("messages.user", "one"), ("messages.reasoning_content", "hm"),
        ("messages.tool_calls", "look"), ("messages.tool_calls", "x"), ("messages.tool_calls", "y"),
        ("messages.tool_calls", "look"), ("messages.tool_calls", '{"a'),
    ]  # fmt: skip
    assert [sent.by_template for sent in found].count(True) == 1 + len(told)


def test_what_is_said_of_a_parameter_and_not_shown_is_named_without_another_rendering() -> None:
    tool = {"name": "look", "parameters": {"type": "object", "properties": {"at": {"description": "Where-of-it."}}}}
    body = (
        "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    made = prompt_of(body, [{"role": "user", "content": "Hi"}], [{"type": "function", "function": tool}])
    assert [(each.name, each.by_template) for each in made.left_out] == [("tools.look.parameters", True)]
    shown = prompt_of(f"{{{{ tools | tojson }}}}{body}", [{"role": "user", "content": "Hi"}], [{"function": tool}])
    assert shown.left_out == ()


def test_what_no_arrangement_shows_is_named_once_and_the_first_refusal_is_told() -> None:
    sent = [SentText("messages.user", "a"), SentText("messages.user", "b"), SentText("messages.tool", "c")]
    made = render_whole(lambda said, tools: "c", Arrangement([]), sent, [])
    assert [each.name for each in made.left_out] == ["messages.user"]

    def refuse(messages: Any, tools: Any) -> str:
        raise UserError(f"refused {tools}")

    with pytest.raises(UserError, match="refused None"):
        render_whole(refuse, Arrangement([]), sent, [lambda given: Arrangement(given.messages, [])])


@pytest.mark.parametrize("kind", [CapacityError, UserError])
def test_a_prompt_that_shows_nothing_is_none(kind: type[UserError]) -> None:
    """An arrangement without the words renders where they were too much for the template."""
    rendered: list[Any] = []

    def render(messages: Any, tools: Any) -> str:
        rendered.append(messages)
        if messages[0]["content"]:
            raise kind("no")
        return "0"

    given = Arrangement([{"role": "user", "content": "Hi"}])
    with pytest.raises(kind, match="no"):
        render_whole(render, given, [SentText("messages.user", "Hi")], [_emptied])
    assert len(rendered) == (1 if kind is CapacityError else 2), "behind a limit nothing more is tried"


def _emptied(given: Arrangement) -> Arrangement:
    return Arrangement([{**message, "content": ""} for message in given.messages], given.tools)


def test_renderings_are_bounded() -> None:
    count = 0

    def render(messages: Any, tools: Any) -> str:
        nonlocal count
        count += 1
        raise UserError("no")

    changes = [lambda given, n=n: Arrangement([*given.messages, {"role": str(n)}]) for n in range(30)]
    with pytest.raises(UserError):
        render_whole(render, Arrangement([]), [], changes)
    assert count == 40
    count = 0
    with pytest.raises(UserError):
        render_whole(render, Arrangement([]), [], changes, goes_on=lambda: count < 3)
    assert count == 3
