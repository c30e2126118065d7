"""Long texts encoded in pieces, with exactly the tokens of the whole.

One call of the `tokenizers` library takes memory of more than a hundred times the text, and cannot be ended. So a long
text is encoded in pieces of bounded size that overlap, and two neighbours are joined inside the overlap, where both
have the same tokens around the same place.

Why that changes nothing: in byte pair encoding no merge crosses a boundary that is left in the end, so the tokens on
either side are those of that side alone. When the piece before a place and the piece around it agree on the boundary
there and on the token behind it, then the symbols that meet at the place are, merge by merge, those of the whole text,
and the boundary is one of the whole text too. Where a pre-tokenizer cuts words, a place between two words is taken: the
expressions run from left to right and look at what is near.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from tokenizers import Encoding
from tokenizers import Tokenizer as Library

from homenode.errors import CapacityError, InternalError

PIECE_CHARACTERS = 64 * 1024  # about a tenth of a second of work
LONGEST_PIECE_CHARACTERS = 2**19  # of a text with no place to cut; one of emoji takes 350 MB while it is encoded
_OVERLAP_CHARACTERS = 1024
_LONGEST_ADDED = 4096  # characters of a token that is looked for in texts; with longer ones texts are not divided
_SAMPLES = ("a", "0", "e", "\n", "あ")  # texts, of which at least one has tokens in any vocabulary
_AGREEING_TOKENS = (
    4  # on each side of a place; one would do by the argument above, and expressions look some characters around
)


class PieceEncoder:
    """Encodes texts of any length with one library tokenizer. Safe to use from several threads."""

    def __init__(self, library: Library, piece_characters: int = PIECE_CHARACTERS) -> None:
        self._library = library
        # Otherwise the library would encode even a single text in a pool of threads, on the CPUs of the engine too.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        longest_added = max((len(token.content) for token in library.get_added_tokens_decoder().values()), default=0)
        self._overlap = max(min(_OVERLAP_CHARACTERS, piece_characters // 4), 2 * min(longest_added, _LONGEST_ADDED), 16)
        divides = longest_added <= _LONGEST_ADDED
        self.piece_characters = max(piece_characters, 4 * self._overlap) if divides else LONGEST_PIECE_CHARACTERS
        self._joins_inside_words = _merges_over_whole_texts(library)

    def pieces(self, text: str, add_special_tokens: bool = False) -> Iterator[list[int]]:
        """The token ids of `text` in order; the work for each item is bounded.

        `add_special_tokens`: with those that belong around a text.

        Raises CapacityError for a text that has no place to cut within LONGEST_PIECE_CHARACTERS.
        """
        if not add_special_tokens:
            yield from self._bare_pieces(text)
        elif self._around is None:
            yield self._library.encode_batch([text])[0].ids
        else:
            yield from self.surrounded(self._bare_pieces(text))

    def surrounded(self, pieces: Iterator[list[int]]) -> Iterator[list[int]]:
        """The pieces of a text between the special tokens that belong around one."""
        before, behind = self._around or ([], [])
        yield before
        yield from pieces
        yield behind

    @cached_property
    def _around(self) -> tuple[list[int], list[int]] | None:
        """The ids before and after a text; None where it is not simply that."""
        for sample in _SAMPLES:
            bare = self._library.encode(sample, add_special_tokens=False).ids
            whole = self._library.encode(sample).ids
            for place in range(len(whole) - len(bare) + 1):
                if bare and whole[place : place + len(bare)] == bare:
                    return whole[:place], whole[place + len(bare) :]
        return None

    def _bare_pieces(self, text: str) -> Iterator[list[int]]:
        piece = _Piece(self._library, text, 0, self.piece_characters)
        given = 0  # tokens of the piece that were given out with the one before
        while piece.end < len(text):
            following = _Piece(self._library, text, piece.end - 2 * self._overlap, self.piece_characters)
            place = self._meeting_place(piece, following, piece.end - self._overlap // 2)
            if place is None:
                piece, given = self._extended(piece, text, given)
                continue
            yield piece.ids[given : place[0]]
            piece, given = following, place[1]
        yield piece.ids[given:]

    def _extended(self, piece: _Piece, text: str, given: int) -> tuple[_Piece, int]:
        """The piece with twice the text, and how many of its tokens were given out."""
        if len(piece) >= LONGEST_PIECE_CHARACTERS:
            raise CapacityError(
                f"the text has {len(piece)} characters from place {piece.start} on without a place to divide it; "
                f"at most {LONGEST_PIECE_CHARACTERS} are turned into tokens at once; put spaces or line breaks into it",
                param="prompt",
            )
        longer = _Piece(self._library, text, piece.start, 2 * len(piece))
        if given and longer.ids[: given + 1] != piece.ids[: given + 1]:
            raise InternalError("the tokens before a place changed with the text behind it")
        return longer, given

    def _meeting_place(self, piece: _Piece, following: _Piece, last: int) -> tuple[int, int] | None:
        """The index in both pieces of the latest token, from `last` back, around which they agree."""
        first = following.start + self._overlap // 2
        starts = following.tokens_by_start(first, last)
        for index in range(len(piece.ids) - 1, 0, -1):
            start = piece.place(index)
            if start < first:
                return None
            other = starts.get(start) if start <= last else None
            if (
                other is not None
                and piece.begins_word(index, anywhere=self._joins_inside_words)
                and following.begins_word(other, anywhere=self._joins_inside_words)
                and piece.around(index) == following.around(other)
            ):
                return index, other
        return None


class _Piece:
    """A run of a text's characters, from `start` to `end`, as tokens."""

    def __init__(self, library: Library, text: str, start: int, length: int) -> None:
        part = text[start : start + length]
        # encode() would keep the interpreter's lock for the whole of its work.
        self._encoding: Encoding = library.encode_batch([part], add_special_tokens=False)[0]
        self.start, self.end = start, start + len(part)
        self.ids: list[int] = self._encoding.ids

    def __len__(self) -> int:
        return self.end - self.start

    def place(self, index: int) -> int:
        """The text's character at which this token begins."""
        return self.start + self._span(index)[0]

    def begins_word(self, index: int, *, anywhere: bool) -> bool:
        """Return whether this token begins with a character and, unless `anywhere`, with a word."""
        if self._span(index)[0] < self._span(index - 1)[1]:
            return False
        return anywhere or self._encoding.token_to_word(index) != self._encoding.token_to_word(index - 1)

    def tokens_by_start(self, first: int, last: int) -> dict[int, int]:
        """The index of the first token that begins at each of the text's characters from `first` to `last`."""
        found: dict[int, int] = {}
        for index in range(1, len(self.ids)):
            start = self.place(index)
            if start > last:
                break
            if start >= first:
                found.setdefault(start, index)
        return found

    def around(self, index: int) -> list[tuple[int, int, int]]:
        """Ids and places of the tokens on both sides of where this one begins."""
        near = range(max(0, index - _AGREEING_TOKENS), min(len(self.ids), index + _AGREEING_TOKENS))
        return [(self.ids[i], self.start + self._span(i)[0], self.start + self._span(i)[1]) for i in near]

    def _span(self, index: int) -> tuple[int, int]:
        return self._encoding.token_to_chars(index) or (0, 0)


def _merges_over_whole_texts(library: Library) -> bool:
    """Return whether a text is one word to this tokenizer, and its tokens are found by merging alone."""
    model: Any = library.model
    if type(model).__name__ != "BPE" or model.ignore_merges or model.dropout:
        return False
    return library.pre_tokenizer is None or _cuts_nothing(json.loads(library.pre_tokenizer.__getstate__()))


def _cuts_nothing(pre_tokenizer: Any) -> bool:
    match pre_tokenizer.get("type"):
        case "Sequence":
            return all(_cuts_nothing(each) for each in pre_tokenizer.get("pretokenizers", ()))
        case "ByteLevel":
            return not pre_tokenizer.get("use_regex", True)
        case "Metaspace":
            return not pre_tokenizer.get("split", True)
    return False
