"""Conversations of clients as chat templates want them: arguments of calls as objects, and for a template that shows no
tools words that a model understands without one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from homenode.chat.formats import ToolFormat
from homenode.chat.template_messages import arrange_turns, joined, result_as_user, text_of

_TOOLS = re.compile(r"(?<!['\".\w])tools\b")
_TOOLS_OF_MESSAGE = re.compile(r"message(\[['\"]|\.)tools\b")
_FUNCTIONS = re.compile(r"(?:\{\{-?|[+~])\s*functions\b")
_NO_SYSTEM = re.compile(r"system role (is )?not supported", re.IGNORECASE)
_ARGUMENTS_ARE_TEXT = re.compile(
    r"[+~]\s*[\w.]+(?:\[['\"]\w+['\"]\])*(?:\.|\[['\"])arguments(?:['\"]\])?\s*(?:[+~]|-?\}\})"
)
_READS_MEMBERS = re.compile(r"\.items\(\)|\|\s*(?:items|from_json)\b")  # of objects
_NO_OBJECT = "INVALID_JSON"  # what a text is called that stands for arguments and is no object, as one that was cut off
_SYSTEM = {"role": "system", "content": "You are a helpful assistant with tools."}
_FORM = (
    'To call a tool, write on a line of its own an object such as {"name": "NAME", "arguments": {"PARAMETER": VALUE}}, '
    "and nothing behind it. The result comes in the next message."
)


def shows_tools(template: str) -> bool:
    """Return whether a chat template looks at the tools that it is given."""
    return _TOOLS.search(template) is not None or _shows_functions(template)


def _shows_functions(template: str) -> bool:
    return _TOOLS.search(template) is None and _FUNCTIONS.search(template) is not None


def older_values(template: str, tools: Sequence[Mapping[str, Any]] | None, date: str) -> dict[str, str]:
    """The variables `functions`, a text of JSON, and `datetime`, for chat templates that show them instead of
    `tools`."""
    if not _shows_functions(template):
        return {}
    functions = [tool.get("function", tool) for tool in tools or ()]
    return {"functions": json.dumps(functions, ensure_ascii=False), "datetime": date}


def conversation_for(
    template: str, tool_format: ToolFormat, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The messages to give to a chat template of a model that writes calls in `tool_format`.

    A template that looks for tools in the system message finds them there; another one that does not look at `tools`
    gets them as words in that message. One that knows no calls either gets those of the history as text, and results of
    tools as messages of the user. `template_messages.arrange_turns` says what else a template gets in another way than
    clients have it.
    """
    said = [dict(message) for message in messages]
    if not _ARGUMENTS_ARE_TEXT.search(template):
        members = _READS_MEMBERS.search(template) is not None
        said = [_with_objects(message, members=members) for message in said]
    if shows_tools(template):
        said = said if "tool_calls" in template else [with_written_calls(message, tool_format) for message in said]
        return arrange_turns(template, said)
    if not tool_format.signs:
        said = _as_text(said)
    return arrange_turns(template, with_tools_in_words(said, template, tool_format, tools) if tools else said)


def _with_objects(message: Mapping[str, Any], *, members: bool) -> dict[str, Any]:
    """The message with the arguments of its calls as objects, where they are. `members`: they must be."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return dict(message)
    return {**message, "tool_calls": [_with_object(call, members=members) for call in calls]}


def _with_object(call: Any, *, members: bool) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        if not members:
            return call
        arguments = {_NO_OBJECT: function["arguments"]}
    return {**call, "function": {**function, "arguments": arguments}}


def _as_text(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Calls as the lines that they were, results as messages of the user; those that follow each other as one."""
    if not any(message.get("tool_calls") or message.get("role") == "tool" for message in messages):
        return list(messages)
    said: list[dict[str, Any]] = []
    for message in messages:
        if calls := message.get("tool_calls"):
            lines = [text_of(message.get("content")), *(_line(call) for call in calls)]
            rest = {key: value for key, value in message.items() if key != "tool_calls"}
            said.append({**rest, "content": "\n".join(line for line in lines if line)})
        elif message.get("role") == "tool":
            said.append(result_as_user(message))
        else:
            said.append(message)
        if len(said) > 1 and said[-1].get("role") == said[-2].get("role") == "user":
            behind, before = said.pop(), said.pop()
            said.append({**before, "content": joined(before["content"], behind["content"])})
    return said


def with_written_calls(message: dict[str, Any], tool_format: ToolFormat) -> dict[str, Any]:
    """The message with its calls as text, for templates that leave them out."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    named = [_named(call["function"]) for call in calls if isinstance(call, Mapping) and "function" in call]
    write = tool_format.write_calls
    written = [write(named)] if write else [json.dumps(call, ensure_ascii=False) for call in named]
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "content": "\n".join(filter(None, (text_of(message.get("content")), *written)))}


def _line(call: Any) -> str:
    function = call.get("function") if isinstance(call, Mapping) else None
    return json.dumps(_named(function), ensure_ascii=False) if isinstance(function, Mapping) else ""


def _named(function: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": function.get("name"), "arguments": function.get("arguments")}


def _is_system(messages: list[dict[str, Any]]) -> bool:
    return bool(messages) and messages[0].get("role") in ("system", "developer")


def with_tools_in_words(
    messages: list[dict[str, Any]], template: str, tool_format: ToolFormat, tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The tools as words in the system message, or in the first message where a template takes none."""
    lines = [json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools]
    if _TOOLS_OF_MESSAGE.search(template):
        given = json.dumps([tool.get("function", tool) for tool in tools], ensure_ascii=False)
        system, rest = (messages[0], messages[1:]) if _is_system(messages) else (_SYSTEM, messages)
        return [{**system, "tools": given}, *rest]
    words = "\n".join(["You may call these tools:", *lines, tool_format.instruction or _FORM])
    first = messages[0] if messages else None
    if first is not None and _is_system(messages):
        return [{**first, "content": f"{text_of(first.get('content'))}\n\n{words}"}, *messages[1:]]
    if first is not None and _NO_SYSTEM.search(template):
        return [{**first, "content": f"{words}\n\n{text_of(first.get('content'))}"}, *messages[1:]]
    return [{"role": "system", "content": words}, *messages]
