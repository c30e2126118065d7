"""Kimi K2: between tokens of their own an id that holds the name, such as functions.NAME:0, and arguments."""

from __future__ import annotations

import re

from homenode.chat.formats import ToolFormat
from homenode.chat.reading.call_objects import read_arguments
from homenode.chat.reading.reader import Marker, Reader
from homenode.chat.reading.source import Reading

_BEGIN, _END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL, _ARGUMENTS, _CALL_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
_MARKERS = (Marker(_BEGIN), Marker(_CALL))
_ID = re.compile(r"[\w.:/-]+")
_NUMBER = re.compile(r":\d+$")


def _read(reader: Reader) -> Reading[None]:
    source = reader.source
    while marker := (yield from reader.read_content(_MARKERS)):
        if marker.text == _BEGIN:
            yield from source.skip_space()
            if not (yield from source.accept(_CALL)):
                reader.give_back()
                continue
        while (yield from _read_call(reader)):
            yield from source.skip_space()
            if not (yield from source.accept(_CALL)):
                break
        if not (yield from source.accept(_END)):
            reader.give_back()


def _read_call(reader: Reader) -> Reading[bool]:
    """What is between the tokens of a call, and its end, which may be missing."""
    source, attempt = reader.source, reader.attempt()
    yield from source.skip_space()
    attempt.id = yield from source.read_run(_ID)
    yield from source.skip_space()
    name = _NUMBER.sub("", attempt.id).removeprefix("functions.")
    if not (yield from source.accept(_ARGUMENTS)) or not attempt.can_be_called(name):
        return False
    attempt.name = name
    yield from source.skip_space()
    if not (yield from read_arguments(source, attempt)):
        return False
    attempt.finish()
    yield from source.skip_space()
    if (yield from source.accept(_CALL_END)):
        source.forget()
    return True


FORMATS = [
    ToolFormat(
        ("kimi_k2",),
        _read,
        ((_CALL,), (_BEGIN,)),
        precedence=3,
        marks=(_BEGIN, _END, _CALL, _ARGUMENTS, _CALL_END),
    )
]
