"""Formats are chosen from chat templates, or by name."""

from __future__ import annotations

import pytest

from homenode.chat.choice import choose
from homenode.chat.formats import all_formats, formats_by_name
from tests.paths import ROOT


@pytest.mark.parametrize(
    ("template", "tools", "thoughts"),
    [
        ("{% if tools %}<tool_call>{% endif %}", "hermes", "none"),
        ("<tool_call>\n<function=x>\n<parameter=y> <think>", "qwen3_coder", "think"),
        ("<tool_call>{{ name }}<arg_key> </think>", "glm45", "think"),
        ("<|tool_call>call: <|channel>thought", "gemma4", "gemma4"),
        ("<|tool_call|> <think> <response>", "granite", "granite_think"),
        ("<|tool|>{{ tools }}<|/tool|>", "phi4_mini_json", "none"),
        ("[TOOL_CALLS] [THINK]", "mistral", "mistral"),
        ("<|channel|>analysis<|message|>", "openai", "openai"),
        ("<｜DSML｜ <｜tool▁calls▁begin｜>", "deepseek_v32", "none"),
        ('<|python_start|> {"name": x, "parameters": dictionary of argument name}', "llama3_json", "none"),
        ("<|python_start|>", "pythonic", "none"),
        ("<seed:tool_call><function=x><parameter=y> <seed:think>", "qwen3_coder", "seed_oss"),
        ("<|START_ACTION|><|START_THINKING|>", "cohere_command3", "cohere_command3"),
        ("{% set dsml_token = '｜DSML｜' %}{{ '<' + dsml_token + 'tool_calls>' }} <think>", "deepseek_v4", "think"),
        ("]<]minimax[>[<tool_call> <mm:think>", "minimax_m3", "minimax_m3"),
        ("<minimax:tool_call> <think> <response>", "minimax_m2", "minimax_m2"),
        ("<TOOLCALL>[{{ x }}]</TOOLCALL>", "nemotron", "none"),
        ("<tool_calls>[{{ x }}]</tool_calls>", "apriel", "none"),
        ('{{ "<tool_calls>\\n{" }}', "minimax", "none"),
        ("<function_calls>{{ x }}</function_calls> <think>", "olmo3", "think"),
        ("start_tag => `<function` <|python_tag|>", "functionary_v31", "none"),
        ("<|function_call|>", "gigachat3", "none"),
        ("<|tools_prefix|>[ <|inner_prefix|>", "apertus", "apertus"),
        ("'<|open|>' + tag + '<|sep|>' '<|close|>'", "kimi_k3", "kimi_k3"),
        ("'<tool_call{}>' '<arg_key{}>' '<think{}>'", "hy3", "hy3"),
        ("<|begin|>assistant<|think|> <|tool_call:begin|>", "solar_open", "solar_open"),
        ("""<function name="' ~ name ~ '"><param name="' <think>""", "minicpm5", "think"),
        ("Respond as >>>${recipient}", "functionary_v32", "none"),
        ("List of tools: [{{ tools }}] </think>", "lfm2", "think"),
        ("<tool_calls>[ Here are my reasoning steps: [BEGIN FINAL RESPONSE]", "apriel", "apriel"),
        ("user: {{ x }}", "json", "none"),
        ("", "json", "none"),
    ],
)
def test_a_template_shows_the_formats(template: str, tools: str, thoughts: str) -> None:
    chosen = choose(template)
    assert (chosen.tools.name, chosen.thoughts_name) == (tools, thoughts)
    assert chosen.tools_because and chosen.thoughts_because


def test_a_response_template_comes_first_and_a_name_before_both() -> None:
    said = {"properties": {"calls": {"x-regex": "<arg_key>(.*)"}, "more": ["<think>"]}}
    chosen = choose("[TOOL_CALLS]", response_template=said)
    assert (chosen.tools.name, chosen.thoughts_name) == ("glm45", "think")
    assert "response_template" in chosen.tools_because
    named = choose("[TOOL_CALLS]", response_template=said, tool_parser="kimi_k2", reasoning_parser="none")
    assert (named.tools.name, named.thoughts_name, named.tools_because) == ("kimi_k2", "none", "it was asked for")


def test_every_format_is_found_under_names_of_its_own_and_is_in_the_page() -> None:
    names = [name for known in all_formats() for name in known.names]
    assert len(names) == len(set(names)) == len(formats_by_name())
    page = (ROOT / "docs" / "tools.md").read_text()
    assert all(f"`{known.name}`" in page for known in all_formats())
