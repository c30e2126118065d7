"""MiniMax M3: invocations whose arguments are elements, one within another for objects and lists; a token of its own is
before each tag.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

from homenode.chat.formats import ToolFormat
from homenode.chat.grammars.calls import CallBegin, CallForms, CallWriter, parameter_name
from homenode.chat.grammars.lark import literal
from homenode.chat.grammars.parameters import CallableTool, ToolParameter, standing_alone
from homenode.chat.grammars.typed_texts import LineBreaks, typed_text
from homenode.chat.syntax.literals import quote
from homenode.chat.syntax.reader import Marker, Reader
from homenode.chat.syntax.schema_types import Types, resolve, types_of
from homenode.chat.syntax.source import Reading, TextSource
from homenode.chat.syntax.typed_values import typed
from homenode.errors import UserError

_TOKEN = "]<]minimax[>["
_BEGIN, _END = Marker(f"{_TOKEN}<tool_call>"), f"{_TOKEN}</tool_call>"
_INVOKE, _INVOKE_END = f'{_TOKEN}<invoke name="', f"{_TOKEN}</invoke>"
_ITEM = "item"  # the elements of a list
_NAME, _KEY, _TEXT = re.compile(r"[^\"<>\n]+"), re.compile(r"[^\"<>/\n]+"), re.compile(r"[^\]]+")
_DEEPEST = 32  # elements within each other
_SCALARS = ["string", "number", "integer", "boolean", "null"]
_NOT_KEPT = ("uniqueItems", "contains", "prefixItems")  # of lists


def _read(reader: Reader) -> Reading[None]:
    source = reader.source
    while (yield from reader.read_content((_BEGIN,))):
        while True:
            yield from source.skip_space()
            if not (yield from source.accept(_INVOKE)) or not (yield from _read_invocation(reader)):
                break
        if not reader.just_called or not (yield from source.accept(_END)):
            reader.give_back()


def _read_invocation(reader: Reader) -> Reading[bool]:
    source, attempt = reader.source, reader.attempt()
    name = yield from source.read_run(_NAME)
    if not (yield from source.accept('">')) or not attempt.can_be_called(name):
        return False
    attempt.name = name
    schema, keys = reader.tools.schema(name), set[str]()
    while True:
        yield from source.skip_space()
        if (yield from source.accept(_INVOKE_END)):
            attempt.write("}" if keys else "{}")
            attempt.finish()
            return True
        if not (yield from source.accept(f"{_TOKEN}<")):
            return False
        key = yield from source.read_run(_KEY)
        if not key or key in keys or not (yield from source.accept(">")):
            return False
        value = yield from _read_value(source, key, _part_of(schema, schema, key), schema, 0)
        if value is None:
            return False
        attempt.write((", " if keys else "{") + f'"{quote(key)}": {value}')
        keys.add(key)


def _read_value(source: TextSource, key: str, schema: Any, root: Any, depth: int) -> Reading[str | None]:
    """The JSON text of the element `key`, whose first tag was read; None where it is none."""
    pieces, members, blank = list[str](), list[tuple[str, str]](), True
    while (yield from source.peek()):
        if run := source.take_run(_TEXT):
            pieces.append(run)
            blank = blank and not run.strip()
        elif (yield from source.accept(f"{_TOKEN}</{key}>")):
            kinds = types_of(schema, root)
            return _of_members(members, kinds) if members and blank else _of_text("".join(pieces), kinds, bool(members))
        elif depth < _DEEPEST and blank and (yield from source.accept(f"{_TOKEN}<")):
            name = yield from source.read_run(_KEY)
            if not name or not (yield from source.accept(">")):
                return None
            value = yield from _read_value(source, name, _part_of(schema, root, name), root, depth + 1)
            if value is None:
                return None
            members.append((name, value))
        else:
            pieces.append(source.take())
            blank = False
    return None


def _of_members(members: list[tuple[str, str]], kinds: Types) -> str | None:
    if all(name == _ITEM for name, _ in members) and (kinds is None or "array" in kinds):
        return f"[{', '.join(value for _, value in members)}]"
    if len(dict(members)) < len(members):
        return None
    pairs = [f'"{quote(name)}": {value}' for name, value in members]
    return f"{{{', '.join(pairs)}}}"


def _of_text(text: str, kinds: Types, has_members: bool) -> str | None:
    if has_members:
        return None
    if not text.strip() and kinds in (frozenset(("array",)), frozenset(("object",))):
        return "[]" if kinds == frozenset(("array",)) else "{}"
    return typed(text, kinds)


def _part_of(schema: Any, root: Any, name: str) -> Any:
    """The schema of an element within one that has `schema`; empty where nothing is said of it."""
    known = resolve(schema, root)
    lists = [known[word] for word in ("anyOf", "oneOf", "allOf") if isinstance(known.get(word), list)]
    for part in (known, *(resolve(part, root) for parts in lists for part in parts)):
        properties = part.get("properties")
        if isinstance(properties, Mapping) and name in properties:
            return properties[name]
        for word in ("items",) if name == _ITEM else ("additionalProperties",):
            if isinstance(part.get(word), Mapping):
                return part[word]
    return {}


def _describe(writer: CallWriter) -> CallForms:
    lark, calls = writer.lark, []
    for tool in writer.tools:
        parameters = writer.parameters(tool, functools.partial(_parameter, writer, tool, 0))
        begin = lark.mark(f'{_INVOKE}{tool.name}">')
        calls.append(f'{begin} {parameters} {lark.mark(_INVOKE_END)} "\\n"')
    all_calls = writer.one_or_more(writer.any_of(calls), '""')
    return CallForms([CallBegin(f'"\\n" {all_calls} {lark.mark(_END)}', _BEGIN.text)])


def _parameter(writer: CallWriter, tool: CallableTool, depth: int, parameter: ToolParameter) -> str:
    """A rule body for an element, whose elements are those of its value."""
    name, schema, lark = parameter_name(tool, parameter, _KEY), parameter.schema, writer.lark
    begin, end = lark.mark(f"{_TOKEN}<{name}>"), lark.mark(f"{_TOKEN}</{name}>")
    kinds = None if parameter.input is not None else types_of(schema, schema)
    if kinds is not None and "null" in kinds and kinds & {"object", "array"}:
        schema = _without_null(schema)
        kinds = types_of(schema, schema)
    if depth > _DEEPEST:
        raise _refusal(tool, "they are within each other without an end")
    if kinds == frozenset(("object",)):
        inner = CallableTool(tool.name, schema, bound=tool.bound, strict=tool.strict)
        return f"{begin} {writer.parameters(inner, functools.partial(_parameter, writer, inner, depth + 1))} {end}"
    if kinds == frozenset(("array",)):
        return f"{begin} {_items(writer, tool, depth, resolve(schema, schema), schema)} {end}"
    if parameter.input is None and (kinds is None or kinds & {"object", "array"}):
        parameter = ToolParameter(name, _scalar(schema), parameter.required)
    value = typed_text(lark, parameter, _TOKEN, LineBreaks.KEPT, strict=tool.strict)
    return f"{begin} {value} {literal(f'</{name}>')}"


def _items(writer: CallWriter, tool: CallableTool, depth: int, schema: Mapping[str, Any], root: Any) -> str:
    if tool.strict and (found := next((word for word in _NOT_KEPT if word in schema), None)):
        raise _refusal(tool, f"{found} cannot be kept")
    item = ToolParameter(_ITEM, standing_alone(schema.get("items", {}), root), True)
    rule = writer.lark.rule(_parameter(writer, tool, depth + 1, item))
    least, most = schema.get("minItems"), schema.get("maxItems")
    return f"{rule}{{{least if isinstance(least, int) else 0},{most if isinstance(most, int) else ''}}}"


def _without_null(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema for the values of another one that are not null, which nobody writes as an element."""
    found, null = dict(schema), frozenset(("null",))
    for word in ("anyOf", "oneOf"):
        if isinstance(parts := schema.get(word), list):
            found[word] = [part for part in parts if types_of(part, schema) != null]
    if isinstance(kinds := schema.get("type"), list):
        found["type"] = [kind for kind in kinds if kind != "null"]
    return found


def _scalar(schema: Any) -> dict[str, Any]:
    """A schema for the values of another one that are no objects and no lists."""
    within = schema if isinstance(schema, Mapping) else {}
    kept = {key: value for key, value in within.items() if key not in ("title", "description", "$defs")}
    found: dict[str, Any] = {"allOf": [kept, {"type": _SCALARS}]} if kept else {"type": _SCALARS}
    return {**found, "$defs": within["$defs"]} if "$defs" in within else found


def _refusal(tool: CallableTool, reason: str) -> UserError:
    text = f"the parameters of the tool {tool.name} cannot be written in this model's form of calls: {reason}"
    return UserError(text, param="tools")


FORMATS = [
    ToolFormat(
        ("minimax_m3",),
        _read,
        ((_TOKEN,),),
        precedence=5,
        marks=(_TOKEN, _BEGIN.text, _END),
        describe_calls=_describe,
    )
]
