"""DeepSeek V3 and R1: the word function, a name, and arguments in a block of code; V3.1: a name and arguments. Both
between tokens of their own.
"""

from __future__ import annotations

import re

from homenode.chat.formats import ToolFormat
from homenode.chat.grammars.calls import CallBegin, CallForms, CallWriter
from homenode.chat.syntax.call_objects import read_arguments
from homenode.chat.syntax.reader import Marker, Reader
from homenode.chat.syntax.sections import read_sections
from homenode.chat.syntax.source import Reading

_BEGIN, _CALL = Marker("<｜tool▁calls▁begin｜>"), Marker("<｜tool▁call▁begin｜>")
_SEPARATOR, _CALL_END, _END = "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"
_FENCE, _KIND = "```", "function"
_NAME = re.compile(r"[\w.:/-]+")


def _read(reader: Reader) -> Reading[None]:
    return read_sections(reader, _BEGIN, _CALL, _END, _read_call)


def _read_call(reader: Reader) -> Reading[bool]:
    """Return what is between the tokens of a call, and its end, which may be missing."""
    source, attempt = reader.source, reader.attempt()
    yield from source.skip_space()
    name = yield from source.read_run(_NAME)
    yield from source.skip_space()
    if not (yield from source.accept(_SEPARATOR)):
        return False
    if name == _KIND and (yield from source.skip_space()) not in ("{", _FENCE[0]):
        name = yield from source.read_run(_NAME)
    yield from source.skip_space()
    if fenced := (yield from source.accept(_FENCE)):
        yield from source.accept("json")
    if not attempt.can_be_called(name):
        return False
    attempt.name = name
    yield from source.skip_space()
    if not (yield from read_arguments(source, attempt)):
        return False
    attempt.finish()
    yield from source.skip_space()
    if fenced and (yield from source.accept(_FENCE)):
        yield from source.skip_space()
    if (yield from source.accept(_CALL_END)):
        source.forget()
    return True


def _describe(writer: CallWriter) -> CallForms:
    mark, calls = writer.lark.mark, []
    for tool in writer.tools:
        arguments = writer.arguments(tool)
        calls.append(f"{mark(_CALL.text + tool.name + _SEPARATOR)} {arguments} {mark(_CALL_END)}")
        begin, end = f"{_CALL.text}{_KIND}{_SEPARATOR}{tool.name}\n{_FENCE}json\n", f"\n{_FENCE}{_CALL_END}"
        calls.append(f"{mark(begin)} {arguments} {mark(end)}")
    all_calls = writer.one_or_more(writer.any_of(calls), '"\\n"?')
    return CallForms([CallBegin(f"{all_calls} {mark(_END)}", _BEGIN.text)], excluded=(_CALL.text,))


_INSTRUCTION = (
    f"To call tools, write {_BEGIN.text}{_CALL.text}NAME{_SEPARATOR}ARGUMENTS{_CALL_END}{_END}, with ARGUMENTS in JSON."
)

FORMATS = [
    ToolFormat(
        ("deepseek_v3", "deepseek_v31", "deepseek_r1"),
        _read,
        ((_CALL.text,), (_BEGIN.text,)),
        precedence=3,
        marks=(_BEGIN.text, _END, _CALL.text, _SEPARATOR, _CALL_END),
        instruction=_INSTRUCTION,
        describe_calls=_describe,
    )
]
