"""Places in a text by the tokens that end there: what followed the last tokens of an answer where they stood before.

The index is that of Lempel and Ziv's compressors: for each place the one before it whose last two tokens, and last
three, have the same hash. Reading a token takes constant time, looking places up a bounded one, and memory is 24 bytes
a token and bounded.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

MOST_TOKENS: Final = 65536  # of a text that are kept in mind, those at its end
SEPARATOR: Final = -1  # no token: stands between texts, and where a row takes the place of an embedding
_LARGEST: Final = 65536  # entries of a table
_CROWDED: Final = 3  # tokens an entry
_TRIPLES, _PAIRS = 16, 8  # places that are compared, the latest first
_LONGEST: Final = 32  # tokens that are compared
_SURE: Final = 8  # tokens of a repetition that is not given up for another
_NEAR: Final = 24  # tokens behind where a repetition broke off that are preferred to go on from
_BROKEN: Final = 4  # repetitions that broke off last which are kept in mind
_FIRST: Final = 2654435761
_SECOND: Final = 2246822519


class TextIndex:
    """Places in `tokens`, a list that may grow at its end while it is here. `read`: how many of them are known."""

    __slots__ = ("_before_pair", "_before_triple", "_first", "_last_pair", "_last_triple", "_mask", "read", "tokens")

    def __init__(self, tokens: list[int], room: int = 1024, most: int = MOST_TOKENS) -> None:
        """`room`: tokens by which it is likely to grow; `most`: of those that are there, how many are looked at."""
        self.tokens = tokens
        self._first = self.read = max(0, len(tokens) - most)
        size = 1 << min(_LARGEST.bit_length() - 1, max(8, (min(len(tokens), most) + room).bit_length()))
        self._mask = size - 1
        self._last_pair, self._last_triple = array("i", [-1]) * size, array("i", [-1]) * size
        self._before_pair, self._before_triple = array("i"), array("i")

    @property
    def capacity(self) -> int:
        """Tokens that it has memory for."""
        return max(self._mask + 1, len(self._before_pair))

    @property
    def is_crowded(self) -> bool:
        """Return whether the text has outgrown its tables, so that places with other tokens hide those looked for."""
        return self._mask < _LARGEST - 1 and len(self._before_pair) > _CROWDED * (self._mask + 1)

    def read_on(self, most: int) -> bool:
        """Read `most` further tokens; whether all are read then. MemoryError: the index is what it was after the last
        token that there was memory for.
        """
        tokens, at = self.tokens, self.read
        past = min(len(tokens), at + most)
        mask, last_pair, last_triple = self._mask, self._last_pair, self._last_triple
        add_pair, add_triple = self._before_pair.append, self._before_triple.append
        two = tokens[at - 2] if at - 2 >= self._first else SEPARATOR
        one = tokens[at - 1] if at - 1 >= self._first else SEPARATOR
        try:
            for token in tokens[at:past]:
                both = one * _FIRST + token
                pair, triple = both & mask, (both + two * _SECOND) & mask
                add_pair(last_pair[pair])
                add_triple(last_triple[triple])
                last_pair[pair] = last_triple[triple] = at
                two, one = one, token
                at += 1
        finally:
            self.read = at
            if len(self._before_pair) > len(self._before_triple):  # there was memory for one of the two
                self._before_pair.pop()
        return at == len(tokens)

    def find(self, query: Sequence[int], least: int, near: Sequence[int] = ()) -> tuple[int, int]:
        """Where what the last tokens of `query` repeat goes on, and how many tokens these are; (-1, 0): they repeat
        nothing of at least `least` tokens. Of places that repeat as much the first behind one of `near` is taken, if it
        is close to that, the first of these before the others; else the latest.
        """
        if len(query) < 3:
            return -1, 0
        two, one, token = query[-3], query[-2], query[-1]
        own = len(query) - 1 if query is self.tokens else -1
        best, length, rank = -1, max(1, least - 1), len(near)
        both = one * _FIRST + token
        triple = self._last_triple[(both + two * _SECOND) & self._mask]
        for _ in range(_TRIPLES):
            if triple < 0:
                break
            if triple != own:
                same = self._same(query, triple)
                if same > length:
                    best, length, rank = triple + 1, same, _rank(triple + 1, near)
                elif same == length and best >= 0:
                    closer = _rank(triple + 1, near)
                    if closer <= rank and closer < len(near):
                        best, rank = triple + 1, closer
            triple = self._before_triple[triple - self._first]
        if best >= 0 or length > 1:
            return (best, length) if best >= 0 else (-1, 0)
        pair = self._last_pair[both & self._mask]
        for _ in range(_PAIRS):
            if pair < 0:
                break
            if pair != own and self._same(query, pair) >= 2:
                closer = _rank(pair + 1, near)
                if best < 0 or (closer <= rank and closer < len(near)):
                    best, rank = pair + 1, closer
            pair = self._before_pair[pair - self._first]
        return (best, 2) if best >= 0 else (-1, 0)

    def _same(self, query: Sequence[int], end: int) -> int:
        """Tokens of the text up to `end` that are the last of `query`, a bounded number of them."""
        tokens, last = self.tokens, len(query) - 1
        most = min(_LONGEST, end - self._first + 1, last + 1)
        for count in range(most):
            token = tokens[end - count]
            if token != query[last - count] or token < 0:
                return count
        return most


def _rank(place: int, near: Sequence[int]) -> int:
    """Return the number of the first of `near` which this place is close behind; how many there are where it is not."""
    for number, each in enumerate(near):
        if 0 <= place - each < _NEAR:
            return number
    return len(near)


class Repetition:
    """What the last tokens of a growing text repeat of an indexed one, which may be itself.

    `at`: where that goes on, -1 where they repeat nothing; `length`: how many tokens they are. `outcomes`: of each
    token that came behind a repetition how many tokens that had, and whether it was the one that follows them there.
    """

    __slots__ = ("_broken", "_seen", "at", "index", "length", "outcomes")

    def __init__(self, index: TextIndex) -> None:
        self.index = index
        self.at, self.length = -1, 0
        self._seen, self._broken = 0, list[int]()  # where the last ones broke off, the latest first
        self.outcomes: list[tuple[int, bool]] = []

    def follow(self, text: Sequence[int], least: int) -> bool:
        """Take in what `text` has become, `outcomes` too: whether it repeats at least `least` tokens at its end."""
        tokens, at = self.index.tokens, self.at
        if self._seen == len(text):
            return at >= 0
        if at >= 0:
            for token in text[self._seen :]:
                expected = tokens[at] if at < len(tokens) else SEPARATOR
                if expected != SEPARATOR:
                    self.outcomes.append((self.length, expected == token))
                if expected != token:
                    self._broken = [at, *self._broken[: _BROKEN - 1]]
                    at = -1
                    break
                at += 1
                self.length += 1
        self._seen = len(text)
        if at < 0 or self.length < _SURE:
            found, length = self.index.find(text, least, self._broken)
            if at < 0 or length > self.length:
                at, self.length = found, length
        self.at = at
        return at >= 0

    def following(self, most: int) -> list[int]:
        """At most `most` tokens that should follow those that are repeated. What comes behind the end of the text
        itself is taken to repeat as well.
        """
        tokens, at = self.index.tokens, self.at
        found = tokens[at : at + most]
        if 0 < len(found) < most:
            found = (found * (most // len(found) + 1))[:most]
        for place, token in enumerate(found):
            if token < 0:
                return found[:place]
        return found
