"""WordPiece and Unigram vocabularies in GGUF files give the tokens of the tokenizers that they were converted from."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library

from homenode.errors import CheckpointError
from homenode.model.tokenizer import Tokenizer
from homenode.model.tokenizer.vocabularies.gguf_vocab import tokenizer_from_gguf
from tests.scripts import settled_characters, texts_of_all_scripts
from tests.tokenizer_files import load_here
from tests.vocabularies import CONTROL, NORMAL, UNKNOWN, USER_DEFINED, write_gguf

UNUSED = 5
BERT_NAMES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
HOSTILE = st.text(max_size=40)  # every character that there is, in any order


@pytest.fixture(scope="module")
def words() -> list[str]:
    """Pieces of every script, as BERT writes them, in lower case and not."""
    rng = random.Random(7)
    letters = [
        c for characters in settled_characters().values() for c in rng.sample(characters, min(9, len(characters)))
    ]
    latin = [
        "the",
        "##ing",
        "un",
        "##aff",
        "##able",
        "cafe",
        "caf",
        "e",
        "##e",
        "é",
        "##é",
        "7",
        "##7",
        "23",
        "##45",
        "!",
        "'",
        "s",
        "Zz",
        "zz",
        "##LL",
    ]
    return list(dict.fromkeys([*latin, *letters, *(f"##{c}" for c in letters)]))


def bert_metadata(words: list[str], **keys: Any) -> dict[str, Any]:
    """As converters write it: what is inside a word without `##`, what begins one with `▁`."""
    pieces = [w.removeprefix("##") if w.startswith("##") else f"▁{w}" for w in words]
    return {
        "general.architecture": "bert",
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.pre": "jina-v2-en",
        "tokenizer.ggml.tokens": [*BERT_NAMES, *pieces],
        "tokenizer.ggml.token_type": [CONTROL] * len(BERT_NAMES) + [NORMAL] * len(words),
    } | {f"tokenizer.ggml.{key}": value for key, value in keys.items()}


def bert_original(words: list[str], *, lowercase: bool) -> Library:
    transformers = pytest.importorskip("transformers", reason="the original is a class of transformers")
    vocabulary = {w: i for i, w in enumerate([*BERT_NAMES, *words])}
    return transformers.BertTokenizer(vocab=vocabulary, do_lower_case=lowercase)._tokenizer


@pytest.mark.parametrize("lowercase", [True, False])
def test_word_pieces_of_every_script(words: list[str], lowercase: bool, tmp_path: Path) -> None:
    keys = {"normalizer.lowercase": lowercase, "unknown_token_id": 1, "cls_token_id": 2, "seperator_token_id": 3}
    metadata = bert_metadata(words, **keys)
    tokenizer, library = load_here(write_gguf(tmp_path / "v.gguf", metadata)), tokenizer_from_gguf(metadata)
    original = bert_original(words, lowercase=lowercase)
    for text in [*texts_of_all_scripts("bert"), "Café CAFÉ cafe\u0301 [SEP] [unused1]\t\x00\ufffd", "x" * 101]:
        assert tokenizer.encode(text) == original.encode(text).ids, text
        ours, theirs = library.encode(text, "the 7!"), original.encode(text, "the 7!")
        assert (ours.ids, ours.type_ids) == (theirs.ids, theirs.type_ids)
    for ids in (original.encode("unaffable cafe, 2345").ids, list(range(len(words)))):
        stream = tokenizer.stream()
        assert "".join(stream.push([i]) for i in ids) + stream.flush() == tokenizer.decode(ids)


def test_a_file_that_says_nothing_is_cased_where_its_words_are(words: list[str]) -> None:
    cased = tokenizer_from_gguf(bert_metadata(words))
    assert cased.encode("Zz zz").tokens == ["[CLS]", "Zz", "zz", "[SEP]"]  # by their names, as no key tells them
    lower = tokenizer_from_gguf(bert_metadata([w for w in words if w == w.lower()] + ["[unused1]", "[A]"]))
    assert lower.encode("Zz É").tokens == ["[CLS]", "zz", "e", "[SEP]"]
    kept = tokenizer_from_gguf(
        bert_metadata(words, **{"normalizer.lowercase": True, "normalizer.strip_accents": False})
    )
    assert kept.encode("É", add_special_tokens=False).tokens == ["é"]


PIECES = "▁ ▁the ing ▁un aff able ▁a b ab é 猫 ▁7 23 . , ▁, ! 한 국 어 न म ▁שלום س 😀".split()


def unigram_metadata(**keys: Any) -> dict[str, Any]:
    """An encoder's vocabulary in the order of XLM-RoBERTa's."""
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *PIECES, "[PAD9]", "<mask>", "<x>"]
    kinds = [CONTROL, CONTROL, CONTROL, UNKNOWN, *[NORMAL] * len(PIECES), UNUSED, CONTROL, USER_DEFINED]
    scores = [0.0] * 4 + [-3.0 - index % 7 for index in range(len(PIECES))] + [-10000.0, 0.0, -1000.0]
    return {
        "general.architecture": "bert",
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 3,
    } | {f"tokenizer.ggml.{key}": value for key, value in keys.items()}


def test_unigram_tokens_around_one_text_and_two() -> None:
    tokens = unigram_metadata()["tokenizer.ggml.tokens"]
    tokenizer = tokenizer_from_gguf(unigram_metadata())
    assert tokenizer.encode("the unaffable").tokens == ["<s>", "▁the", "▁un", "aff", "able", "</s>"]
    pair = tokenizer.encode("the", "a b<x>")
    assert pair.tokens == ["<s>", "▁the", "</s>", "</s>", "▁a", "▁", "b", "<x>", "</s>"]
    assert pair.type_ids == [0] * 9
    assert tokenizer.encode("[PAD9]", add_special_tokens=False).ids.count(tokens.index("[PAD9]")) == 0
    t5 = tokenizer_from_gguf(unigram_metadata() | {"general.architecture": "t5"})
    assert t5.encode("the", "a").tokens == ["▁the", "</s>", "▁a", "</s>"]
    early = unigram_metadata(add_bos_token=False, add_eos_token=False, add_sep_token=False)
    assert tokenizer_from_gguf(early).encode("the").tokens == ["▁the"]


def test_spaces_are_joined_but_where_a_file_of_t5_says_not() -> None:
    keys = {"remove_extra_whitespaces": False, "add_eos_token": False}
    t5 = tokenizer_from_gguf(unigram_metadata(**keys) | {"general.architecture": "t5"})
    assert t5.encode("the  a").tokens == ["▁the", "▁", "▁a"]
    encoder = tokenizer_from_gguf(unigram_metadata(**keys, add_bos_token=False))
    assert encoder.encode(" the \t a ").tokens == ["▁the", "▁a"]
    bare = tokenizer_from_gguf(unigram_metadata(**keys, add_bos_token=False, add_space_prefix=False))
    assert bare.encode("ab").tokens == ["ab"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"tokenizer.ggml.token_type": [NORMAL] * (len(PIECES) + 7), "tokenizer.ggml.unknown_token_id": None},
            "type 2",
        ),
        ({"tokenizer.ggml.scores": [0.0]}, "tokenizer.ggml.scores"),
        ({"tokenizer.ggml.precompiled_charsmap": "abc"}, "precompiled_charsmap must be a list of bytes"),
        ({"tokenizer.ggml.precompiled_charsmap": [1, 2, 3]}, "does not fit together"),
        ({"tokenizer.ggml.precompiled_charsmap": [300]}, "precompiled_charsmap must be a list of bytes"),
    ],
)
def test_damaged_unigram_vocabularies_are_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        tokenizer_from_gguf(unigram_metadata() | changes)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A small SentencePiece model with the usual character map, trained on texts of all scripts."""
    sentencepiece = pytest.importorskip("sentencepiece", reason="the original is made by sentencepiece")
    folder = tmp_path_factory.mktemp("unigram")
    lines = [" ".join(text.split()) for text in texts_of_all_scripts("train")]
    (folder / "text").write_text("\n".join(line for line in lines if line), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text"), model_prefix=str(folder / "m"), vocab_size=2500, model_type="unigram",
        num_threads=1, character_coverage=0.98,
        hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    return sentencepiece.SentencePieceProcessor(model_file=str(folder / "m.model"))


def fields_of(message: bytes) -> Iterator[tuple[int, bytes]]:
    """The texts and messages in a protocol buffer, by field number: of a model the third is the normalizer, whose
    second is the character map.
    """
    at = 0

    def number() -> int:
        nonlocal at
        value, shift = 0, 0
        while True:
            value, at = value | (message[at] & 0x7F) << shift, at + 1
            if message[at - 1] < 0x80:
                return value
            shift += 7

    while at < len(message):
        key = number()
        size = {0: number, 1: lambda: 8, 2: number, 5: lambda: 4}[key & 7]()
        if key & 7 == 2:
            yield key >> 3, message[at : at + size]
        at += size if key & 7 else 0


def converted(trained: Any, folder: Path) -> tuple[Tokenizer, Library]:
    """The model as a GGUF file of an encoder, and as the original tokenizer of XLM-RoBERTa."""
    transformers = pytest.importorskip("transformers", reason="the original is a class of transformers")
    charsmap = dict(fields_of(dict(fields_of(trained.serialized_model_proto()))[3]))[2]
    pieces = [(trained.IdToPiece(i), trained.GetScore(i)) for i in range(3, trained.vocab_size())]
    rows = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *pieces, ("<mask>", 0.0)]
    kinds = [CONTROL, CONTROL, CONTROL, UNKNOWN, *[NORMAL] * len(pieces), CONTROL]
    keys = {
        "tokens": [piece for piece, _ in rows], "scores": [score for _, score in rows], "token_type": kinds,
        "precompiled_charsmap": [byte - 256 if byte > 127 else byte for byte in charsmap],
    }  # fmt: skip
    original = transformers.XLMRobertaTokenizer(vocab=rows, _spm_precompiled_charsmap=charsmap)
    return load_here(write_gguf(folder / "v.gguf", unigram_metadata(**keys))), original._tokenizer


def test_unigram_of_every_script(trained: Any, tmp_path: Path) -> None:
    tokenizer, original = converted(trained, tmp_path)
    for text in [
        *texts_of_all_scripts("unigram"),
        "ﬁne ＡＢＣ ① ﷺ e\u0301 \u200b\u00a0\u3000 x\u0000y\tz ",
        "</s> <mask>",
    ]:
        assert tokenizer.encode(text) == original.encode(text).ids, text
        ids = tokenizer.encode(text, add_special_tokens=False)
        stream = tokenizer.stream()
        assert "".join(stream.push([i]) for i in ids) + stream.flush() == tokenizer.decode(ids)
        assert tokenizer.decode(ids) == original.decode(ids, skip_special_tokens=True)


def test_hostile_texts_become_what_the_original_makes_of_them(trained: Any, words: list[str], tmp_path: Path) -> None:
    unigram, original = converted(trained, tmp_path)
    bert = tokenizer_from_gguf(bert_metadata(words, **{"normalizer.lowercase": True}))
    bert_of_words = bert_original(words, lowercase=True)

    @given(HOSTILE, HOSTILE)
    def same(text: str, other: str) -> None:
        assert unigram.encode(text) == original.encode(text).ids
        assert bert.encode(text, other).ids == bert_of_words.encode(text, other).ids

    same()
