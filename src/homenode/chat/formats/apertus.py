"""Apertus: a list of objects, each with a tool's name as its one key and arguments as the value."""

from __future__ import annotations

import json

from homenode.chat.formats import ToolFormat
from homenode.chat.grammars.call_objects import call_list
from homenode.chat.grammars.calls import CallBegin, CallForms, CallWriter
from homenode.chat.grammars.lark import escape
from homenode.chat.syntax.call_objects import read_arguments, read_tagged_list, read_text
from homenode.chat.syntax.reader import Marker, Reader
from homenode.chat.syntax.source import Reading

_BEGIN, _END = Marker("<|tools_prefix|>"), "<|tools_suffix|>"


def _read(reader: Reader) -> Reading[None]:
    yield from read_tagged_list(reader, (_BEGIN,), _END, _read_call)


def _read_call(reader: Reader) -> Reading[bool]:
    source, attempt = reader.source, reader.attempt()
    if not (yield from source.accept("{")):
        return False
    yield from source.skip_space()
    name = yield from read_text(source)
    if name is None or not attempt.can_be_called(name) or (yield from source.skip_space()) != ":":
        return False
    source.take()
    attempt.name = name
    yield from source.skip_space()
    if not (yield from read_arguments(source, attempt)) or (yield from source.skip_space()) != "}":
        return False
    source.take()
    attempt.finish()
    return True


def _describe(writer: CallWriter) -> CallForms:
    names = {tool.name: escape(json.dumps(tool.name, ensure_ascii=False)) for tool in writer.tools}
    calls = [rf'/\{{{names[tool.name]}: ?/ {writer.arguments(tool)} "}}"' for tool in writer.tools]
    return CallForms([CallBegin(f"{call_list(writer, calls)} {writer.lark.mark(_END)}", _BEGIN.text)])


FORMATS = [
    ToolFormat(
        ("apertus",),
        _read,
        ((_BEGIN.text,),),
        precedence=2,
        marks=(_BEGIN.text, _END),
        describe_calls=_describe,
    )
]
