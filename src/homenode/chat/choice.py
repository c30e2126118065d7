"""The format in which a model writes its calls and thoughts, chosen from its chat template, with the reason in a
sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from homenode.chat.formats import ToolFormat, all_formats, formats_by_name
from homenode.chat.syntax.reasoning import FORMS, RAW, ThoughtForm
from homenode.errors import UserError

_GENERIC = "json"
# What a chat template shows, and the form of thoughts that this means; the first that fits is taken.
_SIGNS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("<|channel|>", "<|message|>"), "openai"),
    (("<|channel>thought",), "gemma4"),
    (("<|channel>", "<channel|>"), "gemma4"),
    (("<|START_THINKING|>",), "cohere_command3"),
    (("<|open|>", "<|close|>", "<|sep|>"), "kimi_k3"),
    (("<|begin|>assistant<|think|>",), "solar_open"),
    (("<think{}>",), "hy3"),
    (("<think:opensource>",), "hy3"),
    (("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"), "apriel"),
    (("[THINK]",), "mistral"),
    (("<seed:think>",), "seed_oss"),
    (("<mm:think>",), "minimax_m3"),
    (("<minimax:tool_call>", "<think>"), "minimax_m2"),
    (("<|inner_prefix|>",), "apertus"),
    (("Here is my thought process:",), "granite"),
    (("<think>", "<response>"), "granite_think"),
    (("<think>",), "think"),
    (("</think>",), "think"),
)


@dataclass(frozen=True)
class ChosenFormats:
    """A format of calls and a form of thoughts, each with its name and why it was chosen."""

    tools: ToolFormat
    tools_because: str
    thoughts: ThoughtForm
    thoughts_name: str
    thoughts_because: str


def choose(
    template: str | None,
    *,
    response_template: Any = None,
    tool_parser: str | None = None,
    reasoning_parser: str | None = None,
) -> ChosenFormats:
    """The format of calls and the form of thoughts of a model.

    `template` is the text of its chat template, `response_template` what tokenizer_config.json has under this name.
    `tool_parser` and `reasoning_parser` are names that a person gave; UserError for names that there are not.
    """
    tools, tools_because = _tools(template or "", _texts_of(response_template), tool_parser)
    name, because = _thoughts(template or "", _texts_of(response_template), tools, reasoning_parser)
    return ChosenFormats(tools, tools_because, FORMS[name], name, because)


def _tools(template: str, response: str, given: str | None) -> tuple[ToolFormat, str]:
    known = formats_by_name()
    if given is not None:
        if given not in known:
            raise UserError(_unknown("tool call parser", given, known), param="tool_call_parser")
        return known[given], "it was asked for"
    for text, where in ((response, "response_template of tokenizer_config.json"), (template, "the chat template")):
        for candidate in all_formats():
            if (sign := candidate.sign_in(text)) is not None:
                return candidate, f"{where} has {' and '.join(sign)}"
    return known[_GENERIC], "the chat template shows no form of tool calls" if template else "there is no chat template"


def _thoughts(template: str, response: str, tools: ToolFormat, given: str | None) -> tuple[str, str]:
    if given is not None:
        if given not in FORMS:
            raise UserError(_unknown("reasoning parser", given, FORMS), param="reasoning_parser")
        return given, "it was asked for"
    if tools.name in FORMS and tools.without_tools:
        return tools.name, f"messages in the format {tools.name} have a place for them"
    for text, where in ((response, "response_template of tokenizer_config.json"), (template, "the chat template")):
        for sign, name in _SIGNS:
            if all(part in text for part in sign):
                return name, f"{where} has {' and '.join(sign)}"
    return RAW, "the chat template shows no form of thoughts"


def _unknown(what: str, given: str, known: Mapping[str, Any]) -> str:
    return f"there is no {what} {given!r}; there are {', '.join(sorted(known))}"


def _texts_of(value: Any) -> str:
    """All strings within a JSON value, one a line."""
    found, left = [], [value]
    while left:
        one = left.pop()
        if isinstance(one, str):
            found.append(one)
        elif isinstance(one, Mapping):
            left += [*one.values(), *one.keys()]
        elif isinstance(one, list):
            left += one
    return "\n".join(found)
