"""Llama 4 and others: a list of calls as Python has them, with literals only; LFM2 the same between tokens of its own;
Olmo 3 such calls on lines between tags.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from homenode.chat.formats import ToolFormat
from homenode.chat.grammars.calls import CallBegin, CallForms, CallWriter, parameter_name
from homenode.chat.grammars.inputs import quoted_input
from homenode.chat.grammars.lark import escape, literal
from homenode.chat.grammars.parameters import CallableTool, ToolParameter, with_settings
from homenode.chat.syntax.literals import PYTHON, quote, read_value
from homenode.chat.syntax.reader import Attempt, Marker, Reader
from homenode.chat.syntax.source import Reading, TextSource

_LIST = Marker("[", on_new_line=True)
_TAG, _TAG_END = Marker("<|python_start|>"), "<|python_end|>"
_LFM2, _LFM2_END = Marker("<|tool_call_start|>"), "<|tool_call_end|>"
_LINES, _LINES_END = Marker("<function_calls>"), "</function_calls>"
_NAME = re.compile(r"[\w.-]+")


def _read(markers: tuple[Marker, ...], reader: Reader) -> Reading[None]:
    source = reader.source
    while marker := (yield from reader.read_content(markers)):
        tagged = marker is not _LIST
        if tagged:
            yield from source.skip_space()
        if (not tagged or (yield from source.accept("["))) and (yield from _read_list(reader, tagged)):
            yield from source.skip_space()
            if tagged and (yield from source.accept_one((_LFM2_END, _TAG_END))):
                continue
        reader.give_back()


def _read_list(reader: Reader, tagged: bool) -> Reading[bool]:
    """Calls behind a bracket. False at the first that is none."""
    source = reader.source
    while True:
        yield from source.skip_space()
        if not (yield from _read_call(reader, tagged)):
            return False
        following = yield from source.skip_space()
        if following == ",":
            source.take()
            following = yield from source.skip_space()
            if following != "]":
                source.forget()
                continue
        if following == "]":
            source.take()
            source.forget()
        return following in ("]", "")


def _read_lines(reader: Reader) -> Reading[None]:
    while (yield from reader.read_content((_LINES,))):
        called = False
        while (yield from reader.source.skip_space()) not in ("<", "") and (yield from _read_call(reader, tagged=True)):
            called = True
        if not called or not (yield from reader.source.accept(_LINES_END)):
            reader.give_back()


def _read_call(reader: Reader, tagged: bool) -> Reading[bool]:
    source, attempt = reader.source, reader.attempt(tagged)
    name = yield from source.read_run(_NAME)
    if not name or not attempt.can_be_called(name) or (yield from source.skip_space()) != "(":
        return False
    source.take()
    attempt.name = name
    return (yield from read_keyword_arguments(source, attempt))


def read_keyword_arguments(source: TextSource, attempt: Attempt) -> Reading[bool]:
    """Return what follows the bracket of a call in Python, with which the call is whole. False where it is no list of
    keys and literals.
    """
    before = "{"
    while (yield from source.skip_space()) != ")":
        key = yield from source.read_run(_NAME)
        if not key or (yield from source.skip_space()) != "=":
            return False
        source.take()
        attempt.write(f'{before}"{quote(key)}": ')
        if not (yield from read_value(source, attempt.write, PYTHON)):
            return False
        before = ", "
        if (yield from source.skip_space()) == ",":
            source.take()
        elif (yield from source.peek()) != ")":
            return False
    source.take()
    attempt.write("}" if before == ", " else "{}")
    attempt.finish()
    return True


def _describe(tag: Marker, end: str, writer: CallWriter) -> CallForms:
    lark, calls = writer.lark, {tool.name: _call(writer, tool) for tool in writer.tools}
    call = writer.any_of([f"{literal(f'{name}(')} {rest}" for name, rest in calls.items()])
    more = f'("," " "? {call})*' if writer.parallel else ""
    tagged = CallBegin(f'"[" {call} {more} "]" {lark.mark(end)}', tag.text)
    if tag is _LFM2 or lark.is_token(tag.text):
        begins = [tagged]
    else:
        begins = [CallBegin(f'{rest} {more} "]"', pattern=rf"\[{escape(name)}\(") for name, rest in calls.items()]
    if tag is _LFM2:
        return CallForms(begins)
    names = "|".join(map(escape, calls))
    return CallForms(
        begins, excluded=() if begins[0].text else (tag.text,), excluded_on_new_line=[rf"\[\s*({names})\s*\("]
    )


def _describe_lines(writer: CallWriter) -> CallForms:
    call = writer.any_of([f"{literal(f'{tool.name}(')} {_call(writer, tool)}" for tool in writer.tools])
    calls = writer.one_or_more(call, '"\\n"')
    return CallForms([CallBegin(f'"\\n"? {calls} "\\n"? {writer.lark.mark(_LINES_END)}', _LINES.text)])


def _call(writer: CallWriter, tool: CallableTool) -> str:
    """A rule body for what follows the name of a tool and the bracket."""
    return f'{writer.parameters(tool, functools.partial(_parameter, writer, tool), "/, ?/")} ")"'


def _parameter(writer: CallWriter, tool: CallableTool, parameter: ToolParameter) -> str:
    name = literal(f"{parameter_name(tool, parameter, _NAME)}=")
    if parameter.input is not None:
        return f"{name} {quoted_input(writer.lark, parameter.input)}"
    if parameter.schema == {"type": "boolean"}:
        return f'{name} ("True" | "False")'
    schema = parameter.schema if isinstance(parameter.schema, Mapping) else {}
    return f"{name} {writer.lark.json(with_settings(schema, strict=tool.strict))}"


def _write_lfm2(calls: Sequence[Mapping[str, Any]]) -> str:
    written = []
    for call in calls:
        arguments = call["arguments"]
        items = arguments.items() if isinstance(arguments, Mapping) else ()
        values = ", ".join(f"{name}={value!r}" for name, value in items) if items else str(arguments or "")
        written.append(f"{call['name']}({values})")
    return f"{_LFM2.text}[{', '.join(written)}]{_LFM2_END}"


FORMATS = [
    ToolFormat(
        ("pythonic", "llama4_pythonic", "llama3_pythonic"),
        functools.partial(_read, (_LIST, _TAG)),
        ((_TAG.text,), ("[func_name1(params_name1=",)),
        precedence=2,
        marks=(_TAG.text, _TAG_END),
        describe_calls=functools.partial(_describe, _TAG, _TAG_END),
    ),
    ToolFormat(
        ("lfm2",),
        functools.partial(_read, (_LFM2,)),
        ((_LFM2.text,), ("<|tool_list_start|>",), ("List of tools: [",)),
        3,
        write_calls=_write_lfm2,
        marks=(_LFM2.text, _LFM2_END),
        describe_calls=functools.partial(_describe, _LFM2, _LFM2_END),
    ),
    ToolFormat(
        ("olmo3",),
        _read_lines,
        ((_LINES.text,),),
        3,
        marks=(_LINES.text, _LINES_END),
        describe_calls=_describe_lines,
    ),
]
