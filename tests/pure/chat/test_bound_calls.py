"""Random texts that a grammar of calls accepts are read as calls whose arguments fit, in every format."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homenode.chat.call_grammar import call_grammar
from homenode.chat.choice import choose
from homenode.chat.formats import ToolFormat, all_formats
from homenode.chat.offer import ToolOffer, ToolUse
from homenode.chat.parser import MessageParser, parse_message
from tests.examples import examples, lives
from tests.pure.chat.vocabularies import ByteVocabulary, random_text

jsonschema_rs = pytest.importorskip("jsonschema_rs")

TEXT = {"type": "string"}
POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}
LISTS = {
    "type": "object",
    "properties": {"of": {"type": "array", "items": {"enum": ["x", "y", 1, None]}, "maxItems": 3}, "text": TEXT},
    "required": ["of"],
    "additionalProperties": False,
}
BOUNDED = {"anyOf": [{"type": "integer", "minimum": 5}, {"type": "string", "pattern": "^[0-9]{4}$"}]}
# Texts that chance does not write: ends of values, calls and thoughts, of every format.
MARKS = ["</parameter>", "\n</parameter>", "</arg_value>", "</｜DSML｜parameter>", '<|"|>', "<escape>", "</function>"]
MARKS += ['{"name": "', "[a(", "Action:", "<tool_call>", "</tool_call>", "</think>", "<|end|>", "\n", "```", "\\n"]
MARKS += ["<|close|>argument<|sep|>", "<![CDATA[", "]]></param>", "</param>", ">>>"]


def tool(name: str, optional: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    required = [name for name in properties if name not in optional]
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


TOOLS = {
    "one": [tool("get_weather", city={"enum": ["Oslo", "New York"]}, days={"type": "integer", "minimum": 1})],
    "several": [
        tool("a", x=TEXT),
        tool("ab", n={"type": "number", "minimum": 0, "maximum": 9}, t={"type": "boolean"}),
        tool("none"),
        {"type": "function", "function": {"name": "bare"}},
    ],
    "nested": [tool("deep", o=LISTS, l={"type": "array", "items": TEXT, "maxItems": 2}, p=POINT)],
    "texts": [
        tool(
            "write",
            path={"type": "string", "pattern": "^/[a-z]{1,8}$"},
            body=TEXT,
            when={"type": "string", "format": "date"},
            size={"type": "string", "minLength": 2, "maxLength": 5},
        )
    ],
    "unlike types": [
        tool("mix", a={"type": ["string", "null"]}, b={"enum": ["low", 3, None, True]}, c=BOUNDED, d={"title": "any"})
    ],
    "optional": [tool("opt", ("a", "c"), a=TEXT, b={"type": "integer"}, c=POINT)],
}
BINDABLE = [known for known in all_formats() if known.describe_calls or known.describe_message]


@pytest.mark.parametrize("known", BINDABLE, ids=[known.name for known in BINDABLE])
@settings(max_examples=examples(60), deadline=None)
@given(
    special=st.booleans(),
    seed=st.integers(0, 2**32),
    tools=st.sampled_from(sorted(TOOLS)),
    parallel=st.booleans(),
    auto=st.booleans(),
)
def test_texts_of_the_grammar_are_calls_that_fit(
    known: ToolFormat, special: bool, seed: int, tools: str, parallel: bool, auto: bool
) -> None:
    """`special`: the marks are tokens, else text."""
    offered, vocabulary = TOOLS[tools], ByteVocabulary(known.marks if special else ())
    if auto:
        offered = [{**one, "function": {**one["function"], "strict": True}} for one in offered]
    offer = ToolOffer(offered, ToolUse.AUTO if auto else ToolUse.REQUIRED, parallel=parallel)
    chosen = choose(None, tool_parser=known.name, reasoning_parser="openai" if known.name == "openai" else "none")
    grammar = call_grammar(chosen, offer, special_tokens=vocabulary.ids)
    assert grammar is not None
    text = random_text(grammar, vocabulary, random.Random(seed), [*MARKS, *known.marks])
    message = parse_message(MessageParser(chosen, "", offered, eager=True), text)
    schemas = {one["function"]["name"]: one["function"].get("parameters", {}) for one in offered}
    for call in message.calls:
        assert jsonschema_rs.is_valid(schemas[call.name], json.loads(call.arguments)), (call, text)
    assert parallel or len(message.calls) <= 1, text
    if not auto:
        assert message.calls and not message.content, text


PATCH = """start: begin hunk+ end
begin: "*** Begin Patch" LF
end: "*** End Patch" LF?
hunk: "*** Add File: " name LF line+ -> added
name: /[a-z.\"]+/
line: "+" /(.*)/ LF
%import common.LF
"""


@pytest.mark.parametrize("special", [False, True], ids=["marks as text", "marks as tokens"])
@pytest.mark.parametrize("known", BINDABLE, ids=[known.name for known in BINDABLE])
@pytest.mark.parametrize(
    ("grammar", "expression"),
    [
        (PATCH, r'\*\*\* Begin Patch\n(\*\*\* Add File: [a-z."]+\n(\+.*\n)+)+\*\*\* End Patch\n?'),
        (r'start: /"[^a-y]{2,9}\\\n"/', r'"[^a-y]{2,9}\\\n"'),
    ],
    ids=["patch", "regex"],
)
def test_inputs_keep_their_grammar(known: ToolFormat, special: bool, grammar: str, expression: str) -> None:
    offered, vocabulary = [tool("apply", input=TEXT), tool("other")], ByteVocabulary(known.marks if special else ())
    chosen = choose(None, tool_parser=known.name, reasoning_parser="openai" if known.name == "openai" else "none")
    offer = ToolOffer(offered, named="apply", parallel=False, inputs={"apply": grammar})
    bound = call_grammar(chosen, offer, special_tokens=vocabulary.ids)
    assert bound is not None
    for seed in lives(2, share=1000):
        text = random_text(bound, vocabulary, random.Random(seed), [*MARKS, "*** End Patch\n", "*** End Patch\\n"])
        calls = parse_message(MessageParser(chosen, "", offered, eager=True), text).calls
        assert [call.name for call in calls] == ["apply"]
        assert re.fullmatch(expression, json.loads(calls[0].arguments)["input"]), text
