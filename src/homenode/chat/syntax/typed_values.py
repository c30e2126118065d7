"""Arguments written as plain texts between tags, which get the types that the tool's schema has."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from homenode.chat.syntax.call_objects import normal_value
from homenode.chat.syntax.literals import PYTHON, quote
from homenode.chat.syntax.reader import Attempt
from homenode.chat.syntax.schema_types import KINDS, STRING, Types
from homenode.chat.syntax.source import Reading, TextSource

_LOOSE_NUMBER = re.compile(
    r"(?P<sign>[-+]?)(?P<whole>(?:[0-9]+(?:_[0-9]+)*)?)\.?(?P<part>(?<=\.)[0-9]*|)(?P<exponent>[eE][-+]?[0-9]+)?",
    re.ASCII,
)
_WORDS = {"True": "true", "False": "false", "None": "null"}


def typed(text: str, kinds: Types) -> str:
    """The JSON text of a value written as `text`: of one of these types where it can be one, else a string."""
    if kinds == STRING:
        return f'"{quote(text)}"'
    bare = text.strip()
    value = normal_value(_WORDS.get(bare, bare))
    if value is None and kinds is not None and "string" not in kinds:
        value = normal_value(bare, PYTHON) or normal_value(bare.lower()) or _number(bare)
    if value == "null" and kinds is not None and "string" not in kinds:
        return value  # an argument that is left out
    if value is not None and value[0] == '"' and kinds is not None and "string" in kinds:
        value = None  # its quotes are part of it
    if value is not None and _fits(value, kinds):
        return value
    return f'"{quote(text)}"'


def _number(text: str) -> str | None:
    """A number as programs and people write it, such as `.5`, `5.`, `+5` or `1_000`, as JSON does."""
    found = _LOOSE_NUMBER.fullmatch(text)
    if found is None or not (found["whole"] or found["part"]):
        return None
    sign, whole, part = found["sign"].replace("+", ""), found["whole"].replace("_", ""), found["part"]
    return f"{sign}{whole.lstrip('0') or '0'}{f'.{part}' if part else ''}{found['exponent'] or ''}"


def _fits(value: str, kinds: Types) -> bool:
    if kinds is None:
        return True
    kind = KINDS.get(value[0], "number")
    return kind in kinds or (kind == "number" and "integer" in kinds)


@dataclass(frozen=True)
class ArgumentMarks:
    """The marks around the arguments of a call: of the name of one, `name_begin` and `name_end`, and of a value's end.
    `call_ends`: what ends the call; `begins`: what begins one, which no value has where the end of a value is missing.
    `closings`: those of `call_ends` and of what is around calls that end one whatever stands behind them.
    """

    name_begin: str
    name_end: str
    value_end: str
    call_ends: tuple[str, ...]
    begins: tuple[str, ...]
    closings: tuple[str, ...] = ()

    @property
    def followers(self) -> tuple[str, ...]:
        """Return what follows a value."""
        return (self.name_begin, *self.call_ends)


class TypedArguments:
    """Arguments of a call, one after the other, as an object."""

    def __init__(self, source: TextSource, attempt: Attempt, marks: ArgumentMarks) -> None:
        self._source, self._attempt, self._marks = source, attempt, marks
        self._names: set[str] = set()
        self._firsts = {text[0] for text in (marks.value_end, *marks.followers, *marks.begins)}

    def end(self) -> None:
        """There are no more."""
        self._attempt.write("}" if self._names else "{}")
        self._attempt.finish()

    def read(self, name: str, kinds: Types, *, end: str = "", lines: bool = True) -> Reading[bool]:
        """Read the value of argument `name`, of one of these types, up to its end, which is taken with white space
        behind it. `end`: in place of the mark.

        The mark counts only where another argument, the end of the call or of the text follows: a value may hold a page
        that has the same tags. Where decoding is bound, it does not count within a string of a JSON value; elsewhere it
        may be missing, see `_lacks_end`. With `lines` a line break at the beginning is not of the value, nor then one
        at its end. False where the value does not end, or the argument was there before.
        """
        if not name or name in self._names:
            return False
        self._attempt.write(("{" if not self._names else ", ") + f'"{quote(name)}": ')
        self._names.add(name)
        cut = False
        if lines:
            yield from self._source.accept("\r")
            cut = yield from self._source.accept("\n")
        value = _ParameterText(self._attempt if kinds == STRING else None)
        strings = _JsonStrings(kinds) if self._attempt.bound else None
        end, may_lack = end or self._marks.value_end, not self._attempt.bound and not end
        plain = _without("".join(sorted(self._firsts | {end[0]})))
        while (yield from self._source.peek()):
            if run := self._source.take_run(plain):
                value.add(run)
                if strings is not None:
                    strings.add(run)
            elif (strings is None or not strings.open) and (yield from self._source.accept(end)):
                space = yield from self._source.read_run(_SPACE)
                if (yield from self._is_end()):
                    self._end_value(value.end(cut=cut), kinds)
                    return True
                value.add(end + space)
            elif may_lack and (yield from self._lacks_end()):
                self._end_value(value.end(cut=True), kinds)
                return True
            else:
                may_lack = may_lack and (yield from self._source.looking_at_one(self._marks.begins)) is None
                value.add(character := self._source.take())
                if strings is not None:
                    strings.add(character)
        return False

    def _end_value(self, text: str, kinds: Types) -> None:
        if kinds != STRING:
            self._attempt.write(typed(text, kinds))

    def _is_end(self) -> Reading[bool]:
        if not (yield from self._source.peek()):
            return True
        return (yield from self._source.looking_at_one(self._marks.followers)) is not None

    def _lacks_end(self) -> Reading[bool]:
        """Return whether the value ends here without its mark: at an argument that the tool has and that was not there
        before, or at the end of the call, behind which another call, what is around calls, or nothing follows.
        """
        marks, source = self._marks, self._source
        if (yield from source.looking_at(marks.name_begin)):
            names = self._attempt.parameters - self._names
            named = [f"{marks.name_begin}{name}{marks.name_end}" for name in names]
            return (yield from source.looking_at_one(named)) is not None
        if (yield from source.looking_at_one(marks.closings)) is not None:
            return True
        behind = (*marks.call_ends, *marks.closings, *marks.begins)
        for mark in marks.call_ends:
            if (yield from source.looking_at_pair(mark, behind)):
                return True
        return False


class _JsonStrings:
    """A watch on whether a text that begins as a JSON value of one of these types does is within one of its strings."""

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
    """A text as it comes; with an attempt it is written as a string at once."""

    def __init__(self, attempt: Attempt | None) -> None:
        self._attempt = attempt
        self._pieces: list[str] = []
        self._break = ""
        if attempt is not None:
            attempt.write('"')

    def add(self, text: str) -> None:
        text = self._break + text
        self._break = "\n" if text.endswith("\n") else ""
        self._write(text[: len(text) - len(self._break)])

    def _write(self, text: str) -> None:
        if self._attempt is not None:
            self._attempt.write(quote(text))
        else:
            self._pieces.append(text)

    def end(self, *, cut: bool) -> str:
        """The text where it was not written at once. `cut`: without a line break at its end."""
        if not cut:
            self._write(self._break)
        if self._attempt is not None:
            self._attempt.write('"')
        return "".join(self._pieces)


_SPACE = re.compile(r"[ \t\r\n]+")
_QUOTES = re.compile(r'"|\\.?', re.DOTALL)


@functools.lru_cache(maxsize=64)
def _without(characters: str) -> re.Pattern[str]:
    return re.compile(f"[^{re.escape(characters)}]+")
