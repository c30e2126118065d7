"""Phi 4 mini: a list of calls behind the word functools, or between <|tool_call|> and <|/tool_call|>."""

from __future__ import annotations

from homenode.chat.formats import ToolFormat
from homenode.chat.grammars.call_objects import call_list, call_object
from homenode.chat.grammars.calls import CallBegin, CallForms, CallWriter
from homenode.chat.syntax.call_objects import read_tagged_list
from homenode.chat.syntax.reader import Marker, Reader
from homenode.chat.syntax.source import Reading

_WORD, _TAG, _END = Marker("functools", on_new_line=True), Marker("<|tool_call|>"), "<|/tool_call|>"
_MARKERS = (_WORD, _TAG)


def _read(reader: Reader) -> Reading[None]:
    yield from read_tagged_list(reader, _MARKERS, _END)


def _describe(writer: CallWriter) -> CallForms:
    objects = [call_object(writer, tool) for tool in writer.tools]
    tagged = CallBegin(f"{call_list(writer, objects)} {writer.lark.mark(_END)}", _TAG.text)
    begins = [tagged]
    if not writer.lark.is_token(_TAG.text):
        begins.append(CallBegin(call_list(writer, objects, begun=True), pattern=rf"{_WORD.text}\["))
    return CallForms(begins, excluded_on_new_line=[rf"{_WORD.text}\s*\["])


FORMATS = [
    ToolFormat(
        ("phi4_mini_json", "phi4"),
        _read,
        (("<|/tool_call|>",), ("<|tool|>", "<|/tool|>"), ("functools[",)),
        precedence=2,
        marks=(_TAG.text, _END),
        describe_calls=_describe,
    )
]
