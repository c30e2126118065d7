"""Llama 3: a JSON object on a line of its own with a name and parameters, or one behind <|python_tag|>; several calls
are parted by semicolons, or in a list. Tools that Llama 3.1 was trained on are called as NAME.call(KEY=VALUE) behind
that tag.
"""

from __future__ import annotations

import functools
import re

from homenode.chat.formats import ToolFormat
from homenode.chat.formats.pythonic import read_keyword_arguments
from homenode.chat.grammars.call_objects import call_object, object_begin, other_object_begins
from homenode.chat.grammars.calls import CallBegin, CallForms, CallWriter
from homenode.chat.syntax.call_objects import read_call, read_calls
from homenode.chat.syntax.reader import Marker, Reader
from homenode.chat.syntax.source import Reading

_OBJECT, _LIST = Marker("{", on_new_line=True), Marker("[", on_new_line=True)
_TAG = "<|python_tag|>"
_START, _END = "<|python_start|>", "<|python_end|>"  # of Llama 4
_MARKERS = (Marker(_TAG), Marker(_START), _OBJECT, _LIST)
_NAME = re.compile(r"[\w:/-]+")
_METHOD = ".call("


def _read(reader: Reader) -> Reading[None]:
    source = reader.source
    while marker := (yield from reader.read_content(_MARKERS)):
        tagged = marker not in (_OBJECT, _LIST)
        if not tagged:
            source.put_back()
        elif (yield from source.skip_space()) not in ("{", "["):
            if not (yield from _read_method(reader)):
                reader.give_back()
            continue
        while (yield from read_calls(reader, functools.partial(read_call, tagged=tagged))):
            if (yield from source.skip_space()) != ";":
                break
            source.take()
        if not reader.just_called or not (yield from source.accept(_END)):
            reader.give_back()


def _read_method(reader: Reader) -> Reading[bool]:
    source, attempt = reader.source, reader.attempt(tagged=False)
    name = yield from source.read_run(_NAME)
    if not attempt.can_be_called(name) or not (yield from source.accept(_METHOD)):
        return False
    attempt.name = name
    return (yield from read_keyword_arguments(source, attempt))


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
