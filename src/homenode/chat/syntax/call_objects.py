"""Calls that are JSON objects with a name and arguments, alone or in lists."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence

from homenode.chat.syntax.literals import JSON, Dialect, read_string, read_value
from homenode.chat.syntax.reader import Attempt, Marker, Reader
from homenode.chat.syntax.source import Reading, TextSource

_NAMES = ("name", "tool_name")
_ARGUMENTS = ("arguments", "parameters")
_IDS = ("id", "tool_call_id")
_FUNCTION = "function"
_OF_CALLS = (*_NAMES, *_ARGUMENTS, *_IDS, _FUNCTION, "type")


def read_call(reader: Reader, *, tagged: bool = True, id_comes_last: bool = False) -> Reading[bool]:
    """Read an object that is a call. False where it is none, with what was taken in the source's memory.

    An object that is not `tagged` as a call must name an offered tool, have arguments, and begin with a key of calls.
    """
    attempt = reader.attempt(tagged)
    attempt.id_comes_last = id_comes_last
    if not (yield from _read_members(reader.source, attempt, tagged, nested=False)):
        return False
    if attempt.name is None or not (tagged or attempt.has_arguments):
        return False
    attempt.finish()
    return True


def read_call_list(reader: Reader, *, tagged: bool = True, id_comes_last: bool = False) -> Reading[bool]:
    """Read a list of calls. False where it is none: the calls before the fault have been written, and the text from
    there on is in the source's memory.
    """
    return (yield from _read_list(reader, functools.partial(read_call, tagged=tagged, id_comes_last=id_comes_last)))


def _read_list(reader: Reader, read_one: Callable[[Reader], Reading[bool]]) -> Reading[bool]:
    source = reader.source
    if (yield from source.skip_space()) != "[":
        return False
    source.take()
    while True:
        yield from source.skip_space()
        if not (yield from read_one(reader)):
            return False
        following = yield from source.skip_space()
        if following == "," or following == "]":
            source.take()
            source.forget()
        if following != ",":
            return following == "]" or not following


def read_calls(reader: Reader, read_one: Callable[[Reader], Reading[bool]] = read_call) -> Reading[bool]:
    """Read a list of calls, or calls with nothing but white space between them, each by `read_one`. False as
    `read_call_list`.
    """
    if (yield from reader.source.skip_space()) == "[":
        return (yield from _read_list(reader, read_one))
    called = False
    while (yield from reader.source.skip_space()) == "{":
        if not (yield from read_one(reader)):
            return False
        called = True
    return called


def read_tagged_list(
    reader: Reader,
    markers: Sequence[Marker],
    end: str = "",
    read_one: Callable[[Reader], Reading[bool]] = read_call,
) -> Reading[None]:
    """Read a message with calls behind markers, as `read_calls` does; `end` may follow them."""
    while (yield from reader.read_content(markers)):
        if (yield from read_calls(reader, read_one)):
            yield from reader.source.skip_space()
            if end and (yield from reader.source.accept(end)):
                continue
        reader.give_back()


def _read_members(source: TextSource, attempt: Attempt, tagged: bool, nested: bool) -> Reading[bool]:
    if (yield from source.skip_space()) != "{":
        return False
    source.take()
    while True:
        yield from source.skip_space()
        key = yield from read_text(source)
        if key is None or not (tagged or key in _OF_CALLS) or (yield from source.skip_space()) != ":":
            return False
        source.take()
        value = yield from source.skip_space()
        if key == _FUNCTION and value == "{" and not nested:
            read = yield from _read_members(source, attempt, tagged, nested=True)
        else:
            read = yield from _read_member(source, attempt, key)
        if not read:
            return False
        following = yield from source.skip_space()
        if not following or following not in ",}":
            return False
        source.take()
        if following == "}":
            return True


def _read_member(source: TextSource, attempt: Attempt, key: str) -> Reading[bool]:
    """The value of one key."""
    value = yield from source.peek()
    if key in _NAMES or (key == _FUNCTION and attempt.name is None):
        name = yield from read_text(source)
        if name is None or not attempt.can_be_called(name):
            return False
        attempt.name = name
        return True
    if key in _ARGUMENTS:
        return (yield from read_arguments(source, attempt))
    if key in _IDS and value == '"':
        attempt.id = yield from read_text(source)
        return attempt.id is not None
    return (yield from read_value(source, _drop))


def read_arguments(source: TextSource, attempt: Attempt) -> Reading[bool]:
    """Arguments of a call: an object, a JSON text that has one, or null for none."""
    if attempt.has_arguments:
        return False
    first = yield from source.peek()
    if first == "{":
        return (yield from read_value(source, attempt.write))
    if first == '"':
        written = yield from read_text(source)
        text = "{}" if written == "" else normal_object(written or "")
        if text is not None:
            attempt.write(text)
        return text is not None
    pieces: list[str] = []
    read = yield from read_value(source, pieces.append)
    if read and pieces == ["null"]:
        attempt.write("{}")
    return read and pieces == ["null"]


def finish_call(source: TextSource, attempt: Attempt, name: str, end: str) -> Reading[bool]:
    """Read the arguments of a call to `name` and what may be behind them, the mark `end`, which may also stand in
    their place. False where no offered tool has that name, or what is there are no arguments.
    """
    if not attempt.can_be_called(name):
        return False
    attempt.name = name
    yield from source.skip_space()
    if not (yield from source.looking_at(end)) and not (yield from read_arguments(source, attempt)):
        return False
    attempt.finish()
    yield from source.skip_space()
    if (yield from source.accept(end)):
        source.forget()
    return True


def normal_object(text: str) -> str | None:
    """A JSON text that is an object, as `read_value` writes it; None for another text."""
    return normal_value(text) if text.lstrip()[:1] == "{" else None


def normal_value(text: str, dialect: Dialect = JSON) -> str | None:
    """A value in a dialect, as `read_value` writes it in JSON; None for a text that is none."""
    source, pieces = TextSource(), list[str]()
    source.feed(text)
    source.end()
    return "".join(pieces) if _whole(source, pieces.append, dialect) else None


def _whole(source: TextSource, emit: Callable[[str], None], dialect: Dialect) -> bool:
    """Return whether an ended source has a value and nothing else."""

    def read() -> Reading[bool]:
        return (yield from read_value(source, emit, dialect)) and not (yield from source.skip_space())

    try:
        next(reading := read())
    except StopIteration as end:
        return bool(end.value)
    reading.close()
    return False


def read_text(source: TextSource) -> Reading[str | None]:
    """The value of a JSON string; None where there is none, or one that no text can hold."""
    pieces: list[str] = []
    if not (yield from read_string(source, pieces.append, JSON)):
        return None
    text: str = json.loads("".join(pieces))
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return None
    return text


def _drop(_: str) -> None:
    pass
