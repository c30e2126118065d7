"""GLM 4.5 and later: a name between <tool_call> tags, then keys and values between tags of their own."""

from __future__ import annotations

import functools
import re

from homenode.chat.formats import ToolFormat
from homenode.chat.grammars.calls import CallBegin, CallForms, CallWriter, parameter_name
from homenode.chat.grammars.lark import literal
from homenode.chat.grammars.parameters import CallableTool, ToolParameter
from homenode.chat.grammars.typed_texts import LineBreaks, typed_text
from homenode.chat.syntax.reader import Marker, Reader
from homenode.chat.syntax.source import Reading
from homenode.chat.syntax.typed_values import TypedArguments

_CALL, _END = Marker("<tool_call>"), "</tool_call>"
_KEY, _KEY_END, _VALUE, _VALUE_END = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"
_NAME = re.compile(r"[^<>\n]+")


def _read(reader: Reader) -> Reading[None]:
    while (yield from reader.read_content((_CALL,))):
        if not (yield from _read_call(reader)):
            reader.give_back()


def _read_call(reader: Reader) -> Reading[bool]:
    source, attempt = reader.source, reader.attempt()
    yield from source.skip_space()
    name = (yield from source.read_run(_NAME)).strip()
    if not attempt.can_be_called(name):
        return False
    attempt.name = name
    arguments = TypedArguments(source, attempt)
    while True:
        yield from source.skip_space()
        if (yield from source.accept(_KEY)):
            key = (yield from source.read_run(_NAME)).strip()
            if not (yield from source.accept(_KEY_END)):
                return False
            yield from source.skip_space()
            kinds = reader.tools.types(name, key)
            if not (yield from source.accept(_VALUE)) or not (
                yield from arguments.read(key, kinds, _VALUE_END, (_KEY, _END), lines=False)
            ):
                return False
        elif (yield from source.accept(_END)):
            arguments.end()
            return True
        else:
            return False


def _describe(writer: CallWriter) -> CallForms:
    lark, calls = writer.lark, []
    for tool in writer.tools:
        parameters = writer.parameters(tool, functools.partial(_parameter, writer, tool))
        calls.append(f'{literal(tool.name)} "\\n"? {parameters} {lark.mark(_END)}')
    return CallForms([CallBegin(f'"\\n"? {writer.any_of(calls)}', _CALL.text)], separator='"\\n"?')


def _parameter(writer: CallWriter, tool: CallableTool, parameter: ToolParameter) -> str:
    name = parameter_name(tool, parameter, _NAME)
    key, value = writer.lark.mark(f"{_KEY}{name}{_KEY_END}"), writer.lark.mark(_VALUE)
    text = typed_text(writer.lark, parameter, _VALUE_END, LineBreaks.KEPT, strict=tool.strict)
    return f'{key} "\\n"? {value} {text} "\\n"?'


_MARKS = (_CALL.text, _END, _KEY, _KEY_END, _VALUE, _VALUE_END)
FORMATS = [
    ToolFormat(
        ("glm45", "glm47", "glm4_moe"),
        _read,
        ((_KEY,),),
        precedence=3,
        marks=_MARKS,
        describe_calls=_describe,
    )
]
