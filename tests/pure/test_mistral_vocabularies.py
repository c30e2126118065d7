"""Vocabularies in Mistral's own files, tekken.json and SentencePiece's: the tokens that the libraries give which they
are made for, and named errors for what cannot be.
"""

from __future__ import annotations

import base64
import copy
import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homenode.errors import CheckpointError, UnsupportedError, UserError
from homenode.model.checkpoint.vocabulary_file import vocabulary_file
from homenode.model.tokenizer.loader import load_tokenizer, load_untried
from homenode.model.tokenizer.vocabularies.sentencepiece_file import metadata_of_sentencepiece
from homenode.model.tokenizer.vocabularies.tekken import tekken_tokenizer

PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "<pad>"]
TEXT = (
    "The thin thief thinks that the other thing is there, and then those ten other things were there as well. "
    "Un renard brun saute par-dessus le chien; der flinke Fuchs springt; 12,345 -- naïve café, 中文字符 \n\n\t end"
)
TEXTS = (TEXT, "", " ", "the", "  the  thing\n", "naïve", "\U0001f600 ok", TEXT[::-1], "thethethe " * 9)


def words_of(text: str, count: int) -> list[bytes]:
    """Every byte, and tokens that byte pair encoding makes of a text."""
    words = [bytes([byte]) for byte in range(256)]
    parts = [[bytes([byte]) for byte in f" {word}".encode()] for word in text.split()]
    while len(words) < 256 + count:
        pairs: dict[bytes, int] = {}
        for part in parts:
            for pair in itertools.pairwise(part):
                pairs[b"".join(pair)] = pairs.get(b"".join(pair), 0) + 1
        best = max(sorted(pairs), key=lambda whole: pairs[whole])
        words.append(best)
        for part in parts:
            at = 0
            while at < len(part) - 1:
                if part[at] + part[at + 1] == best:
                    part[at : at + 2] = [best]
                at += 1
    return words


WORDS = words_of(TEXT * 3, 90)
NO_COUNTS = {"default_vocab_size": None, "default_num_special_tokens": None}


def tekken_json(**changes: Any) -> dict[str, Any]:
    """A small tekken.json of version 13, with four special tokens that have no name and words that are not used."""
    vocab = [
        {"rank": rank, "token_bytes": base64.b64encode(word).decode(), "token_str": None}
        for rank, word in enumerate([*WORDS, b"unused", b"words"])
    ]
    special = [{"rank": rank, "token_str": name, "is_control": True} for rank, name in enumerate(SPECIAL)]
    config = {
        "pattern": PATTERN, "num_vocab_tokens": len(vocab), "default_vocab_size": 10 + len(WORDS),
        "default_num_special_tokens": 10, "version": "v13",
    }  # fmt: skip
    return {"config": config, "vocab": vocab, "special_tokens": special, "type": "Tekken"} | changes


def tekken_folder(folder: Path, **changes: Any) -> Path:
    (folder / "tekken.json").write_text(json.dumps(tekken_json(**changes)))
    return folder


def test_tekken_gives_the_tokens_of_tiktoken(tmp_path: Path) -> None:
    """Which the makers of the file read it with."""
    tiktoken = pytest.importorskip("tiktoken")
    ranks = {word: rank for rank, word in enumerate(WORDS)}
    encoding = tiktoken.Encoding(name="toy", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={})
    tokenizer = load_untried(tekken_folder(tmp_path))
    assert tokenizer.vocab_size == 10 + len(WORDS)
    for text in TEXTS:
        wanted = [token + 10 for token in encoding.encode(text)]
        assert tokenizer.encode(text, add_special_tokens=False) == wanted, text
        assert tokenizer.encode(text) == [1, *wanted] and tokenizer.decode(wanted, True) == text


def test_tekken_gives_the_tokens_of_transformers(tmp_path: Path) -> None:
    made = pytest.importorskip("transformers.integrations.mistral.tokenizer")
    library = made.MistralConverter(str(tekken_folder(tmp_path) / "tekken.json")).converted()
    tokenizer = load_untried(tmp_path)
    for text in (*TEXTS, "<s>[INST] the thing [/INST] there</s>", "<SPECIAL_7>the"):
        assert tokenizer.encode(text, add_special_tokens=False) == library.encode(text).ids, text


def test_tekken_names_its_special_tokens(tmp_path: Path) -> None:
    tokenizer = load_untried(tekken_folder(tmp_path))
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.stop_token_ids) == (1, 2, (2,))
    assert [tokenizer.token_text(token) for token in range(10)] == [*SPECIAL, *(f"<SPECIAL_{n}>" for n in range(6, 10))]
    first = load_untried(tekken_folder(tmp_path, special_tokens=None, config=tekken_json()["config"] | NO_COUNTS))
    assert first.token_text(18) == "[/SYSTEM_PROMPT]" and first.encode("[INST]the")[:2] == [1, 3]


def test_a_chat_template_beside_it_is_used(tmp_path: Path) -> None:
    tekken_folder(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}[INST]{{ messages[0].content }}[/INST]")
    tokenizer = load_tokenizer(tmp_path)
    prompt = tokenizer.render_chat([{"role": "user", "content": "the"}])
    assert prompt == "<s>[INST]the[/INST]" and tokenizer.encode_chat(prompt)[:2] == [1, 3]
    tokenizer.close()


def test_which_file_is_the_vocabulary(tmp_path: Path) -> None:
    """The newest of SentencePiece's versions, before that tekken.json, and before all tokenizer.json."""
    assert vocabulary_file(tmp_path) == tmp_path / "tokenizer.json"
    for name in ("tokenizer.model", "tokenizer.model.v1", "tokenizer.model.v3", "tekken.json", "tokenizer.json"):
        (tmp_path / name).write_bytes(b"")
        wanted = tmp_path / ("tokenizer.json" if name == "tokenizer.model" else name)
        assert vocabulary_file(tmp_path) == wanted
    for name in ("tokenizer.json", "tekken.json", "tokenizer.model.v1", "tokenizer.model.v3"):
        (tmp_path / name).unlink()
    (tmp_path / "params.json").write_text("{}")
    assert vocabulary_file(tmp_path) == tmp_path / "tokenizer.model"
    (tmp_path / "config.json").write_text("{}")
    assert vocabulary_file(tmp_path) == tmp_path / "tokenizer.json"


def altered(whole: dict[str, Any], value: Any, *path: str | int) -> dict[str, Any]:
    """A copy with another value at the end of this path."""
    found: Any = copy.deepcopy(whole)
    at = found
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return dict(found)


DAMAGED: dict[str, tuple[tuple[Any, ...], str]] = {
    "no configuration": ((None, "config"), "config.pattern: seen nothing"),
    "no pattern": ((None, "config", "pattern"), "config.pattern: seen nothing"),
    "a pattern that is none": (("(", "config", "pattern"), "tekken"),
    "no tokens": (([], "vocab"), "vocab: seen"),
    "tokens that are no list": (({"a": 1}, "vocab"), "vocab: seen"),
    "a token without bytes": ((None, "vocab", 7, "token_bytes"), r"vocab\[7\]: seen .*wanted token_bytes in base64"),
    "a token of no base64": (("~~", "vocab", 7, "token_bytes"), r"vocab\[7\]"),
    "an empty token": (("", "vocab", 7, "token_bytes"), r"vocab\[7\]"),
    "a token that is none": ((3, "vocab", 7), r"vocab\[7\]: seen 3"),
    "a token out of its place": ((8, "vocab", 7, "rank"), r"vocab\[7\].*rank 7"),
    "a token twice": (("AA==", "vocab", 7, "token_bytes"), "vocab: seen a token twice"),
    "a negative number of tokens": ((-5, "config", "default_vocab_size"), "default_vocab_size: seen -5"),
    "more tokens than there are": ((10**6, "config", "default_vocab_size"), "default_vocab_size: seen 1000000"),
    "less special tokens than there are": ((5, "config", "default_num_special_tokens"), "special_tokens: seen 5"),
    "very many special tokens": (
        (10**12, "config", "default_num_special_tokens"),
        "special_tokens: seen 1000000000000",
    ),
    "special tokens that are no list": ((4, "special_tokens"), "special_tokens: seen 4"),
    "a special token without a rank": ((None, "special_tokens", 2, "rank"), "special_tokens: seen"),
    "a special token of a negative rank": ((-1, "special_tokens", 2, "rank"), "special_tokens: seen"),
    "a special token of a far rank": ((9, "special_tokens", 2, "rank"), "wanted .*all ranks from 0 on"),
    "a special token without a name": (("", "special_tokens", 2, "token_str"), "special_tokens: seen"),
    "a special token twice": (("<s>", "special_tokens", 2, "token_str"), "wanted different names"),
    "half of a letter": (("\ud800", "special_tokens", 2, "token_str"), "special_tokens: seen"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_tekken_files(tmp_path: Path, case: str) -> None:
    change, message = DAMAGED[case]
    (tmp_path / "tekken.json").write_text(json.dumps(altered(tekken_json(), *change)))
    with pytest.raises(CheckpointError, match=message):
        load_untried(tmp_path)


@given(
    path=st.sampled_from([change[1:] for change, _ in DAMAGED.values()]),
    value=st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just([]), st.just({})
    ),
)
def test_tekken_files_of_any_json(path: tuple[str | int, ...], value: Any) -> None:
    content = altered(tekken_json(), value, *path)
    try:
        tekken_tokenizer(Path("tekken.json"), content)
    except UserError as error:
        assert "tekken.json" in error.message


@pytest.fixture(scope="module")
def sentencepiece_model(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A small vocabulary as Mistral's older ones are made: merges by scores, bytes, and tokens that control."""
    library = pytest.importorskip("sentencepiece")
    folder = tmp_path_factory.mktemp("sentencepiece")
    (folder / "text").write_text("\n".join([TEXT.replace("\n", " ")] * 9))
    library.SentencePieceTrainer.train(
        input=str(folder / "text"), model_prefix=str(folder / "m"), model_type="bpe", vocab_size=340,
        byte_fallback=True, character_coverage=0.98, control_symbols=["[INST]", "[/INST]"],
        normalization_rule_name="identity", remove_extra_whitespaces=False, split_digits=True, minloglevel=2,
        allow_whitespace_only_pieces=True, hard_vocab_limit=False,
    )  # fmt: skip
    return (folder / "m.model").read_bytes()


def test_sentencepiece_files_give_the_tokens_of_their_library(tmp_path: Path, sentencepiece_model: bytes) -> None:
    library = pytest.importorskip("sentencepiece")
    processor = library.SentencePieceProcessor(model_proto=sentencepiece_model)
    (tmp_path / "tokenizer.model.v3").write_bytes(sentencepiece_model)
    tokenizer = load_untried(tmp_path)
    assert tokenizer.vocab_size == processor.vocab_size()
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.stop_token_ids) == (1, 2, (2,))
    for text in TEXTS:
        wanted = processor.encode(text)
        assert tokenizer.encode(text, add_special_tokens=False) == wanted, text
        assert tokenizer.encode(text) == [1, *wanted]
        assert tokenizer.decode(wanted, True) == processor.decode(wanted)
    start = processor.piece_to_id("[INST]")
    assert tokenizer.encode("[INST]", add_special_tokens=False) == [start]


@given(seed=st.integers(0, 10**6), cuts=st.integers(1, 4))
def test_sentencepiece_files_of_any_bytes(sentencepiece_model: bytes, seed: int, cuts: int) -> None:
    chance = random.Random(seed)
    content = bytearray(sentencepiece_model if seed % 5 else bytes(chance.randrange(256) for _ in range(90)))
    for _ in range(cuts):
        at = chance.randrange(len(content))
        kind = chance.randrange(3)
        if kind == 0:
            content[at] = chance.randrange(256)
        elif kind == 1:
            del content[at : at + chance.randrange(1, 9)]
        elif at:
            del content[at:]
        if not content:
            break
    try:
        found = metadata_of_sentencepiece(Path("tokenizer.model.v3"), bytes(content))
    except UserError as error:
        assert "tokenizer.model.v3" in error.message
    else:
        assert len(found["tokenizer.ggml.tokens"]) == len(found["tokenizer.ggml.scores"])


@pytest.mark.parametrize("content", [b"", b"\x0a\x05ab", b"\xff" * 12, b"\x0b", b"\x0a\x04\x0a\x02\xff\xfe"])
def test_files_that_are_no_sentencepiece_model(content: bytes) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.model\.v3: .*seen .*wanted"):
        metadata_of_sentencepiece(Path("tokenizer.model.v3"), content)


def test_sentencepiece_files_of_other_kinds() -> None:
    piece = b"\x0a\x0a\x0a\x01a\x15\x00\x00\x00\x00\x18\x01"
    for trainer, normalizer in ((b"\x12\x02\x18\x01", b"\x1a\x02\x20\x00"), (b"\x12\x02\x18\x02", b"\x1a\x02\x20\x01")):
        with pytest.raises(UnsupportedError, match="homenode reads byte pair encoding"):
            metadata_of_sentencepiece(Path("tokenizer.model.v3"), piece + trainer + normalizer)
    found = metadata_of_sentencepiece(Path("tokenizer.model.v3"), piece + b"\x12\x02\x18\x02\x1a\x02\x20\x00")
    assert found["tokenizer.ggml.tokens"] == ["a"] and found["tokenizer.ggml.unknown_token_id"] == 0
