"""Phi 4 mini: a list of calls behind the word functools, or between <|tool_call|> and <|/tool_call|>."""

from __future__ import annotations

from homenode.chat.formats import ToolFormat
from homenode.chat.reading.call_objects import read_tagged_list
from homenode.chat.reading.reader import Marker, Reader
from homenode.chat.reading.source import Reading

_MARKERS = (Marker("functools", on_new_line=True), Marker("<|tool_call|>"))


def _read(reader: Reader) -> Reading[None]:
    yield from read_tagged_list(reader, _MARKERS, "<|/tool_call|>")


FORMATS = [
    ToolFormat(
        ("phi4_mini_json", "phi4"),
        _read,
        (("<|/tool_call|>",), ("<|tool|>", "<|/tool|>"), ("functools[",)),
        precedence=2,
        marks=("<|tool_call|>", "<|/tool_call|>"),
    )
]
