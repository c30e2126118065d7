"""Llama 3: a JSON object on a line of its own with a name and parameters, or one behind <|python_tag|>; several calls
are parted by semicolons.
"""

from __future__ import annotations

from homenode.chat.formats import ToolFormat
from homenode.chat.grammars.call_objects import call_object, object_begin, other_object_begins
from homenode.chat.grammars.calls import CallBegin, CallForms, CallWriter
from homenode.chat.syntax.call_objects import read_call
from homenode.chat.syntax.reader import Marker, Reader
from homenode.chat.syntax.source import Reading

_OBJECT = Marker("{", on_new_line=True)
_TAG = "<|python_tag|>"
_START, _END = "<|python_start|>", "<|python_end|>"  # of Llama 4
_MARKERS = (Marker(_TAG), Marker(_START), _OBJECT)


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


def _describe(writer: CallWriter) -> CallForms:
    call = writer.any_of([call_object(writer, tool, "name", "parameters") for tool in writer.tools])
    more = f'("; " {call})*' if writer.parallel else ""
    begins = [
        CallBegin(
            rf'" "? {writer.arguments(tool)} /[ \n]?\}}/ {more}', pattern=object_begin(tool, "name", "parameters")
        )
        for tool in writer.tools
    ]
    if writer.lark.is_token(_START):
        begins = [CallBegin(f"{call} {more} {writer.lark.mark(_END)}", _START)]
    return CallForms(
        begins, excluded=[_TAG, *([] if begins[0].text else [_START])], excluded_on_new_line=other_object_begins(writer)
    )


FORMATS = [
    ToolFormat(
        ("llama3_json", "llama4_json", "llama"),
        _read,
        ((_TAG,), ('"parameters": dictionary of argument name',)),
        precedence=3,
        marks=(_TAG, _START, _END),
        describe_calls=_describe,
    )
]
