"""Functionary 3.1, and the tools that a user of Llama 3.1 describes: <function=NAME>, arguments and </function>."""

from __future__ import annotations

import re

from homenode.chat.formats import ToolFormat
from homenode.chat.grammars.calls import CallBegin, CallForms, CallWriter
from homenode.chat.grammars.lark import literal
from homenode.chat.syntax.call_objects import read_arguments
from homenode.chat.syntax.reader import Marker, Reader
from homenode.chat.syntax.source import Reading

_BEGIN, _END = Marker("<function="), "</function>"
_NAME = re.compile(r"[\w.:/-]+")


def _read(reader: Reader) -> Reading[None]:
    while (yield from reader.read_content((_BEGIN,))):
        if not (yield from _read_call(reader)) or not (yield from reader.source.accept(_END)):
            reader.give_back()


def _read_call(reader: Reader) -> Reading[bool]:
    source, attempt = reader.source, reader.attempt()
    name = yield from source.read_run(_NAME)
    if not (yield from source.accept(">")) or not attempt.can_be_called(name):
        return False
    attempt.name = name
    yield from source.skip_space()
    if not (yield from read_arguments(source, attempt)):
        return False
    attempt.finish()
    yield from source.skip_space()
    return True


def _describe(writer: CallWriter) -> CallForms:
    calls = [f"{literal(f'{tool.name}>')} {writer.arguments(tool)} {writer.lark.mark(_END)}" for tool in writer.tools]
    return CallForms([CallBegin(writer.any_of(calls), _BEGIN.text)], separator='"\\n"?')


FORMATS = [
    ToolFormat(
        ("functionary_v31",),
        _read,
        (("start_tag => `<function",), ("'<function=' + tool_call['function']['name']", "<|python_tag|>")),
        precedence=4,
        marks=(_END,),
        describe_calls=_describe,
    )
]
