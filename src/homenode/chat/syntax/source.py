"""Text that comes in pieces, for parsers that are generators: where they need more text than has come, they yield."""

from __future__ import annotations

import re
from collections.abc import Collection, Generator, Iterable
from typing import TypeVar

Result = TypeVar("Result")
Reading = Generator[None, None, Result]  # what parsers are: each yield asks for more text
_NO_SPACE = re.compile(r"[^ \t\r\n]")
_SPACE = re.compile(r"[ \t\r\n]+")


class TextSource:
    """The text from the place where the parser is. Whether a parser sees a text whole or in pieces makes no difference
    to it, as no method tells what has come from what is to come.
    """

    def __init__(self) -> None:
        self._text, self._at = "", 0
        self._ended = False
        self.raw: list[str] = []  # what was taken since the last `forget`

    def feed(self, text: str) -> None:
        """More text."""
        self._text, self._at = self._text[self._at :] + text, 0

    def end(self) -> None:
        """There is no more text."""
        self._ended = True

    def forget(self) -> None:
        """Begin `raw` anew."""
        self.raw = []

    def taken(self) -> str:
        """The text that was taken since the last `forget`, which this does as well."""
        text, self.raw = "".join(self.raw), []
        return text

    def take(self, count: int = 1) -> str:
        """The next characters, which must have been looked at."""
        piece = self._text[self._at : self._at + count]
        self._at += len(piece)
        self.raw.append(piece)
        return piece

    def put_back(self) -> None:
        """Return what the last `take` took; nothing may have been read since."""
        self._at -= len(self.raw.pop())

    def take_run(self, pattern: re.Pattern[str]) -> str:
        """Return what of the text that has come matches here; a longer match may follow once more has come."""
        found = pattern.match(self._text, self._at)
        return self.take(found.end() - self._at) if found else ""

    def peek(self) -> Reading[str]:
        """The next character; nothing at the end."""
        while self._at == len(self._text) and not self._ended:
            yield
        return self._text[self._at : self._at + 1]

    def looking_at(self, literal: str) -> Reading[bool]:
        """Return whether the text goes on with `literal`. Waits only while it may."""
        while True:
            here = self._text[self._at : self._at + len(literal)]
            if len(here) == len(literal) or self._ended or not literal.startswith(here):
                return here == literal
            yield

    def looking_at_one(self, literals: Iterable[str]) -> Reading[str | None]:
        """The first of the literals that the text goes on with."""
        for literal in literals:
            if (yield from self.looking_at(literal)):
                return literal
        return None

    def looking_at_pair(self, first: str, others: Collection[str]) -> Reading[bool]:
        """Return whether the text goes on with `first` and, behind white space, with one of `others`, or its end."""
        if not (yield from self.looking_at(first)):
            return False
        behind = len(first)
        while not (found := _NO_SPACE.search(self._text, self._at + behind)):
            behind = len(self._text) - self._at
            if self._ended:
                return True
            yield
        behind = found.start() - self._at
        while True:
            here = self._text[self._at + behind : self._at + behind + max(map(len, others))]
            if any(here.startswith(other) for other in others):
                return True
            if self._ended or not any(other.startswith(here) for other in others):
                return False
            yield

    def accept(self, literal: str) -> Reading[bool]:
        """Take `literal` if the text goes on with it."""
        if not (yield from self.looking_at(literal)):
            return False
        self.take(len(literal))
        return True

    def accept_one(self, literals: Iterable[str]) -> Reading[str | None]:
        """Take the first of the literals that the text goes on with."""
        for literal in literals:
            if (yield from self.accept(literal)):
                return literal
        return None

    def read_run(self, pattern: re.Pattern[str]) -> Reading[str]:
        """The longest text of characters of a class, which `pattern` matches one or more of."""
        pieces = []
        while (yield from self.peek()):
            piece = self.take_run(pattern)
            if not piece:
                break
            pieces.append(piece)
        return "".join(pieces)

    def skip_space(self) -> Reading[str]:
        """Take white space; the next character, nothing at the end."""
        while True:
            following = yield from self.peek()
            if not following or not self.take_run(_SPACE):
                return following
