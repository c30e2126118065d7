"""Nemotron Nano, Apriel, Jamba and Hunyuan: a list of calls between tags; MiniMax M1: calls on lines between them;
GigaChat 3.1: one call behind a mark.
"""

from __future__ import annotations

import functools

from homenode.chat.formats import ToolFormat
from homenode.chat.grammars.call_objects import call_list, call_object
from homenode.chat.grammars.calls import CallBegin, CallForms, CallWriter
from homenode.chat.syntax.call_objects import read_calls
from homenode.chat.syntax.reader import Marker, Reader
from homenode.chat.syntax.source import Reading

_TAG, _TAG_END = "<tool_calls>", "</tool_calls>"
_NEMOTRON, _NEMOTRON_END = "<TOOLCALL>", "</TOOLCALL>"
_GIGACHAT = "<|function_call|>"


def _read(begin: str, end: str, reader: Reader) -> Reading[None]:
    source = reader.source
    while (yield from reader.read_content((Marker(begin),))):
        if (yield from read_calls(reader)):
            yield from source.skip_space()
            if (yield from source.accept(end)):
                continue
        reader.give_back()


def _describe(begin: str, end: str, writer: CallWriter) -> CallForms:
    calls = call_list(writer, [call_object(writer, tool) for tool in writer.tools])
    return CallForms([CallBegin(f"{calls} {writer.lark.mark(end)}", begin)])


def _describe_lines(writer: CallWriter) -> CallForms:
    call = writer.any_of([call_object(writer, tool) for tool in writer.tools])
    calls = writer.one_or_more(call, '"\\n"')
    return CallForms([CallBegin(f'"\\n"? {calls} "\\n"? {writer.lark.mark(_TAG_END)}', _TAG)])


def _describe_one(writer: CallWriter) -> CallForms:
    call = writer.any_of([call_object(writer, tool) for tool in writer.tools])
    return CallForms([CallBegin(call, _GIGACHAT)])


FORMATS = [
    ToolFormat(
        ("nemotron", "nemotron_nano_v2"),
        functools.partial(_read, _NEMOTRON, _NEMOTRON_END),
        ((_NEMOTRON,),),
        precedence=2,
        marks=(_NEMOTRON, _NEMOTRON_END),
        describe_calls=functools.partial(_describe, _NEMOTRON, _NEMOTRON_END),
    ),
    ToolFormat(
        ("apriel", "jamba", "hunyuan_a13b"),
        functools.partial(_read, _TAG, _TAG_END),
        ((f"{_TAG}[",),),
        precedence=2,
        marks=(_TAG, _TAG_END),
        describe_calls=functools.partial(_describe, _TAG, _TAG_END),
    ),
    ToolFormat(
        ("minimax", "minimax_m1"),
        functools.partial(_read, _TAG, _TAG_END),
        ((f"{_TAG}\\n{{",), (f"{_TAG}\n{{",)),
        precedence=2,
        marks=(_TAG, _TAG_END),
        describe_calls=_describe_lines,
    ),
    ToolFormat(
        ("gigachat3",),
        functools.partial(_read, _GIGACHAT, ""),
        ((_GIGACHAT,),),
        precedence=2,
        marks=(_GIGACHAT,),
        describe_calls=_describe_one,
    ),
]
