"""Hermes, Qwen 2.5 and 3, Granite 4: a JSON object between <tool_call> tags for each call."""

from __future__ import annotations

from homenode.chat.formats import ToolFormat
from homenode.chat.grammars.call_objects import call_object
from homenode.chat.grammars.calls import CallBegin, CallForms, CallWriter
from homenode.chat.syntax.call_objects import read_calls
from homenode.chat.syntax.reader import Marker, Reader
from homenode.chat.syntax.source import Reading

CALL = Marker("<tool_call>")
_END = "</tool_call>"


def read_tagged_call(reader: Reader) -> Reading[None]:
    """Return what follows `CALL`: a call, several of them, or content."""
    if (yield from read_calls(reader)):
        yield from reader.source.skip_space()
        if (yield from reader.source.accept(_END)):
            return
    reader.give_back()


def _read(reader: Reader) -> Reading[None]:
    while (yield from reader.read_content((CALL,))):
        yield from read_tagged_call(reader)


def _describe(writer: CallWriter) -> CallForms:
    call = writer.any_of([call_object(writer, tool) for tool in writer.tools])
    begin = CallBegin(f'"\\n"? {call} "\\n"? {writer.lark.mark(_END)}', CALL.text)
    return CallForms([begin], separator='"\\n"?')


FORMATS = [
    ToolFormat(
        ("hermes", "qwen", "qwen2_5", "qwen3", "granite4"),
        _read,
        (("<tool_call>",),),
        marks=(CALL.text, _END),
        describe_calls=_describe,
    )
]
