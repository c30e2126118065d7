"""Streams give out whole characters only, and in the end exactly the text of the whole."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from homenode.model.tokenizer.stream import TextStream


def decode_bytes(ids: Sequence[int]) -> str:
    return bytes(ids).decode("utf-8", "replace")


@given(st.text(), st.lists(st.integers(1, 9)))
def test_cut_anywhere_the_text_is_the_same_and_no_character_is_torn(text: str, cuts: list[int]) -> None:
    data = list(text.encode())
    stream = TextStream(decode_bytes)
    parts = []
    for size in [*cuts, len(data) or 1]:
        parts.append(stream.push(data[:size]))
        data = data[size:]
    assert "�" in text or all("�" not in part for part in parts)
    assert "".join(parts) + stream.flush() == text


@given(st.binary(max_size=60))
def test_bytes_that_are_no_text_neither_stall_nor_vanish(data: bytes) -> None:
    stream = TextStream(decode_bytes)
    out = "".join(stream.push([b]) for b in data)
    assert len(data) < 8 or out  # something has come out before the end
    whole = out + stream.flush()
    valid = [c for c in data.decode("utf-8", "replace") if c != "�" and c.isascii()]
    assert [c for c in whole if c.isascii()] == valid


def test_the_window_stays_small() -> None:
    lengths: list[int] = []

    def decode(ids: Sequence[int]) -> str:
        lengths.append(len(ids))
        return decode_bytes(ids)

    stream = TextStream(decode, context=list(b"x" * 1000))
    assert stream.push(list(b"abc" * 300)) == "abc" * 300
    assert max(lengths) <= 8


def test_a_decoder_that_strips_the_first_space_keeps_it_after_a_context() -> None:
    def decode(ids: Sequence[int]) -> str:
        return "".join(" word" for _ in ids).removeprefix(" ")

    assert TextStream(decode).push([1, 2]) == "word word"
    assert TextStream(decode, context=[1]).push([2]) == " word"
