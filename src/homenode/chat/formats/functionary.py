"""Functionary 3.1, and the tools that a user of Llama 3.1 describes: <function=NAME>, arguments and </function>.
Functionary 3.2: parts of a message behind >>>, each with its recipient on a line: a tool, or all.
"""

from __future__ import annotations

import re

from homenode.chat.formats import ToolFormat
from homenode.chat.grammars.calls import CallBegin, CallForms, CallWriter, MessageParts
from homenode.chat.grammars.lark import escape, literal
from homenode.chat.syntax.call_objects import read_arguments
from homenode.chat.syntax.reader import Marker, Reader
from homenode.chat.syntax.source import Reading

_BEGIN, _END = Marker("<function="), "</function>"
_NAME = re.compile(r"[\w.:/-]+")
_PART, _ALL = Marker(">>>"), "all\n"


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


def _read_parts(reader: Reader) -> Reading[None]:
    if not reader.goes_on:
        yield from reader.source.accept(_PART.text)  # which the prompt ends with
        yield from _read_part_or_text(reader)
    while (yield from reader.read_content((_PART,))):
        yield from _read_part_or_text(reader)


def _read_part_or_text(reader: Reader) -> Reading[None]:
    if not (yield from _read_part(reader)):
        reader.give_back()


def _read_part(reader: Reader) -> Reading[bool]:
    """Return what follows >>>: the line of a text, or a call."""
    source, attempt = reader.source, reader.attempt(tagged=False)
    if (yield from source.accept(_ALL)):
        source.forget()
        return True
    name = yield from source.read_run(_NAME)
    if not attempt.can_be_called(name) or not (yield from source.accept("\n")):
        return False
    attempt.name = name
    yield from source.skip_space()
    if not (yield from read_arguments(source, attempt)):
        return False
    attempt.finish()
    return True


def _describe_parts(parts: MessageParts) -> str:
    lark, writer = parts.lark, parts.calls
    text = lark.without([escape(_PART.text)])
    if writer is None:
        return f"{literal(_ALL)} {parts.content}" if parts.content else lark.without()
    call = writer.any_of([f"{literal(f'{tool.name}{chr(10)}')} {writer.arguments(tool)}" for tool in writer.tools])
    calls = lark.rule(writer.one_or_more(call, f'"\\n"? {literal(_PART.text)}'))
    if parts.must_call:
        return calls
    answer = parts.content or f"({text} | {lark.up_to(text, _PART.text)} {calls})"
    return f"{calls} | {literal(_ALL)} {answer}"


FORMATS = [
    ToolFormat(
        ("functionary_v32",),
        _read_parts,
        ((">>>${recipient}",), ("'>>>all",)),
        precedence=4,
        without_tools=True,
        describe_message=_describe_parts,
    ),
    ToolFormat(
        ("functionary_v31",),
        _read,
        (("start_tag => `<function",), ("'<function=' + tool_call['function']['name']", "<|python_tag|>")),
        precedence=4,
        marks=(_END,),
        describe_calls=_describe,
    ),
]
