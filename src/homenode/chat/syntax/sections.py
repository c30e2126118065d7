"""Sections of calls: a mark, calls that each begin with a mark of their own, and a mark at the end."""

from __future__ import annotations

from collections.abc import Callable

from homenode.chat.syntax.reader import Marker, Reader
from homenode.chat.syntax.source import Reading


def read_sections(
    reader: Reader, begin: Marker, call: Marker, end: str, read_call: Callable[[Reader], Reading[bool]]
) -> Reading[None]:
    """Read a message with such sections, whose first mark and last may be missing.

    `read_call` reads what follows the mark of a call, up to its end. False where it is none, with what was taken in the
    source's memory.
    """
    source = reader.source
    while marker := (yield from reader.read_content((begin, call))):
        if marker is begin:
            yield from source.skip_space()
            if not (yield from source.accept(call.text)):
                reader.give_back()
                continue
        while (yield from read_call(reader)):
            yield from source.skip_space()
            if not (yield from source.accept(call.text)):
                break
        if not reader.just_called or not (yield from source.accept(end)):
            reader.give_back()
