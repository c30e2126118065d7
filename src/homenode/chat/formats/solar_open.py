"""Solar Open: between tokens of their own an id, a name and arguments."""

from __future__ import annotations

import re

from homenode.chat.formats import ToolFormat
from homenode.chat.grammars.calls import CallBegin, CallForms, CallWriter
from homenode.chat.syntax.call_objects import finish_call
from homenode.chat.syntax.reader import Marker, Reader
from homenode.chat.syntax.sections import read_sections
from homenode.chat.syntax.source import Reading

_BEGIN, _CALL = Marker("<|tool_calls|>"), Marker("<|tool_call:begin|>")
_NAME, _ARGUMENTS, _CALL_END, _END = "<|tool_call:name|>", "<|tool_call:args|>", "<|tool_call:end|>", "<|calls|>"
_WORD = re.compile(r"[\w.:/-]+")


def _read(reader: Reader) -> Reading[None]:
    return read_sections(reader, _BEGIN, _CALL, _END, _read_call)


def _read_call(reader: Reader) -> Reading[bool]:
    """Return what is between the tokens of a call, and its end, which may be missing."""
    source, attempt = reader.source, reader.attempt()
    yield from source.skip_space()
    attempt.id = yield from source.read_run(_WORD)
    if not (yield from source.accept(_NAME)):
        return False
    name = yield from source.read_run(_WORD)
    if not (yield from source.accept(_ARGUMENTS)):
        return False
    return (yield from finish_call(source, attempt, name, _CALL_END))


def _describe(writer: CallWriter) -> CallForms:
    mark = writer.lark.mark
    calls = [
        f"{mark(_CALL.text)} /[a-z0-9]{{10}}/ {mark(f'{_NAME}{tool.name}{_ARGUMENTS}')} {writer.arguments(tool)} "
        f"{mark(_CALL_END)}"
        for tool in writer.tools
    ]
    all_calls = writer.one_or_more(writer.any_of(calls), '""')
    # The last mark may be what ends the answer, and no text then.
    end = mark(_END) if writer.lark.is_token(_END) else f"({mark(_END)})?"
    return CallForms([CallBegin(f"{all_calls} {end}", _BEGIN.text)], excluded=(_CALL.text,))


FORMATS = [
    ToolFormat(
        ("solar_open",),
        _read,
        ((_CALL.text,),),
        precedence=4,
        marks=(_BEGIN.text, _CALL.text, _NAME, _ARGUMENTS, _CALL_END, _END),
        describe_calls=_describe,
    )
]
