"""Which prefill and which decode server a request goes to. Pure.

Work is counted in tokens. A prefill server costs what waits there, something for every request it has, and the prompt less what its prefix cache
probably holds; a decode server the same, but a token that is handed over counts a sixteenth of one that is computed. What a cache holds is
guessed from the prompts that were sent there; a wrong guess costs time only.
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
class Prompt:
    """What routing needs of a prompt. `digests`: of its full blocks."""

    tokens: int
    digests: Sequence[bytes] = ()


@dataclass(frozen=True)
class Choice:
    """A decode server, and a prefill server before it; None: the decoder computes the prompt. `short`: as it lacks little of it."""

    decoder: str
    prefiller: str | None = None
    short: bool = False


@dataclass(eq=False)
class Entry:
    """A request in the books of a server. `waiting`: its work as long as it has no answer."""

    server: str
    waiting: float


@dataclass
class _Book:
    prefixes: Prefixes
    requests: int = 0
    waiting: float = 0.0
    given: int = 0


@dataclass
class Books:
    """What each server has to do and probably has in its cache. `key`: of the hashes, drawn at random unless a test gives one."""

    key: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    _books: dict[str, _Book] = field(default_factory=dict)

    def prompt(self, units: Sequence[int], tokens: int, salt: str) -> Prompt:
        """`units`: token ids, or numbers that stand for pieces of text, from the beginning; `tokens`: of the whole prompt."""
        return Prompt(tokens, prompt_digests(self.key, units, BLOCK_TOKENS, salt))

    def choose(
        self,
        prompt: Prompt,
        prefillers: Collection[str],
        decoders: Collection[str],
        fits: Callable[[str, str], bool],
        min_handover: int = 0,
    ) -> Choice | None:
        """The cheapest pair that fits, else the cheapest decoder alone; None without decoders. At equal cost they take turns, in the order given."""
        if not decoders:
            return None
        near = [name for name in decoders if prompt.tokens - self._match(name, prompt) < min_handover]
        if near:
            return Choice(min(near, key=lambda name: self._cost(name, prompt, 1.0)), short=True)
        ranked = sorted(prefillers, key=lambda name: self._cost(name, prompt, 1.0))
        pairs = [(first, decoder) for decoder in decoders if (first := next((p for p in ranked if fits(p, decoder)), None)) is not None]
        if not pairs:
            return Choice(min(decoders, key=lambda name: self._cost(name, prompt, 1.0)))
        prefiller, decoder = min(pairs, key=lambda pair: _sum(self._cost(pair[0], prompt, 1.0), self._cost(pair[1], prompt, _HANDED_OVER)))
        return Choice(decoder, prefiller)

    def begin(self, server: str, prompt: Prompt, *, handed_over: bool = False) -> Entry:
        """A request goes to a server, which will have its prompt in the cache."""
        book = self._book(server)
        work = (prompt.tokens - self._match(server, prompt)) * (_HANDED_OVER if handed_over else 1.0)
        book.requests, book.waiting, book.given = book.requests + 1, book.waiting + work, book.given + 1
        book.prefixes.add(prompt.digests)
        return Entry(server, work)

    def answered(self, entry: Entry) -> None:
        """Its prompt is done with."""
        self._book(entry.server).waiting -= entry.waiting
        entry.waiting = 0.0

    def end(self, entry: Entry) -> None:
        """It is there no more. To be called once."""
        self.answered(entry)
        book = self._book(entry.server)
        book.requests -= 1
        if not book.requests:
            book.waiting = 0.0  # sums of fractions need not come out even

    def forget(self, server: str) -> None:
        """The server lost its memory."""
        self._book(server).prefixes.forget()

    def requests(self, server: str) -> int:
        """Those it has."""
        return self._book(server).requests

    def waiting(self, server: str) -> float:
        """Tokens it has to compute, or as much work."""
        return self._book(server).waiting

    def _book(self, server: str) -> _Book:
        if server not in self._books:
            self._books[server] = _Book(Prefixes(REMEMBERED_BLOCKS))
        return self._books[server]

    def _match(self, server: str, prompt: Prompt) -> int:
        return min(prompt.tokens, BLOCK_TOKENS * self._book(server).prefixes.match(prompt.digests))

    def _cost(self, server: str, prompt: Prompt, share: float) -> tuple[float, int]:
        """Work until a prompt sent there now is done with, and the turn."""
        book = self._book(server)
        cost = book.waiting + SEQUENCE_TOKENS * book.requests + share * (prompt.tokens - self._match(server, prompt))
        return cost, book.given


def _sum(first: tuple[float, int], second: tuple[float, int]) -> tuple[float, int]:
    return first[0] + second[0], first[1] + second[1]
