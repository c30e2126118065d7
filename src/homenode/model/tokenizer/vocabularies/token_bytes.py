"""The bytes that tokens stand for, and the rule by which a sequence of them is text.

Both large kinds of vocabulary write bytes that need not be whole characters. A byte-level vocabulary writes every byte
as a letter; bytes that are no character come out as one U+FFFD for each beginning of a character that is not finished,
as in every UTF-8 decoder. A SentencePiece vocabulary writes `<0x0A>` where it has no better token, and its own decoder
gives one U+FFFD for each such byte. A character that is whole is never lost by either, whatever stands before it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer as Library

_PLACEHOLDER = "\0"  # in front of the text of a token that only holds a place; no vocabulary writes byte 0 so
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class ByteRule:
    """The rule by which a vocabulary's pieces become bytes, and these a text."""

    of_piece: Callable[[str], bytes]
    each_byte: bool  # every byte that is part of no character is a U+FFFD of its own
    strip: str = ""  # the character that is left out at the beginning of a text,
    strip_count: int = 0  # as often as this


class TokenBytes(dict[int, bytes]):
    """The bytes of each token: of a special one its name, none for ids outside the vocabulary.

    An entry is made when it is asked for first; a vocabulary has up to some hundred thousand. Safe to use from several
    threads.
    """

    def __init__(self, library: Library, of_piece: Callable[[str], bytes], *, added_are_text: bool) -> None:
        """`added_are_text`: added tokens are written as text even where others are not, as in byte-level
        vocabularies.
        """
        added = {int(index): token for index, token in library.get_added_tokens_decoder().items()}
        self.special = frozenset(index for index, token in added.items() if token.special)
        self._library, self._of_piece = library, of_piece
        for index, token in added.items():
            if token.special or added_are_text:
                self[index] = token.content.rpartition(_PLACEHOLDER)[2].encode()

    def __missing__(self, token: int) -> bytes:
        piece = self._library.id_to_token(token) if 0 <= token < 2**32 else None
        if piece is None:
            return b""
        found = self[token] = self._of_piece(piece.rpartition(_PLACEHOLDER)[2])
        return found

    def join(self, ids: Iterable[int], *, skipped: Collection[int] = ()) -> bytes:
        """The bytes of a sequence without the tokens that are `skipped`."""
        wanted = (token for token in ids if token not in skipped) if skipped else ids
        return b"".join(map(self.__getitem__, wanted))


def placeholder(index: int, text: str = "") -> str:
    """A name for the token that holds place `index`, which no text has. As text it is `text`."""
    return f"{_PLACEHOLDER}{index}{_PLACEHOLDER}{text}"


def byte_rule(library: Library) -> ByteRule | None:
    """The rule of a vocabulary whose decoder is one of the two kinds; None for any other, whose text only the library
    can tell.
    """
    steps = _steps(library)
    kinds = [step.get("type") for step in steps]
    if kinds in (["ByteLevel"], ["ByteLevel", "Fuse"]):
        return ByteRule(_byte_level_reader(), each_byte=False)
    replaced: dict[str, str] = {}
    while kinds and kinds[0] == "Replace":
        pattern = steps[0].get("pattern", {}).get("String")
        if not isinstance(pattern, str):
            return None
        replaced[pattern] = steps[0].get("content", "")
        steps, kinds = steps[1:], kinds[1:]
    if kinds == ["ByteFallback"] or kinds == ["ByteFallback", "Fuse"]:
        return ByteRule(_fallback_reader(replaced), each_byte=True)
    if kinds == ["ByteFallback", "Fuse", "Strip"] and not steps[2].get("stop"):
        return ByteRule(_fallback_reader(replaced), True, steps[2].get("content", " "), steps[2].get("start", 0))
    return None


def piece_bytes(library: Library) -> Callable[[str], bytes]:
    """Return how a piece of the vocabulary becomes bytes, for decoders without a rule as well: there as text, `▁` for a
    space.
    """
    rule = byte_rule(library)
    if rule is not None:
        return rule.of_piece
    marked = any(step.get("type") in ("Metaspace", "ByteFallback") for step in _steps(library))
    return _fallback_reader({"▁": " "}) if marked else str.encode


def _steps(library: Library) -> list[Mapping[str, Any]]:
    """The decoder as a flat list of its steps."""
    decoder = json.loads(library.decoder.__getstate__()) if library.decoder else {}
    nested = decoder.get("decoders") if decoder.get("type") == "Sequence" else [decoder]
    return [step for step in nested or () if isinstance(step, dict)]


def _byte_level_reader() -> Callable[[str], bytes]:
    letters = byte_letters()

    def read(piece: str) -> bytes:
        try:
            return bytes(map(letters.__getitem__, piece))
        except KeyError:  # the library takes a piece with any other character as text, the whole of it
            return piece.encode()

    return read


def _fallback_reader(replaced: Mapping[str, str]) -> Callable[[str], bytes]:
    def read(piece: str) -> bytes:
        for old, new in replaced.items():
            piece = piece.replace(old, new)
        match = _BYTE_PIECE.fullmatch(piece)
        return bytes([int(match[1], 16)]) if match else piece.encode()

    return read


def byte_letters() -> dict[str, int]:
    """The 256 letters byte-level BPE writes bytes with: printable Latin-1 as itself, the others from U+0100 on in
    order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(rest)}
