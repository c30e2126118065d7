"""Qwen3 Coder, Qwen 3.5, Seed-OSS: tags with the names of a function and its parameters around plain texts."""

from __future__ import annotations

import functools
import re

from homenode.chat.formats import ToolFormat
from homenode.chat.grammars.calls import CallBegin, CallForms, CallWriter, parameter_name
from homenode.chat.grammars.lark import escape, literal
from homenode.chat.grammars.parameters import CallableTool, ToolParameter
from homenode.chat.grammars.typed_texts import LineBreaks, typed_text
from homenode.chat.syntax.reader import Marker, Reader
from homenode.chat.syntax.source import Reading
from homenode.chat.syntax.typed_values import ArgumentMarks, TypedArguments

_CALLS = ("<tool_call>", "<seed:tool_call>")
_CALL_ENDS = ("</tool_call>", "</seed:tool_call>")
_LINE = "\n"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"
_MARKS = ArgumentMarks(
    _PARAMETER, ">", _PARAMETER_END, (_FUNCTION_END, *_CALL_ENDS), (_FUNCTION, *_CALLS), closings=_CALL_ENDS
)
_MARKERS = (*map(Marker, _CALLS), Marker(_FUNCTION, on_new_line=True))
_NAME = re.compile(r"[^<>\n]+")


def _read(reader: Reader) -> Reading[None]:
    source = reader.source
    while marker := (yield from reader.read_content(_MARKERS)):
        if marker.text in _CALLS:
            yield from source.skip_space()
            if not (yield from source.accept(_FUNCTION)):
                reader.give_back()
                continue
        if (yield from _read_function(reader)):
            yield from source.skip_space()
            if (yield from source.accept_one(_CALL_ENDS)):
                continue
        reader.give_back()


def _read_function(reader: Reader) -> Reading[bool]:
    source, attempt = reader.source, reader.attempt()
    name = (yield from source.read_run(_NAME)).strip()
    if not (yield from source.accept(">")) or not attempt.can_be_called(name):
        return False
    attempt.name = name
    arguments = TypedArguments(source, attempt, _MARKS)
    while True:
        yield from source.skip_space()
        if (yield from source.accept(_PARAMETER)):
            key = (yield from source.read_run(_NAME)).strip()
            if not (yield from source.accept(">")):
                return False
            if not (yield from arguments.read(key, reader.tools.types(name, key))):
                return False
        elif (yield from source.accept_one((_FUNCTION_END, *_CALL_ENDS))):
            arguments.end()
            return True
        else:
            return False


def _describe(writer: CallWriter) -> CallForms:
    lark, functions = writer.lark, []
    for tool in writer.tools:
        parameters = writer.parameters(tool, functools.partial(_parameter, writer, tool))
        functions.append(f"{lark.mark(f'{_FUNCTION}{tool.name}>' + _LINE)} {parameters} {lark.mark(_FUNCTION_END)}")
    call = writer.any_of(functions)
    begins = [
        CallBegin(f'"\\n"? {call} "\\n"? {lark.mark(end)}', text) for text, end in zip(_CALLS, _CALL_ENDS, strict=True)
    ]
    known = [begin for begin in begins if lark.is_token(begin.text)] or begins[:1]
    return CallForms(
        known,
        separator='"\\n"?',
        excluded=[text for text in _CALLS if text not in [begin.text for begin in known]],
        excluded_on_new_line=[escape(_FUNCTION)],
    )


def _parameter(writer: CallWriter, tool: CallableTool, parameter: ToolParameter) -> str:
    name = parameter_name(tool, parameter, _NAME)
    value = typed_text(writer.lark, parameter, _PARAMETER_END, LineBreaks.OF_FORMAT, strict=tool.strict)
    return f'{literal(f"{_PARAMETER}{name}>")} {value} "\\n"'


FORMATS = [
    ToolFormat(
        ("qwen3_coder", "qwen3_xml", "seed_oss"),
        _read,
        (("<function=", "<parameter="),),
        precedence=3,
        describe_calls=_describe,
        marks=(*_CALLS, *_CALL_ENDS, _FUNCTION_END, _PARAMETER_END),
    )
]
