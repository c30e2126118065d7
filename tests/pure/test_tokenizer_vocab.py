"""Real vocabularies meet their expected ids; damaged ones meet a named error."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homenode.errors import CheckpointError, UnsupportedError
from homenode.model.tokenizer.vocabularies import scored_merges as scored
from homenode.model.tokenizer.vocabularies.gguf_vocab import tokenizer_from_gguf
from homenode.model.tokenizer.vocabularies.scored_merges import scored_merges
from tests.paths import DATA, STORIES, needs_data
from tests.tokenizer_files import load_here
from tests.vocabularies import byte_level_metadata, write_gguf

VOCABULARIES = sorted((DATA / "ggml-vocab").glob("*.gguf.inp")) if DATA.is_dir() else []
# Further ones of llama.cpp's sources, where the variable names a folder with these.
MORE = sorted((Path(os.environ["LLAMA_CPP"]) / "models").glob("*.gguf.inp")) if "LLAMA_CPP" in os.environ else []


@needs_data
def test_the_vocabularies_are_there() -> None:
    assert len(VOCABULARIES) == 5


@pytest.mark.parametrize("inputs", [*VOCABULARIES, *MORE], ids=lambda p: p.name.split(".")[0])
def test_expected_ids(inputs: Any) -> None:
    tokenizer = load_here(inputs.with_suffix(""))
    with inputs.open(encoding="utf-8", newline="") as file:
        texts = file.read().split("\n__ggml_vocab_test__\n")
    wanted = [[int(i) for i in line.split()] for line in inputs.with_suffix(".out").read_text().split("\n")]
    assert len(texts) >= 46
    for text, ids in zip(texts[:-1], wanted[: len(texts) - 1], strict=True):
        assert tokenizer.encode(text, add_special_tokens=False) == ids, text


@needs_data
def test_a_vocabulary_without_a_named_cut_takes_the_default() -> None:
    tokenizer = load_here(DATA / "ggml-vocab" / "ggml-vocab-gpt-neox.gguf")
    text = "Hello, world! 1234 über \U0001f601"
    assert tokenizer.decode(tokenizer.encode(text)) == text


@needs_data
@pytest.mark.parametrize("source", [STORIES, STORIES / "stories260K-f32.gguf"], ids=["folder", "gguf"])
def test_golden_prompts(source: Any) -> None:
    tokenizer = load_here(source)
    for case in json.loads((STORIES / "golden.json").read_text()):
        assert tokenizer.encode(case["prompt"]) == case["prompt_ids"]
        stream = tokenizer.stream(case["prompt_ids"])
        assert "".join(stream.push([i]) for i in case["greedy_ids"]) + stream.flush() == tokenizer.decode(
            case["prompt_ids"] + case["greedy_ids"]
        ).removeprefix(tokenizer.decode(case["prompt_ids"]))


def byte_level(**changes: Any) -> dict[str, Any]:
    """Metadata of a tiny byte-level vocabulary."""
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": ["a", "b", "ab", "Ġ", "Ġa", "<|end|>", "c"],
        "tokenizer.ggml.token_type": [1, 1, 1, 1, 1, 3, 1],
        "tokenizer.ggml.merges": ["a b", "Ġ a"],
        "tokenizer.ggml.eos_token_id": 5,
        **changes,
    }


def test_byte_level_merges_and_control_tokens() -> None:
    tokenizer = tokenizer_from_gguf(byte_level())
    assert tokenizer.encode("ab a<|end|>b").ids == [2, 4, 5, 1]


def test_equal_tokens_keep_their_places_and_their_text(tmp_path: Path) -> None:
    tokenizer = load_here(write_gguf(tmp_path / "v.gguf", byte_level_metadata([("ab", 1), ("ab", 1), ("<|x|>", 3)])))
    assert (tokenizer.vocab_size, tokenizer.token_id("<|x|>")) == (259, 258)
    assert tokenizer.decode([256, 257, 97]) == "ababa"


def test_bos_and_eos_surround_a_text_when_the_file_says_so() -> None:
    changes = {
        "tokenizer.ggml.bos_token_id": 6,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": True,
    }
    tokenizer = tokenizer_from_gguf(byte_level(**changes))
    assert tokenizer.encode("ab").ids == [6, 2, 5]
    assert tokenizer.encode("ab", add_special_tokens=False).ids == [2]


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"tokenizer.ggml.model": "rwkv"}, UnsupportedError, "'rwkv'.*longest match.*supported: gpt2, llama"),
        ({"tokenizer.ggml.model": "plamo2"}, UnsupportedError, "'plamo2'.*--tokenizer"),
        ({"tokenizer.ggml.model": "none"}, UnsupportedError, "the file has no vocabulary"),
        ({"tokenizer.ggml.model": "klingon"}, UnsupportedError, "'klingon'.*not known"),
        ({"tokenizer.ggml.pre": "klingon"}, UnsupportedError, "klingon"),
        ({"tokenizer.ggml.tokens": []}, CheckpointError, "tokens"),
        ({"tokenizer.ggml.tokens": [1, 2]}, CheckpointError, "tokens"),
        ({"tokenizer.ggml.merges": ["ab"]}, CheckpointError, "no pair"),
        ({"tokenizer.ggml.merges": None}, CheckpointError, "merges"),
        ({"tokenizer.ggml.eos_token_id": "99"}, CheckpointError, "99"),
        ({"tokenizer.ggml.token_type": [1]}, CheckpointError, "token_type"),
        ({"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": [0.0]}, CheckpointError, "scores"),
    ],
)
def test_damaged_vocabularies_are_named(changes: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        tokenizer_from_gguf(byte_level(**changes))


def test_scored_merges_prefer_the_better_whole() -> None:
    vocabulary = {"a": 0, "b": 1, "ab": 2, "ba": 3, "aba": 4}
    scores = [0.0, 0.0, -2.0, -1.0, -3.0]
    assert scored_merges(vocabulary, scores) == [("b", "a"), ("a", "b"), ("a", "ba"), ("ab", "a")]


@given(
    st.dictionaries(
        st.text(alphabet="ab▁", min_size=1, max_size=7), st.sampled_from([0.0, -1.0, -2.5]), min_size=1, max_size=60
    )
)
def test_scored_merges_are_all_splits(given_scores: dict[str, float]) -> None:
    vocabulary = {token: index for index, token in enumerate(given_scores)}
    splits = [
        (-given_scores[token], index, cut, token[:cut], token[cut:])
        for token, index in vocabulary.items()
        for cut in range(1, len(token))
        if token[:cut] in vocabulary and token[cut:] in vocabulary
    ]
    assert scored_merges(vocabulary, list(given_scores.values())) == [(a, b) for *_, a, b in sorted(splits)]


@pytest.mark.parametrize("unit", ["ab", "a"])
def test_one_very_long_token_takes_no_long_time(unit: str) -> None:
    vocabulary = {"a": 0, "b": 1, "ab": 2, "aa": 3, unit * 500_000: 4}
    begin = time.process_time()
    merges = scored_merges(vocabulary, [0.0] * 5)
    assert ("a", "b") in merges and time.process_time() - begin < 2


def test_a_vocabulary_with_too_many_splits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scored, "MOST_MERGES", 1000)
    vocabulary = {"a" * length: length - 1 for length in range(1, 60)}
    with pytest.raises(CheckpointError, match="more than 1000 ways to divide its tokens"):
        scored_merges(vocabulary, [0.0] * len(vocabulary))


TEXT_TOKENS = [
    "<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "\n", "\n\n", "\n\n\n\n", "a", "b",
    "▁", "▁a", "ab", "é", "éa",
    "<turn|>", "aa", "aaa",
]  # fmt: skip


def of_text(**keys: Any) -> dict[str, Any]:
    """Metadata of a vocabulary of the kind gemma4."""
    kinds = [3, 3, 3, 2, *[6] * 256, *[1] * (len(TEXT_TOKENS) - 260)]
    kinds[TEXT_TOKENS.index("<turn|>")] = 3
    return {
        "general.architecture": "gemma4",
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": TEXT_TOKENS,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": ["a b", "▁ a", "é a", "\n \n", "a a"],
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        **keys,
    }


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("ab a", ["ab", "▁a"]),
        (" a", ["▁a"]),  # no space is put in front
        ("a\n\n\n\nb", ["a", "\n\n\n\n", "b"]),  # a run of line ends that is a token, though no merges lead to it
        ("a\n\n\nb", ["a", "\n\n", "\n", "b"]),
        ("éab", ["é", "ab"]),  # the first merge of the list comes first
        ("ü\t", ["<0xC3>", "<0xBC>", "<0x09>"]),
        ("a<turn|>\nb", ["a", "<turn|>", "\n", "b"]),
        ("▁a", ["▁a"]),
    ],
)
def test_merges_over_text(text: str, pieces: list[str], tmp_path: Path) -> None:
    tokenizer = load_here(write_gguf(tmp_path / "v.gguf", of_text(**{"tokenizer.ggml.add_bos_token": False})))
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert [TEXT_TOKENS[i] for i in ids] == pieces
    assert tokenizer.decode(ids) == text.replace("<turn|>", "").replace("▁", " ")
    assert tokenizer.encode(text) == [2, *ids]  # BOS, whatever the file says
    assert TEXT_TOKENS.index("<turn|>") in tokenizer.stop_token_ids


def test_the_cut_of_a_byte_level_kind_may_ask_for_merges_over_text(tmp_path: Path) -> None:
    keys = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "sarvam-moe"}
    tokenizer = load_here(write_gguf(tmp_path / "v.gguf", of_text(**keys)))
    ids = tokenizer.encode("ab é\n\n\n\nü")
    # No run of ends is whole.
    assert [TEXT_TOKENS[i] for i in ids] == ["ab", "▁", "é", "\n\n", "\n\n", "<0xC3>", "<0xBC>"]
    assert tokenizer.decode(ids) == "ab é\n\n\n\nü"


def test_words_between_white_space(tmp_path: Path) -> None:
    words = {
        "general.architecture": "jina-bert-v2",
        "tokenizer.ggml.model": "whitespace",
        "tokenizer.ggml.pre": "whitespace",
        "tokenizer.ggml.tokens": ["<s>", "</s>", "<unk>", "中", "文", "中文", "a", "b", "ab"],
        "tokenizer.ggml.token_type": [3, 3, 2, 1, 1, 1, 1, 1, 1],
        "tokenizer.ggml.merges": ["中 文", "a b"],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 2,
    }
    tokenizer = load_here(write_gguf(tmp_path / "v.gguf", words))
    assert tokenizer.encode("中文  ab\nü AB") == [0, 5, 8, 2, 2, 2, 1]
    lower = words | {"tokenizer.ggml.normalizer.lowercase": True}
    assert load_here(write_gguf(tmp_path / "l.gguf", lower)).encode("AB", add_special_tokens=False) == [8]
    assert tokenizer_from_gguf(words).encode("ab", "中").ids == [0, 8, 1, 1, 3, 1]
