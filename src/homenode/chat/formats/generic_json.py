"""Models whose chat template knows nothing of tools: a JSON object on a line of its own that names an offered tool, or
one between the tags that most models have seen.
"""

from __future__ import annotations

from homenode.chat.formats import ToolFormat
from homenode.chat.formats.hermes import CALL, read_tagged_call
from homenode.chat.grammars.call_objects import object_begin, other_object_begins
from homenode.chat.grammars.calls import CallBegin, CallForms, CallWriter
from homenode.chat.syntax.call_objects import read_call, read_call_list
from homenode.chat.syntax.reader import Marker, Reader
from homenode.chat.syntax.source import Reading

_OBJECT, _LIST = Marker("{", on_new_line=True), Marker("[", on_new_line=True)


def _read(reader: Reader) -> Reading[None]:
    while marker := (yield from reader.read_content((_OBJECT, _LIST, CALL))):
        if marker is CALL:
            yield from read_tagged_call(reader)
            continue
        read = read_call if marker is _OBJECT else read_call_list
        reader.source.put_back()
        if not (yield from read(reader, tagged=False)):
            reader.give_back()


def _describe(writer: CallWriter) -> CallForms:
    begins = [
        CallBegin(rf'" "? {writer.arguments(tool)} /[ \n]?\}}/', pattern=object_begin(tool)) for tool in writer.tools
    ]
    return CallForms(begins, '"\\n"', excluded=(CALL.text,), excluded_on_new_line=other_object_begins(writer))


FORMATS = [ToolFormat(("json", "generic"), _read, describe_calls=_describe)]
