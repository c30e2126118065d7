"""Which prefill and which decode server a request goes to. Pure.

Work is counted in tokens. A prefill server costs what waits there, something for every request it has, and the prompt less what its prefix cache
probably holds; a decode server the same, but a token that is handed over counts a sixteenth of one that is computed. What a cache holds is
guessed from the prompts that were sent there; a wrong guess costs time only.

Of a decode server of several engines each is a place of its own, as the KV of a prompt goes to one of them. Which engine of a prefill server computes a
prompt is that server's business: what waits there is divided among its engines.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from homenode.engine.replicas.prefixes import Prefixes, prompt_digests
from homenode.engine.replicas.router import SEQUENCE_TOKENS

BLOCK_TOKENS = 64
REMEMBERED_BLOCKS = 1 << 15  # of each server
_HANDED_OVER = 1 / 16  # of the work of computing a token


@dataclass(frozen=True)
class Place:
    """Where a prompt may go: a server, or one of several engines of it. `engine`: its incarnation, None: the server chooses, or has but one."""

    server: str
    engine: str | None = None


@dataclass(frozen=True)
class Prompt:
    """What routing needs of a prompt. `digests`: of its full blocks."""

    tokens: int
    digests: Sequence[bytes] = ()


@dataclass(frozen=True)
class Choice:
    """A decode server, and a prefill server before it; None: the decoder computes the prompt. `short`: as it lacks little of it."""

    decoder: Place
    prefiller: Place | None = None
    short: bool = False


@dataclass(eq=False)
class Book:
    """What a place has to do and probably has in its cache. `engines`: that divide the work."""

    prefixes: Prefixes = field(default_factory=lambda: Prefixes(REMEMBERED_BLOCKS))
    requests: int = 0
    waiting: float = 0.0
    given: int = 0
    engines: int = 1


@dataclass(eq=False)
class Entry:
    """A request in the books of a place. `waiting`: its work as long as it has no answer."""

    book: Book
    waiting: float


@dataclass
class Books:
    """What each place has to do and probably has in its cache. `key`: of the hashes, drawn at random unless a test gives one."""

    key: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    _books: dict[Place, Book] = field(default_factory=dict)

    def prompt(self, units: Sequence[int], tokens: int, salt: str) -> Prompt:
        """`units`: token ids, or numbers that stand for pieces of text, from the beginning; `tokens`: of the whole prompt."""
        return Prompt(tokens, prompt_digests(self.key, units, BLOCK_TOKENS, salt))

    def choose(
        self,
        prompt: Prompt,
        prefillers: Collection[Place],
        decoders: Collection[Place],
        fits: Callable[[Place, Place], bool],
        min_handover: int = 0,
    ) -> Choice | None:
        """The cheapest pair that fits, else the cheapest place to decode alone; None without any. At equal cost they take turns, in the order given."""
        if not decoders:
            return None
        near = [place for place in decoders if prompt.tokens - self._match(place, prompt) < min_handover]
        if near:
            return Choice(min(near, key=lambda place: self._cost(place, prompt, 1.0)), short=True)
        ranked = sorted(prefillers, key=lambda place: self._cost(place, prompt, 1.0))
        pairs = [
            (first, decoder)
            for decoder in decoders
            if (first := next((p for p in ranked if fits(p, decoder)), None)) is not None
        ]
        if not pairs:
            return Choice(min(decoders, key=lambda place: self._cost(place, prompt, 1.0)))
        prefiller, decoder = min(
            pairs, key=lambda pair: _sum(self._cost(pair[0], prompt, 1.0), self._cost(pair[1], prompt, _HANDED_OVER))
        )
        return Choice(decoder, prefiller)

    def begin(self, place: Place, prompt: Prompt, *, handed_over: bool = False) -> Entry:
        """A request goes to a place, which will have its prompt in the cache."""
        book = self._book(place)
        work = (prompt.tokens - self._match(place, prompt)) * (_HANDED_OVER if handed_over else 1.0)
        book.requests, book.waiting, book.given = book.requests + 1, book.waiting + work, book.given + 1
        book.prefixes.add(prompt.digests)
        return Entry(book, work)

    def answered(self, entry: Entry) -> None:
        """Its prompt is done with."""
        entry.book.waiting -= entry.waiting
        entry.waiting = 0.0

    def end(self, entry: Entry) -> None:
        """It is there no more. To be called once."""
        self.answered(entry)
        entry.book.requests -= 1
        if not entry.book.requests:
            entry.book.waiting = 0.0  # sums of fractions need not come out even

    def forget(self, server: str) -> None:
        """The server lost its memory."""
        for book in self._of(server):
            book.prefixes.forget()

    def divide(self, server: str, engines: int) -> None:
        """So many engines of the server divide what is sent there."""
        self._book(Place(server)).engines = max(1, engines)

    def keep(self, server: str, engines: Collection[str]) -> None:
        """Of the server's places only those of these engines, and itself, are there any more."""
        for place in [
            each
            for each in self._books
            if each.server == server and each.engine is not None and each.engine not in engines
        ]:
            del self._books[place]

    def requests(self, server: str) -> int:
        """Those it has."""
        return sum(book.requests for book in self._of(server))

    def waiting(self, server: str) -> float:
        """Tokens it has to compute, or as much work."""
        return sum(book.waiting for book in self._of(server))

    def _of(self, server: str) -> list[Book]:
        return [book for place, book in self._books.items() if place.server == server]

    def _book(self, place: Place) -> Book:
        if place not in self._books:
            self._books[place] = Book()
        return self._books[place]

    def _match(self, place: Place, prompt: Prompt) -> int:
        return min(prompt.tokens, BLOCK_TOKENS * self._book(place).prefixes.match(prompt.digests))

    def _cost(self, place: Place, prompt: Prompt, share: float) -> tuple[float, int]:
        """Work until a prompt sent there now is done with, and the turn."""
        book = self._book(place)
        waits = (book.waiting + SEQUENCE_TOKENS * book.requests) / book.engines
        return waits + share * (prompt.tokens - self._match(place, prompt)), book.given


def _sum(first: tuple[float, int], second: tuple[float, int]) -> tuple[float, int]:
    return first[0] + second[0], first[1] + second[1]
