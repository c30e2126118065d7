"""Texts that a client sends in a conversation, each under a name, and which of them a prompt does not show.

Chat templates write a text as it is, without the white space around it, as a string of JSON or Python, or without the
thoughts in front of it. In each of these forms it counts as shown.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

_THOUGHTS = ("reasoning_content", "reasoning", "thinking")
_THOUGHTS_END = ("</think>", "[/THINK]", "</seed:think>", "<channel|>", "<|END_THINKING|>")
_MOST_LINES = 16  # of a text that is not shown as a whole, those that are looked for
_MOST_LEAVES = 256  # of the arguments of one call, and schemas within those of one tool
_INNER_SCHEMAS = ("items", "prefixItems", "additionalProperties", "anyOf", "oneOf", "allOf", "$defs")


class SentText(NamedTuple):
    """A text, and what it is called where it is left out. `by_template`: chat templates leave such texts out on
    purpose, as thoughts of earlier turns.
    """

    name: str
    text: str
    by_template: bool = False


def sent_texts(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()) -> list[SentText]:
    """Return what a prompt is to show of a conversation and its tools, in order: contents, thoughts, calls with the
    texts of their arguments, and of each tool its name, what it is for, and what is said of its parameters.
    """
    found = [sent for tool in tools for sent in _of_tool(tool)]
    for message in messages:
        found += _of_message(message)
    return [sent for sent in found if sent.text.strip()]


def texts_left_out(prompt: str, sent: Sequence[SentText]) -> list[SentText]:
    """Return those that `prompt` does not show. Texts that are there twice have to be shown twice where their order is
    kept.
    """
    lost: list[SentText] = []
    at = 0
    for each in sent:
        end = _end_of(prompt, each.text, at)
        if end is None:
            lost.append(each)
        elif not each.name.startswith(_TOOLS):  # which stand anywhere
            at = max(at, end)
    return lost


_TOOLS = "tools."


def _of_tool(tool: Mapping[str, Any]) -> Iterator[SentText]:
    function = tool.get("function", tool)
    if not isinstance(function, Mapping):
        return
    name = str(function.get("name"))
    yield SentText(f"{_TOOLS}{name}", name)
    if isinstance(told := function.get("description"), str):
        yield SentText(f"{_TOOLS}{name}", told)
    for text in _told_of(function.get("parameters")):
        yield SentText(f"{_TOOLS}{name}.parameters", text, by_template=True)


def _told_of(schema: Any) -> Iterator[str]:
    """The names of properties and what is said about them, in a schema and those within it."""
    left, seen = [schema], 0
    while left and seen < _MOST_LEAVES:
        one, seen = left.pop(), seen + 1
        if isinstance(one, list):
            left += reversed(one)
        if not isinstance(one, Mapping):
            continue
        if isinstance(told := one.get("description"), str):
            yield told
        properties = one.get("properties")
        inner = properties if isinstance(properties, Mapping) else {}
        yield from inner
        left += (one[word] for word in _INNER_SCHEMAS if word in one)
        left += reversed(list(inner.values()))


def _of_message(message: Mapping[str, Any]) -> Iterator[SentText]:
    role = str(message.get("role"))
    for name in _THOUGHTS:
        if isinstance(thoughts := message.get(name), str):
            yield SentText(f"messages.{name}", thoughts, by_template=True)
            break
    content = message.get("content")
    for text in _texts_of(content):
        yield SentText(f"messages.{role}", text)
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping):
            yield SentText("messages.tool_calls", str(function.get("name")))
            for text in _leaves(function.get("arguments")):
                yield SentText("messages.tool_calls", text)


def _texts_of(content: Any) -> list[str]:
    if isinstance(content, list):
        return [str(part.get("text", "")) for part in content if isinstance(part, Mapping)]
    return [content] if isinstance(content, str) else []


def _leaves(arguments: Any) -> list[str]:
    """The texts within the arguments of a call; the whole text of arguments that are no object."""
    value = arguments
    if isinstance(arguments, str):
        try:
            value = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            return [arguments]
    found: list[str] = []
    left = [value]
    while left and len(found) < _MOST_LEAVES:
        one = left.pop()
        if isinstance(one, str):
            found.append(one)
        elif isinstance(one, Mapping):
            left += reversed(list(one.values()))
        elif isinstance(one, list):
            left += reversed(one)
    return found


def _end_of(prompt: str, text: str, at: int) -> int | None:
    """Return where the text ends in the prompt, behind `at` if it can be; None where it is not shown."""
    for form in _forms(text):
        for start in (at, 0):
            if (place := prompt.find(form, start)) >= 0:
                return place + len(form)
            if not at:
                break
    return at if _shows_lines(prompt, text) else None


def _forms(text: str) -> Iterator[str]:
    """The text as templates write it."""
    bare = text.strip()
    yield bare
    for mark in _THOUGHTS_END:
        if mark in bare:
            yield bare.rpartition(mark)[2].strip()
    yield from _escaped(bare)


def _escaped(text: str) -> Iterator[str]:
    """The text as a string of JSON, within another one, of Python, and of XML, each without its quotes."""
    once = json.dumps(text, ensure_ascii=False)[1:-1]
    for form in (once, json.dumps(text)[1:-1], json.dumps(once, ensure_ascii=False)[1:-1], repr(text)[1:-1]):
        if form != text:
            yield form
    if (marked := html.escape(text)) != text:
        yield marked


def _shows_lines(prompt: str, text: str) -> bool:
    """Return whether the lines of a text are shown, as by a template that indents them or takes marks out of them."""
    lines = [line for line in map(str.strip, text.splitlines()) if line]
    if len(lines) < 2:
        return False
    step = max(1, len(lines) // _MOST_LINES)
    looked_for = [*lines[:-1:step], lines[-1]]
    return all(line in prompt or any(form in prompt for form in _escaped(line)) for line in looked_for)
