"""The fewest tokens that a text can become, told without encoding it: no token covers more bytes than the longest has.

That holds only where nothing of a text is lost on its way into tokens, so it is decided for each tokenizer. Steps that
drop white space leave a bound over the other bytes; steps that may drop anything leave none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer as Library

_SLICE_CHARACTERS = 64 * 1024  # of a text that is looked at without giving other threads a turn
_LONGEST_CHARACTER_BYTES = 4
_SPACE_MARK = "▁"  # U+2581, how vocabularies of SentencePiece write a space

_UTF8_BYTES = frozenset({*range(0xC0), *range(0xC2, 0xF5)})  # the others are in no text

# How much shorter in bytes each step may make a text: composing Hangul makes one character of three, and compatibility
# forms of four bytes become letters of one.
_SHRINKS = {"Prepend": 1, "ByteLevel": 1, "NFC": 4, "NFD": 4, "NFKC": 4, "NFKD": 4, "Lowercase": 4}
_DROPS_NOTHING = frozenset({"ByteLevel", "Metaspace", "UnicodeScripts"})
_DROPS_WHITE_SPACE = frozenset({"Whitespace", "WhitespaceSplit", "BertPreTokenizer"})


class TokenBound:
    """Fewest tokens of texts under one library tokenizer. `token_bytes` tells the bytes of a token."""

    def __init__(self, library: Library, token_bytes: Callable[[int], bytes]) -> None:
        self._library, self._token_bytes = library, token_bytes

    def fewest_tokens(self, text: str) -> int:
        """A number of tokens that `text` certainly has; 0 where nothing can be said."""
        if not self._most_bytes:
            return 0
        size = len(text) if text.isascii() and not self._drops_white_space else self._bytes_that_count(text)
        return -(-size // self._most_bytes)

    def _bytes_that_count(self, text: str) -> int:
        total = 0
        for at in range(0, len(text), _SLICE_CHARACTERS):
            part = text[at : at + _SLICE_CHARACTERS]
            kept = "".join(part.split()) if self._drops_white_space else part
            total += _written_bytes(kept)
        return total

    @cached_property
    def _most_bytes(self) -> int:
        """Bytes of a text that one token covers at most; 0: they are not bounded."""
        shrinks = 1
        for step in _steps(self._library.normalizer, "normalizers"):
            shrinks *= _shrinking(step)
        kept = all(
            _keeps_text(step) or step.get("type") in _DROPS_WHITE_SPACE
            for step in _steps(self._library.pre_tokenizer, "pretokenizers")
        )
        if not kept or not shrinks or not self._covers_every_text:
            return 0
        return shrinks * max(self._longest_token, _LONGEST_CHARACTER_BYTES)

    @cached_property
    def _drops_white_space(self) -> bool:
        added = self._library.get_added_tokens_decoder().values()
        pre_tokenizers = _steps(self._library.pre_tokenizer, "pretokenizers")
        return any(token.lstrip or token.rstrip for token in added) or any(
            step.get("type") in _DROPS_WHITE_SPACE for step in pre_tokenizers
        )

    @property
    def _covers_every_text(self) -> bool:
        """Return whether each character becomes at least one token: none is dropped, and unknown ones are
        not joined.
        """
        model: Any = self._library.model
        if type(model).__name__ != "BPE":
            return False
        if model.byte_fallback and all(
            self._library.token_to_id(f"<0x{byte:02X}>") is not None for byte in _UTF8_BYTES
        ):
            return True
        if "ByteLevel" in self._kinds and all(
            self._library.token_to_id(letter) is not None for letter in _byte_letters()
        ):
            return True
        return model.unk_token is not None and not model.fuse_unk and not model.byte_fallback

    @cached_property
    def _kinds(self) -> set[str]:
        """Return the kinds of the steps before the model."""
        steps = (
            *_steps(self._library.normalizer, "normalizers"),
            *_steps(self._library.pre_tokenizer, "pretokenizers"),
        )
        return {str(step.get("type")) for step in steps}

    @property
    def _longest_token(self) -> int:
        """Bytes of a text that the longest token covers. The vocabulary writes none shorter than it is: few have to be
        looked at.

        A text may hold what the vocabulary writes as well as what that stands for, except where each byte has a letter
        of its own.
        """
        byte_level = "ByteLevel" in self._kinds
        longest = 0
        vocabulary = self._library.get_vocab(with_added_tokens=True)
        for piece in sorted(vocabulary, key=_written_bytes, reverse=True):
            if _written_bytes(piece) <= longest:
                break
            covered = len(self._token_bytes(vocabulary[piece]))
            longest = max(longest, covered if byte_level else max(covered, _written_bytes(piece)))
        return longest


def _written_bytes(text: str) -> int:
    """Bytes of a text or a vocabulary's piece, in which a space may be written as its mark: either counts as
    one byte.
    """
    return len(text.replace(_SPACE_MARK, " ").encode("utf-8", "surrogatepass"))


def _steps(component: Any, inner: str) -> Iterator[dict[str, Any]]:
    """The parts of a normalizer or pre-tokenizer, those of sequences one by one."""
    if component is not None:
        yield from _flat(json.loads(component.__getstate__()), inner)


def _flat(step: dict[str, Any], inner: str) -> Iterator[dict[str, Any]]:
    if step.get("type") == "Sequence":
        for each in step.get(inner, ()):
            yield from _flat(each, inner)
    else:
        yield step


def _shrinking(step: dict[str, Any]) -> int:
    """Return how much shorter a normalizer may make a text; 0: that is not bounded."""
    if step.get("type") == "Replace":
        before, after = step.get("pattern", {}).get("String"), step.get("content")
        if isinstance(before, str) and isinstance(after, str):
            return 1 if len(after.encode()) >= len(before.encode()) else 0
        return 0
    return _SHRINKS.get(str(step.get("type")), 0)


def _keeps_text(step: dict[str, Any]) -> bool:
    """Return whether a pre-tokenizer keeps all of a text."""
    kind = step.get("type")
    if kind in ("Split", "Punctuation"):
        return step.get("behavior") != "Removed"
    return kind in _DROPS_NOTHING or kind == "Digits"


def _byte_letters() -> Iterator[str]:
    """The letters that byte-level vocabularies write the bytes of UTF-8 text with."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    yield from (chr(byte) for byte in _UTF8_BYTES if byte in printable)
    others = [byte for byte in range(256) if byte not in printable]
    yield from (chr(0x100 + place) for place, byte in enumerate(others) if byte in _UTF8_BYTES)
