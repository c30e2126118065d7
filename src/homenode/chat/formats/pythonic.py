"""Llama 4 and others: a list of calls as Python has them, with literals only; LFM2 the same between tokens of its own."""

from __future__ import annotations

import functools
import re

from homenode.chat.formats import ToolFormat
from homenode.chat.reading.literals import PYTHON, quote, read_value
from homenode.chat.reading.reader import Marker, Reader
from homenode.chat.reading.source import Reading

_LIST = Marker("[", on_new_line=True)
_TAG = Marker("<|python_start|>")
_LFM2, _LFM2_END = Marker("<|tool_call_start|>"), "<|tool_call_end|>"
_NAME = re.compile(r"[\w.]+")


def _read(markers: tuple[Marker, ...], reader: Reader) -> Reading[None]:
    source = reader.source
    while marker := (yield from reader.read_content(markers)):
        tagged = marker is not _LIST
        if tagged:
            yield from source.skip_space()
        if (not tagged or (yield from source.accept("["))) and (yield from _read_list(reader, tagged)):
            yield from source.skip_space()
            if tagged and (yield from source.accept_one((_LFM2_END, "<|python_end|>"))):
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


def _read_call(reader: Reader, tagged: bool) -> Reading[bool]:
    source, attempt = reader.source, reader.attempt(tagged)
    name = yield from source.read_run(_NAME)
    if not name or not attempt.can_be_called(name) or (yield from source.skip_space()) != "(":
        return False
    source.take()
    attempt.name = name
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


FORMATS = [
    ToolFormat(
        ("pythonic", "llama4_pythonic", "llama3_pythonic"),
        functools.partial(_read, (_LIST, _TAG)),
        (("<|python_start|>",), ("[func_name1(params_name1=",)),
        precedence=2,
        marks=(_TAG.text, "<|python_end|>"),
    ),
    ToolFormat(
        ("lfm2",),
        functools.partial(_read, (_LFM2,)),
        (("<|tool_call_start|>",), ("<|tool_list_start|>",)),
        precedence=3,
        marks=(_LFM2.text, _LFM2_END),
    ),
]
