"""Long texts: the tokens of pieces are those of the whole, and no text has fewer tokens than was foretold."""

from __future__ import annotations

import string
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Library

from homenode.errors import CapacityError
from homenode.model.tokenizer import Tokenizer, pieces
from homenode.model.tokenizer.pieces import PieceEncoder
from homenode.model.tokenizer.token_bound import TokenBound
from homenode.model.tokenizer.vocabularies.gguf_vocab import tokenizer_from_gguf
from tests.examples import examples

CUTS = ("default", "llama-bpe", "qwen2", "deepseek-v3", "deepseek-coder", "gpt-4o", "tekken", "falcon")
LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())
MERGES = [
    ("a", "a"),
    ("aa", "aa"),
    ("aaaa", "aaaa"),
    ("t", "h"),
    ("th", "e"),
    ("Ġ", "the"),
    ("Ġ", "Ġ"),
    ("ĠĠ", "ĠĠ"),
    ("1", "2"),
    ("12", "3"),
    ("k", "k"),
    ("kk", "kk"),
    ("kkkk", "kkkk"),
]


def vocabulary(words: list[str], merges: list[tuple[str, str]]) -> dict[str, int]:
    return {word: index for index, word in enumerate([*words, *dict.fromkeys(a + b for a, b in merges)])}


def byte_level(pre: str) -> Library:
    words = [*vocabulary(LETTERS, MERGES), "<|end|>", "<sep>"]
    return tokenizer_from_gguf(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": pre,
            "tokenizer.ggml.tokens": words,
            "tokenizer.ggml.token_type": [*[1] * (len(words) - 2), 3, 4],
            "tokenizer.ggml.merges": [f"{a} {b}" for a, b in MERGES],
            "tokenizer.ggml.add_bos_token": False,
        }
    )


def sentencepiece(*steps: normalizers.Normalizer, strips: bool = False) -> Library:
    merges = [(a.replace("Ġ", "▁"), b.replace("Ġ", "▁")) for a, b in MERGES]
    words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"athe123é猫각k"]
    library = Library(models.BPE(vocab=vocabulary(words, merges), merges=merges, byte_fallback=True, fuse_unk=True))
    library.normalizer = normalizers.Sequence([*steps, normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    library.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    library.add_special_tokens([AddedToken("<|end|>", special=True, normalized=False, rstrip=strips, lstrip=strips)])
    return library


def one_word() -> Library:
    library = byte_level("default")
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return library


def metaspace() -> Library:
    library = sentencepiece()
    library.normalizer = None
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    return library


def words_only() -> Library:
    library = Library(models.WordLevel({"the": 0, "a": 1, "<unk>": 2}, unk_token="<unk>"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    return library


def surrounded() -> Library:
    library = byte_level("qwen2")
    sequence = [
        processors.ByteLevel(trim_offsets=True),
        processors.TemplateProcessing(
            single="<|end|> $A <|end|>", special_tokens=[("<|end|>", library.token_to_id("<|end|>"))]
        ),
    ]
    library.post_processor = processors.Sequence(sequence)
    return library


KINDS: dict[str, Callable[[], Library]] = {
    **{f"cut of {pre}": (lambda pre=pre: byte_level(pre)) for pre in CUTS},
    "one word": one_word,
    "sentencepiece": sentencepiece,
    "composing": lambda: sentencepiece(normalizers.NFC()),
    "compatible": lambda: sentencepiece(normalizers.NFKC()),
    "lower case": lambda: sentencepiece(normalizers.Lowercase()),
    "strips white space": lambda: sentencepiece(strips=True),
    "spaces at the ends": lambda: sentencepiece(normalizers.Strip()),
    "metaspace": metaspace,
    "words": words_only,
    "surrounded": surrounded,
}
# fmt: off
SCRAPS = [
    "a", "A", "the", " the", " ", "\n", "\r\n", "\t", "1", "123", "'s", "...",
    "é", "e\u0301", "\u1112\u1161\u11ab", "각", "猫", "🦊", "👩‍👩‍👧", "ก็", "हिन्दी", "\u00a0",
    "𝐀", "𝐚", "\u212a", "\u1100\u1161\u11a8", "ﷺ", "İ", "<|end|>", "<sep>", "<|", "▁", "\u0344", "\u212b",
]
# fmt: on
TEXTS = st.lists(st.tuples(st.sampled_from(SCRAPS), st.sampled_from([1, 1, 1, 2, 3, 50])), max_size=40).map(
    lambda parts: "".join(scrap * times for scrap, times in parts)
)


@cache
def made(kind: str) -> Library:
    return KINDS[kind]()


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(25), deadline=None)
@given(TEXTS, st.booleans())
def test_pieces_are_the_whole(kind: str, text: str, around: bool) -> None:
    library = made(kind)
    encoder = PieceEncoder(library, piece_characters=128)
    found = [token for piece in encoder.pieces(text, around) for token in piece]
    assert found == library.encode(text, add_special_tokens=around).ids


def ladders() -> tuple[Library, str, str]:
    """A vocabulary with two long tokens, and these: the first is put together from its beginning on, the second from
    its end back, and side by side they are one token. Without that end of them both stay letters.
    """
    first, second = string.ascii_letters[:40], (string.ascii_letters[40:] + string.punctuation)[:40]
    merges = [(first[:length], first[length]) for length in range(1, 40)]
    merges += [(second[place], second[place + 1 :]) for place in reversed(range(39))]
    merges += [(first, second)]
    library = Library(models.BPE(vocab=vocabulary(LETTERS, merges), merges=merges))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return library, first, second


def test_pieces_are_not_joined_where_each_of_them_lacks_what_would_merge_there() -> None:
    """Both may end a token at the place, and the whole none: one piece lacks the beginning of what stands before it,
    the other the end of what follows.
    """
    library, first, second = ladders()
    encoder = PieceEncoder(library, piece_characters=128)
    for before in range(40, 300):
        text = "9" * before + first + second + "9" * 300
        found = [token for piece in encoder.pieces(text) for token in piece]
        assert found == library.encode(text).ids, before


def test_texts_are_divided_where_they_can_be() -> None:
    for kind in KINDS.keys() - {"words"}:
        encoder = PieceEncoder(made(kind), piece_characters=128)
        assert len(list(encoder.pieces("The quick brown fox, 123 times.\n" * 40))) > 10, kind


def test_a_text_that_cannot_be_divided_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "LONGEST_PIECE_CHARACTERS", 1024)
    encoder = PieceEncoder(byte_level("default"), piece_characters=128)
    assert sum(map(len, encoder.pieces("a" * 700))) < 700
    with pytest.raises(CapacityError, match="put spaces or line breaks into it"):
        list(encoder.pieces("the " * 500 + "b" * 5000))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(25), deadline=None)
@given(TEXTS)
@example("▁" * 3)
@example("▁" * 50)
@example(" ▁" * 20)
@example("𝐚" * 50)  # these become letters of a byte where a normaliser takes compatible forms or lower case,
@example("\u212a" * 50)
@example("\u1100\u1161\u11a8" * 50)  # and this one of three characters where it composes
def test_no_text_has_fewer_tokens_than_foretold(kind: str, text: str) -> None:
    library = made(kind)
    bound = TokenBound(library, Tokenizer(library, {}, {}).token_bytes)
    assert bound.fewest_tokens(text) <= len(library.encode(text, add_special_tokens=False).ids)


def test_what_is_foretold_is_of_use() -> None:
    """Sixteen megabytes are told from a context of a thousand tokens wherever nothing of a text is lost."""
    for kind in KINDS.keys() - {"words", "spaces at the ends"}:
        library = made(kind)
        bound = TokenBound(library, Tokenizer(library, {}, {}).token_bytes)
        assert bound.fewest_tokens("the fox " * 2**15) > 1000, kind
    lost = TokenBound(made("words"), lambda _: b"the")
    assert lost.fewest_tokens("the fox " * 2**15) == 0


def test_the_tokenizer_takes_texts_of_any_length() -> None:
    library = surrounded()
    tokenizer = Tokenizer(library, {}, {})
    text = "The quick brown fox, 123 times.\n" * 2500 + "\ud800"
    assert tokenizer.encode(text) == library.encode(text.replace("\ud800", "\ufffd")).ids
    assert tokenizer.encode(text, False) == tokenizer.encode(text)[1:-1]


class Watched:
    """A library that notes how often another thread ran during each of its calls about a long text or many tokens."""

    def __init__(self, library: Library, ticks: Callable[[], int]) -> None:
        self._library, self._ticks = library, ticks
        self.ran: list[int] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._library, name)
        if name not in ("encode", "encode_batch", "decode", "decode_batch"):
            return found

        def call(given: Any, *more: Any, **rest: Any) -> Any:
            before = self._ticks()
            try:
                return found(given, *more, **rest)
            finally:
                if len(given[0] if name.endswith("_batch") else given) > 10_000:
                    self.ran.append(self._ticks() - before)

        return call


@contextmanager
def ticking() -> Iterator[Callable[[], int]]:
    """How often a thread has run that wants to, two thousand times a second."""
    count, over = [0], threading.Event()

    def run() -> None:
        while not over.wait(0.0005):
            count[0] += 1

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield lambda: count[0]
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("kind", ["cut of default", "one word", "sentencepiece", "words"])
def test_other_threads_run_while_a_long_text_is_worked_on(kind: str) -> None:
    """A call that kept the interpreter's lock would stop the event loop: none runs twice while such a call lasts."""
    with ticking() as ticks:
        library = Watched(made(kind), ticks)
        tokenizer = Tokenizer(library, {}, {})  # type: ignore[arg-type]
        assert library.ran == []
        ids = tokenizer.encode("the quick brown fox\n" * 25_000, add_special_tokens=False)
        encoding, library.ran = library.ran, []
        tokenizer.decode(ids * 4)
        decoding = library.ran
    assert encoding and bool(decoding) == (kind == "words")  # other kinds are decoded by code of ours
    for calls in filter(None, (encoding, decoding)):
        assert sum(calls) > 2 * len(calls), calls
