"""Schemas that cannot be kept, are impossible or hostile: each is refused with its place, and none takes long."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import pytest

from homenode.errors import UserError
from homenode.grammars.compile import compile_grammar
from homenode.grammars.schema_grammar import bounded_schema
from homenode.grammars.spec import JsonSchema
from tests.examples import seeds
from tests.pure.grammars.vocabularies import BYTES, fits


def obj(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def refusal(schema: Any, *, strict: bool = True) -> str:
    """The message, which is to name the place."""
    with pytest.raises(UserError) as refused:
        compile_grammar(JsonSchema(schema, strict), BYTES, "schema")
    assert refused.value.param == "schema"
    return refused.value.message


IMPOSSIBLE: list[tuple[Any, str]] = [
    ({"type": "decimal"}, "type"),
    ({"type": ["string", "uuid"]}, "type"),
    ({"type": 7}, "type"),
    ({"type": "integer", "minimum": 9, "maximum": 3}, "minimum 9"),
    ({"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 4}, "exclusiveMinimum 3"),
    ({"type": "number", "exclusiveMinimum": 3, "maximum": 3}, "maximum 3"),
    ({"type": "integer", "multipleOf": 7, "minimum": 1, "maximum": 5}, ""),
    ({"type": "string", "minLength": 5, "maxLength": 2}, "minLength 5"),
    ({"type": "string", "pattern": "^ab$", "minLength": 5}, ""),
    ({"type": "string", "pattern": "([a-z"}, "unclosed"),
    ({"type": "string", "pattern": "^(?=a)"}, "look-around"),
    ({"type": "string", "format": "idn-email"}, "format"),
    ({"type": "array", "items": 3}, "items"),
    ({"type": "array", "items": {"type": "null"}, "minItems": 3, "maxItems": 1}, "minItems 3"),
    ({"type": "array", "prefixItems": [{}], "items": False, "minItems": 2}, "prefixItems"),
    ({"type": "array", "minItems": -1}, "minItems"),
    ({"type": "array", "minItems": 10**9}, "minItems"),
    ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    ({"type": "array", "contains": {"const": 1}}, "contains"),
    ({"type": "object", "required": "a"}, "required"),
    ({**obj(a={}), "required": ["b"]}, '"b" is required'),
    ({**obj(a={}), "minProperties": 2}, "minProperties"),
    ({"type": "object", "patternProperties": {"^a": {"type": "null"}, "b$": {"type": "integer"}}}, "disjoint"),
    ({"type": "object", "propertyNames": {"pattern": "a", "minLength": 2}}, "propertyNames"),
    ({"type": "object", "properties": 5}, "properties"),
    ({"enum": []}, "enum"),
    ({"type": "integer", "enum": ["a", "b"]}, "enum"),
    ({"type": "string", "const": 1}, "const"),
    ({"allOf": [{"type": "string"}, {"type": "integer"}]}, ""),
    ({"oneOf": [{"type": "string"}, {"const": "a"}]}, "oneOf[1]"),
    ({"anyOf": []}, "anyOf"),
    ({"not": {"type": "string", "minLength": 2}}, "not"),
    ({"if": {"type": "string"}, "then": {"minLength": 2}, "else": False}, "else"),
    ({"$ref": "https://example.org/address.json"}, "example.org"),
    ({"$ref": "other.json#/$defs/a"}, "other.json"),
    ({"$ref": "#/$defs/nothing"}, "nothing"),
    ({"$ref": 5}, "$ref"),
    ({"$ref": "#/properties/order"}, "finite"),
    (obj(a={"$ref": "#/properties/order/properties/zeppelin"}), "finite"),
    ({"type": "string", "x-guidance": {"lenient": True}, "pattern": 3}, "x-guidance"),
]  # fmt: skip


@pytest.mark.parametrize(("part", "words"), IMPOSSIBLE, ids=lambda value: json.dumps(value)[:60])
def test_a_part_that_cannot_be_kept_is_refused_with_its_place(part: Any, words: str) -> None:
    told = refusal(obj(order=obj(zeppelin=part)))
    assert "schema.properties.order.properties.zeppelin" in told and words in told, told


def test_remarks_and_words_without_effect_are_kept_out() -> None:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema", "title": "t", "x-order": 3, "nullable": True,
        **obj(a={"type": "array", "uniqueItems": False, "items": {"type": "integer", "format": "int32"},
            "default": []}),
    }  # fmt: skip
    assert fits(JsonSchema(schema, strict=True), '{"a": [1, 1]}')
    assert fits(JsonSchema(obj(a={"type": "string", "format": "idn-email"})), '{"a": "x"}')


NINES = "9" * 50


@pytest.mark.parametrize(
    ("part", "value"),
    [
        *(
            ({"type": "string", "format": name}, json.dumps(text))
            for name, text in (
                ("date-time", f"2026-11-27T21:00:00.{NINES}Z"),
                ("date-time", "2026-11-27T21:00:00.1234567890Z"),
                ("time", f"21:00:00.{NINES}Z"),
                ("duration", f"P{NINES}D"),
                ("uri", f"https://a.org/{NINES * 50}"),
            )
        ),
        ({"type": "integer"}, NINES),
        ({"type": ["integer", "null"], "minimum": 0}, NINES),
        ({"type": "integer", "exclusiveMaximum": 5}, f"-{NINES}"),
    ],
)
def test_no_value_goes_on_for_ever(part: Any, value: str) -> None:
    assert not fits(JsonSchema(obj(a=part)), f'{{"a": {value}}}')
    assert bounded_schema({"items": [part]})["items"][0].keys() > part.keys()


def test_bounds_leave_what_people_mean() -> None:
    stamp = {"type": "string", "format": "date-time", "maxLength": 20}
    assert fits(JsonSchema(obj(a=stamp)), '{"a": "2026-11-27T21:00:00Z"}')
    assert fits(JsonSchema(obj(a={"type": "string", "format": "time"})), '{"a": "21:00:00.123456789+01:00"}')
    assert fits(JsonSchema(obj(a={"type": "integer", "minimum": -3})), '{"a": 1988888888888888888}')
    assert fits(JsonSchema(obj(a={"type": "integer", "enum": [2**63 - 1]})), f'{{"a": {2**63 - 1}}}')
    for odd in (
        {"format": 5, "type": {}},
        {"type": "integer", "minimum": "x"},
        {"enum": [{"type": "integer"}]},
        [1],
        5,
    ):
        assert bounded_schema(odd) == odd


def test_unused_definitions_are_not_looked_at() -> None:
    assert fits(
        JsonSchema({**obj(a={"$ref": "#/$defs/~0x~1y%25"}), "$defs": {"~x/y%": {"const": 1}, "b": {"not": {}}}}),
        '{"a": 1}',
    )


def test_recursion_with_an_end() -> None:
    tree = obj(v={"type": "integer"}, kids={"type": "array", "items": {"$ref": "#"}})
    assert fits(JsonSchema(tree), '{"v": 1, "kids": [{"v": 2, "kids": []}]}')


def test_a_long_place_keeps_its_beginning() -> None:
    deep: Any = {"type": "decimal"}
    for _ in range(40):
        deep = obj(a=deep)
    told = refusal(obj(zeppelin=deep))
    assert "schema.properties.zeppelin" in told and len(told) < 500


def nested(levels: int, part: Any = None) -> Any:
    schema = part or {"type": "integer"}
    for _ in range(levels):
        schema = obj(a=schema)
    return schema


def chain(length: int) -> Any:
    return {
        "$ref": "#/$defs/0",
        "$defs": {str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(length)} | {str(length): {}},
    }


WORDS = [f"word {i * 7919 % 20011}" for i in range(20_000)]
HOSTILE = {
    "200 objects": nested(200),
    "200 lists": json.loads('{"type":"array","items":' * 200 + "{}" + "}" * 200),
    "a long chain of references": chain(5000),
    "many values": {"enum": WORDS * 6},
    "20,000 texts": {"enum": WORDS},
    "3,000 objects": {"enum": [{"k": i, "t": str(i)} for i in range(3000)]},
    "nested repeats": {"type": "string", "pattern": "^((a{1,900}){1,900}){1,900}$"},
    "backtracking": {"type": "string", "pattern": "^(([a-z]|[a-y]|[b-z])+)+(.*.*.*)*$"},
    "nested groups": {"type": "string", "pattern": "(" * 5000 + "a" + ")" * 5000},
    "2,000 branches": {"anyOf": [obj(**{f"w{i}": {"enum": [i]},
        "x": {"type": "string", "pattern": f"^(a|b){{0,{i % 50}}}$"}}) for i in range(2000)]},
    "huge counts": {"type": "array", "items": {"type": "string", "minLength": 10**9}, "maxItems": 10**12},
    "large counts": {"type": "array", "items": {"type": "string", "minLength": 1000, "maxLength": 10**6},
        "minItems": 1000, "maxItems": 10**6},
    "doubling": {"$ref": "#/$defs/0", "$defs": {str(i): {"allOf": [{"$ref": f"#/$defs/{i + 1}"},
        {"$ref": f"#/$defs/{i + 1}"}]} for i in range(30)} | {"30": {}}},
    "doubling options": {"$ref": "#/$defs/0",
        "$defs": {str(i): {"anyOf": [{"$ref": f"#/$defs/{i + 1}"}, {"$ref": f"#/$defs/{i + 1}"}]} for i in range(30)}
        | {"30": {}}},
    "products": {"allOf": [{"anyOf": [{"properties": {f"a{i}{j}": {"const": j}}} for j in range(10)]}
        for i in range(10)]},
    "many properties": {"type": "object", "properties": {f"k{i}": {"type": "integer"} for i in range(5000)}},
    "many exclusive options": {"oneOf": [{"const": i} for i in range(1000)]},
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_schema_takes_little_time(name: str) -> None:
    begin = time.process_time()  # CPU seconds: others may have the CPU meanwhile
    try:
        part = dict(HOSTILE[name])
        definitions = part.pop("$defs", {})
        compile_grammar(JsonSchema({**obj(order=obj(zeppelin=part)), "$defs": definitions}), BYTES, "schema")
    except UserError as error:
        assert any(word in error.message for word in ("zeppelin", "$defs", "bytes")), error.message
    assert time.process_time() - begin < 8


KEYS = ["name", "größe", "名前", "a b", 'say "x"', "type", "enum", "items"]
VALUES = ["low", "größer", "", 'a"b', 0, -7, 2.5, 10**6, True, None, [1, "a"], {"k": 1}]


def by_chance(rng: random.Random, depth: int) -> Any:
    kind = rng.choice(
        ("object", "array", "anyOf", "oneOf") if depth and rng.random() < 0.6 else ("text", "number", "enum", "flag")
    )
    if kind == "object":
        names = rng.sample(KEYS, rng.randint(1, 3))
        return {
            **obj(**{name: by_chance(rng, depth - 1) for name in names}),
            "required": rng.sample(names, rng.randint(0, len(names))),
        }
    if kind == "array":
        least = rng.randint(0, 2)
        return {
            "type": "array",
            "items": by_chance(rng, depth - 1),
            "minItems": least,
            "maxItems": least + rng.randint(0, 2),
        }
    if kind == "anyOf":
        return {"anyOf": [by_chance(rng, depth - 1) for _ in range(rng.randint(1, 3))]}
    if kind == "oneOf":
        return {
            "oneOf": [
                {"const": tag} if rng.random() < 0.7 else obj(tag={"const": tag})
                for tag in rng.sample(["a", 1, 2, None, True, "ß"], 3)
            ]
        }
    if kind == "text":
        return rng.choice(
            ({"type": "string", "pattern": "^[a-f]{2,4}$"}, {"type": "string", "minLength": 2, "maxLength": 4})
        )
    if kind == "number":
        low = rng.randint(-50, 50)
        return {
            "type": rng.choice(("integer", "number")),
            "minimum": low,
            "exclusiveMaximum": low + rng.choice((2, 40, 10**6)),
        }
    return {"enum": rng.sample(VALUES, rng.randint(1, 4))} if kind == "enum" else {"type": ["boolean", "null"]}


@pytest.mark.parametrize("seed", seeds(40))
def test_schemas_by_chance_are_kept(seed: int) -> None:
    compile_grammar(JsonSchema(obj(zeppelin=by_chance(random.Random(seed), 3)), strict=bool(seed % 2)), BYTES, "schema")
