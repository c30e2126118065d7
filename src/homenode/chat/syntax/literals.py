"""Values written in JSON or in a notation like it, read as they come and written as JSON.

A dialect says how strings, keys and words look. Nesting is kept in a list, so that no depth exhausts the stack, and
each character is looked at a bounded number of times.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from homenode.chat.syntax.source import Reading, TextSource

Emit = Callable[[str], None]
_WORD = re.compile(r"[-+.\w]+", re.ASCII)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_KEY = re.compile(r"[^:,{}\[\]<>\"\s]+")
_HEX = "0123456789abcdefABCDEF"
_LONGEST_ESCAPE = 8
_JSON_WORDS = {"true": "true", "false": "false", "null": "null"}
_SIMPLE = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "\\": "\\", "'": "'", '"': '"'}


@dataclass(frozen=True)
class Dialect:
    """`quotes`: what strings begin and end with. `escapes`: "json", "python" or "" for none. `bare_keys`: keys of
    objects are no strings. `words`: what JSON calls words of this notation.
    """

    quotes: tuple[str, ...] = ('"',)
    escapes: str = "json"
    bare_keys: bool = False
    trailing_comma: bool = False
    words: Mapping[str, str] = field(default_factory=lambda: _JSON_WORDS)
    plain: re.Pattern[str] = field(init=False)
    firsts: frozenset[str] = field(init=False)  # characters that only strings begin with

    def __post_init__(self) -> None:
        object.__setattr__(self, "firsts", frozenset(quote[0] for quote in self.quotes))
        firsts = "".join(map(re.escape, sorted(self.firsts)))
        object.__setattr__(self, "plain", re.compile(rf"[^\\\x00-\x1f\ud800-\udfff{firsts}]+"))


JSON = Dialect()
PYTHON = Dialect(
    ('"""', "'''", '"', "'"), "python", False, True, {**_JSON_WORDS, "True": "true", "False": "false", "None": "null"}
)


def quote(text: str) -> str:
    """A string in JSON, without its quotes."""
    return json.dumps(text, ensure_ascii=False)[1:-1] if _encodable(text) else json.dumps(text)[1:-1]


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_value(source: TextSource, emit: Emit, dialect: Dialect = JSON) -> Reading[bool]:
    """Read a value and emit it as JSON. False where it is none, at the first character that does not fit."""
    closers: list[str] = []
    while True:
        begun = yield from source.skip_space()
        if begun and begun in "{[":
            source.take()
            emit(begun)
            closers.append("}" if begun == "{" else "]")
            if (yield from source.skip_space()) != closers[-1]:
                if begun == "{" and not (yield from _read_key(source, emit, dialect)):
                    return False
                continue
        elif not (yield from _read_scalar(source, emit, dialect)):
            return False
        behind = yield from _close(source, emit, dialect, closers)
        if behind is not None:
            return behind


def _close(source: TextSource, emit: Emit, dialect: Dialect, closers: list[str]) -> Reading[bool | None]:
    """Return what follows a value: brackets that close, then a comma. None where another value follows."""
    while closers:
        following = yield from source.skip_space()
        if following == closers[-1]:
            emit(source.take())
            closers.pop()
            continue
        if following != ",":
            return False
        source.take()
        if dialect.trailing_comma and (yield from source.skip_space()) == closers[-1]:
            continue
        emit(", ")
        if closers[-1] == "}" and not (yield from _read_key(source, emit, dialect)):
            return False
        return None
    return True


def _read_key(source: TextSource, emit: Emit, dialect: Dialect) -> Reading[bool]:
    yield from source.skip_space()
    if not (yield from read_string(source, emit, dialect)):
        key = (yield from source.read_run(_KEY)) if dialect.bare_keys else ""
        if not key:
            return False
        emit(f'"{quote(key)}"')
    if (yield from source.skip_space()) != ":":
        return False
    source.take()
    emit(": ")
    return True


def _read_scalar(source: TextSource, emit: Emit, dialect: Dialect) -> Reading[bool]:
    if (yield from source.peek()) in dialect.firsts:
        return (yield from read_string(source, emit, dialect))
    word = yield from source.read_run(_WORD)
    known = dialect.words.get(word) or (word if _NUMBER.fullmatch(word) else None)
    if known is None:
        return False
    emit(known)
    return True


def read_string(source: TextSource, emit: Emit, dialect: Dialect = JSON) -> Reading[bool]:
    """Read a string and emit it piece by piece. False, with nothing taken, where no string begins; False as well where
    it does not end or has a wrong escape.
    """
    mark = yield from source.accept_one(dialect.quotes)
    if mark is None:
        return False
    emit('"')
    while (yield from source.peek()):
        if run := source.take_run(dialect.plain):
            emit(quote(run))
        elif (yield from source.accept(mark)):
            emit('"')
            return True
        elif dialect.escapes and (yield from source.peek()) == "\\":
            source.take()
            if not (yield from _read_escape(source, emit, dialect.escapes)):
                return False
        else:
            emit(quote(source.take()))
    return False


def _read_escape(source: TextSource, emit: Emit, kind: str) -> Reading[bool]:
    """Return what follows a backslash."""
    letter = yield from source.peek()
    if not letter:
        return False
    digits = {"u": 4, "x": 2, "U": 8}.get(letter, 0) if kind == "python" else 4 * (letter == "u")
    if digits:
        source.take()
        code = ""
        while len(code) < digits and (yield from source.peek()) and (yield from source.peek()) in _HEX:
            code += source.take()
        if len(code) < digits or int(code, 16) > 0x10FFFF:
            return False
        emit(f"\\u{code}" if digits == 4 else quote(chr(int(code, 16))))
        return True
    if kind == "json":
        if letter not in '"\\/bfnrt':
            return False
        emit("\\" + source.take())
        return True
    source.take()
    if letter != "\n":  # a backslash before a line break joins lines
        emit(quote(_SIMPLE.get(letter, "\\" + letter)))
    return True
