"""Values in a notation like JSON whose strings stand between marks, without escapes, and whose keys are bare."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from homenode.chat.grammars.lark import LarkWriter, escape, literal
from homenode.chat.grammars.parameters import joined_schemas, with_settings
from homenode.chat.grammars.strings import all_of, string_terminal
from homenode.chat.syntax.schema_types import resolve, types_of
from homenode.errors import UserError

_BARE_KEY = re.compile(r"[^:,{}\[\]<>\"\s]+")
_NUMERIC = ("type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_SCALARS = {"boolean": '("true" | "false")', "null": '"null"'}
_TYPES = ("string", "number", "integer", "boolean", "null", "array", "object")
_DEEPEST = 32


class MarkedValues:
    """Writes rules for the values of one schema, which stands alone."""

    def __init__(self, lark: LarkWriter, root: Any, mark: str, *, strict: bool) -> None:
        """`mark`: before and behind strings. What of a schema cannot be kept is a UserError if it is `strict`."""
        self._lark, self._root, self._mark, self._strict = lark, root, mark, strict
        self._rules: dict[str, str] = {}  # by schemas that are referred to, which may be part of themselves

    def value(self, schema: Any) -> str:
        """A rule body for the values that a part `schema` of the root allows."""
        return self._value(schema, 0)

    def key(self, name: str) -> str:
        """A rule body for the key of an object."""
        if _BARE_KEY.fullmatch(name):
            return literal(f"{name}:")
        if self._mark in name:
            raise UserError(f"`tools`: the name {name[:100]!r} has a mark of this model's form of calls", param="tools")
        return self._lark.mark(f"{self._mark}{name}{self._mark}:")

    def _value(self, schema: Any, depth: int) -> str:
        if depth > _DEEPEST:
            raise UserError("`tools`: the schema of a parameter is nested too deep", param="tools")
        if not isinstance(schema, Mapping):
            return self._any()
        if "$ref" in schema:
            return self._referred(schema, depth)
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(values, list):
            allowed = types_of(schema, self._root) or frozenset()
            allowed |= {"number"} if "integer" in allowed else frozenset()
            written = [self._literal(value) for value in values if _kind(value) in allowed]
            return self._one_of(written)
        for word in ("allOf", "anyOf", "oneOf"):
            parts = schema.get(word)
            if isinstance(parts, list) and parts:
                rest = {key: value for key, value in schema.items() if key != word}
                parts = [resolve(part, self._root) for part in parts]
                if word != "allOf":
                    return self._one_of([self._value(joined_schemas(rest, part), depth + 1) for part in parts])
                for part in parts:
                    rest = joined_schemas(rest, part)
                return self._value(rest, depth + 1)
        kinds = types_of(schema, self._root)
        if kinds is None and not schema.keys() - {"title", "description", "default", "examples", "$defs"}:
            return self._any()
        return self._one_of([self._typed(schema, kind, depth) for kind in _TYPES if kinds is None or kind in kinds])

    def _one_of(self, bodies: list[str | None]) -> str:
        found = [body for body in bodies if body is not None]
        if not found:
            raise UserError(
                "`tools`: a parameter allows no value that this model's form of calls can hold", param="tools"
            )
        return self._lark.rule(" | ".join(found))

    def _referred(self, schema: Mapping[str, Any], depth: int) -> str:
        """The rule of a reference, which is declared before it is written."""
        place = json.dumps(schema, sort_keys=True)
        if place not in self._rules:
            self._rules[place] = name = self._lark.declare()
            rest = {key: value for key, value in schema.items() if key not in ("$ref", "$defs")}
            self._lark.define(name, self._value(joined_schemas(resolve(schema, self._root), rest), depth + 1))
        return self._rules[place]

    def _typed(self, schema: Mapping[str, Any], kind: str, depth: int) -> str | None:
        if kind in _SCALARS:
            return _SCALARS[kind]
        if kind == "string":
            text = string_terminal({**schema, "type": "string"}, self._root, strict=self._strict)
            text = all_of([text, self._lark.without([escape(self._mark)])])
            return None if text is None else f"{self._lark.mark(self._mark)} {self._lark.up_to(text, self._mark)}"
        if kind == "array":
            return self._array(schema, depth)
        if kind == "object":
            return self._object(schema, depth)
        bounds = {key: value for key, value in schema.items() if key in _NUMERIC}
        return self._lark.json(with_settings({**bounds, "type": kind}, strict=self._strict))

    def _array(self, schema: Mapping[str, Any], depth: int) -> str:
        first = schema.get("prefixItems")
        first = [self._value(one, depth + 1) for one in first] if isinstance(first, list) else []
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        least = least if isinstance(least, int) else 0
        if self._strict and "contains" in schema:
            raise UserError("`tools`: `contains` cannot be kept in this model's form of calls", param="tools")
        if first:
            return (
                f'"[" {self._lark.ordered([(body, number < least) for number, body in enumerate(first)], _COMMA)} "]"'
            )
        if most == 0:
            return '"[" "]"'
        item = self._lark.rule(self._value(schema.get("items"), depth + 1))
        more = f"{{{max(least - 1, 0)},{most - 1 if isinstance(most, int) else ''}}}"
        items = f"{item} ({_COMMA} {item}){more}"
        return f'"[" {items} "]"' if least else f'"[" ({items})? "]"'

    def _object(self, schema: Mapping[str, Any], depth: int) -> str:
        properties, required = schema.get("properties"), schema.get("required", [])
        properties = dict(properties) if isinstance(properties, Mapping) else {}
        more = schema.get("additionalProperties", {})
        properties.update({name: more for name in required if name not in properties})
        if not properties and more is not False:
            entry = f'{self._lark.terminal("/[a-zA-Z0-9_]+/")} ":" {self._lark.rule(self._value(more, depth + 1))}'
            return f'"{{" ({entry} ({_COMMA} {entry})*)? "}}"'
        parts = [
            (self._lark.rule(f"{self.key(name)} {self._value(value, depth + 1)}"), name in required)
            for name, value in properties.items()
        ]
        return f'"{{" {self._lark.ordered(parts, _COMMA)} "}}"'

    def _any(self) -> str:
        """Any value."""
        if "" not in self._rules:
            self._rules[""] = name = self._lark.declare()
            self._lark.define(name, " | ".join(str(self._typed({"items": None}, kind, 0)) for kind in _TYPES))
        return self._rules[""]

    def _literal(self, value: Any) -> str | None:
        """A rule body for one value, None where it has the mark."""
        if self._mark in json.dumps(value, ensure_ascii=False).replace('\\"', '"'):
            return None
        if isinstance(value, str):
            return " ".join([self._lark.mark(self._mark), literal(value), self._lark.mark(self._mark)])
        if isinstance(value, list):
            items = f" {_COMMA} ".join(str(self._literal(one)) for one in value)
            return f'"[" {items} "]"'
        if isinstance(value, Mapping):
            entries = f" {_COMMA} ".join(f"{self.key(key)} {self._literal(one)}" for key, one in value.items())
            return f'"{{" {entries} "}}"'
        return literal(json.dumps(value))


_COMMA = '","'


def _kind(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return "null" if value is None else "boolean"
    if isinstance(value, (int, float)):
        return "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"
