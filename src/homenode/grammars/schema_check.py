"""The parts of a JSON Schema that cannot be kept: words that llguidance does not know, values of the wrong form, and
parts that no value fits. Each is refused with its place.

llguidance refuses most of it, too, but without a place, and drops an optional property that nothing fits.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from typing import Any

from homenode.grammars.field_path import FieldPath, shown
from homenode.grammars.schema_document import ALTERNATIVES, SchemaDocument
from homenode.grammars.schema_endings import check_endings
from homenode.grammars.schema_values import TYPES, SchemaValues, fixed_values, number_bounds, type_names

FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown")
)
# Words that say which values fit, and that llguidance does not keep; all other words it does not know are remarks.
_NOT_KEPT = frozenset(
    (
        "not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems", "dependencies",
        "dependentRequired", "dependentSchemas", "propertyNames", "unevaluatedItems", "unevaluatedProperties",
        "$dynamicRef", "$recursiveRef", "x-guidance",
    )
)  # fmt: skip
# Values that change nothing.
NO_EFFECT = {"uniqueItems": False, "unevaluatedItems": True, "unevaluatedProperties": True}
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_LARGEST_COUNT = 1_000_000  # no answer is that long
_LONGEST_S = 4.0  # for all patterns of a schema
_MOST_PROPERTIES = 2000  # of one object
_MOST_OPTIONS = 64  # of oneOf, that are compared with each other

PatternFault = Callable[[str], str | None]


def check_schema(document: SchemaDocument, pattern_fault: PatternFault, *, strict: bool) -> list[FieldPath]:
    """UserError for the first thing that cannot be kept. `pattern_fault`: why a regular expression is none, None if it
    is one. `strict`: formats that cannot be kept and options that do not exclude each other are refused, too; else the
    places of such options are given.
    """
    document.check_size()
    check = _Check(document, pattern_fault, strict)
    for node, place in document.parts():
        check.forms(node, place)
    for node, place in document.parts():
        if isinstance(node, dict):
            check.part(node, place)
    check_endings(document)
    return check.overlapping


class _Check:
    """The check of the schemas of one document."""

    def __init__(self, document: SchemaDocument, pattern_fault: PatternFault, strict: bool) -> None:
        self._document, self._pattern_fault, self._strict = document, pattern_fault, strict
        self._values = SchemaValues(document)
        self.overlapping: list[FieldPath] = []
        self._patterns: dict[str, str | None] = {}
        self._until = time.monotonic() + _LONGEST_S

    def forms(self, node: Any, place: FieldPath) -> None:
        """UserError for words that cannot be kept, and for values of the wrong kind."""
        if isinstance(node, bool):
            return
        if not isinstance(node, dict):
            raise place.refusal(f"a schema is an object, true or false, not {shown(node)}")
        for word in sorted(_NOT_KEPT & node.keys()):
            if word not in NO_EFFECT or node[word] is not NO_EFFECT[word]:
                raise (place / word).refusal(f"{shown(word)} cannot be kept; say it without that")
        _check_forms(node, place)

    def part(self, node: dict[str, Any], place: FieldPath) -> None:
        """UserError for what no value fits; all forms are right. Schemas within this one have their own turns."""
        self._check_texts(node, place)
        self._check_numbers(node, place)
        self._check_items(node, place)
        _check_object(node, place)
        self._check_values(node, place)
        self._check_options(node, place)

    def _check_texts(self, node: dict[str, Any], place: FieldPath) -> None:
        if "string" not in type_names(node):
            return
        if node.get("minLength", 0) > node.get("maxLength", math.inf):
            raise place.refusal(f"minLength {node['minLength']} is above maxLength {node['maxLength']}")
        for pattern, where in [
            *([(node["pattern"], place / "pattern")] if "pattern" in node else ()),
            *((each, place / "patternProperties" / each) for each in node.get("patternProperties", ())),
        ]:
            if time.monotonic() > self._until:
                raise where.refusal(f"the patterns up to this one took more than {_LONGEST_S:g} seconds; ask for fewer")
            if fault := self._fault(pattern):
                raise where.refusal(f"{shown(pattern)} is no regular expression that can be kept: {fault}")
        if self._strict and node.get("format", "unknown") not in FORMATS:
            known = ", ".join(sorted(FORMATS - {"unknown"}))
            raise (place / "format").refusal(f"{shown(node['format'])} cannot be kept; there are {known}")

    def _fault(self, pattern: str) -> str | None:
        if pattern not in self._patterns:
            self._patterns[pattern] = self._pattern_fault(pattern)
        return self._patterns[pattern]

    def _check_numbers(self, node: dict[str, Any], place: FieldPath) -> None:
        names = type_names(node)
        if not {"integer", "number"} & set(names):
            return
        low, high = number_bounds(node, integer="number" not in names)
        if low > high or (low == high and "number" in names and low in _open_bounds(node)):
            bounds = ", ".join(f"{word} {shown(node[word])}" for word in _BOUNDS if word in node)
            raise place.refusal(f"no {'number' if 'number' in names else 'integer'} is within {bounds}")

    def _check_items(self, node: dict[str, Any], place: FieldPath) -> None:
        if "array" not in type_names(node):
            return
        least, most = node.get("minItems", 0), node.get("maxItems", math.inf)
        if least > most:
            raise place.refusal(f"minItems {least} is above maxItems {most}")
        first = len(node["prefixItems"]) if "prefixItems" in node else math.inf
        if node.get("items") is False and least > first:
            raise place.refusal(f"minItems {least} is above the {first} of prefixItems, and items allows no more")

    def _check_values(self, node: dict[str, Any], place: FieldPath) -> None:
        fixed = fixed_values(node)
        if fixed is None:
            return
        word = "const" if "const" in node else "enum"
        rest = {key: value for key, value in node.items() if key != "enum"}
        if not any(self._values.may_fit(value, rest) for value in fixed):
            what = "there is no value in it" if not fixed else "no value of it fits what else is said here"
            raise (place / word).refusal(what)

    def _check_options(self, node: dict[str, Any], place: FieldPath) -> None:
        """Check that of oneOf no two may take the same value: the grammar could not tell that only one of them does."""
        options = node.get("oneOf", [])
        if len(options) > _MOST_OPTIONS and self._strict:
            raise (place / "oneOf").refusal(f"these are more than {_MOST_OPTIONS}; say anyOf")
        if len(options) > _MOST_OPTIONS or (found := self._overlap(options)) is None:
            self.overlapping += [place / "oneOf"] if len(options) > _MOST_OPTIONS else []
            return
        index, other = found
        if self._strict:
            text = f"a value may fit this and [{other}] as well, which oneOf forbids; say anyOf"
            raise (place / "oneOf" / index).refusal(text)
        self.overlapping.append(place / "oneOf")

    def _overlap(self, options: list[Any]) -> tuple[int, int] | None:
        """Two options that may take the same value."""
        for index, option in enumerate(options):
            for other in range(index):
                if not self._values.disjoint(options[other], option):
                    return index, other
        return None


def _check_forms(node: dict[str, Any], place: FieldPath) -> None:
    """UserError for words whose value is of the wrong kind."""
    names = node.get("type", "null")
    listed = [names] if isinstance(names, str) else names
    if not isinstance(listed, list) or not listed or not all(isinstance(n, str) and n in TYPES for n in listed):
        raise (place / "type").refusal(f"{shown(names)} is no type; there are {', '.join(TYPES)}, or a list of them")
    for word in _COUNTS:
        value = node.get(word, 0)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise (place / word).refusal(f"it must be a whole number from 0 on, not {shown(value)}")
        if word.startswith("min") and value > _LARGEST_COUNT:
            raise (place / word).refusal(f"it is {value}; no answer is that long")
    for word in _BOUNDS:
        value = node.get(word, 1)
        allowed = isinstance(value, int | float) and (not isinstance(value, bool) or word.startswith("exclusive"))
        if not allowed or (word == "multipleOf" and value <= 0):
            raise (place / word).refusal(
                f"it must be a number{' above 0' * (word == 'multipleOf')}, not {shown(value)}"
            )
    for word in ("pattern", "format"):
        if not isinstance(node.get(word, ""), str):
            raise (place / word).refusal(f"it must be a text, not {shown(node[word])}")
    for word in ("properties", "patternProperties"):
        if not isinstance(node.get(word, {}), dict):
            raise (place / word).refusal(f"it must be an object of schemas, not {shown(node[word])}")
    for word in ("enum", "allOf", "prefixItems", *ALTERNATIVES):
        value = node.get(word, [True])
        if not isinstance(value, list) or not (value or word == "prefixItems"):
            raise (place / word).refusal(f"it must be a list with at least one entry, not {shown(value)}")
    required = node.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise (place / "required").refusal(f"it must be a list of names, not {shown(required)}")


def _check_object(node: dict[str, Any], place: FieldPath) -> None:
    """UserError for an object that cannot have what it requires."""
    if "object" not in type_names(node):
        return
    properties, required = node.get("properties", {}), set(node.get("required", []))
    closed = node.get("additionalProperties") is False
    if len(properties) > _MOST_PROPERTIES:
        raise place.refusal(f"it has {len(properties)} properties; at most {_MOST_PROPERTIES} are taken")
    for name in node.get("required", []):
        if properties.get(name) is False or (closed and name not in properties and not _named_by_pattern(node, name)):
            raise place.refusal(f"{shown(name)} is required, but no such property is allowed")
    least, most = node.get("minProperties", 0), node.get("maxProperties", math.inf)
    if least > most:
        raise place.refusal(f"minProperties {least} is above maxProperties {most}")
    if len(required) > most:
        raise place.refusal(f"{len(required)} properties are required, and maxProperties is {most}")
    if closed and "patternProperties" not in node and least > len(properties):
        raise place.refusal(f"minProperties {least} is above the {len(properties)} that are allowed")


def _named_by_pattern(node: dict[str, Any], name: str) -> bool:
    for pattern in node.get("patternProperties", {}):
        try:
            if re.search(pattern, name):
                return True
        except re.error:  # a dialect of its own: it may well
            return True
    return False


def _open_bounds(node: dict[str, Any]) -> list[Any]:
    """Numbers that are bounds and out themselves."""
    found = [node.get(word) for word in ("exclusiveMinimum", "exclusiveMaximum")]
    for value, word in zip(tuple(found), ("minimum", "maximum"), strict=True):
        if value is True:
            found.append(node.get(word))
    return [value for value in found if not isinstance(value, bool)]
