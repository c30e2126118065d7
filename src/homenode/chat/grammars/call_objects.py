"""Calls that are JSON objects with a name and arguments, as grammars."""

from __future__ import annotations

import json

from homenode.chat.grammars.calls import CallWriter
from homenode.chat.grammars.lark import escape
from homenode.chat.grammars.parameters import CallableTool


def object_begin(tool: CallableTool, name: str = "name", arguments: str = "arguments") -> str:
    """A regular expression for what is before the arguments of such an object."""
    written = escape(json.dumps(tool.name, ensure_ascii=False))
    return rf'\{{ ?"{name}": ?{written}, ?"{arguments}":'


def call_object(writer: CallWriter, tool: CallableTool, name: str = "name", arguments: str = "arguments") -> str:
    """A rule body for a call of `tool`, whose keys are called as said."""
    return f'/{object_begin(tool, name, arguments)}/ " "? {writer.arguments(tool)} "}}"'


def other_object_begins(writer: CallWriter) -> list[str]:
    """Regular expressions for what begins a line that is understood as a call of one of the tools, alone or in a list,
    however its object is spelled.
    """
    names = "|".join(escape(json.dumps(tool.name, ensure_ascii=False)) for tool in writer.tools)
    begin = r'(\[\s*)?\{\s*("(id|type)"\s*:\s*"[^"]{0,64}"\s*,\s*)?'
    return [
        rf'{begin}"(name|tool_name|function)"\s*:\s*({names})',
        rf'{begin}"(arguments|parameters|tool_call_id)"\s*:',
        rf'{begin}"function"\s*:\s*\{{',
        rf'{begin}"type"\s*:\s*"function"',
    ]
