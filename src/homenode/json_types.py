"""The types of values of JSON, and what clients and models call them besides."""

from __future__ import annotations

import re

JSON_TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
_SPELLINGS = {
    "null": ("none", "nil", "nonetype", "undefined", "void"),
    "boolean": ("bool",),
    "integer": ("int", "long", "short", "bigint", "smallint", "tinyint"),
    "number": ("num", "float", "double", "decimal", "numeric", "real"),
    "string": ("str", "text", "char", "varchar", "enum", "date", "datetime", "uuid"),
    "array": ("arr", "list", "tuple", "set", "sequence", "iterable"),
    "object": ("dict", "map", "mapping", "record", "struct", "hash", "json"),
}
_TYPE_OF = {spelling: name for name in JSON_TYPES for spelling in (name, *_SPELLINGS[name])}
_ANY = ("any", "unknown", "mixed")
_OF_BITS = re.compile(r"u?(?P<name>int|float)(8|16|32|64|128)?")
_ALTERNATIVES = re.compile(r"(?:typing\.)?(?P<word>optional|union)\[(?P<parts>.*)\]")
_PARAMETERS = re.compile(r"^(?P<name>[\w.]+)\s*[\[<(].*[\])>]$", re.DOTALL)
_LONGEST = 200  # characters


def standard_types(spelling: str) -> frozenset[str] | None:
    """The types of JSON Schema that a word for a type means, such as `int`, `INTEGER`, `list[str]`, `str | None` or
    `Optional[float]`; None where that is any. A word that means nothing here is kept as it is.
    """
    word = spelling.strip().lower()
    if word in _TYPE_OF:
        return frozenset((_TYPE_OF[word],))
    if word in _ANY:
        return None
    if len(word) > _LONGEST:
        return frozenset((spelling,))
    if found := _ALTERNATIVES.fullmatch(word):
        parts = _split(found["parts"], ",") + (["null"] if found["word"] == "optional" else [])
    else:
        parts = _split(word, "|")
    if len(parts) > 1:
        kinds = [standard_types(part) for part in parts]
        return None if None in kinds else frozenset(name for kind in kinds for name in kind or ())
    if found := _PARAMETERS.match(word) or _OF_BITS.fullmatch(word):
        name = _TYPE_OF.get(found["name"].rpartition(".")[2])
        return frozenset((name or spelling,))
    return frozenset((spelling,))


def _split(text: str, separator: str) -> list[str]:
    """The parts between separators that are within no brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "[(<{") - (character in "])>}")
        if character == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part for part in map(str.strip, parts) if part]
