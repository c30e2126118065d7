"""A SentencePiece file (tokenizer.model, or tokenizer.model.v3 and its like) as the metadata that a GGUF file of the
same vocabulary has. It is a protocol buffer, of which only what a vocabulary of merges by scores needs is read.

Source: sentencepiece_model.proto of the SentencePiece project.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from homenode.errors import CheckpointError, UnsupportedError
from homenode.model.formats.bounded_files import damaged
from homenode.model.tokenizer.vocabularies.stored_vocabulary import NORMAL

_MOST_TOKENS = 2**21  # more than any vocabulary has
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3  # fields of the whole
_PIECE, _SCORE, _TYPE = 1, 2, 3  # of a piece; types are those of GGUF files, 1 to 6
_KIND, _BYTE_PAIRS = 3, 2  # of the trainer: what kind of vocabulary it made
_IDS = {40: ("unknown", 0), 41: ("bos", 1), 42: ("eos", 2)}  # likewise: the id of a role, and where none is said
_CHARACTERS, _PREFIX, _JOINS_SPACES = 2, 3, 4  # of the normalizer
_TYPES = range(1, 7)
_FIXED = {1: 8, 5: 4}  # bytes of a value, by how it is stored; 0: a number of 7 bits a byte; 2: a length and as many
_LONGEST_NUMBER = 10
_Message = dict[int, Any]


def metadata_of_sentencepiece(path: Path, content: bytes) -> dict[str, Any]:
    """Return what the metadata of a GGUF file says of the vocabulary in this content, which puts BOS in front of texts.

    CheckpointError for a file that is no vocabulary, UnsupportedError for one of another kind than merges by scores.
    """
    pieces: list[tuple[str, float, int]] = []
    trainer, normalizer = _Message(), _Message()
    for field, value in _values(path, content):
        if field == _PIECES and isinstance(value, bytes):
            pieces.append(_read_piece(path, len(pieces), value))
        elif field == _TRAINER and isinstance(value, bytes):
            trainer |= dict(_values(path, value))
        elif field == _NORMALIZER and isinstance(value, bytes):
            normalizer |= dict(_values(path, value))
        if len(pieces) > _MOST_TOKENS:
            raise damaged(path, "tokens", seen="more than that", wanted=f"at most {_MOST_TOKENS}")
    if not pieces:
        raise damaged(path, "tokens", seen="none", wanted="the vocabulary of a SentencePiece model")
    if trainer.get(_KIND, 1) != _BYTE_PAIRS:
        raise _unsupported(path, "of another kind than byte pair encoding")
    if normalizer.get(_CHARACTERS) or normalizer.get(_JOINS_SPACES, 1):
        raise _unsupported(path, "that changes characters, or joins spaces,")
    ids = {role: trainer.get(field, otherwise) for field, (role, otherwise) in _IDS.items()}
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [piece for piece, _, _ in pieces],
        "tokenizer.ggml.scores": [score for _, score, _ in pieces],
        "tokenizer.ggml.token_type": [kind for _, _, kind in pieces],
        "tokenizer.ggml.add_space_prefix": bool(normalizer.get(_PREFIX, 1)),
        **{f"tokenizer.ggml.{role}_token_id": number for role, number in ids.items() if number in range(len(pieces))},
    }


def _read_piece(path: Path, index: int, content: bytes) -> tuple[str, float, int]:
    """A token, its score and its type."""
    found = dict(_values(path, content))
    piece, score, kind = found.get(_PIECE, b""), found.get(_SCORE, bytes(4)), found.get(_TYPE, NORMAL)
    if not isinstance(piece, bytes) or not isinstance(score, bytes) or len(score) != 4 or kind not in _TYPES:
        raise damaged(path, f"token {index}", seen="other values", wanted="a text, a score and a type from 1 to 6")
    try:
        return piece.decode(), float(struct.unpack("<f", score)[0]), int(kind)
    except UnicodeDecodeError:
        raise damaged(path, f"token {index}", seen="no UTF-8", wanted="text in UTF-8") from None


def _values(path: Path, content: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The values of a message with the numbers of their fields."""
    at = 0
    while at < len(content):
        key, at = _number(path, content, at)
        stored = key & 7
        value: int | bytes
        if stored == 0:
            value, at = _number(path, content, at)
        else:
            size, at = _number(path, content, at) if stored == 2 else (_FIXED.get(stored, -1), at)
            if not 0 <= size <= len(content) - at:
                raise _cut_off(path)
            value, at = content[at : at + size], at + size
        yield key >> 3, value


def _number(path: Path, content: bytes, at: int) -> tuple[int, int]:
    """A number of 7 bits a byte, the lowest first, and what is behind it."""
    value = 0
    for place, byte in enumerate(content[at : at + _LONGEST_NUMBER]):
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, at + place + 1
    raise _cut_off(path)


def _cut_off(path: Path) -> CheckpointError:
    return damaged(path, "content", seen="a value that is cut off or of no kind", wanted="a SentencePiece model")


def _unsupported(path: Path, what: str) -> UnsupportedError:
    return UnsupportedError(
        f"{path}: a SentencePiece vocabulary {what} is not supported; homenode reads byte pair encoding of texts as "
        "they "
        "are: save the tokenizer once with transformers (save_pretrained) to get a tokenizer.json"
    )
