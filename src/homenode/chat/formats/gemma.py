"""Gemma 4 and FunctionGemma: call:NAME and arguments in braces, with bare keys and strings between marks of their
own.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from homenode.chat.formats import ToolFormat
from homenode.chat.grammars.calls import CallBegin, CallForms, CallWriter
from homenode.chat.grammars.inputs import marked_input
from homenode.chat.grammars.lark import literal
from homenode.chat.grammars.marked_values import MarkedValues
from homenode.chat.grammars.parameters import CallableTool, ToolParameter
from homenode.chat.syntax.literals import Dialect, read_value
from homenode.chat.syntax.reader import Marker, Reader
from homenode.chat.syntax.source import Reading

_NAME = re.compile(r"[\w.:/-]+")


@dataclass(frozen=True)
class _Marks:
    begin: str
    end: str
    quote: str

    @property
    def texts(self) -> tuple[str, ...]:
        return self.begin, self.end, self.quote

    @functools.cached_property
    def dialect(self) -> Dialect:
        return Dialect((self.quote,), escapes="", bare_keys=True)


_GEMMA4 = _Marks("<|tool_call>", "<tool_call|>", '<|"|>')
_FUNCTION_GEMMA = _Marks("<start_function_call>", "<end_function_call>", "<escape>")


def _read(marks: _Marks, reader: Reader) -> Reading[None]:
    source = reader.source
    while (yield from reader.read_content((Marker(marks.begin),))):
        if (yield from _read_call(marks, reader)):
            yield from source.skip_space()
            if (yield from source.accept(marks.end)):
                continue
        reader.give_back()


def _read_call(marks: _Marks, reader: Reader) -> Reading[bool]:
    source, attempt = reader.source, reader.attempt()
    yield from source.skip_space()
    if not (yield from source.accept("call:")):
        return False
    name = yield from source.read_run(_NAME)
    if not attempt.can_be_called(name) or (yield from source.peek()) != "{":
        return False
    attempt.name = name
    if not (yield from read_value(source, attempt.write, marks.dialect)):
        return False
    attempt.finish()
    return True


def _describe(marks: _Marks, writer: CallWriter) -> CallForms:
    calls = []
    for tool in writer.tools:
        parameters = writer.parameters(tool, functools.partial(_parameter, marks, writer, tool), '","')
        calls.append(f"{literal(f'call:{tool.name}{{')} {parameters} {writer.lark.mark('}' + marks.end)}")
    return CallForms([CallBegin(writer.any_of(calls), marks.begin)], separator='""')


def _parameter(marks: _Marks, writer: CallWriter, tool: CallableTool, parameter: ToolParameter) -> str:
    if parameter.input is not None:
        text = marked_input(writer.lark, parameter.input, marks.quote)
        return f"{literal(f'{parameter.name}:')} {writer.lark.mark(marks.quote)} {text}"
    values = MarkedValues(writer.lark, parameter.schema, marks.quote, strict=tool.strict)
    return f"{values.key(parameter.name)} {values.value(parameter.schema)}"


FORMATS = [
    ToolFormat(
        ("gemma4",),
        functools.partial(_read, _GEMMA4),
        ((_GEMMA4.begin,),),
        precedence=4,
        marks=_GEMMA4.texts,
        describe_calls=functools.partial(_describe, _GEMMA4),
    ),
    ToolFormat(
        ("functiongemma", "gemma3"),
        functools.partial(_read, _FUNCTION_GEMMA),
        ((_FUNCTION_GEMMA.begin,),),
        precedence=4,
        marks=_FUNCTION_GEMMA.texts,
        describe_calls=functools.partial(_describe, _FUNCTION_GEMMA),
    ),
]
