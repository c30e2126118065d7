"""GLM 4.5 and later: a name between <tool_call> tags, then keys and values between tags of their own."""

from __future__ import annotations

import re

from homenode.chat.formats import ToolFormat
from homenode.chat.reading.reader import Marker, Reader
from homenode.chat.reading.source import Reading
from homenode.chat.reading.typed_values import TypedArguments

_CALL, _END = Marker("<tool_call>"), "</tool_call>"
_KEY, _KEY_END, _VALUE, _VALUE_END = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"
_NAME = re.compile(r"[^<>\n]+")


def _read(reader: Reader) -> Reading[None]:
    while (yield from reader.read_content((_CALL,))):
        if not (yield from _read_call(reader)):
            reader.give_back()


def _read_call(reader: Reader) -> Reading[bool]:
    source, attempt = reader.source, reader.attempt()
    yield from source.skip_space()
    name = (yield from source.read_run(_NAME)).strip()
    if not attempt.can_be_called(name):
        return False
    attempt.name = name
    arguments = TypedArguments(source, attempt)
    while True:
        yield from source.skip_space()
        if (yield from source.accept(_KEY)):
            key = (yield from source.read_run(_NAME)).strip()
            if not (yield from source.accept(_KEY_END)):
                return False
            yield from source.skip_space()
            schema = reader.tools.schema(name, key)
            if not (yield from source.accept(_VALUE)) or not (
                yield from arguments.read(key, schema, _VALUE_END, (_KEY, _END), lines=False)
            ):
                return False
        elif (yield from source.accept(_END)):
            arguments.end()
            return True
        else:
            return False


_MARKS = (_CALL.text, _END, _KEY, _KEY_END, _VALUE, _VALUE_END)
FORMATS = [ToolFormat(("glm45", "glm47", "glm4_moe"), _read, (("<arg_key>",),), precedence=3, marks=_MARKS)]
