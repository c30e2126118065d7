"""Other ways to arrange a conversation, for chat templates that refuse it as it is or leave something out.

Each keeps what was said; those that keep the turns as they are come first, and those that say it in other words last.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from homenode.chat.formats import ToolFormat
from homenode.chat.history import with_tools_in_words, with_written_calls
from homenode.chat.template_messages import (
    alternating,
    is_system,
    join_neighbours,
    one_call_each,
    result_as_user,
    said_by_user,
    text_before_calls,
    text_of,
    with_calls_before_results,
    with_short_ids,
    with_some_text,
)
from homenode.chat.whole_prompt import Arrangement, Messages, Rearrange


def rearrangements(template: str, tool_format: ToolFormat) -> tuple[Rearrange, ...]:
    """Return those for a chat template of a model that writes calls in `tool_format`."""

    def in_words(given: Arrangement) -> Arrangement:
        said = with_tools_in_words(given.messages, template, tool_format, given.tools) if given.tools else None
        return given if said is None else Arrangement(said, None)

    def written(given: Arrangement) -> Arrangement:
        said = (with_written_calls(message, tool_format) for message in given.messages)
        named = [result_as_user(message) if message.get("role") == "tool" else message for message in said]
        return Arrangement(join_neighbours(named), given.tools)

    return (
        _of_messages(_with_joined_texts),
        _with_list_of_tools,
        _of_messages(_with_question),
        _of_messages(_with_instructions),
        _of_messages(_without_none),
        _of_messages(lambda said: [part for message in said for part in text_before_calls(message)]),
        _of_messages(lambda said: _without_none([part for one in said for part in text_before_calls(one)])),
        _of_messages(one_call_each),
        _of_messages(lambda said: [_as_system(message) for message in said]),
        _of_messages(_with_systems_in_front),
        _of_messages(lambda said: said_by_user(said, kept=0)),
        _of_messages(with_calls_before_results),
        _of_messages(lambda said: alternating(join_neighbours(said))),
        _of_messages(lambda said: [with_short_ids(message) for message in said]),
        _of_messages(lambda said: [with_some_text(message) for message in said]),
        _of_messages(lambda said: [_with_arguments(message, _as_object) for message in said]),
        _of_messages(lambda said: [_with_arguments(message, _as_json) for message in said]),
        _with_bare_functions,
        written,
        in_words,
    )


def _of_messages(change: Callable[[Messages], Messages]) -> Rearrange:
    return lambda given: Arrangement(change(given.messages), given.tools)


def _with_joined_texts(said: Messages) -> Messages:
    """Contents of several parts as one text."""
    return [
        {**message, "content": text_of(message["content"])} if isinstance(message.get("content"), list) else message
        for message in said
    ]


def _with_list_of_tools(given: Arrangement) -> Arrangement:
    """An empty list where there are no tools, for templates that look through it and do not ask whether there is
    one."""
    return Arrangement(given.messages, []) if given.tools is None else given


def _with_question(said: Messages) -> Messages:
    """An empty message of the user where the conversation does not begin with one, behind system messages."""
    begin = next((i for i, message in enumerate(said) if not is_system(message)), len(said))
    if begin < len(said) and said[begin].get("role") == "user":
        return said
    return [*said[:begin], {"role": "user", "content": ""}, *said[begin:]]


def _with_instructions(said: Messages) -> Messages:
    """An empty system message in front, for templates that show tools there, and none by themselves."""
    return said if said and is_system(said[0]) else [{"role": "system", "content": ""}, *said]


def _without_none(said: Messages) -> Messages:
    """An empty text where there is no content."""
    return [{**message, "content": ""} if message.get("content") is None else message for message in said]


def _as_system(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "role": "system"} if message.get("role") == "developer" else message


def _with_systems_in_front(said: Messages) -> Messages:
    """All leading system messages as one, and later ones as words of the user."""
    begin = next((i for i, message in enumerate(said) if not is_system(message)), len(said))
    leading = [_as_system(message) for message in said[:begin]]
    return said_by_user([*join_neighbours(leading), *said[begin:]], kept=min(begin, 1))


def _with_arguments(message: dict[str, Any], form: Callable[[Any], Any]) -> dict[str, Any]:
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    return {**message, "tool_calls": [_with_argument(call, form) for call in calls]}


def _with_argument(call: Any, form: Callable[[Any], Any]) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return call
    return {**call, "function": {**function, "arguments": form(function.get("arguments"))}}


def _as_object(arguments: Any) -> Any:
    if not isinstance(arguments, str):
        return arguments
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def _as_json(arguments: Any) -> Any:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _with_bare_functions(given: Arrangement) -> Arrangement:
    """The functions of tools in their place, for templates that do not know tools of other kinds."""
    tools = given.tools and [dict(tool.get("function", tool)) for tool in given.tools]
    return Arrangement(given.messages, tools)
