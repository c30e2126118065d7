"""Granite 3: a list of calls behind <|tool_call|>; some write tags around it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from homenode.chat.formats import ToolFormat
from homenode.chat.grammars.call_objects import call_list, call_object
from homenode.chat.grammars.calls import CallBegin, CallForms, CallWriter
from homenode.chat.syntax.call_objects import read_tagged_list
from homenode.chat.syntax.reader import Marker, Reader
from homenode.chat.syntax.source import Reading

_TOKEN, _TAG = Marker("<|tool_call|>"), Marker("<tool_call>", on_new_line=True)
_END = "</tool_call>"
_MARKERS = (_TOKEN, _TAG)


def _read(reader: Reader) -> Reading[None]:
    yield from read_tagged_list(reader, _MARKERS, _END)


def _write(calls: Sequence[Mapping[str, Any]]) -> str:
    return _TOKEN.text + json.dumps(list(calls), ensure_ascii=False)


def _describe(writer: CallWriter) -> CallForms:
    calls = call_list(writer, [call_object(writer, tool) for tool in writer.tools])
    return CallForms([CallBegin(f'" "? {calls}', _TOKEN.text)], excluded=(_TAG.text,))


FORMATS = [
    ToolFormat(
        ("granite", "granite3", "granite-20b-fc"),
        _read,
        (("<|tool_call|>",),),
        precedence=1,
        write_calls=_write,
        marks=(_TOKEN.text, _TAG.text, _END),
        describe_calls=_describe,
    )
]
