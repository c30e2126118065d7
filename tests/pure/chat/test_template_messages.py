"""Turns as templates take them, and switches of thoughts in the templates' own words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from homenode.chat.switches import same_switch, thinking_values
from homenode.chat.template_messages import arrange_turns, template_tools

ASKED = {"role": "user", "content": "Where?"}
SYSTEM = {"role": "system", "content": "Be brief."}
CHATML = "{% for message in messages %}{{ '<|im_start|>' + message.role }}{% endfor %}"
FIRST_ONLY = "{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}{{ message.content }}"


def call(name: str) -> dict[str, Any]:
    return {"id": f"call_{name}", "type": "function", "function": {"name": name, "arguments": {}}}


def result(name: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call_{name}", "content": name}


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ message.reasoning_content }}", "reasoning_content"),
        ("{{ message['reasoning_content'] }}{{ message.thinking }}", "reasoning_content"),
        ("{{ message.thinking }}", "thinking"),
        ("{{ message.reasoning }}", "reasoning"),
        ("{{ message.content }}", None),
    ],
)
@pytest.mark.parametrize("sent", ["reasoning_content", "reasoning"])
def test_thoughts_have_the_templates_name(template: str, name: str | None, sent: str) -> None:
    (said,) = arrange_turns(template, [{"role": "assistant", "content": "4", sent: "Hm."}])
    assert said == {"role": "assistant", "content": "4"} | ({name: "Hm."} if name else {})


def test_a_template_that_shows_one_of_thoughts_and_content_gets_both_as_thoughts() -> None:
    template = "{{ message.thinking }} Cannot pass both content and thinking"
    said = {"role": "assistant", "content": "I look.", "reasoning_content": "Hm.", "tool_calls": [call("a")]}
    (shown,) = arrange_turns(template, [said])
    assert shown["thinking"] == "Hm.\n\nI look." and shown["content"] == ""


def test_text_beside_calls_is_a_plan_where_a_template_shows_one() -> None:
    template = "<|START_THINKING|>{{ message.reasoning_content }}<|START_ACTION|>{{ message.tool_calls }}"
    said = {"role": "assistant", "content": "Let me.", "tool_calls": [{"id": "a", "function": {"name": "look"}}]}
    assert arrange_turns(template, [said])[0] == {**said, "content": "", "reasoning_content": "Let me."}
    (shown,) = arrange_turns(template, [{**said, "reasoning": "Hm."}])
    assert shown["reasoning_content"] == "Hm.\n\nLet me."


def test_developers_are_systems_unless_the_template_knows_them() -> None:
    told = {"role": "developer", "content": "x"}
    assert arrange_turns("{{ messages }}", [told])[0]["role"] == "system"
    shows = "{% if message.role == 'developer' %}{{ message.content }}{% endif %}"
    assert arrange_turns(shows, [told])[0]["role"] == "developer"
    counts = "{% if message.role in ['user', 'developer'] %}{% set last = loop.index0 %}{% endif %}"
    assert arrange_turns(counts, [told])[0]["role"] == "system"


def test_calls_one_by_one_with_their_results() -> None:
    template = "{{ message.tool_calls[0] }}"
    said = {"role": "assistant", "content": "I look.", "tool_calls": [call("a"), call("b"), call("c")]}
    shown = arrange_turns(template, [ASKED, said, result("b"), result("a"), ASKED])
    calls = [message["tool_calls"][0]["function"]["name"] for message in shown if "tool_calls" in message]
    assert calls == ["a", "b", "c"]
    assert [message["content"] for message in shown] == ["Where?", "I look.", "a", "", "b", "", "Where?"]
    loops = template + "{% for call in message.tool_calls %}"
    assert arrange_turns(loops, [ASKED, said, result("a")]) == [ASKED, said, result("a")]


def test_ids_of_nine_characters() -> None:
    template = "{% for tool_call in message.tool_calls %} should be strings with length 9"
    said = {"role": "assistant", "content": "", "tool_calls": [call("a"), {**call("b"), "id": "abcdefgh9"}]}
    called, told, other = arrange_turns(template, [said, result("a"), {**result("b"), "tool_call_id": "abcdefgh9"}])
    assert len(called["tool_calls"][0]["id"]) == 9 and called["tool_calls"][0]["id"] == told["tool_call_id"]
    assert called["tool_calls"][1]["id"] == other["tool_call_id"] == "abcdefgh9"


def test_empty_content_beside_calls() -> None:
    said = {"role": "assistant", "content": "", "tool_calls": [call("a")]}
    assert arrange_turns("{% if message['content'] is none %}", [said])[0]["content"] is None
    assert arrange_turns("{{ message.content }}", [{**said, "content": None}])[0]["content"] == ""


def test_system_messages_where_the_template_takes_them() -> None:
    said = [SYSTEM, {**SYSTEM, "content": "Be kind."}, ASKED, SYSTEM, ASKED]
    assert arrange_turns(CHATML, said) == said
    shown = arrange_turns(FIRST_ONLY, said)
    assert [(message["role"], message["content"]) for message in shown] == [
        ("system", "Be brief.\n\nBe kind."),
        ("user", "Where?"),
        ("user", "Be brief.\n\nWhere?"),
    ]
    looks = "{% for message in messages %}{% if message.role == 'system' %}{% set quiet = true %}{% endif %}"
    assert arrange_turns(looks + FIRST_ONLY, said) == shown
    heads = "{% for message in messages %}{% if message.role == 'system' %}<system>{% endif %}"
    assert arrange_turns(heads + FIRST_ONLY, said) == said
    nowhere = arrange_turns("{{ raise_exception('System role not supported') }}", said[:3])
    assert nowhere == [{"role": "user", "content": "Be brief.\n\nBe kind.\n\nWhere?"}]


def test_turns_that_must_alternate_are_joined() -> None:
    template = "{{ raise_exception('Conversation roles must alternate') }}" + CHATML
    answer = {"role": "assistant", "content": "Here."}
    shown = arrange_turns(template, [ASKED, ASKED, answer, answer, ASKED])
    assert [message["role"] for message in shown] == ["user", "assistant", "user"]
    assert shown[0]["content"] == "Where?\n\nWhere?" and shown[1]["content"] == "Here.\n\nHere."


@pytest.mark.parametrize(
    ("template", "thinking", "effort", "values"),
    [
        ("{{ enable_thinking }}", None, "none", {"enable_thinking": False}),
        ("{{ enable_thinking }}", None, "minimal", {"enable_thinking": True}),
        ("{% if thinking %}", False, None, {"thinking": False}),
        ("{% if thinking %}", None, None, {}),
        ("{{ message.thinking }}<thinking>", True, "high", {}),
        ("{{ reasoning_effort }}", None, "high", {"reasoning_effort": "high"}),
        ("{{ reasoning_effort }}", None, "xhigh", {"reasoning_effort": "high"}),
        ("{{ reasoning_effort }}", None, "none", {"reasoning_effort": "low"}),
        ("{% if reasoning_effort == 'none' %}", None, "none", {"reasoning_effort": "none"}),
        ("{% if reasoning_effort == 'none' %}", False, None, {"reasoning_effort": "none"}),
        ("{% if reasoning_effort in ['high', 'low', 'no_think'] %}", None, "medium", {"reasoning_effort": "high"}),
        ("{% if reasoning_effort in ['high', 'low', 'no_think'] %}", None, "none", {"reasoning_effort": "no_think"}),
        ("{% if reasoning_effort in ['high', 'low', 'no_think'] %}", True, None, {"reasoning_effort": "high"}),
        ("{{ reasoning_effort }}{# no thinking here #}", False, None, {"reasoning_effort": "low", "thinking": False}),
        ("{% if thinking_effort in ['low', 'high', 'max'] %}", None, "max", {"thinking_effort": "max"}),
        ("{{ reasoning_strength }}", None, "medium", {"reasoning_strength": "medium"}),
        ("{% if thinking_mode == 'disabled' %}", False, None, {"thinking_mode": "disabled"}),
        ("{% if thinking_mode == 'disabled' %}", None, "low", {"thinking_mode": "enabled"}),
    ],
)
def test_switches(template: str, thinking: bool | None, effort: str | None, values: dict[str, Any]) -> None:
    assert thinking_values(template, thinking=thinking, effort=effort) == values


def test_turns_that_must_alternate_do_whatever_is_missing() -> None:
    template = "{{ raise_exception('Conversation roles must alternate') }}" + CHATML
    called = {"role": "assistant", "content": "", "tool_calls": [{"id": "a", "function": {"name": "look"}}]}
    shown = arrange_turns(template, [{"role": "assistant", "content": "Hi."}, ASKED, called, result("a"), ASKED])
    assert [message["role"] for message in shown] == [
        "user",
        "assistant",
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]
    assert shown[0]["content"] == shown[5]["content"] == ""
    again = arrange_turns(template, [ASKED, *[{**ASKED, "role": "assistant"}, called] * 3])
    empty = [message for message in again if message["role"] == "user" and not message["content"]]
    assert len(empty) == 2 and empty[0] != empty[1]  # templates show tools before each message that equals the last
    strict = template + "Assistant message must have a string"
    assert arrange_turns(strict, [ASKED, called, result("a"), ASKED])[3]["content"] == " "


def test_text_beside_calls_where_a_template_shows_one_of_them() -> None:
    said = {"role": "assistant", "content": "Let me.", "tool_calls": [{"id": "a", "function": {"name": "look"}}]}
    template = "{%- if message['role'] == 'assistant' and message['content'] is none %}{{ message['tool_calls'] }}"
    text, called = arrange_turns(template, [said])
    assert text == {"role": "assistant", "content": "Let me."}
    assert called == {**said, "content": None}
    assert arrange_turns(CHATML, [said]) == [said]


CALLS_OR_TEXT = [
    "{% elif message.tool_calls is defined and message.tool_calls is not none %}{{ message.tool_calls }}"
    '{% elif message["role"] == "assistant" %}{{ message["content"] }}',
    "{% elif role == 'assistant' %}{% if message.get('tool_calls') %}{% for call in message.tool_calls %}{{ call.id }}"
    "{% if not loop.last %}, {% endif %}{% endfor %}{% else %}{{ render(message['content']) }}{% endif %}",
    "{%- elif 'tool_calls' in message -%}{{ message.tool_calls[0] }}{%- else -%}{{ message.content }}",
]
BOTH = [
    "{% elif message.tool_calls %}{{ message.content }}{{ message.tool_calls }}{% else %}{{ message.content }}",
    "{% elif message.tool_calls is none %}{{ message.tool_calls }}{% else %}{{ message.content }}",
    "{% elif not message.tool_calls %}{{ message.tool_calls }}{% else %}{{ message.content }}",
    "{% elif x %}{{ message.content }}{% endif %}{% if message.tool_calls %}{{ message.tool_calls }}",
]


@pytest.mark.parametrize("template", [*CALLS_OR_TEXT, *BOTH])
def test_text_beside_calls_where_another_branch_shows_text(template: str) -> None:
    said = {"role": "assistant", "content": "Let me.", "tool_calls": [{"id": "a", "function": {"name": "look"}}]}
    shown = arrange_turns(f"{{% if x %}}{template}{{% endif %}}", [said])
    apart = [{"role": "assistant", "content": "Let me."}, {**said, "content": None}]
    assert shown == (apart if template in CALLS_OR_TEXT else [said])


def test_a_system_message_that_is_shown_with_the_last_question_only() -> None:
    template = FIRST_ONLY + "{% if loop.last and system_message is defined %}{{ system_message }}"
    called = {"role": "assistant", "content": "", "tool_calls": [{"id": "a", "function": {"name": "look"}}]}
    asked = [SYSTEM, ASKED, {"role": "assistant", "content": "Here."}, ASKED]
    assert arrange_turns(template, asked) == asked
    shown = arrange_turns(template, [*asked, called, result("a")])
    assert [message["content"] for message in shown] == ["Where?", "Here.", "Be brief.\n\nWhere?", "", "a"]


def test_a_result_that_no_call_is_before() -> None:
    template = "{{ raise_exception('there was no previous assistant message with a tool call!') }}"
    called = {"role": "assistant", "content": "", "tool_calls": [{"id": "a", "function": {"name": "look"}}]}
    shown = arrange_turns(
        template, [result("z"), called, result("a"), {"role": "assistant", "content": "b"}, result("a")]
    )
    assert [message["role"] for message in shown] == ["user", "assistant", "tool", "assistant", "user"]


def test_tools_have_what_a_template_reads_of_them() -> None:
    def function(template: str, **fields: Any) -> dict[str, Any]:
        (tool,) = template_tools([{"type": "function", "function": {"name": "look", **fields}}], template)
        return dict(tool["function"])

    assert function("{{ tool | tojson }}", description=None) == {"name": "look"}
    reads = "{{ tool.description + tool.parameters.properties }}"
    nothing = {"type": "object", "properties": {}}
    assert function(reads) == {"name": "look", "description": "", "parameters": nothing}
    assert function(reads, parameters={"type": "object", "required": None})["parameters"] == nothing
    schema = {"type": "object", "properties": {"a": {"type": ["string", "null"]}, "b": {"type": ["string", "integer"]}}}
    assert function(reads, parameters=schema)["parameters"] == schema
    unions = function(reads + "Union[ param_fields.description", parameters=schema)["parameters"]["properties"]
    assert unions["a"] == {"description": "", "type": "string"} and unions["b"]["type"] == ["string", "integer"]


def test_a_switch_under_another_name_is_found() -> None:
    assert same_switch("{% if thinking %}", {"enable_thinking": False}) == {"enable_thinking": False, "thinking": False}
    assert same_switch("{% if thinking %}", {"thinking": True, "x": 1}) == {"thinking": True, "x": 1}
    assert same_switch("{{ messages }}", {"enable_thinking": False}) == {"enable_thinking": False}


def test_tools_have_the_order_that_models_know_and_no_wishes_about_decoding() -> None:
    function = {"strict": True, "parameters": {"b": 1, "a": 2}, "x": 1, "name": "look"}
    (tool,) = template_tools([{"type": "function", "function": function}])
    assert json.dumps(tool["function"]) == '{"name": "look", "parameters": {"b": 1, "a": 2}, "x": 1}'
    assert function["strict"] is True
