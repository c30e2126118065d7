"""DeepSeek V3 and R1: the word function, a name, and arguments in a block of code; V3.1: a name and arguments. Both
between tokens of their own.
"""

from __future__ import annotations

import re

from homenode.chat.formats import ToolFormat
from homenode.chat.reading.call_objects import read_arguments
from homenode.chat.reading.reader import Marker, Reader
from homenode.chat.reading.source import Reading

_BEGIN, _END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _SEPARATOR, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_FENCE, _KIND = "```", "function"
_MARKERS = (Marker(_BEGIN), Marker(_CALL))
_NAME = re.compile(r"[\w.:/-]+")


def _read(reader: Reader) -> Reading[None]:
    source = reader.source
    while marker := (yield from reader.read_content(_MARKERS)):
        if marker.text == _BEGIN:
            yield from source.skip_space()
            if not (yield from source.accept(_CALL)):
                reader.give_back()
                continue
        while (yield from _read_call(reader)):
            yield from source.skip_space()
            if not (yield from source.accept(_CALL)):
                break
        if not (yield from source.accept(_END)):
            reader.give_back()


def _read_call(reader: Reader) -> Reading[bool]:
    """What is between the tokens of a call, and its end, which may be missing."""
    source, attempt = reader.source, reader.attempt()
    yield from source.skip_space()
    name = yield from source.read_run(_NAME)
    if not (yield from source.accept(_SEPARATOR)):
        return False
    fenced = False
    if name == _KIND and (yield from source.skip_space()) != "{":
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


_INSTRUCTION = (
    f"To call tools, write {_BEGIN}{_CALL}NAME{_SEPARATOR}ARGUMENTS{_CALL_END}{_END}, with ARGUMENTS in JSON."
)

FORMATS = [
    ToolFormat(
        ("deepseek_v3", "deepseek_v31", "deepseek_r1"),
        _read,
        ((_CALL,), (_BEGIN,)),
        precedence=3,
        marks=(_BEGIN, _END, _CALL, _SEPARATOR, _CALL_END),
        instruction=_INSTRUCTION,
    )
]
