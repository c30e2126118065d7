"""Real chat templates render here as they do in transformers; hostile and broken ones end in named errors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from homenode.errors import CheckpointError, UserError
from homenode.model.sandbox.renderer import TemplateRenderer
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


@pytest.fixture(scope="module")
def renderer() -> TemplateRenderer:
    return TemplateRenderer()


def render_here(source: str, conversation: dict[str, Any], renderer: TemplateRenderer) -> str | None:
    """The rendering, or None where the template refuses or fails."""
    rest = dict(conversation)
    try:
        return ChatTemplate(source, VALUES, renderer).render(rest.pop("messages"), **rest)
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
def test_renders_as_transformers_does(file: Any, conversation: dict[str, Any], renderer: TemplateRenderer) -> None:
    pytest.importorskip("transformers")
    source = file.read_text(encoding="utf-8")
    assert render_here(source, conversation, renderer) == render_there(source, conversation)


@pytest.mark.parametrize("file", TEMPLATES, ids=lambda p: p.stem)
def test_every_template_renders_a_plain_turn(file: Any, renderer: TemplateRenderer) -> None:
    tools = {"tools": [TOOL]} if "tool_use" in file.stem else {}  # a template for tools only
    text = render_here(file.read_text(encoding="utf-8"), CONVERSATIONS["one turn"] | tools, renderer)
    assert text is not None
    assert "Hello <there> & 'you'" in text


def test_extensions(renderer: TemplateRenderer) -> None:
    source = (
        "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{% generation %}{{ m | tojson }}{% "
        "endgeneration %}{% endfor %}"
    )
    messages = [{"role": "user", "content": "<é>"}, {"role": "user", "content": "never"}]
    assert ChatTemplate(source, {}, renderer).render(messages) == json.dumps(messages[0], ensure_ascii=False)
    assert len(ChatTemplate("{{ strftime_now('%Y') }}", {}, renderer).render([])) == 4


def test_what_filters_give_is_a_list_in_json(renderer: TemplateRenderer) -> None:
    source = "{{ messages | map(attribute='role') | tojson }}"
    assert ChatTemplate(source, {}, renderer).render([{"role": "user"}]) == '["user"]'


def test_a_template_may_change_lists(renderer: TemplateRenderer) -> None:
    source = (
        "{% set ids = [] %}{% for m in messages %}{% set _ = ids.append(m.content) %}{% endfor %}{{ ids.pop(0) }}"
        "{% set _ = messages.append(1) %}{{ ids }}{{ messages | length }}"
    )
    template, said = ChatTemplate(source, {}, renderer), [{"content": "a"}, {"content": "b"}]
    assert [template.render(said) for _ in range(2)] == ["a['b']3"] * 2  # what one rendering changed is its own
    assert said == [{"content": "a"}, {"content": "b"}]


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('alternate, please') }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ 1 / 0 }}",
        "{% for i in range(999999999) %}x{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ lipsum.__globals__.os }}",
        "{{ (10 ** 20000) | string }}",
        "{{ 'a' * 10 ** 10 }}",
        "{{ messages[0].content | indent(10 ** 10) }}",
        "{{ lipsum(n=10 ** 9) | length if false }}{{ 'x' * 9000000 }}",
        "{{ messages[0].content ~ raise_exception('x' * 10000000) }}",
    ],
)
def test_hostile_and_failing_templates_end_in_a_named_error(source: str, renderer: TemplateRenderer) -> None:
    with pytest.raises(UserError, match="chat template") as raised:
        ChatTemplate(source, {}, renderer).render([{"role": "user", "content": "x"}])
    assert len(raised.value.message) < 1500


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{% if %}", "Expected an expression"),
        ("{% break %}", "'break' outside loop"),
        ("{% continue %}", "'continue'"),
        ("{{ " + "9" * 5000 + " }}", "4300 digits"),
        ("".join(f"{{% for a{i} in 'a' %}}" for i in range(25)) + "x" + "{% endfor %}" * 25, "statically nested"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "RecursionError"),
        ("{% if 1 %}" * 3000 + "{% endif %}" * 3000, "RecursionError"),
        ("x" * (1 << 20) + "y", "at most 1048576"),
    ],
    ids=["no expression", "break", "continue", "digits", "loops", "brackets", "blocks", "length"],
)
def test_what_is_no_template_is_refused_on_loading(source: str, words: str, renderer: TemplateRenderer) -> None:
    with pytest.raises(CheckpointError, match=words) as raised:
        ChatTemplate(source, {}, renderer)
    assert "chat template" in raised.value.message


@pytest.mark.parametrize(
    "name", ["self", "cls", "args", "kwargs", "values", "name", "template", "", "a b", "é", "loop"]
)
def test_a_value_may_have_any_name(name: str, renderer: TemplateRenderer) -> None:
    template = ChatTemplate("{{ messages[0].content }}{{ given }}", {}, renderer)
    assert template.render([{"role": "user", "content": "x"}], **{name: 1, "given": 2}) == "x2"


@pytest.mark.parametrize("content", ["\ud800", "\ud83d" + "\ude00", "\0\x1b[31m\u2028", '"\\', "é中👩‍👩‍👧"])
def test_any_text_goes_through_unchanged(content: str, renderer: TemplateRenderer) -> None:
    template = ChatTemplate("{{ messages[0].content }}", {}, renderer)
    assert template.render([{"role": "user", "content": content}]) == content


@pytest.mark.parametrize("value", [object(), {1, 2}, 10**5000, b"x"], ids=["object", "set", "digits", "bytes"])
def test_values_that_json_cannot_say_are_named(value: Any, renderer: TemplateRenderer) -> None:
    template = ChatTemplate("{{ messages }}", {}, renderer)
    with pytest.raises(UserError, match="cannot be given to the model's chat template"):
        template.render([{"role": "user", "content": value}])
    assert template.render([]) == "[]"
