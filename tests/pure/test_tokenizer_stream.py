"""Streams give out whole characters only, and in the end exactly the text of the whole, for every sequence of bytes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models

from homenode.model.tokenizer import Tokenizer
from homenode.model.tokenizer.stream import WindowStream
from tests.tokenizer_files import load_here
from tests.vocabularies import CONTROL, USER_DEFINED, byte_level_metadata, sentencepiece_metadata, write_gguf

# A space, beginnings of characters, what goes on with them, and what may not: here the rules differ.
_EDGES = b" \xe0\xed\xef\xf0\xf4\xc0\xc2\xf5\x80\x8f\x90\x9f\xa0\xbf\xbd"
BYTES = st.lists(st.one_of(st.sampled_from(_EDGES), st.integers(0, 255)), max_size=14).map(bytes)
KINDS = ("byte-level", "byte-fallback", "byte-fallback without a first space")


@pytest.fixture(scope="module")
def vocabularies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Tokenizer, int]]:
    """A tokenizer of each kind, and the id of its byte 0."""
    folder: Path = tmp_path_factory.mktemp("vocabularies")
    special = [("<|end|>", CONTROL)]
    made = {
        "byte-level": (byte_level_metadata(special), 0),
        "byte-fallback": (sentencepiece_metadata(special, words=("▁", "▁a", "猫")), 3),
        "byte-fallback without a first space": (sentencepiece_metadata(special, add_space_prefix=False), 3),
    }
    return {
        kind: (load_here(write_gguf(folder / f"{i}.gguf", metadata)), first)
        for i, (kind, (metadata, first)) in enumerate(made.items())
    }


def decoded_by_sentencepiece(data: bytes) -> str:
    """Its rule for byte pieces, character by character: a whole one is that, any other byte is one U+FFFD."""
    text, at = "", 0
    while at < len(data):
        for size in (1, 2, 3, 4):
            try:
                text += data[at : at + size].decode()
                break
            except UnicodeDecodeError:
                continue
        else:
            text, size = text + "�", 1
        at += size
    return text


@given(data=BYTES)
@example(data=bytes.fromhex("e697f09f988061"))  # a cut character before a whole one
@example(data=bytes.fromhex("efbfbd"))  # U+FFFD itself
@example(data=bytes.fromhex("3da187c4be"))
def test_bytes_are_the_text_that_the_original_tokenizer_makes_of_them(
    vocabularies: dict[str, tuple[Tokenizer, int]], data: bytes
) -> None:
    for kind, (tokenizer, first) in vocabularies.items():
        text = tokenizer.decode([first + byte for byte in data])
        if kind == "byte-level":
            assert text == data.decode("utf-8", "replace")
        else:
            wanted = decoded_by_sentencepiece(data)
            assert text == (wanted.removeprefix(" ") if kind == "byte-fallback" else wanted)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data(), skip=st.booleans())
def test_a_stream_is_the_whole_however_it_is_cut(
    vocabularies: dict[str, tuple[Tokenizer, int]], kind: str, data: st.DataObject, skip: bool
) -> None:
    tokenizer, first = vocabularies[kind]
    others = [token for token in range(tokenizer.vocab_size) if not first <= token < first + 256]
    ids = data.draw(
        st.lists(
            st.one_of(st.sampled_from([first + byte for byte in _EDGES]), st.integers(first, first + 255),
                st.sampled_from(others)),
            max_size=14,
        )
    )  # fmt: skip
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=4)))
    stream = tokenizer.stream(skip_special_tokens=skip)
    parts = [stream.push(ids[a:b]) for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True)]
    assert "".join(parts) + stream.flush() == tokenizer.decode(ids, skip_special_tokens=skip)


@given(text=st.text(max_size=12), begun=BYTES, data=BYTES)
@example(text="", begun=b"", data=b" a")  # of a text that has begun the first space is kept
def test_behind_a_context_the_text_goes_on(
    vocabularies: dict[str, tuple[Tokenizer, int]], text: str, begun: bytes, data: bytes
) -> None:
    """Behind whole characters as if it were alone; a character that begins in the context and ends here comes out
    whole.
    """
    for kind, (tokenizer, first) in vocabularies.items():
        ids = [first + byte for byte in data]
        alone = tokenizer.decode([first + ord("x"), *ids]).removeprefix("x")
        context = [first + byte for byte in (text + "x").encode()]
        stream = tokenizer.stream(context)
        assert "".join(stream.push([i]) for i in ids) + stream.flush() == alone, kind
        context = [first + byte for byte in b"x" + begun]
        whole, before = tokenizer.decode([*context, *ids]), tokenizer.decode(context)
        whole_at_once, stream = tokenizer.stream(context), tokenizer.stream(context)
        given_out = "".join(stream.push([i]) for i in ids) + stream.flush()
        assert whole_at_once.push(ids) + whole_at_once.flush() == given_out
        shown = re.sub(r"�{0,3}\Z", "", before)  # what of the context stays, whatever its last bytes come to
        assert whole.startswith(shown)
        assert whole in {before[: len(before) - cut] + given_out for cut in range(4)}


def test_a_character_that_begins_in_the_context_is_finished(vocabularies: dict[str, tuple[Tokenizer, int]]) -> None:
    for tokenizer, first in vocabularies.values():
        cat = [first + byte for byte in "猫".encode()]
        stream = tokenizer.stream(cat[:1])
        assert [stream.push([i]) for i in cat[1:]] == ["", "猫"]
        stream = tokenizer.stream(cat[:2])
        assert stream.push([first + ord("a")]) == "a"  # the unfinished one belongs to the context


def test_an_added_token_is_its_text_whatever_its_letters_stand_for_elsewhere(tmp_path: Path) -> None:
    """The letters of a byte-level vocabulary that stand for bytes, such as é, are letters in the tokens added to it."""
    special = [("<é>", CONTROL), ("naïve", USER_DEFINED), ("<\u4e2d>", CONTROL)]
    tokenizer = load_here(write_gguf(tmp_path / "v.gguf", byte_level_metadata(special)))
    assert tokenizer.decode([256, 97, 257, 258], skip_special_tokens=False) == "<é>anaïve<中>"
    assert tokenizer.token_bytes(257).decode() == "naïve"


@pytest.mark.parametrize("kind", KINDS)
def test_text_comes_out_as_soon_as_it_is_certain(vocabularies: dict[str, tuple[Tokenizer, int]], kind: str) -> None:
    tokenizer, first = vocabularies[kind]
    stream = tokenizer.stream([first])
    pieces = [stream.push([first + byte]) for byte in "a猫é".encode()]
    assert pieces == ["a", "", "", "猫", "", "é"]


def decode_words(ids: Sequence[int]) -> str:
    return "".join(" word" for _ in ids).removeprefix(" ")


def test_a_decoder_of_another_kind_is_asked_for_short_windows() -> None:
    library = Library(models.WordLevel({"play": 0, "##ing": 1, "the": 2, "[UNK]": 3}, unk_token="[UNK]"))
    library.decoder = decoders.WordPiece()
    tokenizer = Tokenizer(library, {}, {})
    stream = tokenizer.stream()
    ids = [0, 1, 2, 0, 1, 3]
    assert (
        "".join(stream.push([i]) for i in ids) + stream.flush() == tokenizer.decode(ids) == "playing the playing [UNK]"
    )


def test_the_window_stays_small() -> None:
    lengths: list[int] = []

    def decode(ids: Sequence[int]) -> str:
        lengths.append(len(ids))
        return bytes(ids).decode("utf-8", "replace")

    stream = WindowStream(decode, context=list(b"x" * 1000))
    assert stream.push(list(b"abc" * 300)) == "abc" * 300
    assert max(lengths) <= 8


def test_a_decoder_that_strips_the_first_space_keeps_it_after_a_context() -> None:
    assert WindowStream(decode_words).push([1, 2]) == "word word"
    assert WindowStream(decode_words, context=[1]).push([2]) == " word"
