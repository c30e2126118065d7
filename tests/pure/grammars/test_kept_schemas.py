"""The part of a schema that a grammar keeps: no value that fits is lost, and what is not kept is told."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from homenode.errors import UserError
from homenode.grammars.compile import compile_grammar, keep_schema
from homenode.grammars.field_path import FieldPath
from homenode.grammars.kept_patterns import without_looks
from homenode.grammars.spec import JsonSchema
from tests.examples import seeds
from tests.pure.grammars.vocabularies import BYTES, fits

DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}
PLACE = FieldPath("schema")


def closed(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def record(**more: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": DIGIT, **more}


def items(**more: Any) -> dict[str, Any]:
    return {"type": "array", "items": DIGIT, **more}


# A schema, a value that is taken, one that is not, and the words that are not kept.
EXACT: list[tuple[dict[str, Any], str, str]] = [
    (record(propertyNames={"type": "string"}), '{"a": 1}', '{"a": 10}'),
    (record(propertyNames=True), '{"a": 1}', '{"a": 10}'),
    (record(propertyNames={}), '{"a": 1}', '{"a": 10}'),
    (record(propertyNames=False), "{}", '{"a": 1}'),
    (record(propertyNames={"type": "string"}, maxProperties=1), '{"a": 1}', '{"a": 1, "b": 1}'),
    (record(propertyNames={"enum": ["x", "y"]}), '{"x": 1, "y": 2}', '{"z": 1}'),
    (record(propertyNames={"enum": ["x", "y"]}, required=["x", "y"]), '{"x": 1, "y": 2}', '{"x": 1}'),
    (record(propertyNames={"enum": ["x", "y"]}, minProperties=1), '{"y": 2}', "{}"),
    (record(propertyNames={"anyOf": [{"const": "x"}, {"const": "y"}]}), '{"y": 2}', '{"z": 1}'),
    (record(propertyNames={"$ref": "#/$defs/E"}, **{"$defs": {"E": {"enum": ["x"]}}}), '{"x": 2}', '{"z": 1}'),
    (record(propertyNames={"type": "string", "pattern": "^[a-z]{2}$"}), '{"ab": 1}', '{"a": 1}'),
    (record(propertyNames={"type": "string", "minLength": 2}), '{"ab": 1}', '{"a": 1}'),
    (items(uniqueItems=False), "[1, 1]", "[10]"),
    (items(uniqueItems=True, maxItems=1), "[1]", "[1, 2]"),
    ({"type": "string", "enum": ["a"], "uniqueItems": True}, '"a"', '"b"'),
    (items(contains=True), "[1]", "[]"),
    (items(contains={}, minContains=2, maxContains=3), "[1, 2]", "[1]"),
    (items(contains={"const": 1}, minContains=0), "[2]", "[10]"),
    (items(minContains=2), "[]", "[10]"),
    (items(contains=DIGIT, minContains=2), "[1, 2]", "[1]"),
    ({**closed(a=DIGIT), "properties": {"a": DIGIT, "b": {"not": {}}}}, '{"a": 1}', '{"a": 1, "b": 1}'),
    (closed(a={"anyOf": [DIGIT, {"not": {}}]}), '{"a": 1}', '{"a": "x"}'),
    (closed(a={**DIGIT, "not": False}), '{"a": 1}', '{"a": 10}'),
    (closed(a={"not": {"type": "string"}}), '{"a": 1}', '{"a": "x"}'),
    (closed(a={"type": ["string", "null", "integer"], "not": {"type": "null"}}), '{"a": 1}', '{"a": null}'),
    (closed(a={"enum": [1, 2, 3], "not": {"const": 2}}), '{"a": 1}', '{"a": 2}'),
    (closed(a={"not": {"not": DIGIT}}), '{"a": 1}', '{"a": 10}'),
    ({**closed(a=DIGIT), "if": True, "then": {"required": ["a"]}}, '{"a": 1}', "{}"),
    ({**closed(a=DIGIT), "then": {"required": ["b"]}}, '{"a": 1}', "{}"),
    ({**closed(a=DIGIT), "dependentRequired": {}}, '{"a": 1}', "{}"),
    ({"type": "object", "properties": {"a": DIGIT, "b": DIGIT}, "required": ["a"],
      "dependentRequired": {"a": ["b"]}}, '{"a": 1, "b": 2}', '{"a": 1}'),
    ({"type": "object", "properties": {"a": DIGIT}, "additionalProperties": False,
      "dependentRequired": {"c": ["d"]}}, '{"a": 1}', '{"c": 1}'),
    ({"type": "object", "properties": {"a": DIGIT}, "unevaluatedProperties": False}, '{"a": 1}', '{"a": 1, "c": 2}'),
    ({"type": "array", "prefixItems": [DIGIT], "unevaluatedItems": False}, "[1]", "[1, 2]"),
    ({**closed(a=DIGIT), "minProperties": 1}, '{"a": 1}', "{}"),
    ({"$recursiveRef": "#/$defs/d", "$defs": {"d": DIGIT}}, "1", "10"),
    (closed(a={"type": "string", "$comment": "c", "deprecated": True, "readOnly": True, "writeOnly": False,
               "contentEncoding": "base64", "contentMediaType": "image/png", "contentSchema": {}, "examples": ["b"],
               "example": "b", "default": 3, "nullable": True, "xml": {}, "externalDocs": {}}),
     '{"a": "x"}', '{"a": 1}'),
    (closed(a={"type": "string", "format": "email"}), '{"a": "a@b.cd"}', '{"a": "ab"}'),
]  # fmt: skip
LOOSE: list[tuple[dict[str, Any], str, str, list[str]]] = [
    (closed(e={"type": "string", "format": "email", "pattern": r"^(?!\.)(?!.*\.\.)[a-z0-9.]+@[a-z0-9]+\.[a-z]{2,}$"}),
     '{"e": "a@b.cd"}', '{"e": "A@b.cd"}', ["e.pattern"]),
    (closed(e={"type": "string", "pattern": r"^(a)\1$"}), '{"e": "aa"}', '{"e": 1}', ["e.pattern"]),
    (closed(a=items(uniqueItems=True)), '{"a": [1, 1]}', '{"a": [10]}', ["a.uniqueItems"]),
    (closed(a={"type": "array", "items": {"enum": ["p", "q"]}, "uniqueItems": True}),
     '{"a": ["p", "q"]}', '{"a": ["p", "q", "p"]}', ["a.uniqueItems"]),
    (closed(a=items(contains={"const": 1})), '{"a": [1]}', '{"a": []}', ["a.contains"]),
    (closed(a={"type": "string", "not": {"const": "b"}}), '{"a": "x"}', '{"a": 1}', ["a.not"]),
    ({**closed(a=DIGIT), "if": {"properties": {"a": {"const": 1}}}, "then": {"required": ["b"]}},
     '{"a": 2}', '{"b": 2}', ["if", "then"]),
    ({"type": "object", "properties": {"a": DIGIT, "b": DIGIT}, "dependentRequired": {"a": ["b"]}},
     '{"a": 1, "b": 2}', '{"c": 1}', ["dependentRequired"]),
    ({"type": "object", "properties": {"a": DIGIT, "b": DIGIT}, "minProperties": 1}, '{"a": 1}', '{"c": 1}',
     ["minProperties"]),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "1", '"x"', ["oneOf"]),
    ({"oneOf": [DIGIT, {"type": "number"}], "anyOf": [DIGIT, {"type": "null"}]}, "1", '"x"', ["oneOf"]),
    (closed(a={"$ref": "https://example.org/a.json"}), '{"a": 1}', '{"b": 1}', ["a.$ref"]),
    ({"type": "object", "patternProperties": {"^(?=a)b": DIGIT}, "additionalProperties": False}, '{"q": 1}', "[]",
     ["patternProperties.^(?=a)b"]),
    (record(propertyNames={"pattern": "^a", "maxLength": 2}), '{"ab": 1}', '{"b": 1}', ["propertyNames"]),
    ({"type": "object", "properties": {"a": DIGIT}, "allOf": [{"properties": {"b": DIGIT}}],
      "unevaluatedProperties": False}, '{"a": 1, "b": 2}', '{"a": 10}', ["unevaluatedProperties"]),
    (closed(a={"type": "string", "format": "idn-email"}), '{"a": "x"}', '{"a": 1}', ["a.format"]),
    ({"x-guidance": {"lenient": True}, **closed(a=DIGIT)}, '{"a": 1}', '{"a": 10}', ["x-guidance"]),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "good", "bad"), EXACT, ids=lambda value: json.dumps(value)[:70])
def test_what_forbids_nothing_or_can_be_said_otherwise_is_kept(schema: Any, good: str, bad: str) -> None:
    assert compile_grammar(JsonSchema(schema), BYTES, "schema").left_out == ()
    for strict in (False, True):
        assert fits(JsonSchema(schema, strict), good) and not fits(JsonSchema(schema, strict), bad)


@pytest.mark.parametrize(("schema", "good", "bad", "names"), LOOSE, ids=lambda value: json.dumps(value)[:70])
def test_what_cannot_be_kept_is_told_and_refused_where_it_is_strict(
    schema: Any, good: str, bad: str, names: list[str]
) -> None:
    assert [place.name for place in compile_grammar(JsonSchema(schema), BYTES, "schema").left_out] == names
    assert fits(JsonSchema(schema), good) and not fits(JsonSchema(schema), bad)
    with pytest.raises(UserError):
        compile_grammar(JsonSchema(schema, strict=True), BYTES, "schema")


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("int", "1", '"x"'),
        ("bool", "true", "1"),
        ("STRING", '"x"', "1"),
        ("list", "[1]", "1"),
        ("dict", '{"a": 1}', "1"),
        (["str", "none"], "null", "1"),
        ("Optional[int]", "null", '"x"'),
        ("any", "1", "{"),
    ],
)
def test_types_by_other_spellings_are_known(kind: Any, good: str, bad: str) -> None:
    schema = closed(a={"type": kind})
    assert fits(JsonSchema(schema), f'{{"a": {good}}}') and not fits(JsonSchema(schema), f'{{"a": {bad}}}')
    with pytest.raises(UserError, match="type"):
        compile_grammar(JsonSchema(schema, strict=True), BYTES, "schema")


@pytest.mark.parametrize(
    ("pattern", "rest"),
    [
        (r"^(?!\.)(?!.*\.\.)a$", "^a$"),
        (r"\bab\b[\b(?=x]", r"ab[\b(?=x]"),
        (r"[]a(]b(?<!c)d", "[]a(]bd"),
        (r"a(?=b(c[)])d)e", "ae"),
        (r"\(?=a\)", r"\(?=a\)"),
        (r"^(?:(?!x)a)*$", "^(?:a)*$"),
        (r"(?<name>a)(?<=b)c", "(?<name>a)c"),
        ("(a", None),
        ("[a", None),
    ],
)
def test_what_looks_around_is_taken_out_of_a_pattern(pattern: str, rest: str | None) -> None:
    assert without_looks(pattern) == rest


VALUES: list[Any] = [None, True, False, 0, 1, 2, 1.5, "", "a", "ab", "b", [], [1], [1, 1], [1, 2, "a"], [[]], {},
    {"a": 1}, {"b": 1}, {"a": 1, "b": "a"}, {"a": "a", "ab": 2, "c": None}, {"a": {"a": 1}, "b": [1, 1]}]  # fmt: skip


def part(rng: random.Random, depth: int) -> Any:
    """A schema by chance, with words that grammars do not keep."""
    if depth == 0 or rng.random() < 0.2:
        return rng.choice([True, False, {}, {"type": "string"}, {"type": ["integer", "null"]}, {"const": 1},
            {"enum": ["a", "ab", 1]}, {"minLength": 2}, {"pattern": "^a"}, {"pattern": "^(?!b)"}, {"type": "array"},
            {"type": "object"}, {"not": {}}])  # fmt: skip

    def inner() -> Any:
        return part(rng, depth - 1)

    words = {
        "type": lambda: rng.choice(["object", "array", "string", "number", ["object", "array"], ["integer", "null"]]),
        "enum": lambda: rng.sample(VALUES, 4),
        "not": inner,
        "if": inner,
        "then": inner,
        "else": inner,
        "contains": inner,
        "minContains": lambda: rng.randint(0, 2),
        "maxContains": lambda: rng.randint(0, 2),
        "uniqueItems": lambda: rng.random() < 0.7,
        "dependentRequired": lambda: {"a": ["b"]} if rng.random() < 0.7 else {},
        "dependentSchemas": lambda: {"a": inner()},
        "propertyNames": inner,
        "unevaluatedItems": inner,
        "unevaluatedProperties": inner,
        "properties": lambda: {name: inner() for name in rng.sample(["a", "b", "ab"], 2)},
        "additionalProperties": inner,
        "patternProperties": lambda: {rng.choice(["^a", "b$", "^(?!a)"]): inner()},
        "items": inner,
        "prefixItems": lambda: [inner()],
        "required": lambda: rng.sample(["a", "b", "c"], rng.randint(0, 2)),
        "minItems": lambda: rng.randint(0, 2),
        "maxItems": lambda: rng.randint(0, 2),
        "minProperties": lambda: rng.randint(0, 2),
        "maxProperties": lambda: rng.randint(0, 3),
        "allOf": lambda: [inner(), inner()],
        "anyOf": lambda: [inner(), inner()],
        "$ref": lambda: "#/$defs/d",
    }
    return {word: words[word]() for word in rng.sample(sorted(words), rng.randint(1, 5))}


def test_no_value_that_fits_is_lost_and_none_is_won_where_all_is_kept() -> None:
    jsonschema = pytest.importorskip("jsonschema_rs")

    def fit_by(schema: Any) -> list[bool]:
        validator = jsonschema.Draft202012Validator(schema)
        return [validator.is_valid(value) for value in VALUES]

    kept_whole = lost = 0
    for seed in seeds(3000):
        rng = random.Random(seed)
        schema = {"$defs": {"d": part(rng, 1)}, **_object(part(rng, 2))}
        kept = keep_schema(schema, PLACE, strict=False)
        wanted, found = fit_by(schema), fit_by(kept.schema)
        assert all(taken for taken, fit in zip(found, wanted, strict=True) if fit), (seed, schema, kept.schema)
        if not kept.left_out:
            assert found == wanted, (seed, schema, kept.schema)
            assert keep_schema(schema, PLACE, strict=True) == kept
        kept_whole, lost = kept_whole + (not kept.left_out), lost + (found != wanted)
    assert kept_whole > 70 and lost > 25


def _object(schema: Any) -> dict[str, Any]:
    return schema if isinstance(schema, dict) else {"allOf": [schema]}
