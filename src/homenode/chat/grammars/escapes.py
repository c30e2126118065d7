"""Regular expressions for texts within a string of JSON, with its escapes. Python's strings between double quotes read
those, too.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser as sre_parser  # type: ignore[attr-defined]
from typing import Any

from homenode.chat.grammars.lark import escape
from homenode.errors import UserError

_LAST = 0x10FFFF
_ESCAPED = {"\n": r"\n", "\t": r"\t", "\r": r"\r", "\b": r"\b", "\f": r"\f", '"': r"\"", "\\": r"\\"}
Ranges = list[tuple[int, int]]  # of code points, both ends included, in order


def refusal(what: str) -> UserError:
    """Return what is raised for a part of a grammar of an input that cannot be written."""
    text = f"`tools`: the grammar of an input has {what[:100]!r}, which this model's form of calls has no way to write"
    return UserError(text, param="tools")


def escaped_regex(pattern: str) -> str:
    """A regular expression, for between slashes, for the texts that `pattern` matches as a whole, written with JSON's
    escapes.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parsed = sre_parser.parse(pattern)
    except (re.error, RecursionError, OverflowError):
        raise refusal(pattern) from None
    return _Regex(pattern).sequence(parsed, parsed.state.flags)


class _Regex:
    """Writes parts of a parsed regular expression."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._parts: dict[Any, Callable[[Any, int], str]] = {
            sre.LITERAL: lambda code, flags: self._set([(code, code)], flags),
            sre.NOT_LITERAL: lambda code, flags: _class(_without(self._cases([(code, code)], flags))),
            sre.ANY: lambda _, flags: _class([(0, _LAST)] if flags & re.DOTALL else _without([(10, 10)])),
            sre.IN: self._in,
            sre.BRANCH: lambda found, flags: self._any([self.sequence(one, flags) for one in found[1]]),
            sre.SUBPATTERN: lambda found, flags: f"({self.sequence(found[3], (flags | found[1]) & ~found[2])})",
            sre.MAX_REPEAT: self._repeat,
            sre.MIN_REPEAT: self._repeat,
            sre.AT: self._anchor,
        }

    def sequence(self, parts: Iterable[tuple[Any, Any]], flags: int) -> str:
        """Parts one after the other."""
        written = []
        for kind, value in parts:
            if kind not in self._parts:
                raise refusal(self._pattern)
            written.append(self._parts[kind](value, flags))
        return "".join(written) or "()"

    def _any(self, found: Sequence[str]) -> str:
        return f"({'|'.join(found)})"

    def _repeat(self, found: tuple[Any, Any, Any], flags: int) -> str:
        least, most, parts = int(found[0]), found[1], found[2]
        limit = "" if most == sre.MAXREPEAT else str(int(most))
        return f"({self.sequence(parts, flags)}){{{least},{limit}}}"

    def _anchor(self, kind: Any, flags: int) -> str:
        if kind in (sre.AT_BEGINNING, sre.AT_BEGINNING_STRING, sre.AT_END, sre.AT_END_STRING) and not flags & re.M:
            return ""  # all of the text is matched
        raise refusal(self._pattern)

    def _set(self, ranges: Ranges, flags: int) -> str:
        return _class(self._cases(ranges, flags))

    def _cases(self, ranges: Ranges, flags: int) -> Ranges:
        """Return ranges with both cases of ASCII letters where case does not matter."""
        if not flags & re.IGNORECASE:
            return ranges
        more = list(ranges)
        for first, last in ranges:
            for low, high, shift in ((65, 90, 32), (97, 122, -32)):
                if max(first, low) <= min(last, high):
                    more.append((max(first, low) + shift, min(last, high) + shift))
        return _merged(more)

    def _in(self, found: Sequence[tuple[Any, Any]], flags: int) -> str:
        ranges: Ranges = []
        negated = found[0][0] is sre.NEGATE
        for kind, value in found[negated:]:
            if kind is sre.LITERAL:
                ranges.append((value, value))
            elif kind is sre.RANGE:
                ranges.append(value)
            elif kind is sre.CATEGORY and value in _CATEGORIES:
                ranges += _CATEGORIES[value]
            else:
                raise refusal(self._pattern)
        ranges = self._cases(_merged(ranges), flags)
        return _class(_without(ranges) if negated else ranges)


def _merged(ranges: Ranges) -> Ranges:
    merged: Ranges = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return merged


def _without(ranges: Ranges) -> Ranges:
    """All code points but these."""
    left, at = [], 0
    for first, last in _merged(ranges):
        if at < first:
            left.append((at, first - 1))
        at = last + 1
    return [*left, (at, _LAST)] if at <= _LAST else left


_DIGIT: Ranges = [(48, 57)]
_SPACE: Ranges = [(9, 13), (32, 32)]
_WORD: Ranges = [(48, 57), (65, 90), (95, 95), (97, 122)]
_CATEGORIES = {
    sre.CATEGORY_DIGIT: _DIGIT,
    sre.CATEGORY_NOT_DIGIT: _without(_DIGIT),
    sre.CATEGORY_SPACE: _SPACE,
    sre.CATEGORY_NOT_SPACE: _without(_SPACE),
    sre.CATEGORY_WORD: _WORD,
    sre.CATEGORY_NOT_WORD: _without(_WORD),
}
_UNESCAPED = _without([(0, 31), (34, 34), (92, 92)])


def _class(ranges: Ranges) -> str:
    """A regular expression for one character of these, as JSON writes it in a string."""
    ranges = _merged(ranges)
    plain = _common(ranges, _UNESCAPED)
    ways = [f"[{''.join(map(_range, plain))}]"] if plain else []
    for first, last in _common(ranges, [(0, 31), (34, 34), (92, 92)]):
        for code in range(first, last + 1):
            ways.append(escape(_ESCAPED.get(chr(code), f"\\u{code:04x}")))
    if not ways:
        raise refusal("an empty class of characters")
    return ways[0] if len(ways) == 1 else f"({'|'.join(ways)})"


def _common(some: Ranges, others: Ranges) -> Ranges:
    return [
        (max(first, low), min(last, high))
        for first, last in some
        for low, high in others
        if max(first, low) <= min(last, high)
    ]


def _range(ends: tuple[int, int]) -> str:
    # Surrogates are no characters: a range around them is cut.
    if ends[0] < 0xD800 and ends[1] > 0xDFFF:
        return _range((ends[0], 0xD7FF)) + _range((0xE000, ends[1]))
    first, last = (rf"\u{{{code:x}}}" for code in ends)
    return first if first == last else f"{first}-{last}"
