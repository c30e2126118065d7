"""The values that a schema takes: whether a given one may fit, and whether two schemas can take the same one.

Both are careful: what is not known may fit. Patterns and formats are not looked at.
"""

from __future__ import annotations

import math
from typing import Any, cast

from homenode.errors import UserError
from homenode.grammars.field_path import FieldPath
from homenode.grammars.schema_document import ALTERNATIVES, SchemaDocument

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
_MOST_LOOKS = 300_000  # at schemas and pairs of them, of one document
_DEEPEST = 12  # references and alternatives that are followed
_NOWHERE = FieldPath("")


def type_names(node: dict[str, Any]) -> tuple[str, ...]:
    """The types that a schema names, all where it names none."""
    named = node.get("type", TYPES)
    return (named,) if isinstance(named, str) else tuple(named)


def is_of_type(value: Any, name: str) -> bool:
    """Return whether a value of JSON has a type of JSON Schema, for which 1.0 is an integer."""
    if name in ("integer", "number"):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and (name == "number" or _is_whole(value))
    kinds: dict[str, type] = {"null": type(None), "boolean": bool, "string": str, "array": list, "object": dict}
    return name in kinds and isinstance(value, kinds[name])


def number_bounds(node: dict[str, Any], integer: bool) -> tuple[float, float]:
    """The smallest and the largest number; of numbers that are no integers the open bounds are let in."""
    low, high = node.get("minimum", -math.inf), node.get("maximum", math.inf)
    above, below = node.get("exclusiveMinimum", -math.inf), node.get("exclusiveMaximum", math.inf)
    if isinstance(above, bool):  # of draft 4: whether `minimum` itself is out
        low, above = (low, low) if above else (low, -math.inf)
    if isinstance(below, bool):
        high, below = (high, high) if below else (high, math.inf)
    if not integer:
        return max(low, above), min(high, below)
    least = [math.ceil(low) if _finite(low) else low, math.floor(above) + 1 if _finite(above) else above]
    most = [math.floor(high) if _finite(high) else high, math.ceil(below) - 1 if _finite(below) else below]
    return max(least), min(most)


def fixed_values(node: dict[str, Any]) -> list[Any] | None:
    """The values of `const` or `enum`; None where there may be others."""
    if "const" in node:
        return [node["const"]]
    return node["enum"] if isinstance(node.get("enum"), list) else None


def same(a: Any, b: Any) -> bool:
    """Return whether two values of JSON are equal: 1 and 1.0 are, 1 and true are not."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(value, b[key]) for key, value in a.items())
    return bool(a == b)


class SchemaValues:
    """Values of the schemas of one document."""

    def __init__(self, document: SchemaDocument) -> None:
        self._document = document
        self._left = _MOST_LOOKS

    def may_fit(self, value: Any, node: Any, depth: int = _DEEPEST) -> bool:
        """False only where `value` certainly does not fit."""
        if not isinstance(node, dict) or self._gives_up(depth):
            return node is not False
        if not any(is_of_type(value, name) for name in type_names(node)):
            return False
        fixed = fixed_values(node)
        if fixed is not None and not any(same(value, each) for each in fixed):
            return False
        parts = [self._target(node), *(node["allOf"] if isinstance(node.get("allOf"), list) else ())]
        if not all(self.may_fit(value, part, depth - 1) for part in parts):
            return False
        for word in ALTERNATIVES:
            if isinstance(node.get(word), list) and not any(self.may_fit(value, e, depth - 1) for e in node[word]):
                return False
        return self._within(value, node, depth)

    def disjoint(self, a: Any, b: Any, depth: int = _DEEPEST) -> bool:
        """True only where no value fits both."""
        if a is False or b is False:
            return True
        if not isinstance(a, dict) or not isinstance(b, dict) or self._gives_up(depth):
            return False
        for one, other in ((a, b), (b, a)):
            if (fixed := fixed_values(one)) is not None and not any(self.may_fit(value, other) for value in fixed):
                return True
            if "$ref" in one and self.disjoint(self._target(one), other, depth - 1):
                return True
            for word in ALTERNATIVES:
                if (options := one.get(word)) and all(self.disjoint(each, other, depth - 1) for each in options):
                    return True
            if any(self.disjoint(each, other, depth - 1) for each in one.get("allOf", ())):
                return True
        return self._kinds_apart(a, b, depth)

    def _gives_up(self, depth: int) -> bool:
        """Return whether enough was looked at: what is left is not known."""
        self._left -= 1
        return depth == 0 or self._left < 0

    def _target(self, node: dict[str, Any]) -> Any:
        if "$ref" not in node:
            return True
        try:
            return self._document.target(node["$ref"], _NOWHERE)[0]
        except UserError:  # whoever checks the reference says so
            return True

    def _kinds_apart(self, a: dict[str, Any], b: dict[str, Any], depth: int) -> bool:
        """Return whether each type that both may have has no common value."""
        common = {_kind(name) for name in type_names(a)} & {_kind(name) for name in type_names(b)}
        for kind in common:
            if kind == "number":
                (low, high), (low_b, high_b) = (number_bounds(n, "number" not in type_names(n)) for n in (a, b))
                if max(low, low_b) <= min(high, high_b):
                    return False
            elif kind == "string":
                if max(_least(a, "Length"), _least(b, "Length")) <= min(_most(a, "Length"), _most(b, "Length")):
                    return False
            elif kind != "object" or not self._objects_apart(a, b, depth):
                return False
        return True

    def _objects_apart(self, a: dict[str, Any], b: dict[str, Any], depth: int) -> bool:
        for key in {*a.get("required", ()), *b.get("required", ())}:
            if self.disjoint(_property(a, key), _property(b, key), depth - 1):
                return True
        return False

    def _within(self, value: Any, node: dict[str, Any], depth: int) -> bool:
        """Return whether bounds, lengths, keys and items may fit."""
        if isinstance(value, str):
            return _least(node, "Length") <= len(value) <= _most(node, "Length")
        if is_of_type(value, "number"):
            low, high = number_bounds(node, integer=_is_whole(value))
            return bool(low <= value <= high)
        if isinstance(value, dict):
            if any(key not in value for key in node.get("required", ())):
                return False
            return all(self.may_fit(each, _property(node, key), depth - 1) for key, each in value.items())
        return not isinstance(value, list) or _least(node, "Items") <= len(value) <= _most(node, "Items")


def _finite(number: float) -> bool:
    return -math.inf < number < math.inf  # also of a whole number that no float holds


def _is_whole(number: float) -> bool:
    return isinstance(number, int) or number.is_integer()


def _kind(name: str) -> str:
    return "number" if name == "integer" else name


def _property(node: dict[str, Any], key: str) -> Any:
    """The schema of a property; true where patterns may say more of it."""
    properties = node.get("properties")
    if isinstance(properties, dict) and key in properties:
        return properties[key]
    return True if node.get("patternProperties") else node.get("additionalProperties", True)


def _least(node: dict[str, Any], what: str) -> float:
    return cast(float, node.get(f"min{what}", 0))


def _most(node: dict[str, Any], what: str) -> float:
    return cast(float, node.get(f"max{what}", math.inf))
