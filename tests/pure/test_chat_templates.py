"""Real chat templates render here as they do in transformers; hostile and broken ones end in named errors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from homenode.errors import CheckpointError, UserError
from homenode.model.tokenizer.chat import ChatTemplate
from tests.paths import DATA, needs_data

TEMPLATES = sorted((DATA / "chat-templates").glob("*.jinja")) if DATA.is_dir() else []
VALUES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a place.",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string", "description": "Größe <b>"}},
            "required": ["place"],
        },
    },
}
CALL = {"type": "function", "id": "abcdefghi", "function": {"name": "weather", "arguments": {"place": "Oslo"}}}
CONVERSATIONS: dict[str, dict[str, Any]] = {
    "one turn": {"messages": [{"role": "user", "content": "Hello <there> & 'you'"}]},
    "system": {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi\nthere"}]},
    "several turns": {
        "messages": [
            {"role": "user", "content": "1 + 1?"},
            {"role": "assistant", "content": "<think>\nadd\n</think>\n\n2"},
            {"role": "user", "content": "and ünïcode?"},
        ]
    },
    "no prompt for the answer": {
        "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
        "add_generation_prompt": False,
    },
    "tools": {"messages": [{"role": "user", "content": "Weather in Oslo?"}], "tools": [TOOL]},
    "tool calls": {
        "messages": [
            {"role": "user", "content": "Weather in Oslo?"},
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "content": '{"degrees": 3}', "name": "weather", "tool_call_id": "abcdefghi"},
        ],
        "tools": [TOOL],
    },
    "two users in a row": {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]},
    "no thinking": {"messages": [{"role": "user", "content": "a"}], "enable_thinking": False},
}


@needs_data
def test_the_templates_are_there() -> None:
    assert len(TEMPLATES) == 13


def render_here(source: str, conversation: dict[str, Any]) -> str | None:
    """The rendering, or None where the template refuses or fails."""
    rest = dict(conversation)
    try:
        return ChatTemplate(source, VALUES).render(rest.pop("messages"), **rest)
    except UserError:
        return None


def render_there(source: str, conversation: dict[str, Any]) -> str | None:
    from transformers.utils.chat_template_utils import render_jinja_template

    rest = {"add_generation_prompt": True, **conversation}
    messages = rest.pop("messages")
    try:
        rendered, _ = render_jinja_template(conversations=[messages], chat_template=source, **rest, **VALUES)
    except Exception:  # any failure there is to be a refusal here
        return None
    return str(rendered[0])


@pytest.mark.torch
@pytest.mark.parametrize("conversation", CONVERSATIONS.values(), ids=CONVERSATIONS.keys())
@pytest.mark.parametrize("file", TEMPLATES, ids=lambda p: p.stem)
def test_renders_as_transformers_does(file: Any, conversation: dict[str, Any]) -> None:
    pytest.importorskip("transformers")
    source = file.read_text(encoding="utf-8")
    assert render_here(source, conversation) == render_there(source, conversation)


@pytest.mark.parametrize("file", TEMPLATES, ids=lambda p: p.stem)
def test_every_template_renders_a_plain_turn(file: Any) -> None:
    tools = {"tools": [TOOL]} if "tool_use" in file.stem else {}  # a template for tools only
    text = render_here(file.read_text(encoding="utf-8"), CONVERSATIONS["one turn"] | tools)
    assert text is not None
    assert "Hello <there> & 'you'" in text


def test_extensions() -> None:
    source = "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{% generation %}{{ m | tojson }}{% endgeneration %}{% endfor %}"
    messages = [{"role": "user", "content": "<é>"}, {"role": "user", "content": "never"}]
    assert ChatTemplate(source, {}).render(messages) == json.dumps(messages[0], ensure_ascii=False)
    assert len(ChatTemplate("{{ strftime_now('%Y') }}", {}).render([])) == 4


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('alternate, please') }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ 1 / 0 }}",
        "{% for i in range(999999999) %}x{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ lipsum.__globals__.os }}",
    ],
)
def test_hostile_and_failing_templates_end_in_a_named_error(source: str) -> None:
    with pytest.raises(UserError, match="chat template"):
        ChatTemplate(source, {}).render([{"role": "user", "content": "x"}])


def test_a_template_that_is_no_jinja_is_refused_on_loading() -> None:
    with pytest.raises(CheckpointError, match="jinja2"):
        ChatTemplate("{% if %}", {})
