"""Llama 3: a JSON object on a line of its own with a name and parameters, or one behind <|python_tag|>; several calls
are parted by semicolons.
"""

from __future__ import annotations

from homenode.chat.formats import ToolFormat
from homenode.chat.reading.call_objects import read_call
from homenode.chat.reading.reader import Marker, Reader
from homenode.chat.reading.source import Reading

_OBJECT = Marker("{", on_new_line=True)
_MARKERS = (Marker("<|python_tag|>"), Marker("<|python_start|>"), _OBJECT)
_END = "<|python_end|>"  # of Llama 4


def _read(reader: Reader) -> Reading[None]:
    source = reader.source
    while marker := (yield from reader.read_content(_MARKERS)):
        if marker is _OBJECT:
            source.put_back()
        while (yield from read_call(reader, tagged=marker is not _OBJECT)):
            if (yield from source.skip_space()) != ";":
                break
            source.take()
        if not reader.just_called or not (yield from source.accept(_END)):
            reader.give_back()


FORMATS = [
    ToolFormat(
        ("llama3_json", "llama4_json", "llama"),
        _read,
        (("<|python_tag|>",), ('"parameters": dictionary of argument name',)),
        precedence=3,
        marks=("<|python_tag|>", "<|python_start|>", _END),
    )
]
