"""Kimi K2: between tokens of their own an id that holds the name, such as functions.NAME:0, and arguments."""

from __future__ import annotations

import re

from homenode.chat.formats import ToolFormat
from homenode.chat.grammars.calls import CallBegin, CallForms, CallWriter
from homenode.chat.syntax.call_objects import finish_call
from homenode.chat.syntax.reader import Marker, Reader
from homenode.chat.syntax.sections import read_sections
from homenode.chat.syntax.source import Reading

_BEGIN, _CALL = Marker("<|tool_calls_section_begin|>"), Marker("<|tool_call_begin|>")
_ARGUMENTS, _CALL_END, _END = "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|tool_calls_section_end|>"
_ID = re.compile(r"[\w.:/-]+")
_NUMBER = re.compile(r":\d+$")


def _read(reader: Reader) -> Reading[None]:
    return read_sections(reader, _BEGIN, _CALL, _END, _read_call)


def _read_call(reader: Reader) -> Reading[bool]:
    """Return what is between the tokens of a call, and its end, which may be missing."""
    source, attempt = reader.source, reader.attempt()
    yield from source.skip_space()
    attempt.id = yield from source.read_run(_ID)
    yield from source.skip_space()
    name = _NUMBER.sub("", attempt.id).removeprefix("functions.")
    if not (yield from source.accept(_ARGUMENTS)):
        return False
    return (yield from finish_call(source, attempt, name, _CALL_END))


def _describe(writer: CallWriter) -> CallForms:
    mark = writer.lark.mark
    call = writer.any_of(
        [
            f"{mark(f'{_CALL.text}functions.{tool.name}:')} /[0-9]{{1,3}}/ {mark(_ARGUMENTS)} "
            f"{writer.arguments(tool)} {mark(_CALL_END)}"
            for tool in writer.tools
        ]
    )
    all_calls = writer.one_or_more(call, '"\\n"?')
    return CallForms([CallBegin(f"{all_calls} {mark(_END)}", _BEGIN.text)], excluded=(_CALL.text,))


FORMATS = [
    ToolFormat(
        ("kimi_k2",),
        _read,
        ((_CALL.text,), (_BEGIN.text,)),
        precedence=3,
        marks=(_BEGIN.text, _END, _CALL.text, _ARGUMENTS, _CALL_END),
        describe_calls=_describe,
    )
]
