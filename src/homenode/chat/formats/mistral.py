"""Mistral: behind [TOOL_CALLS] a list of calls, or in later models a name, perhaps [CALL_ID] and an id, then [ARGS] and an
object.
"""

from __future__ import annotations

import re

from homenode.chat.formats import ToolFormat
from homenode.chat.reading.call_objects import read_arguments, read_call_list
from homenode.chat.reading.reader import Marker, Reader
from homenode.chat.reading.source import Reading

_BEGIN = Marker("[TOOL_CALLS]")
_CALL_ID, _ARGUMENTS = "[CALL_ID]", "[ARGS]"
_NAME = re.compile(r"[\w.:/-]+")


def _read(reader: Reader) -> Reading[None]:
    while (yield from reader.read_content((_BEGIN,))):
        first = yield from reader.source.skip_space()
        is_list = first == "["
        if not (yield from read_call_list(reader, id_comes_last=True) if is_list else _read_named(reader)):
            reader.give_back()


def _read_named(reader: Reader) -> Reading[bool]:
    source, attempt = reader.source, reader.attempt()
    name = yield from source.read_run(_NAME)
    if not attempt.can_be_called(name):
        return False
    attempt.name = name
    if (yield from source.accept(_CALL_ID)):
        attempt.id = yield from source.read_run(_NAME)
    yield from source.accept(_ARGUMENTS)
    if not (yield from read_arguments(source, attempt)):
        return False
    attempt.finish()
    return True


FORMATS = [ToolFormat(("mistral",), _read, ((_BEGIN.text,),), precedence=2, marks=(_BEGIN.text, _CALL_ID, _ARGUMENTS))]
