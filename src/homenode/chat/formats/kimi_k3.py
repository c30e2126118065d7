"""Kimi K3: calls and their arguments as elements, whose tags are tokens around a name and attributes."""

from __future__ import annotations

import functools
import re

from homenode.chat.formats import ToolFormat
from homenode.chat.grammars.calls import CallBegin, CallForms, CallWriter, parameter_name
from homenode.chat.grammars.inputs import marked_input
from homenode.chat.grammars.parameters import CallableTool, ToolParameter
from homenode.chat.grammars.typed_texts import LineBreaks, json_value, marked_text
from homenode.chat.syntax.call_objects import read_arguments
from homenode.chat.syntax.reader import Attempt, Marker, Reader
from homenode.chat.syntax.schema_types import STRING, types_of
from homenode.chat.syntax.source import Reading
from homenode.chat.syntax.typed_values import ArgumentMarks, TypedArguments

_OPEN, _CLOSE, _SEPARATOR = "<|open|>", "<|close|>", "<|sep|>"
_BEGIN, _END = Marker(f"{_OPEN}tools{_SEPARATOR}"), f"{_CLOSE}tools{_SEPARATOR}"
_CALL, _CALL_END = f'{_OPEN}call tool="', f"{_CLOSE}call{_SEPARATOR}"
_ARGUMENT, _ARGUMENT_END = f'{_OPEN}argument key="', f"{_CLOSE}argument{_SEPARATOR}"
_OBJECT, _OBJECT_END = f'{_OPEN}json type="object"{_SEPARATOR}', f"{_CLOSE}json{_SEPARATOR}"
_MARKS = ArgumentMarks(_ARGUMENT, '"', _ARGUMENT_END, (_CALL_END,), (_BEGIN.text, _CALL), closings=(_END,))
_TEXT = 'type="string"'
_VALUE, _ATTRIBUTES = re.compile(r"[^\"<>\n]+"), re.compile(r"[^<\n]+")
_KEY = re.compile(r"[^\"<>&\n]+")  # as a grammar writes it, without escapes


def _read(reader: Reader) -> Reading[None]:
    source = reader.source
    while (yield from reader.read_content((_BEGIN,))):
        while True:
            yield from source.skip_space()
            if not (yield from source.accept(_CALL)) or not (yield from _read_call(reader)):
                break
        if not reader.just_called or not (yield from source.accept(_END)):
            reader.give_back()


def _read_call(reader: Reader) -> Reading[bool]:
    source, attempt = reader.source, reader.attempt()
    name, _ = yield from _read_attributes(reader)
    if name is None or not attempt.can_be_called(name):
        return False
    attempt.name = name
    arguments = TypedArguments(source, attempt, _MARKS)
    while True:
        yield from source.skip_space()
        if (yield from source.accept(_OBJECT)):
            return (yield from _read_object(reader, attempt))
        if (yield from source.accept(_ARGUMENT)):
            key, others = yield from _read_attributes(reader)
            if key is None:
                return False
            kinds = STRING if _TEXT in others else None if "type=" in others else reader.tools.types(name, key)
            if not (yield from arguments.read(key, kinds, lines=False)):
                return False
        elif (yield from source.accept(_CALL_END)):
            arguments.end()
            return True
        else:
            return False


def _read_attributes(reader: Reader) -> Reading[tuple[str | None, str]]:
    """The value of the first attribute, whose quotation mark was read, None where the tag does not end; and the
    others.
    """
    source = reader.source
    value = yield from source.read_run(_VALUE)
    others = yield from source.read_run(_ATTRIBUTES)
    if not others.startswith('"') or not (yield from source.accept(_SEPARATOR)):
        return None, others
    return value.replace("&quot;", '"').replace("&amp;", "&"), others


def _read_object(reader: Reader, attempt: Attempt) -> Reading[bool]:
    """Arguments as one JSON text, and the end of the call."""
    source = reader.source
    yield from source.skip_space()
    if not (yield from read_arguments(source, attempt)):
        return False
    yield from source.skip_space()
    if not (yield from source.accept(_OBJECT_END)):
        return False
    yield from source.skip_space()
    if not (yield from source.accept(_CALL_END)):
        return False
    attempt.finish()
    return True


def _describe(writer: CallWriter) -> CallForms:
    mark, calls = writer.lark.mark, []
    for tool in writer.tools:
        parameters = writer.parameters(tool, functools.partial(_parameter, writer, tool))
        begin = f'{mark(f"{_CALL}{tool.name}")} /" index="[0-9]{{1,3}}"/ {mark(_SEPARATOR)}'
        calls.append(f"{begin} {parameters} {mark(_CALL_END)}")
    all_calls = writer.one_or_more(writer.any_of(calls), '""')
    return CallForms([CallBegin(f"{all_calls} {mark(_END)}", _BEGIN.text)])


def _parameter(writer: CallWriter, tool: CallableTool, parameter: ToolParameter) -> str:
    lark = writer.lark
    begin = f'{_ARGUMENT}{parameter_name(tool, parameter, _KEY)}" '
    as_text = lark.mark(f"{begin}{_TEXT}{_SEPARATOR}")
    if parameter.input is not None:
        return f"{as_text} {marked_input(lark, parameter.input, _ARGUMENT_END)}"
    kinds, ways = types_of(parameter.schema, parameter.schema), []
    if kinds is None or "string" in kinds:
        text = marked_text(lark, parameter.schema, _ARGUMENT_END, LineBreaks.KEPT, strict=tool.strict)
        ways.append(f"{as_text} {lark.up_to(text, _ARGUMENT_END)}")
    if kinds != STRING:
        value = json_value(lark, parameter.schema, strict=tool.strict)
        kind = f'/type="(number|boolean|null|object|array)"/ {lark.mark(_SEPARATOR)}'
        ways.append(f"{lark.mark(begin)} {kind} {value} {lark.mark(_ARGUMENT_END)}")
    return f"({' | '.join(ways)})"


FORMATS = [
    ToolFormat(
        ("kimi_k3",),
        _read,
        ((_OPEN, _CLOSE, _SEPARATOR),),
        precedence=4,
        marks=(_OPEN, _CLOSE, _SEPARATOR),
        describe_calls=_describe,
    )
]
