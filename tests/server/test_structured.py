"""The fields of structured output: each becomes a grammar of the request, and what is wrong is a 400 that names the
place.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.conftest import Running, Start

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
TAG = {"type": "structural_tag", "format": {"type": "const_string", "value": "x"}}
FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"response_format": {"type": "json_object"}}, '{"type":"object"'),
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, '"n"'),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "f", "strict": True, "schema": SCHEMA}}},
        '"n"',
    ),
    ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, '"n"'),
    ({"response_format": TAG}, '"x"'),
    ({"structured_outputs": {"json": SCHEMA}}, '"n"'),
    ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, '"n"'),
    ({"structured_outputs": {"json_object": True}}, '{"type":"object"'),
    ({"structured_outputs": {"regex": "a+b"}}, "/a+b/"),
    ({"structured_outputs": {"choice": ["yes", "no"]}}, '"yes" | "no"'),
    ({"structured_outputs": {"grammar": 'root ::= "a"'}}, 'start: "a"'),
    ({"structured_outputs": {"structural_tag": json.dumps(TAG)}}, '"x"'),
    ({"guided_json": SCHEMA}, '"n"'),
    ({"guided_json": json.dumps(SCHEMA)}, '"n"'),
    ({"guided_regex": "a+b"}, "/a+b/"),
    ({"guided_choice": ["yes", "no"]}, '"yes" | "no"'),
    ({"guided_grammar": 'start: "a"'}, 'start: "a"'),
    ({"grammar": 'root ::= "a"'}, 'start: "a"'),
    ({"json_schema": SCHEMA}, '"n"'),
]
NOTHING: list[dict[str, Any]] = [{}, {"response_format": {"type": "text"}}, {"response_format": None}, {"grammar": ""}]
WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": {"type": "poem"}}, "response_format", "poem"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "f"}}}, "response_format.json_schema",
        "schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}}, "response_format.json_schema.schema",
        ""),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"properties": {"a": {"minLength": -1}}}}}},
        "response_format.json_schema.schema", ".properties.a.minLength"),
    ({"structured_outputs": {}}, "structured_outputs", "regex"),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs.choice", "structured_outputs.regex"),
    ({"structured_outputs": {"regex": "([a-z"}}, "structured_outputs.regex", "unclosed"),
    ({"structured_outputs": {"json": "{"}}, "structured_outputs.json", "no JSON"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", ""),
    ({"guided_json": SCHEMA, "guided_regex": "a"}, "guided_regex", "guided_json"),
    ({"grammar": "root ::= ("}, "grammar", "`root`"),
    ({"json_schema": {"type": "colour"}}, "json_schema", "json_schema.type"),
]  # fmt: skip


@pytest.fixture(scope="module")
def server(start: Start) -> Running:
    return start()


@pytest.mark.parametrize("ask", ["chat", "complete"])
@pytest.mark.parametrize(("fields", "words"), FIELDS, ids=lambda value: str(value)[:60])
def test_each_field_becomes_a_grammar(server: Running, ask: str, fields: dict[str, Any], words: str) -> None:
    answer = getattr(server, ask)(max_tokens=4, n=2, **fields)
    assert answer.status_code == 200, answer.text
    for request in server.client.requests[-2:]:
        assert words in (request.params.grammar or ""), request.params.grammar


@pytest.mark.parametrize("fields", NOTHING)
def test_what_asks_for_any_text_binds_nothing(server: Running, fields: dict[str, Any]) -> None:
    assert server.chat(max_tokens=4, **fields).status_code == 200
    assert server.client.requests[-1].params.grammar is None


@pytest.mark.parametrize("ask", ["chat", "complete"])
@pytest.mark.parametrize(("fields", "param", "words"), WRONG, ids=lambda value: str(value)[:60])
def test_what_is_wrong_is_refused_with_its_place(
    server: Running, ask: str, fields: dict[str, Any], param: str, words: str
) -> None:
    answer = getattr(server, ask)(max_tokens=4, **fields)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"].startswith(param) and words in error["message"], error


def test_an_answer_ends_at_its_grammars_end_whatever_ignore_eos_says(start: Start) -> None:
    from tests.server.fakes import ByteTokenizer

    tokenizer = ByteTokenizer()
    tokenizer.stop_token_ids = (257,)
    server = start(tokenizer=tokenizer)
    server.chat(max_tokens=4, ignore_eos=True, guided_choice=["a"])
    assert server.client.requests[-1].params.stop_token_ids == (257,)
