"""The way from a JSON Schema that was checked to what llguidance reads."""

from __future__ import annotations

from typing import Any

import msgspec

from homenode.grammars.schema_check import FORMATS, NO_EFFECT
from homenode.grammars.schema_document import ALTERNATIVES, SchemaDocument

# Blanks are bounded, or a weak model would write them for ever: one space, or a new line with its indentation.
_BLANKS = r" |\n {0,24}"
_VALUES = ("enum", "const", "default", "examples")
_LOWER, _UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
_LISTED = ("prefixItems", "allOf", *ALTERNATIVES)
_SINGLE = ("additionalProperties", "additionalItems", "items")
_COMBINING = ("$ref", *ALTERNATIVES)
# llguidance bounds the labels of host names and nothing else. Host names and addresses: RFC 1123 and RFC 5321; times:
# nine digits of a second; the others: more than anybody reads. A weak model would write digits up to its last token.
_MOST_CHARACTERS = {"hostname": 253, "email": 254, "date-time": 35, "time": 24, "duration": 40, "uri": 2048}
_LARGEST_INTEGER = 9 * 10**18  # of 64 bits, as far as llguidance takes bounds
_ADDRESS = r"^[^@]{1,64}@[^.@]{1,63}(\.[^.@]{1,63})*$"
_NINE_DIGITS = r"^[^.]*(\.[0-9]{1,9}([^0-9].*)?)?$"
_PATTERNS = {"email": _ADDRESS, "date-time": _NINE_DIGITS, "time": _NINE_DIGITS}


def written_schema(document: SchemaDocument, *, strict: bool) -> Any:
    """The schema with words that llguidance keeps. `strict`: see `JsonSchema`."""
    return _SchemaWriter(closes=not _combines(document), empty=strict).written(document.root)


def json_lark(schema: Any, *, lenient: bool = False) -> str:
    """The body of a rule of Lark: JSON that fits a schema as llguidance knows them. `lenient`: words that it cannot
    keep where they stand are passed over.
    """
    written = schema if isinstance(schema, dict) else {"anyOf": [schema]}
    settings = {"whitespace_pattern": _BLANKS, **({"lenient": True} if lenient else {})}
    return f"%json {msgspec.json.encode({**written, 'x-guidance': settings}).decode()}"


def _combines(document: SchemaDocument) -> bool:
    """Return whether properties of one object may come from several schemas, none of which may then close it."""
    for node, _ in document.parts():
        if isinstance(node, dict):
            combining = sum(word in node for word in _COMBINING)
            if "allOf" in node or combining > 1 or (combining and "properties" in node):
                return True
    return False


def bounded_schema(schema: Any) -> Any:
    """A copy of a schema, right or not, in which no number or text of a format goes on for ever."""
    if isinstance(schema, list):
        return [bounded_schema(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return _with_bounds({word: value if word in _VALUES else bounded_schema(value) for word, value in schema.items()})


def _with_bounds(node: dict[str, Any]) -> dict[str, Any]:
    found, form = dict(node), node.get("format")
    most = _MOST_CHARACTERS.get(form) if isinstance(form, str) else None
    if most is not None and isinstance(longest := node.get("maxLength", most), int):
        found["maxLength"] = min(most, longest)
        if form in _PATTERNS:
            found.setdefault("pattern", _PATTERNS[form])
    if _is_integer(node.get("type")) and not found.keys() & {"enum", "const", "multipleOf"}:
        bounds = [node[word] for word in (*_LOWER, *_UPPER) if word in node]
        if all(isinstance(bound, int | float) and abs(bound) < _LARGEST_INTEGER for bound in bounds):
            if not found.keys() & set(_LOWER):
                found["minimum"] = -_LARGEST_INTEGER
            if not found.keys() & set(_UPPER):
                found["maximum"] = _LARGEST_INTEGER
    return found


def _is_integer(kinds: Any) -> bool:
    """Return whether numbers of these types are integers."""
    return kinds == "integer" or (isinstance(kinds, list) and "integer" in kinds and "number" not in kinds)


class _SchemaWriter:
    """Copies schemas: their `oneOf`, options of which exclude each other, is an `anyOf`, formats that are only remarks
    are gone, and others bound the length of their texts. `closes`: an object that names its properties and says nothing
    of others has no others; `empty`: one that names none, too.
    """

    def __init__(self, *, closes: bool, empty: bool) -> None:
        self._closes, self._empty = closes, empty

    def written(self, node: Any) -> Any:
        """A copy of a schema."""
        if not isinstance(node, dict):
            return node
        found = {word: self._of_word(word, value) for word, value in node.items() if not _is_remark(word, value)}
        found = _with_bounds(found)
        if "oneOf" in found:
            options = found.pop("oneOf")
            if "anyOf" in found:
                found["allOf"] = [*found.get("allOf", ()), {"anyOf": options}]
            else:
                found["anyOf"] = options
        if self._closes and (found.get("properties") or (self._empty and "properties" in found)) and _may_close(found):
            found["additionalProperties"] = False
        return found

    def _of_word(self, word: str, value: Any) -> Any:
        if word in _NAMED and isinstance(value, dict):
            return {name: self.written(each) for name, each in value.items()}
        if (word in _LISTED or word == "items") and isinstance(value, list):
            return [self.written(each) for each in value]
        return self.written(value) if word in _SINGLE else value


def _is_remark(word: str, value: Any) -> bool:
    return word in NO_EFFECT or (word == "format" and value not in FORMATS)


def _may_close(node: dict[str, Any]) -> bool:
    """Return whether all that an object requires is among its properties, and it says nothing of others."""
    if {"additionalProperties", "patternProperties", "minProperties"} & node.keys():
        return False
    return all(name in node["properties"] for name in node.get("required", []))
