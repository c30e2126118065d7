"""JSON schemas by chance, over all keywords that llguidance keeps, and over those that it does not."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

Schema = Any
KEYS = ["name", "Ort", "größe", "名前", "x-y", "a b", 'say "x"', "n", "type", "enum", "items", "properties", "$ref",
    "a/b~c", "e\\f", "🦊"]  # fmt: skip
PATTERNS = ["^[a-f]{2,4}$", "^[A-Z]{2}-[0-9]{1,3}$", "^(red|green|blue)$", "^v[0-9]{1,2}\\.[0-9]$",
    "^[a-z]{1,6}@[a-z]{2,5}\\.org$", "^\\+?[0-9]{3,5}$", "^[äöüß]{1,3}$", "^(ab|cd){1,3}x?$", "[0-9]", "^x", "y$",
    "^\\d+$", "^$"]  # fmt: skip
FORMATS = ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"]
VALUES: list[Any] = ["low", "größer", "", 'a"b', "日本", "back\\slash", "\n\t", 0, -7, 2.5, 1e-3, 10**6, 10**15, True,
    False, None, [], [1, "a"], {"k": 1}, {}, {"a": {"b": [None]}}]  # fmt: skip
DEFINITIONS = ["point", "size", "tree"]


class SchemaMaker:
    """Makes schemas with one source of chance."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def kept(self) -> Schema:
        """One of which all keywords are kept: an object of some parts."""
        rng = self._rng
        names = rng.sample(KEYS, rng.randint(1, 3))
        schema: dict[str, Any] = {"type": "object", "properties": {name: self._part(3) for name in names}}
        schema["required"] = rng.sample(names, rng.randint(1, len(names)))
        schema["additionalProperties"] = False
        definitions: dict[str, Schema] = {}
        for name in DEFINITIONS:
            definitions[name] = self._tree() if name == "tree" else self._simple()
        return {**schema, "$defs": definitions}

    def hard(self) -> Schema:
        """One with something that is not kept, is contradictory, or goes deep, somewhere within an object."""
        rng = self._rng
        part = rng.choice(_HARD)(self)
        around = rng.choice([lambda p: p, lambda p: {"type": "array", "items": p, "minItems": 1, "maxItems": 2},
            lambda p: {"anyOf": [p, {"type": "null"}]}])  # fmt: skip
        schema = _closed(order=_closed(zeppelin=around(part)))
        return {
            **schema,
            "$defs": {"size": {"type": "integer"}, "point": {"type": "null"}, "tree": {"type": "boolean"}},
        }

    def _part(self, depth: int) -> Schema:
        deep = [self._object, self._array, self._tuple, self._any_of, self._one_of, self._all_of, self._reference,
            self._patterned]  # fmt: skip
        return self._rng.choice(deep)(depth - 1) if depth > 0 and self._rng.random() < 0.55 else self._simple()

    def _simple(self) -> Schema:
        return self._rng.choice([self._text, self._text, self._integer, self._number, self._fixed, self._plain])()

    def _plain(self) -> Schema:
        return {"type": self._rng.choice(["boolean", "null", ["boolean", "null"], ["integer", "string"], "number"])}

    def _text(self) -> Schema:
        rng = self._rng
        least = rng.randint(0, 4)
        return rng.choice(
            [
                {"type": "string", "pattern": rng.choice(PATTERNS)},
                {"type": "string", "minLength": least, "maxLength": least + rng.randint(0, 8)},
                {"type": "string", "format": rng.choice(FORMATS)},
                {"type": "string", "maxLength": rng.randint(0, 30)},
                {"type": "string"},
            ]
        )

    def _integer(self) -> Schema:
        rng = self._rng
        low = rng.randint(-50, 50)
        schema: dict[str, Any] = {"type": "integer"}
        schema[rng.choice(["minimum", "exclusiveMinimum"])] = low
        schema[rng.choice(["maximum", "exclusiveMaximum"])] = low + rng.choice([2, 3, 40, 10**6])
        if rng.random() < 0.3:
            schema["multipleOf"] = rng.choice([1, 2, 5])
            schema["maximum"] = schema.pop("exclusiveMaximum", low) + 100
        return schema

    def _number(self) -> Schema:
        rng = self._rng
        low = rng.randint(-200, 200) / 4
        schema: dict[str, Any] = {"type": "number"}
        if rng.random() < 0.8:
            schema |= {"minimum": low, "maximum": low + rng.choice([0.5, 10, 1e4])}
        return schema

    def _fixed(self) -> Schema:
        rng = self._rng
        return rng.choice([{"enum": rng.sample(VALUES, rng.randint(1, 5))}, {"const": rng.choice(VALUES)}])

    def _object(self, depth: int) -> Schema:
        rng = self._rng
        names = rng.sample(KEYS, rng.randint(0, 4))
        schema: dict[str, Any] = {"type": "object", "properties": {name: self._part(depth) for name in names}}
        schema["required"] = rng.sample(names, rng.randint(0, len(names)))
        schema["additionalProperties"] = rng.choice([False, False, {"type": "integer", "minimum": 0, "maximum": 9}])
        if rng.random() < 0.2:
            schema["maxProperties"] = max(len(schema["required"]), rng.randint(0, 4))
        return schema

    def _patterned(self, depth: int) -> Schema:
        patterns = {"^[a-c]{1,3}$": self._part(depth), "^x_[0-9]$": self._simple()}
        schema = {"type": "object", "patternProperties": patterns, "additionalProperties": False}
        return {**schema, "maxProperties": self._rng.randint(1, 2)}

    def _array(self, depth: int) -> Schema:
        least = self._rng.randint(0, 2)
        return {
            "type": "array",
            "items": self._part(depth),
            "minItems": least,
            "maxItems": least + self._rng.randint(0, 2),
        }

    def _tuple(self, depth: int) -> Schema:
        rng = self._rng
        first = [self._part(depth) for _ in range(rng.randint(1, 3))]
        more = rng.choice([0, 1])
        items = {"type": "boolean"} if more else rng.choice([False, {"type": "boolean"}])
        return {
            "type": "array",
            "prefixItems": first,
            "items": items,
            "minItems": len(first),
            "maxItems": len(first) + more,
        }

    def _any_of(self, depth: int) -> Schema:
        return {"anyOf": [self._part(depth) for _ in range(self._rng.randint(2, 3))]}

    def _one_of(self, depth: int) -> Schema:
        tags = self._rng.sample(["a", "b", 1, 2, None, True, "ß"], self._rng.randint(2, 4))
        return {"oneOf": [{"const": tag} if self._rng.random() < 0.6
            else _closed(tag={"const": tag}, n=self._part(depth)) for tag in tags]}  # fmt: skip

    def _all_of(self, depth: int) -> Schema:
        rng = self._rng
        low = rng.randint(0, 9)
        return rng.choice(
            [
                {"allOf": [{"type": "integer", "minimum": low}, {"maximum": low + rng.randint(0, 20)}]},
                {"allOf": [{"type": "string", "minLength": 1}, {"maxLength": rng.randint(1, 9)}]},
                {"allOf": [_open(a=self._part(depth)), _open(b=self._simple())], "type": "object"},
            ]
        )

    def _reference(self, depth: int) -> Schema:
        return {"$ref": "#/$defs/" + self._rng.choice(DEFINITIONS)}

    def _tree(self) -> Schema:
        kids = {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": self._rng.randint(1, 2)}
        return _closed(v={"type": "integer", "minimum": 0, "maximum": 9}, kids=kids)

    # What is not kept, or contradicts itself

    def not_(self) -> Schema:
        return {**self._part(1), "not": self._simple()} if self._rng.random() < 0.5 else {"not": self._part(1)}

    def if_(self) -> Schema:
        schema = {"if": self._simple(), "then": self._simple()}
        return schema if self._rng.random() < 0.5 else {**schema, "else": self._simple()}

    def remote(self) -> Schema:
        return {"$ref": self._rng.choice(["https://example.org/a.json", "other.json#/$defs/a", "#/$defs/nobody",
            "#nobody", "urn:x:y"])}  # fmt: skip

    def overlapping(self) -> Schema:
        patterns = {"^a": self._simple(), self._rng.choice(["b$", "^ab", "a"]): self._simple()}
        return {"type": "object", "patternProperties": patterns, "additionalProperties": False}

    def contradicting(self) -> Schema:
        rng = self._rng
        low = rng.randint(-9, 9)
        return rng.choice(
            [
                {"type": "integer", "minimum": low + 1, "maximum": low},
                {"type": "number", "exclusiveMinimum": low, "maximum": low},
                {"type": "integer", "multipleOf": 7, "minimum": 1, "maximum": 5},
                {"type": "string", "minLength": 5, "maxLength": rng.randint(0, 4)},
                {"type": "string", "pattern": "^ab$", "minLength": 5},
                {"type": "array", "items": {}, "minItems": 3, "maxItems": rng.randint(0, 2)},
                {"type": "array", "prefixItems": [{}], "items": False, "minItems": 2},
                {"type": "object", "properties": {"a": {}}, "required": ["b"], "additionalProperties": False},
                {"allOf": [self._text(), self._integer()]},
                {"type": "string", "enum": [1, 2]},
                {"type": "integer", "const": "a"},
                {"enum": []},
                {"anyOf": [False, {"type": "integer", "minimum": 2, "maximum": 1}]},
            ]
        )

    def deep(self) -> Schema:
        part, levels = self._simple(), self._rng.choice([20, 60, 200])
        wrap: Callable[[Schema], Schema] = self._rng.choice(
            [lambda p: _closed(a=p), lambda p: {"type": "array", "items": p, "minItems": 1, "maxItems": 1},
                lambda p: {"anyOf": [p]}]
        )  # fmt: skip
        for _ in range(levels):
            part = wrap(part)
        return part

    def unkept(self) -> Schema:
        word, value = self._rng.choice(
            [
                ("uniqueItems", True), ("contains", {"const": 1}), ("minContains", 2),
                ("propertyNames", {"maxLength": 2}),
                ("dependentRequired", {"a": ["b"]}), ("dependentSchemas", {"a": {}}), ("unevaluatedProperties", False),
                ("unevaluatedItems", False), ("$dynamicRef", "#x"), ("dependencies", {"a": ["b"]}),
            ]
        )  # fmt: skip
        return {"type": "array" if "tems" in word or "ontains" in word else "object", word: value}

    def no_schema(self) -> Schema:
        return self._rng.choice(
            [
                {"type": "decimal"}, {"type": 7}, {"type": "array", "items": 3}, {"type": "object", "properties": []},
                {"type": "string", "pattern": "([a-z"}, {"type": "string", "pattern": "^(?=a)b"}, {"required": "a"}, 5,
                {"minimum": "low"}, {"enum": "a"}, {"anyOf": []}, {"type": "array", "minItems": -1}, {"multipleOf": 0},
            ]
        )  # fmt: skip

    def overlapping_options(self) -> Schema:
        return {"oneOf": [self._part(1), self._part(1), {"type": "string"}]}


_HARD: list[Callable[[SchemaMaker], Schema]] = [
    SchemaMaker.not_, SchemaMaker.if_, SchemaMaker.remote, SchemaMaker.overlapping, SchemaMaker.contradicting,
    SchemaMaker.deep, SchemaMaker.unkept, SchemaMaker.no_schema, SchemaMaker.overlapping_options,
]  # fmt: skip


def _closed(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _open(**properties: Schema) -> Schema:
    return {"properties": properties, "required": list(properties)}


def names_in(schema: Schema, found: tuple[str, ...] = ()) -> set[str]:
    """Every key within a schema, which a refusal may give as the place."""
    if isinstance(schema, dict):
        return set(schema).union(*(names_in(value) for value in schema.values()))
    return set().union(*map(names_in, schema)) if isinstance(schema, list) else set()
