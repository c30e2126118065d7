"""The JSON types that a JSON Schema allows, found through references and alternatives."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from typing import Any

from homenode.json_types import standard_types

Types = frozenset[str] | None  # None: any
STRING: Types = frozenset(("string",))
KINDS = {"{": "object", "[": "array", '"': "string", "t": "boolean", "f": "boolean", "n": "null"}
_DEEPEST = 16  # references that are followed one after the other
_MOST = 200  # schemas that are looked at for one answer, all of which may be within each other


def resolve(schema: Any, root: Any) -> Mapping[str, Any]:
    """Return what a schema that is a reference within `root` refers to, itself where it is none; empty where that is
    nothing.
    """
    for _ in range(_DEEPEST):
        if not isinstance(schema, Mapping):
            return {}
        place = schema.get("$ref")
        if not isinstance(place, str):
            return schema
        schema = _at(root, place) if place.startswith("#") else {}
    return {}


def _at(root: Any, place: str) -> Any:
    found = root
    for step in place[1:].split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and step.isdecimal() and int(step) < len(found):
            found = found[int(step)]
        else:
            found = found.get(step, {}) if isinstance(found, Mapping) else {}
    return found


def types_of(schema: Any, root: Any = None) -> Types:
    """The JSON types that a part `schema` of the schema `root` allows."""
    return _types(schema, root, {})


def _types(schema: Any, root: Any, known: dict[int, Types]) -> Types:
    """`known`: by id the schemas that were looked at, so that none is twice; any types while it is looked at."""
    if schema is False:
        return frozenset()
    if not isinstance(schema, Mapping):
        return None
    if id(schema) in known or len(known) > _MOST:
        return known.get(id(schema))
    known[id(schema)] = None
    found: list[Types] = []
    if "$ref" in schema:
        found.append(_types(resolve(schema, root), root, known))
    kinds = schema.get("type")
    if isinstance(kinds, str):
        found.append(standard_types(kinds))
    elif isinstance(kinds, list):
        found.append(_any(standard_types(kind) for kind in kinds if isinstance(kind, str)))
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list) and values:
        found.append(frozenset(KINDS.get(json.dumps(value)[:1], "number") for value in values))
    for word in ("anyOf", "oneOf"):
        if isinstance(parts := schema.get(word), list) and parts:
            found.append(_any([_types(part, root, known) for part in parts]))
    if isinstance(parts := schema.get("allOf"), list):
        found += [_types(part, root, known) for part in parts]
    known[id(schema)] = reduce(_both, found, None)
    return known[id(schema)]


def _any(types: Iterable[Types]) -> Types:
    union: frozenset[str] = frozenset()
    for one in types:
        if one is None:
            return None
        union |= one
    return union


def _both(first: Types, second: Types) -> Types:
    if first is None or second is None:
        return second if first is None else first
    common = first & second
    if "integer" in first ^ second and "number" in first | second:
        common |= {"integer"}
    return common


def property_types(root: Any, name: str) -> Types:
    """The types of a property of the objects that `root` allows; any where it does not say."""
    found = [types_of(schema, root) for schema in _properties(root, name)]
    return _any(found) if found else None


def property_names(root: Any) -> frozenset[str]:
    """The names that the objects that `root` allows have by it."""
    return frozenset(name for properties in _property_tables(root) for name in properties)


def _properties(root: Any, name: str) -> Iterator[Any]:
    return (table[name] for table in _property_tables(root) if name in table)


def _property_tables(root: Any) -> Iterator[Mapping[str, Any]]:
    left, seen = [root], set[int]()
    while left and len(seen) < _MOST:
        schema = left.pop()
        if not isinstance(schema, Mapping) or id(schema) in seen:
            continue
        seen.add(id(schema))
        properties = schema.get("properties")
        if isinstance(properties, Mapping):
            yield properties
        if "$ref" in schema:
            left.append(resolve(schema, root))
        for word in ("allOf", "anyOf", "oneOf"):
            parts = schema.get(word)
            left += parts if isinstance(parts, list) else ()
