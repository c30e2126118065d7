"""Qwen3 Coder, Qwen 3.5, Seed-OSS: tags with the names of a function and its parameters around plain texts."""

from __future__ import annotations

import re

from homenode.chat.formats import ToolFormat
from homenode.chat.reading.reader import Marker, Reader
from homenode.chat.reading.source import Reading
from homenode.chat.reading.typed_values import TypedArguments

_CALLS = ("<tool_call>", "<seed:tool_call>")
_CALL_ENDS = ("</tool_call>", "</seed:tool_call>")
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"
_MARKERS = (*map(Marker, _CALLS), Marker(_FUNCTION, on_new_line=True))
_NAME = re.compile(r"[^<>\n]+")


def _read(reader: Reader) -> Reading[None]:
    source = reader.source
    while marker := (yield from reader.read_content(_MARKERS)):
        if marker.text in _CALLS:
            yield from source.skip_space()
            if not (yield from source.accept(_FUNCTION)):
                reader.give_back()
                continue
        if (yield from _read_function(reader)):
            yield from source.skip_space()
            if (yield from source.accept_one(_CALL_ENDS)):
                continue
        reader.give_back()


def _read_function(reader: Reader) -> Reading[bool]:
    source, attempt = reader.source, reader.attempt()
    name = (yield from source.read_run(_NAME)).strip()
    if not (yield from source.accept(">")) or not attempt.can_be_called(name):
        return False
    attempt.name = name
    arguments = TypedArguments(source, attempt)
    while True:
        yield from source.skip_space()
        if (yield from source.accept(_PARAMETER)):
            key = (yield from source.read_run(_NAME)).strip()
            if not (yield from source.accept(">")):
                return False
            schema = reader.tools.schema(name, key)
            ends = (_PARAMETER, _FUNCTION_END, *_CALL_ENDS)
            if not (yield from arguments.read(key, schema, _PARAMETER_END, ends)):
                return False
        elif (yield from source.accept_one((_FUNCTION_END, *_CALL_ENDS))):
            arguments.end()
            return True
        else:
            return False


FORMATS = [
    ToolFormat(
        ("qwen3_coder", "qwen3_xml", "seed_oss"),
        _read,
        (("<function=", "<parameter="),),
        precedence=3,
        marks=(*_CALLS, *_CALL_ENDS, _FUNCTION_END, _PARAMETER_END),
    )
]
