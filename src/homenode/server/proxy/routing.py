"""The prefill and the decode server that a request goes to. Pure.

Work is counted in tokens. A prefill server costs what waits there, something for every request it has, and the prompt
less what its prefix cache probably holds; a decode server the same, but a token that is handed over counts a sixteenth
of one that is computed. What a cache holds is guessed from the prompts that were sent there; a wrong guess costs time
only.

Of a decode server of several engines each is a target of its own, as the KV of a prompt goes to one of them. Which
engine of a prefill server computes a prompt is that server's business: what waits there is divided among its engines.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from homenode.engine.router.prefixes import Prefixes, prompt_digests
from homenode.engine.router.router import SEQUENCE_TOKENS

BLOCK_TOKENS = 64
REMEMBERED_BLOCKS = 1 << 15  # of each server
_HANDED_OVER = 1 / 16  # of the work of computing a token


@dataclass(frozen=True)
class RouteTarget:
    """The place that a prompt may go to: a server, or one of several engines of it. `engine`: its incarnation, None:
    the server chooses, or has but one.
    """

    server: str
    engine: str | None = None


@dataclass(frozen=True)
class Prompt:
    """The facts that routing needs of a prompt. `digests`: of its full blocks."""

    tokens: int
    digests: Sequence[bytes] = ()


@dataclass(frozen=True)
class ChosenRoute:
    """A decode server, and a prefill server before it; None: the decoder computes the prompt. `short`: as it lacks
    little of it.
    """

    decoder: RouteTarget
    prefiller: RouteTarget | None = None
    short: bool = False


@dataclass(eq=False)
class TargetLoad:
    """The work that one target has, and what its prefix cache probably holds. `engines`: how many share the work."""

    prefixes: Prefixes = field(default_factory=lambda: Prefixes(REMEMBERED_BLOCKS))
    requests: int = 0
    waiting: float = 0.0
    given: int = 0
    engines: int = 1


@dataclass(eq=False)
class RoutedLoad:
    """A request that was sent to a target, and the part of the target's load that it is. `waiting`: its work as long as
    it has no answer.
    """

    load: TargetLoad
    waiting: float


@dataclass
class LoadTable:
    """The work and the probable cache contents of every target. `key`: the key of the hashes, drawn at random unless a
    test gives one.
    """

    key: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    _loads: dict[RouteTarget, TargetLoad] = field(default_factory=dict)

    def prompt(self, units: Sequence[int], tokens: int, salt: str) -> Prompt:
        """`units`: token ids, or numbers that stand for pieces of text, from the beginning; `tokens`: of the whole
        prompt.
        """
        return Prompt(tokens, prompt_digests(self.key, units, BLOCK_TOKENS, salt))

    def choose(
        self,
        prompt: Prompt,
        prefillers: Collection[RouteTarget],
        decoders: Collection[RouteTarget],
        fits: Callable[[RouteTarget, RouteTarget], bool],
        min_handover: int = 0,
    ) -> ChosenRoute | None:
        """The cheapest pair that fits, else the cheapest target to decode alone; None without any target. At equal cost
        the targets take turns, in the order given.
        """
        if not decoders:
            return None
        near = [target for target in decoders if prompt.tokens - self._match(target, prompt) < min_handover]
        if near:
            return ChosenRoute(min(near, key=lambda target: self._cost(target, prompt, 1.0)), short=True)
        ranked = sorted(prefillers, key=lambda target: self._cost(target, prompt, 1.0))
        pairs = [
            (first, decoder)
            for decoder in decoders
            if (first := next((p for p in ranked if fits(p, decoder)), None)) is not None
        ]
        if not pairs:
            return ChosenRoute(min(decoders, key=lambda target: self._cost(target, prompt, 1.0)))
        prefiller, decoder = min(
            pairs, key=lambda pair: _sum(self._cost(pair[0], prompt, 1.0), self._cost(pair[1], prompt, _HANDED_OVER))
        )
        return ChosenRoute(decoder, prefiller)

    def begin(self, target: RouteTarget, prompt: Prompt, *, handed_over: bool = False) -> RoutedLoad:
        """A request goes to a target, which will have its prompt in the cache."""
        load = self._load(target)
        work = (prompt.tokens - self._match(target, prompt)) * (_HANDED_OVER if handed_over else 1.0)
        load.requests, load.waiting, load.given = load.requests + 1, load.waiting + work, load.given + 1
        load.prefixes.add(prompt.digests)
        return RoutedLoad(load, work)

    def answered(self, entry: RoutedLoad) -> None:
        """Its prompt is done with."""
        entry.load.waiting -= entry.waiting
        entry.waiting = 0.0

    def end(self, entry: RoutedLoad) -> None:
        """The request has left its target. To be called once."""
        self.answered(entry)
        entry.load.requests -= 1
        if not entry.load.requests:
            entry.load.waiting = 0.0  # sums of fractions need not come out even

    def forget(self, server: str) -> None:
        """The server lost its memory."""
        for load in self._of(server):
            load.prefixes.forget()

    def divide(self, server: str, engines: int) -> None:
        """`engines` engines of the server share the work that is sent there."""
        self._load(RouteTarget(server)).engines = max(1, engines)

    def keep(self, server: str, engines: Collection[str]) -> None:
        """Of the server's targets only those of these engines, and itself, are there any more."""
        for target in [
            each
            for each in self._loads
            if each.server == server and each.engine is not None and each.engine not in engines
        ]:
            del self._loads[target]

    def requests(self, server: str) -> int:
        """Return how many requests the server has."""
        return sum(load.requests for load in self._of(server))

    def waiting(self, server: str) -> float:
        """Tokens it has to compute, or as much work."""
        return sum(load.waiting for load in self._of(server))

    def _of(self, server: str) -> list[TargetLoad]:
        return [load for target, load in self._loads.items() if target.server == server]

    def _load(self, target: RouteTarget) -> TargetLoad:
        if target not in self._loads:
            self._loads[target] = TargetLoad()
        return self._loads[target]

    def _match(self, target: RouteTarget, prompt: Prompt) -> int:
        return min(prompt.tokens, BLOCK_TOKENS * self._load(target).prefixes.match(prompt.digests))

    def _cost(self, target: RouteTarget, prompt: Prompt, share: float) -> tuple[float, int]:
        """Work until a prompt sent there now is done with, and the turn."""
        load = self._load(target)
        waits = (load.waiting + SEQUENCE_TOKENS * load.requests) / load.engines
        return waits + share * (prompt.tokens - self._match(target, prompt)), load.given


def _sum(first: tuple[float, int], second: tuple[float, int]) -> tuple[float, int]:
    return first[0] + second[0], first[1] + second[1]
