"""Lines end between words and none is longer than asked for, however the text is cut into pieces; nothing is lost."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from homenode.cli.output.word_wrap import WordWrap

_TEXTS = st.text(alphabet="ab 中é\n\t,", max_size=120)


def wrapped(pieces: list[str], width: int, column: int = 0) -> str:
    wrap = WordWrap(column)
    return "".join(wrap.feed(piece, width) for piece in pieces) + wrap.end(width)


@given(_TEXTS, st.lists(st.integers(0, 120)), st.integers(1, 30), st.integers(0, 9))
def test_cuts_make_no_difference_and_words_stay(text: str, cuts: list[int], width: int, column: int) -> None:
    ends = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[begin:end] for begin, end in pairwise(ends)]
    out = wrapped(pieces, width, column)
    assert out == wrapped([text], width, column)
    assert "".join(out.split()) == "".join(text.split())
    assert out.count("\n") >= text.count("\n")
    without_wide = text.replace("中", "")
    assert wrapped([without_wide], width, column).split() == without_wide.split()


@given(st.lists(st.text(alphabet="abé中", min_size=1, max_size=5), max_size=30), st.integers(10, 30), st.integers(0, 9))
def test_no_line_is_longer_than_the_terminal(words: list[str], width: int, column: int) -> None:
    lines = (" " * column + wrapped([" ".join(words)], width, column)).split("\n")
    assert all(cell_len(line) <= width for line in lines)
    assert all(line == line.rstrip() for line in lines[1:])


@pytest.mark.parametrize(
    ("text", "column", "out"),
    [
        ("one two three", 0, "one two\nthree"),
        ("one two three", 6, "one\ntwo three"),
        ("    indented\n  x", 0, "    indented\n  x"),
        ("a  b", 0, "a  b"),
        ("end \nnext", 0, "end\nnext"),
        ("http://a.very/long/address then", 0, "http://a.very/long/address\nthen"),
        ("see http://a.very/long/address", 0, "see\nhttp://a.very/long/address"),
        ("中文中文中文中", 0, "中文中文中\n文中"),
        ("", 5, ""),
    ],
)
def test_a_table_of_texts_at_ten_columns(text: str, column: int, out: str) -> None:
    assert wrapped([text], 10, column) == out
    assert wrapped(list(text), 10, column) == out


def test_a_word_longer_than_a_line_comes_as_it_is_made() -> None:
    wrap = WordWrap()
    out = [wrap.feed("x", 10) for _ in range(25)]
    assert out[:10] == [""] * 10
    assert out[10] == "x" * 11
    assert out[11:] == ["x"] * 14


def test_the_width_may_change_meanwhile() -> None:
    wrap = WordWrap()
    assert wrap.feed("one two ", 20) + wrap.feed("three ", 9) + wrap.end(9) == "one two\nthree"
