"""Llama 3: a JSON object on a line of its own with a name and parameters, or one behind <|python_tag|>; several calls
are parted by semicolons.
"""

from __future__ import annotations

from homenode.chat.formats import ToolFormat
from homenode.chat.reading.call_objects import read_call
from homenode.chat.reading.reader import Marker, Reader
from homenode.chat.reading.source import Reading

_TAG, _OBJECT = Marker("<|python_tag|>"), Marker("{", on_new_line=True)


def _read(reader: Reader) -> Reading[None]:
    source = reader.source
    while marker := (yield from reader.read_content((_TAG, _OBJECT))):
        if marker is _OBJECT:
            source.put_back()
        while (yield from read_call(reader, tagged=marker is _TAG)):
            if (yield from source.skip_space()) != ";":
                break
            source.take()
        reader.give_back()


FORMATS = [
    ToolFormat(
        ("llama3_json", "llama4_json", "llama"),
        _read,
        (("<|python_tag|>",), ("<|start_header_id|>", '"parameters": dictionary of argument name')),
        precedence=1,
    )
]
