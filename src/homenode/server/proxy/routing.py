"""The prefill and the decode server that a request goes to. Pure.

Work is counted in tokens. A prefill server costs what waits there, something for every request it has, and the prompt
less what its prefix cache probably holds; a decode server the same, but a token that is handed over counts a sixteenth
of one that is computed. What a cache holds is guessed from the prompts that were sent there; a wrong guess costs time
only.

A server that takes twice as long as others, or longer, for as much work costs so many times as much (`speed.py`). As
nobody is sent there then while others are free, it is tried again after so many requests, and at once in another life.

Of a decode server of several engines each is a target of its own, as the KV of a prompt goes to one of them. Which
engine of a prefill server computes a prompt is that server's business: what waits there is divided among its engines.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from homenode.engine.router.prefixes import Prefixes, prompt_digests
from homenode.engine.router.router import SEQUENCE_TOKENS
from homenode.server.proxy.speed import ServerSpeed, WorkKind, work_of

BLOCK_TOKENS = 64
REMEMBERED_BLOCKS = 1 << 15  # of each server
TRY_AGAIN = (
    512  # requests to servers since a slow one had any: one at 256 handed over, so that it is no 99th percentile
)
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
    """The work that one target has, and what its prefix cache probably holds. `engines`: how many share the work.
    `sent`: the number of the last request, among those to all.
    """

    prefixes: Prefixes = field(default_factory=lambda: Prefixes(REMEMBERED_BLOCKS))
    speed: ServerSpeed = field(default_factory=ServerSpeed)
    sent: int = 0
    requests: int = 0
    waiting: float = 0.0
    given: int = 0
    engines: int = 1


@dataclass(eq=False)
class RoutedLoad:
    """A request that was sent to a target, and the part of the target's load that it is. `waiting`: its work as long as
    it has no answer; `ahead`: all the work until its answer, this one's included; `afresh`: the target had no other for
    long.
    """

    load: TargetLoad
    waiting: float
    ahead: float
    kind: WorkKind
    afresh: bool


@dataclass
class LoadTable:
    """The work and the probable cache contents of every target. `key`: the key of the hashes, drawn at random unless a
    test gives one.
    """

    key: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    _loads: dict[RouteTarget, TargetLoad] = field(default_factory=dict)
    _sent: int = 0

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
        slow = self._slowness(prefillers) | self._slowness(decoders)

        def cost(target: RouteTarget, share: float = 1.0) -> tuple[float, int]:
            work, turn = self._cost(target, prompt, share)
            return (work + SEQUENCE_TOKENS) * slow[target], turn

        near = [target for target in decoders if prompt.tokens - self._match(target, prompt) < min_handover]
        if near:
            return ChosenRoute(min(near, key=cost), short=True)
        ranked = sorted(prefillers, key=cost)
        pairs = [
            (first, decoder)
            for decoder in decoders
            if (first := next((p for p in ranked if fits(p, decoder)), None)) is not None
        ]
        if not pairs:
            return ChosenRoute(min(decoders, key=cost))
        prefiller, decoder = min(pairs, key=lambda pair: _sum(cost(pair[0]), cost(pair[1], _HANDED_OVER)))
        return ChosenRoute(decoder, prefiller)

    def begin(self, target: RouteTarget, prompt: Prompt, kind: WorkKind = WorkKind.WHOLE) -> RoutedLoad:
        """A request goes to a target, which will have its prompt in the cache."""
        load = self._load(target)
        share = _HANDED_OVER if kind is WorkKind.HANDED_OVER else 1.0
        ahead = self._cost(target, prompt, share)[0] + SEQUENCE_TOKENS
        work = (prompt.tokens - self._match(target, prompt)) * share
        load.requests, load.waiting, load.given = load.requests + 1, load.waiting + work, load.given + 1
        afresh = self._sent - load.sent >= TRY_AGAIN
        load.sent = self._sent = self._sent + 1
        load.prefixes.add(prompt.digests)
        return RoutedLoad(load, work, ahead, kind, afresh)

    def learn(self, entry: RoutedLoad, seconds: float) -> None:
        """The target took so long until its answer began."""
        entry.load.speed.learn(work_of(entry.kind, entry.ahead), entry.ahead, seconds, afresh=entry.afresh)

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
            load.speed = ServerSpeed()

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

    def slowness(self, server: str, others: Collection[str]) -> float:
        """Return how many times as long as the fastest of others it takes, from twice on; else 1."""
        theirs = [load.speed for each in others if each != server for load in self._of(each)]
        return max((load.speed.slowness(theirs) for load in self._of(server)), default=1.0)

    def _slowness(self, targets: Collection[RouteTarget]) -> dict[RouteTarget, float]:
        """The same of each of these targets; 1 for one that is to be tried again."""
        loads = {target: self._load(target) for target in targets}
        speeds = [load.speed for load in loads.values()]
        return {
            target: 1.0 if self._sent - load.sent >= TRY_AGAIN else load.speed.slowness(speeds)
            for target, load in loads.items()
        }

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
