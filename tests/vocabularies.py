"""Small vocabularies as files: every byte is a token, then come the special ones. As GGUF metadata, as a GGUF file and
as a folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.checkpoints import ARRAY, BOOL, F32, I32, STRING, U32, gguf_bytes

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_REST = [byte for byte in range(256) if byte not in _PRINTABLE]
# The letters byte-level vocabularies write bytes with, by byte.
LETTERS = [chr(byte) if byte in _PRINTABLE else chr(256 + _REST.index(byte)) for byte in range(256)]
Special = Sequence[tuple[str, int]]  # names and kinds


def byte_level_metadata(special: Special = (), **keys: Any) -> dict[str, Any]:
    """Token b is byte b, token 256 the first special one. `keys` without their prefix, None leaves one out:
    eos_token_id=256.
    """
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*LETTERS, *(name for name, _ in special)],
        "tokenizer.ggml.token_type": [NORMAL] * 256 + [kind for _, kind in special],
        "tokenizer.ggml.merges": [f"{LETTERS[0]} {LETTERS[0]}"],
    } | _prefixed(keys)


def sentencepiece_metadata(special: Special = (), words: Sequence[str] = ("▁",), **keys: Any) -> dict[str, Any]:
    """<unk>, <s>, </s>, byte b as token b + 3, then `words` and the special ones."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [*tokens, *(name for name, _ in special)],
        "tokenizer.ggml.token_type": [
            UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(words), *(kind for _, kind in special),
        ],
        "tokenizer.ggml.scores": [0.0] * (len(tokens) + len(special)),
    } | _prefixed(keys)  # fmt: skip


def write_gguf(path: Path, metadata: Mapping[str, Any]) -> Path:
    """A GGUF file of a vocabulary alone."""
    path.write_bytes(gguf_bytes([(key, *_typed(value)) for key, value in metadata.items() if value is not None]))
    return path


def write_folder(folder: Path, special: Special = (), added: Sequence[str] | None = None, **files: Any) -> Path:
    """The byte-level vocabulary as a folder. `added`: the special tokens that tokenizer.json lists, all unless given;
    other files by name with `_` for `.`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = [name for name, _ in special]
    listed = [
        {
            "id": 256 + names.index(name), "content": name, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False,
            "special": dict(special)[name] == CONTROL,
        }
        for name in (names if added is None else added)
    ]  # fmt: skip
    form = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": listed, "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "post_processor": files.pop("post_processor", None),
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "merges": [],
            "vocab": {name: i for i, name in enumerate([*LETTERS, *files.pop("vocabulary", names)])},
        },
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(form))
    for name, content in files.items():
        stem, _, suffix = name.rpartition("_")
        (folder / f"{stem}.{suffix}").write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def _prefixed(keys: Mapping[str, Any]) -> dict[str, Any]:
    outside = {
        "chat_template": "tokenizer.chat_template",
        "name": "general.name",
        "architecture": "general.architecture",
    }
    return {outside.get(key, f"tokenizer.ggml.{key}"): value for key, value in keys.items()}


def _typed(value: Any) -> tuple[int, Any]:
    if isinstance(value, list):
        kind = {str: STRING, float: F32, int: I32}[type(value[0])]
        return ARRAY, (kind, value)
    return {str: STRING, bool: BOOL, int: U32}[type(value)], value
