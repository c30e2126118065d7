"""Stop strings against a plain search, over every way of cutting the text."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homenode.model.tokenizer.stops import StopStrings

LETTERS = st.text(alphabet="ab", min_size=0, max_size=24)


def expected(text: str, stops: list[str]) -> tuple[str, str | None]:
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


def run(pieces: list[str], stops: list[str]) -> tuple[str, str | None]:
    watcher, out = StopStrings(stops), ""
    for piece in pieces:
        given_out, matched = watcher.feed(piece)
        out += given_out
        if matched is not None:
            return out, matched
    return out + watcher.flush(), None


@settings(derandomize=True)
@given(
    LETTERS,
    st.lists(st.text(alphabet="ab", min_size=1, max_size=5), max_size=3),
    st.lists(st.integers(0, 24), max_size=6),
)
def test_any_cut_gives_what_a_search_gives(text: str, stops: list[str], cuts: list[int]) -> None:
    places = [0, *sorted(cut for cut in cuts if cut <= len(text)), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(places)]
    assert run(pieces, stops) == expected(text, stops)


@settings(derandomize=True)
@given(
    st.lists(st.tuples(st.text(alphabet="ab", max_size=3), st.booleans()), max_size=8),
    st.lists(st.text(alphabet="ab", min_size=1, max_size=5), min_size=1, max_size=3),
)
def test_hidden_text_can_complete_a_stop_string_and_is_never_given_out(
    pieces: list[tuple[str, bool]], stops: list[str]
) -> None:
    watcher, out, matched = StopStrings(stops), "", None
    for text, hidden in pieces:
        given_out, matched = watcher.feed(text, hidden=hidden)
        out += given_out
        if matched is not None:
            break
    whole = "".join(text for text, _ in pieces)
    hidden_places = [hidden for text, hidden in pieces for _ in text]
    kept, wanted = expected(whole, stops)
    assert matched == wanted
    assert out + watcher.flush() == "".join(c for c, hidden in zip(kept, hidden_places, strict=False) if not hidden)


@settings(derandomize=True)
@given(LETTERS, st.text(alphabet="ab", min_size=1, max_size=6))
def test_only_a_possible_beginning_is_held_back(text: str, stop: str) -> None:
    watcher = StopStrings([stop])
    out, matched = watcher.feed(text)
    if matched is None:
        held = text[len(out) :]
        assert stop.startswith(held)
        assert not any(stop.startswith(text[i:]) for i in range(len(out)))
        assert watcher.flush() == held


def test_nothing_comes_out_after_a_match() -> None:
    watcher = StopStrings(["END"])
    assert watcher.feed("a EN") == ("a ", None)
    assert watcher.feed("D b") == ("", "END")
    assert watcher.feed("c") == ("", "END")
    assert watcher.flush() == ""


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one character"):
        StopStrings(["a", ""])
