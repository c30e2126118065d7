"""A small tokenizer.json, and places in it that the library trips over when they are wrong."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from homenode.model.sandbox.renderer import TemplateRenderer
from homenode.model.tokenizer import Tokenizer
from homenode.model.tokenizer.loader import load_untried

_PIECES = [
    "<unk>",
    "<s>",
    "</s>",
    *(f"<0x{byte:02X}>" for byte in range(256)),
    "▁",
    *"abcdefghijklmnopqrstuvwxyz",
    "th",
    "he",
]
_SPECIAL = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}


def load_here(path: Path, chat_template: str | None = None) -> Tokenizer:
    """As `load_tokenizer`, of files that are no danger: without a trial of each in a process of its own, and with one
    process that renders the templates of all.
    """
    return load_untried(path, chat_template, shared_renderer())


@cache
def shared_renderer() -> TemplateRenderer:
    """One for all tests of this process that bring nothing into danger."""
    return TemplateRenderer()


def tokenizer_json() -> dict[str, Any]:
    """Byte pair encoding with bytes for what is not in the vocabulary, as in the first Llama models."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": text, **_SPECIAL} for i, text in enumerate(_PIECES[:3])],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [special("<s>"), sequence("A")],
            "pair": [sequence("A"), sequence("B")],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": {piece: i for i, piece in enumerate(_PIECES)},
            "merges": [["t", "h"], ["h", "e"]],
        },
    }


def special(name: str) -> dict[str, Any]:
    """A special token in what is put around a text."""
    return {"SpecialToken": {"id": name, "type_id": 0}}


def sequence(name: str) -> dict[str, Any]:
    """The text, A, or a second one, B, in what is put around a text."""
    return {"Sequence": {"id": name, "type_id": 0}}


def around(*pieces: dict[str, Any], **tokens: list[int]) -> dict[str, Any]:
    """What is put around a text. `tokens`: the ids of the special ones."""
    known = {name: {"id": name, "ids": ids, "tokens": [name] * len(ids)} for name, ids in tokens.items()}
    return {"type": "TemplateProcessing", "single": list(pieces), "pair": [], "special_tokens": known}


def model(**changes: Any) -> dict[str, Any]:
    """A change inside the model."""
    return {"model": tokenizer_json()["model"] | changes}


_TWICE = {"type": "Replace", "pattern": {"Regex": "."}, "content": "aa"}

# Each changes some of the file's parts.
HOSTILE: dict[str, dict[str, Any]] = {
    "an unknown token that is missing": model(unk_token="nope", byte_fallback=False),
    "a prefix longer than tokens": model(continuing_subword_prefix="#" * 40),
    "a merge of what is no token": model(merges=[["q", "nope"]]),
    "a decoder that strips too much": {"decoder": {"type": "Strip", "content": "a", "start": 10**9, "stop": 10**9}},
    "a special token without an id": {"post_processor": around(special("x"), sequence("A"))},
    "a second text where there is one": {"post_processor": around(sequence("B"))},
    "a special token outside the vocabulary": {"post_processor": around(special("x"), sequence("A"), x=[100_000])},
    "an empty table of characters": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
    "a table of characters that grows": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "/////////w=="}},
    "nothing replaced": {"normalizer": {"type": "Replace", "pattern": {"String": ""}, "content": "x" * 2000}},
    "ten times twice": {"normalizer": {"type": "Sequence", "normalizers": [_TWICE] * 10}},
    "forty times twice": {"normalizer": {"type": "Sequence", "normalizers": [_TWICE] * 40}},
    "pieces of no length": {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
    "an expression that is none": {
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(" * 300}, "behavior": "Isolated", "invert": False}
    },
    "no object": {"model": []},
    "no vocabulary": model(vocab=None),
}


def with_changes(changes: Mapping[str, Any]) -> str:
    """The text of the file with some parts replaced."""
    return json.dumps(tokenizer_json() | copy.deepcopy(dict(changes)))


def folder_of(path: Path, text: str) -> Path:
    """`path` as a folder with a tokenizer.json of this text."""
    path.mkdir(exist_ok=True)
    (path / "tokenizer.json").write_text(text, encoding="utf-8", errors="surrogatepass")
    return path
