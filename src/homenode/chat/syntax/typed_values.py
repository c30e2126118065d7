"""Arguments written as plain texts between tags, which get the types that the tool's schema has."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from homenode.chat.syntax.call_objects import normal_value
from homenode.chat.syntax.literals import PYTHON, quote
from homenode.chat.syntax.reader import Attempt
from homenode.chat.syntax.schema_types import KINDS, STRING, Types
from homenode.chat.syntax.source import Reading, TextSource

_WORDS = {"True": "true", "False": "false", "None": "null"}


def typed(text: str, kinds: Types) -> str:
    """The JSON text of a value written as `text`: of one of these types where it can be one, else a string."""
    if kinds == STRING:
        return f'"{quote(text)}"'
    bare = text.strip()
    value = normal_value(_WORDS.get(bare, bare))
    if value is None and kinds is not None and "string" not in kinds:
        value = normal_value(bare, PYTHON) or normal_value(bare.lower())
    if value is not None and value[0] == '"' and kinds is not None and "string" in kinds:
        value = None  # its quotes are part of it
    if value is not None and _fits(value, kinds):
        return value
    return f'"{quote(text)}"'


def _fits(value: str, kinds: Types) -> bool:
    if kinds is None:
        return True
    kind = KINDS.get(value[0], "number")
    return kind in kinds or (kind == "number" and "integer" in kinds)


class TypedArguments:
    """Arguments of a call, one after the other, as an object."""

    def __init__(self, source: TextSource, attempt: Attempt) -> None:
        self._source, self._attempt = source, attempt
        self._names: set[str] = set()

    def end(self) -> None:
        """There are no more."""
        self._attempt.write("}" if self._names else "{}")
        self._attempt.finish()

    def read(self, name: str, kinds: Types, end: str, followers: Sequence[str], *, lines: bool = True) -> Reading[bool]:
        """Read the value of argument `name`, of one of these types, up to `end`, which is taken with white space behind
        it.

        An `end` counts only where one of `followers` or the end of the text follows: a value may hold a page that has
        the same tags. Where decoding is bound, it does not count within a string of a JSON value. With `lines` a line
        break at the beginning is not of the value, nor then one at its end. False where the value does not end, or the
        argument was there before.
        """
        if not name or name in self._names:
            return False
        self._attempt.write(("{" if not self._names else ", ") + f'"{quote(name)}": ')
        self._names.add(name)
        cut = False
        if lines:
            yield from self._source.accept("\r")
            cut = yield from self._source.accept("\n")
        as_text = kinds == STRING
        value = _ParameterText(self._attempt if as_text else None, cut)
        strings = _JsonStrings(kinds) if self._attempt.bound else None
        plain = _not(end[0])
        while (yield from self._source.peek()):
            if run := self._source.take_run(plain):
                value.add(run)
                if strings is not None:
                    strings.add(run)
            elif (strings is None or not strings.open) and (yield from self._source.accept(end)):
                space = yield from self._source.read_run(_SPACE)
                if (yield from self._is_end(followers)):
                    text = value.end()
                    if not as_text:
                        self._attempt.write(typed(text, kinds))
                    return True
                value.add(end + space)
            else:
                value.add(character := self._source.take())
                if strings is not None:
                    strings.add(character)
        return False

    def _is_end(self, followers: Sequence[str]) -> Reading[bool]:
        if not (yield from self._source.peek()):
            return True
        for follower in followers:
            if (yield from self._source.looking_at(follower)):
                return True
        return False


class _JsonStrings:
    """Whether a text that begins as a JSON value of one of these types does is within one of its strings."""

    def __init__(self, kinds: Types) -> None:
        known = {"object": "{", "array": "["}
        self._firsts = '{["' if kinds is None else "".join(known.get(kind, "") for kind in kinds)
        self._is_json: bool | None = None if self._firsts else False
        self._escaped = self.open = False

    def add(self, text: str) -> None:
        """More of the text."""
        if self._is_json is None and (bare := text.lstrip()):
            self._is_json, text = bare[0] in self._firsts, bare
        if not self._is_json:
            return
        begin, self._escaped = int(self._escaped), False
        for found in _QUOTES.finditer(text, begin):
            self.open ^= found[0] == '"'
            self._escaped = found[0] == "\\"  # at the end: what it escapes is still to come


class _ParameterText:
    """A text as it comes; with an attempt it is written as a string at once, without a line break at its end if
    `cut`.
    """

    def __init__(self, attempt: Attempt | None, cut: bool) -> None:
        self._attempt, self._cut = attempt, cut
        self._pieces: list[str] = []
        self._break = ""
        if attempt is not None:
            attempt.write('"')

    def add(self, text: str) -> None:
        text = self._break + text
        self._break = "\n" if self._cut and text.endswith("\n") else ""
        text = text[: len(text) - len(self._break)]
        if self._attempt is not None:
            self._attempt.write(quote(text))
        else:
            self._pieces.append(text)

    def end(self) -> str:
        if self._attempt is not None:
            self._attempt.write('"')
        return "".join(self._pieces)


_SPACE = re.compile(r"[ \t\r\n]+")
_QUOTES = re.compile(r'"|\\.?', re.DOTALL)


@functools.lru_cache(maxsize=64)
def _not(first: str) -> re.Pattern[str]:
    return re.compile(f"[^{re.escape(first)}]+")
