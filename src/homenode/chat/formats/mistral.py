"""Mistral: behind [TOOL_CALLS] a list of calls, or in later models a name, perhaps [CALL_ID] and an id, then [ARGS] and
an object.
"""

from __future__ import annotations

import functools
import re

from homenode.chat.formats import ToolFormat
from homenode.chat.grammars.call_objects import call_list, call_object
from homenode.chat.grammars.calls import CallBegin, CallForms, CallWriter
from homenode.chat.syntax.call_objects import read_arguments, read_call, read_calls
from homenode.chat.syntax.reader import Marker, Reader
from homenode.chat.syntax.source import Reading

_BEGIN = Marker("[TOOL_CALLS]")
_CALL_ID, _ARGUMENTS = "[CALL_ID]", "[ARGS]"
_NAME = re.compile(r"[\w.:/-]+")


def _read(reader: Reader) -> Reading[None]:
    while (yield from reader.read_content((_BEGIN,))):
        is_json = (yield from reader.source.skip_space()) in ("[", "{")
        if not (yield from read_calls(reader, _read_object) if is_json else _read_named(reader)):
            reader.give_back()


_read_object = functools.partial(read_call, id_comes_last=True)


def _read_named(reader: Reader) -> Reading[bool]:
    source, attempt = reader.source, reader.attempt()
    name = yield from source.read_run(_NAME)
    if not attempt.can_be_called(name):
        return False
    attempt.name = name
    yield from source.skip_space()
    if (yield from source.accept(_CALL_ID)):
        attempt.id = yield from source.read_run(_NAME)
    yield from source.accept(_ARGUMENTS)
    yield from source.skip_space()
    if not (yield from read_arguments(source, attempt)):
        return False
    attempt.finish()
    return True


def _describe(writer: CallWriter) -> CallForms:
    lark, ways = writer.lark, []
    if not lark.is_token(_ARGUMENTS):
        an_id = '(/,[ \\n]?"id": ?"[a-zA-Z0-9]{9}"/)?'
        ways.append(f'" "? {call_list(writer, [call_object(writer, tool, behind=an_id) for tool in writer.tools])}')
    if lark.is_token(_ARGUMENTS) or not lark.is_token(_BEGIN.text):
        an_id = f"({lark.mark(_CALL_ID)} /[a-zA-Z0-9]{{9}}/)?" if lark.is_token(_CALL_ID) else ""
        named = [
            f"{lark.mark(tool.name)} {an_id} {lark.mark(_ARGUMENTS)} {writer.arguments(tool)}" for tool in writer.tools
        ]
        ways.append(writer.one_or_more(writer.any_of(named), lark.mark(_BEGIN.text)))
    return CallForms([CallBegin(writer.any_of(ways), _BEGIN.text)])


FORMATS = [
    ToolFormat(
        ("mistral",),
        _read,
        ((_BEGIN.text,),),
        precedence=2,
        marks=(_BEGIN.text, _CALL_ID, _ARGUMENTS),
        describe_calls=_describe,
    )
]
