"""Every parser takes every text: nothing is raised, nothing depends on how the text was cut, and time grows with its
length only.
"""

from __future__ import annotations

import gc
import json
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homenode.chat.formats import all_formats
from homenode.chat.syntax.reasoning import FORMS
from tests.examples import examples, lives

from .messages import parse

NAMES = [known.name for known in all_formats()]
# Pieces that parsers look for, and such as lead them astray.
PIECES = [
    *(text for known in all_formats() for sign in known.signs for text in sign),
    *(text for form in FORMS.values() for text in (form.begin, form.end, *form.wrappers) if text),
    *"{}[]()<>\"\\',:;=/|`- \n",
    '{"name": "book_seat", "arguments": {"train": "',
    '"name": "list_trains"',
    '{"name":"list_trains","parameters":{}}',
    "list_trains()",
    "book_seat(train='",
    "book_seat",
    "list_trains",
    "</tool_call>",
    "<function=book_seat>",
    "<parameter=train>",
    "</parameter>",
    "</function>",
    '<invoke name="book_seat">',
    '<parameter name="train">',
    "</invoke>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "call:book_seat{",
    '<|"|>',
    "<escape>",
    "[ARGS]",
    "[CALL_ID]",
    "<|message|>",
    "<|start|>assistant",
    " to=functions.book_seat",
    "<|call|>",
    "<|end|>",
    "```",
    "```json\n",
    "Action: ",
    "\\ud83d",
    "true",
    "17",
    "é",
    "🦊",
    "the train ",
]


def words(source: random.Random, most: int) -> str:
    return "".join(source.choice(PIECES) for _ in range(source.randint(1, most)))


@pytest.mark.parametrize("name", NAMES)
def test_thousands_of_random_texts(name: str) -> None:
    source = random.Random(name)
    begun = time.process_time()
    for _ in lives(60, share=8):
        text = words(source, 30)
        message = parse(text, name, thoughts=source.choice(list(FORMS)), raw=source.random() < 0.2)
        for call in message.calls:
            assert call.name and call.id
            if len(text) < 256:
                assert isinstance(json.loads(call.arguments), dict), text
    assert time.process_time() - begun < 30


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_million_random_texts(name: str) -> None:
    source = random.Random(f"many {name}")
    for _ in range(1_000_000 // len(NAMES) + 1):
        text = words(source, 30)
        message = parse(text, name, thoughts=source.choice(list(FORMS)), eager=source.random() < 0.3)
        assert all(call.name and call.id for call in message.calls), text


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_time_grows_as_random_texts_do(name: str) -> None:
    source = random.Random(f"long {name}")
    for _ in range(30):
        text, thoughts, seconds = words(source, 8), source.choice(list(FORMS)), []
        for length in (20_000, 80_000):
            begun = time.process_time()
            parse(text * (length // len(text) + 1), name, thoughts=thoughts)
            seconds.append(time.process_time() - begun)
        assert seconds[1] < 8 * seconds[0] + 0.2, text


@settings(max_examples=examples(20), deadline=None)
@given(seed=st.integers(0, 1 << 30), cuts=st.lists(st.integers(1, 9), max_size=40))
@pytest.mark.parametrize("name", NAMES)
def test_cuts_do_not_matter(name: str, seed: int, cuts: list[int]) -> None:
    source = random.Random(seed)
    text, thoughts, eager = words(source, 25), source.choice(list(FORMS)), source.random() < 0.5
    pieces, at = [], 0
    for size in cuts or [1] * len(text):
        pieces.append(text[at : at + size])
        at += size
    pieces.append(text[at:])
    assert parse(pieces, name, thoughts=thoughts, eager=eager) == parse(text, name, thoughts=thoughts, eager=eager)


@pytest.mark.parametrize("name", NAMES)
def test_without_tools_and_marks_a_text_stays_as_it_is(name: str) -> None:
    text = "  Both {trains} [leave] at <noon>,\n\n```\ncode = 1\n```\nI think.\n"
    assert parse(text, name).content == text


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("piece", ["{", "<", " ", "\n```", "\n{", '{"a":', "[[", "<tool_call>", "<|", '"'])
def test_long_texts_of_one_piece_take_linear_time(name: str, piece: str) -> None:
    """Four times the text takes less than nine times as long; quadratic time would be sixteen times."""

    def seconds(length: int) -> float:
        text = piece * (length // len(piece))
        begun = time.process_time()
        parse(text, name)
        parse(list(text), name)
        return time.process_time() - begun

    gc.disable()  # all that other tests of this process have left is gone through otherwise, for most of a second
    try:
        whole = seconds(4_000)
        assert whole < 0.2 or whole < 9 * seconds(1_000)
    finally:
        gc.enable()
