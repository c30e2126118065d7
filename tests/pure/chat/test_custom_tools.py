"""The text within the arguments of a custom tool's call, however the arguments are cut."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homenode.chat.custom_tools import CustomInput, arguments_of, custom_input, input_lark

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
CUTS = st.lists(st.integers(0, 200), max_size=8)


def in_pieces(text: str, cuts: list[int]) -> str:
    reader, places = CustomInput(), sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    return "".join(reader.feed(text[begin:end]) for begin, end in itertools.pairwise(places))


@given(TEXTS, CUTS, st.booleans(), st.sampled_from(["", " ", "\n  "]))
def test_every_text_comes_through(text: str, cuts: list[int], ascii: bool, space: str) -> None:
    arguments = f'{space}{{{space}"input"{space}:{space}{json.dumps(text, ensure_ascii=ascii)}{space}}}{space}'
    assert custom_input(arguments) == text == in_pieces(arguments, cuts)
    assert custom_input(arguments_of(text)) == text


@given(st.text('{}":,\\ninputud83ecF0 \U0001f98a', max_size=60), CUTS)
def test_pieces_of_any_text_make_what_the_whole_makes(text: str, cuts: list[int]) -> None:
    assert in_pieces(text, cuts) == custom_input(text)
    opened = '{"input": "' + text
    assert in_pieces(opened, cuts) == custom_input(opened)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"patch": "x"}', '{"patch": "x"}'),
        ("{}", "{}"),
        ('{"input": 5}', '{"input": 5}'),
        ('{"input": "a", "more": "b"}', "a"),
        ('{"input": "a\\ud83e\\udd8ab"}', "a🦊b"),
        ('{"input": "a\\ud83eb"}', "a\N{REPLACEMENT CHARACTER}b"),
        ('{"input": "a\\udd8a"}', "a\N{REPLACEMENT CHARACTER}"),
        ('{"input": "a\\qb"}', "a\\qb"),
        ('{"input": "cut', "cut"),
        ('{"inp', ""),
        ("", ""),
    ],
)
def test_other_forms(arguments: str, text: str) -> None:
    assert custom_input(arguments) == text == in_pieces(arguments, list(range(len(arguments))))


@pytest.mark.parametrize(
    ("pattern", "written"),
    [
        ("a/b", "start: /a\\/b/\n"),
        ("a\\/b", "start: /a\\/b/\n"),
        ("a\\\\/b", "start: /a\\\\\\/b/\n"),
        ("a\nb", "start: /a\\nb/\n"),
        ("[/\n]", "start: /[\\/\\n]/\n"),
    ],
)
def test_a_regular_expression_as_a_grammar(pattern: str, written: str) -> None:
    assert input_lark("regex", pattern) == written
    assert input_lark("lark", pattern) == pattern
