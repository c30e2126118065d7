"""Tools and turns of a conversation as a chat template takes them: thoughts under the name that it knows, ids of the
length that it wants, roles and calls rearranged where it refuses or loses what clients send.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_THOUGHTS, _OTHER_NAME = "reasoning_content", "reasoning"  # in what clients send
_THOUGHT_NAMES = (_THOUGHTS, "thinking", "reasoning")
_FUNCTION_FIELDS = ("name", "description", "parameters")
_ROLE = r"\b(?:message|msg|m)(?:\.role|\[['\"]role['\"]\])"
_IS_SYSTEM = re.compile(rf"{_ROLE}\s*(?:==|in)[^%}}]*['\"]system['\"]")
_IS_DEVELOPER = re.compile(r"\bdeveloper\b")
_KEEPS_CONTENT = re.compile(r"\bset\s[^%]*=[^%]*content")
_NO_OUTPUT = re.compile(r"\{%.*?%\}|\{#.*?#\}|\s+", re.DOTALL)
_ROLE_SHOWN = re.compile(rf"(?:[+~]|\{{\{{-?)\s*\(?{_ROLE}|{_ROLE}\s*[+~]|=\s*{_ROLE}\s*-?%")
_USER_IN_LOOP = re.compile(rf"{_ROLE}\s*==\s*['\"]user['\"]")
_NO_SYSTEM = re.compile(r"system role (is )?not supported", re.IGNORECASE)
_LAST_SYSTEM_ONLY = re.compile(r"system_prompt\s*=\s*message")
_ALTERNATE = re.compile(r"must alternate")
_ALL_CALLS = re.compile(r"\bin\s+[\w.]*(?:\[['\"])?tool_calls")
_SHORT_ID = re.compile(r"[A-Za-z0-9]{9}")
_CALLS_WITHOUT_TEXT = re.compile(  # content that is shown beside no calls, or calls beside no content
    r"assistant['\"]\s+and\s+message(?:\.content|\[['\"]content['\"]\])\s+is\s+none"
    r"|assistant\"\s+and\s+message\.tool_calls\s+is\s+not\s+defined"
)
_BRANCH = re.compile(r"\{%[-+]?\s*(if|elif|else|endif)\b(.*?)[-+]?%\}", re.DOTALL)
_WITHOUT_CALLS = re.compile(r"\bnot\b[^()]*tool_calls|tool_calls['\")\]]*\s+is\s+(?:not\s+defined|none)")
_LAST_USER_HAS_SYSTEM = re.compile(r"loop\.last and system_message")
_PLANS = "<|START_ACTION|>"  # before it come thoughts, and no content
_NEEDS_CALL = re.compile(
    r"no previous assistant message with a tool call|Tool message outside of assistant|need a resolvable tool name"
    r"|\{%-? elif loop_messages\[k\]\['role'\] != 'tool'"
)
_NEEDS_TEXT = re.compile(r"Assistant message must have a string")
_SYSTEM_FIRST = re.compile(r"system message must be at the beginning", re.IGNORECASE)
_TOLD_PROPERTY = "param_fields.description"
_UNION = "Union["  # what a template calls a list of types
_EMPTY_IS_NONE = re.compile(r"content['\"]?\]?\s+is\s+none\b(?!\s+or\b)")


def arrange_turns(template: str, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages of a conversation so that `template` shows as much of them as it can."""
    said = [_with_empty(template, _with_names(template, message)) for message in messages]
    if "tool_calls[0]" in template and not _ALL_CALLS.search(template):
        said = one_call_each(said)
    if "length 9" in template:
        said = [with_short_ids(message) for message in said]
    if _CALLS_WITHOUT_TEXT.search(template) or _shows_calls_or_text(template):
        said = [part for message in said for part in text_before_calls(message)]
    if _NEEDS_CALL.search(template):
        said = with_calls_before_results(said)
    said = _with_system(template, said)
    if _ALTERNATE.search(template):
        said = alternating(join_neighbours(said))
    return [with_some_text(message) for message in said] if _NEEDS_TEXT.search(template) else said


def template_tools(tools: Sequence[Mapping[str, Any]], template: str = "") -> list[dict[str, Any]]:
    """Tools as `template` shows them: the fields of each function in the order that models know, with those that it
    reads although a client may leave them out, and without `strict`, which is a wish about decoding.
    """
    return [
        {**tool, "function": _ordered(_filled(template, tool["function"]))} if "function" in tool else dict(tool)
        for tool in tools
    ]


def _filled(template: str, function: Mapping[str, Any]) -> dict[str, Any]:
    filled = {name: value for name, value in function.items() if value is not None}
    if "description" in template:
        filled.setdefault("description", "")
    if "parameters" in template:
        filled["parameters"] = _whole_schema(template, filled.get("parameters") or {"type": "object"})
    return filled


def _whole_schema(template: str, schema: Any) -> Any:
    """A schema of parameters with `properties` where `template` reads them, and without null for `required`."""
    if not isinstance(schema, Mapping):
        return schema
    whole = {name: value for name, value in schema.items() if name != "required" or value is not None}
    properties = whole.get("properties")
    if "properties" in template and properties is None:
        whole["properties"] = {}
    elif isinstance(properties, Mapping):
        whole["properties"] = {name: _told(template, value) for name, value in properties.items()}
    return whole


def _told(template: str, schema: Any) -> Any:
    """The schema of a property with what `template` reads of it."""
    if not isinstance(schema, Mapping):
        return schema
    told = _with_one_type(schema) if _UNION in template else schema
    return {"description": "", **told} if _TOLD_PROPERTY in template else told


def _with_one_type(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """A schema whose `type` is no list with null in it, which some templates cannot name."""
    kinds = schema.get("type")
    if not isinstance(kinds, list):
        return schema
    named = [kind for kind in kinds if kind != "null"]
    return {**schema, "type": named[0] if len(named) == 1 else named}


def _ordered(function: Mapping[str, Any]) -> dict[str, Any]:
    known = {name: function[name] for name in _FUNCTION_FIELDS if name in function}
    return known | {name: value for name, value in function.items() if name not in (*_FUNCTION_FIELDS, "strict")}


def result_as_user(message: Mapping[str, Any]) -> dict[str, Any]:
    """The result of a tool as words of the user."""
    return {"role": "user", "content": joined("Result of the tool:", message.get("content"), "\n")}


def joined(before: Any, behind: Any, between: str = "\n\n") -> Any:
    """Two contents as one: a text, or parts where one of them has others than texts, such as images."""
    if all(isinstance(part, Mapping) and "text" in part for part in (*_parts_of(before), *_parts_of(behind))):
        return between.join(filter(None, (text_of(before), text_of(behind))))
    return [*_parts_of(before), {"type": "text", "text": between}, *_parts_of(behind)]


def _parts_of(content: Any) -> list[Any]:
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if isinstance(content, str) and content else []


def text_of(content: Any) -> str:
    """The text of a content in either of its forms."""
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return content if isinstance(content, str) else ""


def _with_names(template: str, message: Mapping[str, Any]) -> dict[str, Any]:
    """The message with its role and its thoughts under the names that the template has for them; without thoughts,
    where it has none.
    """
    said = dict(message)
    if said.get("role") == "developer" and not _shows(_IS_DEVELOPER, template):
        said["role"] = "system"  # the older name, which every template knows
    thoughts = said.pop(_THOUGHTS, None) or said.pop(_OTHER_NAME, None)
    name = next((name for name in _THOUGHT_NAMES if _has_field(template, name)), None)
    if name is None:
        return said
    one_of_both = "both content and thinking" in template and thoughts
    if (one_of_both or _PLANS in template) and said.get("tool_calls") and said.get("content"):
        return {**said, "content": "", name: "\n\n".join(filter(None, (thoughts, text_of(said["content"]))))}
    return {**said, name: thoughts} if thoughts else said


def _has_field(template: str, name: str) -> bool:
    return re.search(rf"\b(?:message|msg|m)(?:\.|\[['\"]){name}\b", template) is not None


def _with_empty(template: str, message: dict[str, Any]) -> dict[str, Any]:
    """No content is an empty text, and beside calls None for templates that tell calls by that."""
    if message.get("content"):
        return message
    if message.get("tool_calls") and _EMPTY_IS_NONE.search(template):
        return {**message, "content": None}
    return {**message, "content": ""} if "content" in message else message


@functools.lru_cache(maxsize=64)
def _shows_calls_or_text(template: str) -> bool:
    """Return whether a template has a branch for messages with calls that does not look at their content, beside
    another one that shows content.
    """
    for branches in _branches(template):
        for number, (condition, text) in enumerate(branches):
            for_calls = "tool_calls" in condition and _WITHOUT_CALLS.search(condition) is None
            calls_only = for_calls and "tool_calls" in text and "content" not in text
            if calls_only and any("content" in other for _, other in branches[number + 1 :]):
                return True
    return False


@functools.lru_cache(maxsize=64)
def _shows(role: re.Pattern[str], template: str) -> bool:
    """Return whether a template has a branch that writes something or keeps content, in whose condition `role` is
    found.
    """
    return any(
        role.search(condition) and (_NO_OUTPUT.sub("", text) or _KEEPS_CONTENT.search(text))
        for branches in _branches(template)
        for condition, text in branches
    )


def _branches(template: str) -> Iterator[list[tuple[str, str]]]:
    """Yield of each `if` of a template its branches: conditions, and texts with what is within them."""
    opened: list[list[re.Match[str]]] = []
    for tag in _BRANCH.finditer(template):
        if tag[1] == "if":
            opened.append([tag])
        elif opened:
            opened[-1].append(tag)
            if tag[1] == "endif":
                pairs = itertools.pairwise(opened.pop())
                yield [(begin[2], template[begin.end() : end.start()]) for begin, end in pairs]


def text_before_calls(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what is said beside calls in a message of its own."""
    if not message.get("tool_calls") or not message.get("content"):
        return [message]
    calls = {name: value for name, value in message.items() if name not in _THOUGHT_NAMES}
    said = {name: value for name, value in message.items() if name != "tool_calls"}
    return [said, {**calls, "content": None}]


def with_calls_before_results(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Results that no call is before as words of the user."""
    said: list[dict[str, Any]] = []
    called = False
    for message in messages:
        if message.get("role") == "assistant":
            called = bool(message.get("tool_calls"))
        said.append(result_as_user(message) if message.get("role") == "tool" and not called else message)
    return said


def alternating(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with empty ones where the user and the assistant do not take turns, calls and results apart."""
    said: list[dict[str, Any]] = []
    turn = "user"
    for number, message in enumerate(messages):
        role = message.get("role")
        if role not in ("user", "assistant") or message.get("tool_calls"):
            said.append(message)
            continue
        if role != turn:  # with a number, as some templates show tools before each message that equals the last one
            said.append({"role": turn, "content": "", "number": number})
        said.append(message)
        turn = "assistant" if role == "user" else "user"
    return said


def with_some_text(message: dict[str, Any]) -> dict[str, Any]:
    """The message with a space as its content where the assistant says nothing and calls nothing."""
    silent = message.get("role") == "assistant" and not (message.get("content") or message.get("tool_calls"))
    return {**message, "content": " "} if silent else message


def one_call_each(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each call in a message of its own, with its result behind it, for templates that show one call in a message."""
    said: list[dict[str, Any]] = []
    at = 0
    while at < len(messages):
        message, at = messages[at], at + 1
        calls = message.get("tool_calls")
        if not isinstance(calls, list) or len(calls) < 2:
            said.append(message)
            continue
        end = next((i for i in range(at, len(messages)) if messages[i].get("role") != "tool"), len(messages))
        results, at = list(messages[at:end]), end
        for number, call in enumerate(calls):
            rest = message if number == 0 else {"role": message["role"], "content": ""}
            said.append({**rest, "tool_calls": [call]})
            said += _taken(results, call)
        said += results
    return said


def _taken(results: list[dict[str, Any]], call: Any) -> list[dict[str, Any]]:
    """The result of a call, taken out of `results`: the one with its id, or the next where results have none."""
    wanted = call.get("id") if isinstance(call, Mapping) else None
    for number, result in enumerate(results):
        if result.get("tool_call_id") in (wanted, None):
            return [results.pop(number)]
    return []


def with_short_ids(message: dict[str, Any]) -> dict[str, Any]:
    """Ids of nine letters and digits, the same for a call and its result."""
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        named = [{**call, "id": _short(call.get("id"))} if isinstance(call, Mapping) else call for call in calls]
        return {**message, "tool_calls": named}
    return (
        {**message, "tool_call_id": _short(message.get("tool_call_id"))} if message.get("role") == "tool" else message
    )


def _short(call_id: Any) -> str:
    text = str(call_id)
    return text if _SHORT_ID.fullmatch(text) else hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:9]


def _with_system(template: str, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """System messages where the template takes them: anywhere, in front only, or nowhere; then they are a part of what
    the user says next.
    """
    if _NO_SYSTEM.search(template):
        return said_by_user(messages, kept=0)
    if _LAST_SYSTEM_ONLY.search(template):
        system = [message for message in messages if is_system(message)]
        others = [message for message in messages if not is_system(message)]
        return [*join_neighbours(system), *others]
    shows_any_role = _ROLE_SHOWN.search(template) and not _USER_IN_LOOP.search(template)
    if not _SYSTEM_FIRST.search(template) and (
        "messages[0]" not in template or _shows(_IS_SYSTEM, template) or shows_any_role
    ):
        return messages
    leading = next((i for i, message in enumerate(messages) if not is_system(message)), len(messages))
    said = said_by_user([*join_neighbours(messages[:leading]), *messages[leading:]], kept=min(leading, 1))
    return _system_with_question(said) if _LAST_USER_HAS_SYSTEM.search(template) else said


def _system_with_question(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The system message in front of the last question where that is not the last message, for templates that show it
    with a last question only.
    """
    asked = max((i for i, message in enumerate(messages) if message.get("role") == "user"), default=0)
    if not asked or not is_system(messages[0]) or asked == len(messages) - 1:
        return messages
    (question,) = join_neighbours([{**messages[0], "role": "user"}, messages[asked]])
    return [*messages[1:asked], {**messages[asked], **question}, *messages[asked + 1 :]]


def is_system(message: Mapping[str, Any]) -> bool:
    return message.get("role") in ("system", "developer")


def said_by_user(messages: list[dict[str, Any]], kept: int) -> list[dict[str, Any]]:
    """System messages behind the first `kept` messages as words of the user, joined with the question behind them."""
    said: list[dict[str, Any]] = []
    waiting: list[dict[str, Any]] = []
    for number, message in enumerate(messages):
        if is_system(message) and number >= kept:
            waiting.append({"role": "user", "content": message.get("content")})
            continue
        if waiting:
            said += join_neighbours([*waiting, message])
            waiting = []
        else:
            said.append(message)
    return [*said, *join_neighbours(waiting)]


def join_neighbours(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Neighbours of one role as one message, where neither has calls or is a result."""
    said: list[dict[str, Any]] = []
    for message in messages:
        before = said[-1] if said else None
        if before is not None and _can_join(before, message):
            said[-1] = {**before, "content": joined(before.get("content"), message.get("content"))}
        else:
            said.append(message)
    return said


def _can_join(before: Mapping[str, Any], message: Mapping[str, Any]) -> bool:
    return (
        before.get("role") == message.get("role") != "tool"
        and not before.get("tool_calls")
        and not message.get("tool_calls")
    )
