"""Grammars of every kind of wish: what they allow, and what is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from homenode.errors import UserError
from homenode.grammars.compile import compile_grammar
from homenode.grammars.matcher import make_matcher
from homenode.grammars.spec import (
    Choice,
    Gbnf,
    GrammarSpec,
    JsonObject,
    JsonSchema,
    Lark,
    Regex,
    StructuralTag,
    grammar_text_spec,
)
from tests.pure.grammars.vocabularies import BYTES, fits

TAGS = {
    "type": "structural_tag",
    "structures": [{"begin": "<call=a>", "schema": {"type": "object"}, "end": "</call>"}],
    "triggers": ["<call="],
}


def tag(**form: Any) -> StructuralTag:
    return StructuralTag({"type": "structural_tag", "format": form})


SEVERAL = tag(
    type="sequence",
    elements=[
        {"type": "tag", "begin": "<t>", "content": {"type": "any_text"}, "end": "</t>"},
        {"type": "or", "elements": [{"type": "grammar", "grammar": 'root ::= "a" | "b"'},
            {"type": "const_string", "value": "é"}]},
        {"type": "regex", "pattern": "x+"},
    ],
)  # fmt: skip
SEPARATED = tag(
    type="tags_with_separator",
    separator=", ",
    at_least_one=True,
    tags=[{"type": "tag", "begin": "[", "content": {"type": "regex", "pattern": "[0-9]"}, "end": "]"}],
)


@pytest.mark.parametrize(
    ("spec", "good", "bad"),
    [
        (JsonObject(), ['{"a": [1, {}]}', "{}"], ["[1]", '"a"', '{"a": 1} ', ""]),
        (Regex("[A-Z][a-z]{2,3} \\d+"), ["Abc 12"], ["abc 12", "Abc ", "Abcde 1"]),
        (Regex("^a/b$"), ["a/b"], ["a", "xa/b"]),
        (Choice(["pos", "positive", 'a"b\n', "猫"]), ["pos", "positive", 'a"b\n', "猫"], ["po", "positiv", ""]),
        (Lark('start: "a" b?\nb: "b"'), ["a", "ab"], ["b", ""]),
        (Gbnf('root ::= item ("; " item){1,2}\nitem ::= [a-c]{2,4} # three\n'), ["ab; abc"], ["ab", "ab;cc"]),
        (Gbnf('root ::= "é" [^"\\n]* | fooBar\nfooBar ::= "x" "\\t"'), ["éx", "x\t"], ['é"', "x"]),
        (StructuralTag(TAGS), ["hi", "hi <call=a>{}</call> <call=a>{}</call>", "<call"],
            ["<call=b>{}</call>", "<call="]),
        (SEVERAL, ["<t>hey</t>axx", "<t></t>éx"], ["<t></t>cx", "axx"]),
        (SEPARATED, ["[1]", "[1], [2]"], ["", "[1],[2]"]),
        (JsonSchema(True), ["1", '{"a": []}'], ["", "nil"]),
    ],
)  # fmt: skip
def test_what_fits(spec: GrammarSpec, good: list[str], bad: list[str]) -> None:
    assert [text for text in good if not fits(spec, text)] == []
    assert [text for text in bad if fits(spec, text)] == []


def test_json_comes_in_the_order_of_the_schema_with_few_blanks() -> None:
    schema = {
        "type": "object",
        "properties": {"b": {"type": "integer"}, "a": {"type": "boolean"}},
        "required": ["b", "a"],
    }
    spec = JsonSchema(schema, strict=True)
    assert fits(spec, '{"b":1,"a":true}') and fits(spec, json.dumps({"b": 1, "a": True}, indent=8))
    assert not fits(spec, '{"a":true,"b":1}')
    assert not fits(spec, '{  "b":1,"a":true}')
    assert not fits(spec, '{"b":1,"a":true,"c":1}')
    assert not fits(JsonSchema(schema), '{"b":1,"a":true,"c":1}')
    assert fits(JsonSchema({**schema, "additionalProperties": True}), '{"b":1,"a":true,"c":1}')
    assert fits(JsonSchema({"type": "object", "properties": {}}), '{"c":1}')


@pytest.mark.parametrize("strict", [False, True])
def test_options_that_exclude_each_other_are_kept(strict: bool) -> None:
    tagged = [{"type": "object", "properties": {"k": {"const": c}}, "required": ["k"]} for c in ("a", "b")]
    schema = {
        "oneOf": [{"const": 1}, {"const": 2}, {"type": "null"}, {"$ref": "#/$defs/t"}],
        "$defs": {"t": {"oneOf": tagged}},
    }
    spec = JsonSchema(schema, strict)
    assert all(fits(spec, text) for text in ("1", "2", "null", '{"k": "a"}', '{"k": "b"}'))
    assert not fits(spec, "3") and not fits(spec, '{"k": "c"}')


def test_words_of_schemas_may_be_names() -> None:
    words = ("type", "enum", "oneOf", "format", "$ref", "not", "properties", "required", "items", "x-guidance")
    schema = {
        "type": "object",
        "properties": {word: {"const": i} for i, word in enumerate(words)},
        "required": list(words),
    }
    assert fits(JsonSchema(schema), json.dumps({word: i for i, word in enumerate(words)}))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (Regex("([a-z"), ["field", "unclosed character class"]),
        (Regex("(?=a)b"), ["field", "look-around"]),
        (Regex("(" * 300 + "a" + ")" * 300), ["field", "brackets"]),
        (Regex(""), ["field", "empty"]),
        (Choice([]), ["field", "nothing to choose"]),
        (Gbnf("root ::= ("), ["field", "`root`", "Expected ')'"]),
        (Gbnf('root ::= first\nfirst ::= "a" second\nthird ::= "b"'), ["`first`", "'second' not found"]),
        (Gbnf('other ::= "a"'), ["root"]),
        (Gbnf("what is this?"), ["no rule"]),
        (Gbnf("root ::= " + "(" * 150 + '"a"' + ")" * 150 + "".join(f"\nr{i} ::= [a]" for i in range(700))),
            ["701 rules"]),
        (Lark("start: nothing"), ["field", "nothing"]),
        (Lark("start: a\na: b\nb: a"), ["field"]),
        (Lark("start: " + "(" * 10_000), ["brackets"]),
        (Lark("\n".join(f"a{i}: a{i + 1}" for i in range(3000))), ["1500 rules"]),
        (StructuralTag({"type": "structural_tag"}), ["field", "format"]),
        (tag(type="poem"), ["field.format", '"poem"', "triggered_tags"]),
        (tag(type="tag", begin=1, end=""), ["field.format.begin"]),
        (tag(type="sequence", elements=[{"type": "json_schema", "json_schema": {"type": "colour"}}]),
            ["field.format.elements[0].json_schema.type"]),
        (StructuralTag({**TAGS, "triggers": ["<other"]}), ["field.structures[0].begin", "triggers"]),
        (JsonSchema({"enum": ["a" * 2**20]}), ["field", "1048576"]),
    ],
)  # fmt: skip
def test_what_is_refused(spec: GrammarSpec, words: list[str]) -> None:
    for _ in range(2):  # a refusal is remembered
        with pytest.raises(UserError) as refused:
            compile_grammar(spec, BYTES, "field")
        assert all(word in refused.value.message for word in words), refused.value.message
        assert refused.value.param == "field"


def test_control_tokens_are_no_text() -> None:
    from homenode.grammars.matcher import make_matcher

    matcher = make_matcher(BYTES, compile_grammar(Regex("<25[0-9]>"), BYTES, "field").text)
    assert matcher.try_consume_tokens([256]) == 0
    assert matcher.try_consume_tokens(list(b"<256>")) == 5
    assert matcher.is_accepting() and matcher.is_stopped()


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('root ::= "a"', Gbnf),
        ('start ::= "a"\nroot ::= start', Gbnf),
        ('start: "a"', Lark),
        ('%llguidance {}\nstart : "a"', Lark),
        ('starting ::= "a"', Gbnf),
        ('?start: "a"', Lark),
        ("%import common.INT\nstart: INT", Lark),
        ('root ::= start\nstart\n  ::= "a"', Gbnf),
    ],
)
def test_the_dialect_of_a_grammar(text: str, kind: type) -> None:
    assert isinstance(grammar_text_spec(text), kind)


@pytest.mark.parametrize(
    ("form", "text", "most"),
    [
        ("hostname", "a." * 200, 253),
        ("email", "a@" + "a." * 200, 254),
        ("email", "a" * 70 + "@a", 64),
        ("email", "a@" + "b" * 70, 65),
    ],
)
def test_formats_bound_the_length_of_their_texts(form: str, text: str, most: int) -> None:
    schema = JsonSchema({"type": "string", "format": form})
    matcher = make_matcher(BYTES, compile_grammar(schema, BYTES, "field").text)
    taken = matcher.try_consume_tokens(list(f'"{text}"'.encode()))
    assert most - 1 <= taken <= most + 1  # with the quote before it; a name does not end with a point
