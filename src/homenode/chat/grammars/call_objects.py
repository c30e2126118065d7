"""Calls that are JSON objects with a name and arguments, as grammars."""

from __future__ import annotations

import json
from collections.abc import Sequence

from homenode.chat.grammars.calls import CallWriter
from homenode.chat.grammars.lark import escape
from homenode.chat.grammars.parameters import CallableTool

_BRACKET = '"["'
_SPACE = r"/[ \n]{1,10}/?"


def object_begin(tool: CallableTool, name: str = "name", arguments: str = "arguments", before: str = "") -> str:
    """A regular expression for what is before the arguments of such an object; `before`: for what is before its
    name.
    """
    written = escape(json.dumps(tool.name, ensure_ascii=False))
    return rf'\{{[ \n]?{before}"{name}": ?{written},[ \n]?"{arguments}":'


def call_object(
    writer: CallWriter,
    tool: CallableTool,
    name: str = "name",
    arguments: str = "arguments",
    *,
    before: str = "",
    behind: str = "",
) -> str:
    """A rule body for a call of `tool`, whose keys are called as said; `behind`: a rule body for further members."""
    begin = object_begin(tool, name, arguments, before)
    return f'/{begin}/ " "? {writer.arguments(tool)} {behind} /[ \\n]?\\}}/'


def call_list(writer: CallWriter, objects: Sequence[str], *, begun: bool = False) -> str:
    """A rule body for a list of calls, each one of `objects`; without its first bracket where it has `begun`."""
    calls = writer.one_or_more(writer.any_of(objects), f'"," {_SPACE}')
    return f'{"" if begun else _BRACKET} {_SPACE} {calls} {_SPACE} "]"'


def other_object_begins(writer: CallWriter) -> list[str]:
    """Regular expressions for what begins a line that is understood as a call of one of the tools, alone or in a list,
    however its object is spelled.
    """
    names = "|".join(escape(json.dumps(tool.name, ensure_ascii=False)) for tool in writer.tools)
    begin = r"(\[\s*)?\{\s*"
    return [
        rf'{begin}("id"\s*:\s*"[^"\n]*"\s*,\s*)?"(name|tool_name|function)"\s*:\s*({names})',
        rf'{begin}"(arguments|parameters|tool_call_id)"\s*:',
        rf'{begin}"function"\s*:\s*\{{',
        rf'{begin}"type"\s*:\s*"function"',
    ]
