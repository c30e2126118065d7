"""Values written as plain texts between tags, of the types that `syntax.typed_values` gives them."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

from homenode.chat.grammars.inputs import marked_input
from homenode.chat.grammars.lark import ANY, LarkWriter, escape
from homenode.chat.grammars.parameters import ToolParameter, with_settings
from homenode.chat.grammars.strings import all_of, string_terminal
from homenode.chat.syntax.schema_types import STRING, types_of
from homenode.errors import UserError

# What is read as a value of another type than a string, at the beginning of a text of which this is the whole.
_OTHERS = {
    "number": r"-?[0-9][0-9.eE+-]*",
    "integer": r"-?[0-9][0-9.eE+-]*",
    "boolean": "true|false|True|False",
    "null": "null|None",
    "object": r"\{(?s:.*)",
    "array": r"\[(?s:.*)",
}
_TRIMMED = r"[ \t\r\n\f\v\u{1c}-\u{1f}\u{85}\u{a0}\u{1680}\u{2000}-\u{200a}\u{2028}\u{2029}\u{202f}\u{205f}\u{3000}]*"


class LineBreaks(enum.Enum):
    """The meaning of a line break at the beginning of a value: of the format, which puts values on lines of their own;
    left out, so that no value has one; or part of the value.
    """

    OF_FORMAT = enum.auto()
    LEFT_OUT = enum.auto()
    KEPT = enum.auto()


def typed_text(
    lark: LarkWriter, parameter: ToolParameter, end: str, breaks: LineBreaks, *, strict: bool, apart: str = ""
) -> str:
    """A rule body for a value of a parameter, with the mark `end` behind it, as `syntax.typed_values` reads it. No text
    begins with `apart`.
    """
    before, behind = ('"\\n"', "\n" + end) if breaks is LineBreaks.OF_FORMAT else ("", end)
    if parameter.input is not None:
        return f"{before} {marked_input(lark, parameter.input, behind)}"
    schema, ways = parameter.schema, list[str]()
    kinds = types_of(schema, schema)
    if kinds is not None and "string" in kinds:
        others = "|".join(_OTHERS[kind] for kind in sorted(kinds) if kind in _OTHERS)
        unlike = f"~/{_TRIMMED}({others}){_TRIMMED}/" if others else ANY
        if text := all_of([marked_text(lark, schema, end, breaks, strict=strict, apart=apart), unlike]):
            ways.append(lark.up_to(text, behind))
        schema = _without_strings(schema)
    elif kinds is None and not _says_anything(schema):
        ways.append(lark.up_to(f'({_free(lark, end, breaks, apart)} & ~/{_TRIMMED}["{{\\[](?s:.*)/)', behind))
    if kinds != STRING:
        ways.append(f"{json_value(lark, schema, strict=strict)} {lark.mark(behind)}")
    return f"{before} ({' | '.join(ways)})"


def _without_strings(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema for the values of another one that are no strings."""
    others: dict[str, Any] = {"type": ["object", "array", "number", "integer", "boolean", "null"]}
    return {"allOf": [schema, others], **({"$defs": schema["$defs"]} if "$defs" in schema else {})}


def json_value(lark: LarkWriter, schema: Any, *, strict: bool) -> str:
    """A rule for a value in JSON."""
    return lark.json(with_settings(schema if isinstance(schema, Mapping) else {}, strict=strict))


def marked_text(lark: LarkWriter, schema: Any, end: str, breaks: LineBreaks, *, strict: bool, apart: str = "") -> str:
    """A terminal expression for a string that fits `schema`, does not have the mark `end` and does not begin with
    `apart`.
    """
    found = all_of([string_terminal(schema, schema, strict=strict), _free(lark, end, breaks, apart)])
    if found is None:
        raise UserError("`tools`: a parameter allows no text that this model's form of calls can hold", param="tools")
    return found


def _free(lark: LarkWriter, end: str, breaks: LineBreaks, apart: str) -> str:
    text = lark.without([escape(end)], [escape(apart)] if apart else [])
    return f"({text} & ~/[\\r\\n](?s:.*)/)" if breaks is LineBreaks.LEFT_OUT else text


def _says_anything(schema: Any) -> bool:
    words = ("title", "description", "default", "examples", "$comment", "deprecated", "nullable")
    return isinstance(schema, Mapping) and any(key not in words for key in schema)
