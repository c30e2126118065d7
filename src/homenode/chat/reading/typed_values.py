"""Arguments written as plain texts between tags, which get the types that the tool's schema has."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from homenode.chat.reading.call_objects import normal_value
from homenode.chat.reading.literals import quote
from homenode.chat.reading.reader import Attempt
from homenode.chat.reading.source import Reading, TextSource

_KINDS = {"{": "object", "[": "array", '"': "string", "t": "boolean", "f": "boolean", "n": "null"}
_WORDS = {"True": "true", "False": "false", "None": "null"}
_STRING = frozenset(("string",))
_DEEPEST = 16  # of alternatives within alternatives


def types_of(schema: Any, depth: int = 0) -> frozenset[str] | None:
    """The JSON types that a schema allows, None where it does not say."""
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return None
    kinds = schema.get("type")
    if isinstance(kinds, str):
        return frozenset((kinds,))
    if isinstance(kinds, list):
        return frozenset(kind for kind in kinds if isinstance(kind, str))
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list) and values:
        return frozenset(_KINDS.get(json.dumps(value)[:1], "number") for value in values)
    for word in ("anyOf", "oneOf"):
        if isinstance(alternatives := schema.get(word), list):
            found = [types_of(alternative, depth + 1) for alternative in alternatives]
            return None if None in found else frozenset().union(*(one for one in found if one))
    return None


def typed(text: str, schema: Any) -> str:
    """The JSON text of a value written as `text`: of a type that the schema allows where it can be one, else a string."""
    kinds = types_of(schema)
    if kinds == _STRING:
        return f'"{quote(text)}"'
    bare = text.strip()
    value = normal_value(_WORDS.get(bare, bare))
    if value is not None and value[0] == '"' and kinds is not None and "string" in kinds:
        value = None  # its quotes are part of it
    if value is not None and _fits(value, kinds):
        return value
    return f'"{quote(text)}"'


def _fits(value: str, kinds: frozenset[str] | None) -> bool:
    if kinds is None:
        return True
    kind = _KINDS.get(value[0], "number")
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

    def read(self, name: str, schema: Any, end: str, followers: Sequence[str], *, lines: bool = True) -> Reading[bool]:
        """Read the value of argument `name` up to `end`, which is taken with white space behind it.

        An `end` counts only where one of `followers` or the end of the text follows: a value may hold a page that has
        the same tags. With `lines` a line break at the beginning is not of the value, nor then one at its end. False
        where the value does not end, or the argument was there before.
        """
        if not name or name in self._names:
            return False
        self._attempt.write(("{" if not self._names else ", ") + f'"{quote(name)}": ')
        self._names.add(name)
        cut = False
        if lines:
            yield from self._source.accept("\r")
            cut = yield from self._source.accept("\n")
        as_text = types_of(schema) == _STRING
        value = _ParameterText(self._attempt if as_text else None, cut)
        plain = _not(end[0])
        while (yield from self._source.peek()):
            if run := self._source.take_run(plain):
                value.add(run)
            elif (yield from self._source.accept(end)):
                space = yield from self._source.read_run(_SPACE)
                if (yield from self._is_end(followers)):
                    text = value.end()
                    if not as_text:
                        self._attempt.write(typed(text, schema))
                    return True
                value.add(end + space)
            else:
                value.add(self._source.take())
        return False

    def _is_end(self, followers: Sequence[str]) -> Reading[bool]:
        if not (yield from self._source.peek()):
            return True
        for follower in followers:
            if (yield from self._source.looking_at(follower)):
                return True
        return False


class _ParameterText:
    """A text as it comes; with an attempt it is written as a string at once, without a line break at its end if `cut`."""

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


@functools.lru_cache(maxsize=64)
def _not(first: str) -> re.Pattern[str]:
    return re.compile(f"[^{re.escape(first)}]+")
