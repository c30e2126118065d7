"""The texts in the body of a request, read off the wire without the server's own code, and those that a prompt lacks.

Not among them: the line of Claude Code that is meant for the bill, and what a program says of itself rather than to the
model.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

_BILLING = re.compile(r"^x-anthropic-billing-header:.*$\n?", re.MULTILINE)
_COMMENT = re.compile(r"^\s*//", re.MULTILINE)
_SPACE = re.compile(r"\s+")


class SentBlock(NamedTuple):
    """A text at a place of the body, and the words of which one is in the header where it is left out."""

    place: str
    text: str
    names: tuple[str, ...]


def sent_blocks(body: Mapping[str, Any]) -> list[SentBlock]:
    """Instructions, messages, calls with their arguments, results; names and descriptions of tools and of their
    parameters.
    """
    found = [*_tools(body.get("tools") or (), "tools")]
    found += _texts(body.get("system"), "system", ("messages.system",))
    found += _texts(body.get("instructions"), "instructions", ("messages.system", "messages.developer"))
    items = body.get("messages") or body.get("input") or ()
    for number, item in enumerate(items):
        found += _item(item, f"{'messages' if 'messages' in body else 'input'}[{number}]")
    return [block for block in found if block.text.strip()]


def lacking(prompt: str, ignored: str, blocks: list[SentBlock]) -> list[SentBlock]:
    """Those that the prompt does not show and the header does not name. White space counts as one space, and a text may
    be written as JSON, Python or XML have it, or line by line behind signs of comments.
    """
    shown, whole = _flat(prompt), _flat(_COMMENT.sub("", prompt))
    named = set(re.split(r"[,\s]+", ignored))

    def is_there(text: str) -> bool:
        bare = (_flat(text), _flat(_COMMENT.sub("", text)))
        return any(_flat(form) in shown for form in _forms(text)) or any(form in whole for form in bare)

    return [block for block in blocks if not is_there(block.text) and not named & set(block.names)]


def _flat(text: str) -> str:
    return _SPACE.sub(" ", text).strip()


def _forms(text: str) -> Iterator[str]:
    once = json.dumps(text, ensure_ascii=False)[1:-1]
    yield from (text, once, json.dumps(text)[1:-1], json.dumps(once, ensure_ascii=False)[1:-1], repr(text)[1:-1])
    yield from (html.escape(text), json.dumps(json.dumps(text)[1:-1])[1:-1])


def _item(item: Mapping[str, Any], place: str) -> Iterator[SentBlock]:
    kind = str(item.get("type", "message"))
    if kind == "additional_tools":
        yield from _tools(item["tools"], f"{place}.tools")
    elif kind in ("function_call", "custom_tool_call"):
        yield from _call(item.get("name"), item.get("arguments", item.get("input")), place)
    elif kind.endswith("_call_output"):
        yield from _texts(item.get("output"), f"{place}.output", ("messages.tool",))
    elif kind == "message":
        yield from _message(item, place)


def _message(message: Mapping[str, Any], place: str) -> Iterator[SentBlock]:
    names = (f"messages.{message['role']}",)
    content = message.get("content")
    if not isinstance(content, list):
        yield from _texts(content, place, names)
        return
    for number, block in enumerate(content):
        where = f"{place}.content[{number}]"
        if block.get("type") == "tool_use":
            yield from _call(block["name"], block["input"], where)
        elif block.get("type") == "tool_result":
            yield from _texts(block.get("content"), where, ("messages.tool",))
        else:
            yield from _texts(block.get("text"), where, names)


def _texts(content: Any, place: str, names: tuple[str, ...]) -> Iterator[SentBlock]:
    if isinstance(content, str):
        yield SentBlock(place, _BILLING.sub("", content), names)
    for number, part in enumerate(content if isinstance(content, list) else ()):
        yield from _texts(part.get("text"), f"{place}[{number}]", names)


def _call(name: Any, arguments: Any, place: str) -> Iterator[SentBlock]:
    names = ("messages.tool_calls",)
    yield SentBlock(f"{place}.name", str(name), names)
    if isinstance(arguments, str) and arguments.lstrip().startswith("{"):
        arguments = json.loads(arguments)
    for text in _leaves(arguments):
        yield SentBlock(f"{place}.arguments", text, names)


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _leaves(inner)


def _tools(tools: Any, place: str, space: str = "") -> Iterator[SentBlock]:
    for number, tool in enumerate(tools):
        where = f"{place}[{number}]"
        if tool.get("type") == "namespace":
            yield from _tools(tool["tools"], f"{where}.tools", f"{tool['name']}__")
        if "name" not in tool:  # a tool that another server runs
            yield SentBlock(where, tool["type"], (tool["type"],))
            continue
        names = (f"tools.{space}{tool['name']}",)
        yield SentBlock(f"{where}.name", tool["name"], names)
        yield SentBlock(f"{where}.description", tool.get("description") or "", names)
        schema = tool.get("input_schema") or tool.get("parameters") or {}
        for text in _descriptions(schema):
            yield SentBlock(f"{where}.parameters", text, (f"{names[0]}.parameters",))


def _descriptions(schema: Any) -> Iterator[str]:
    """The names of properties and what is said about them, at any depth."""
    if isinstance(schema, list):
        for inner in schema:
            yield from _descriptions(inner)
    if not isinstance(schema, dict):
        return
    if isinstance(told := schema.get("description"), str):
        yield told
    for name, inner in (schema.get("properties") or {}).items():
        yield name
        yield from _descriptions(inner)
    for word in ("items", "anyOf", "oneOf", "allOf", "additionalProperties"):
        yield from _descriptions(schema.get(word))
