"""The choice of the engine that a request goes to: the one that will have the least to do when it has it. Pure.

Work is counted in tokens to compute. A request is worth its prompt less what the engine's prefix cache saves; what
waits there comes before it, and every sequence there takes its part of each step meanwhile. So a known prefix draws a
request as far as the computing it saves, and not further: an engine is not flooded because it knows a popular
beginning. Requests without a session are all there is to it.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from homenode.engine.inputs import PlacedRows
from homenode.engine.kv.prefix import HashChain
from homenode.engine.router.prefixes import Prefixes, cacheable

# what a sequence counts for beside its prompt: about the tokens it is going to compute while a newcomer is there
SEQUENCE_TOKENS = 64


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """The work that an engine has to do. `requests`: those it has. `waiting_tokens`: to compute for those of them that
    have no output yet.

    `free_tokens`: what its KV memory takes beyond all that was given to it. `given`: requests since the start, to take
    turns at equal cost.
    """

    waiting_tokens: int = 0
    requests: int = 0
    free_tokens: int = 1 << 62
    given: int = 0


@dataclass(frozen=True, slots=True)
class Route:
    """The engine that a request goes to, and the tokens it leaves to compute there."""

    number: int
    work: int


def cost(load: EngineLoad, prompt: int, match: int) -> int:
    """Tokens to compute until a request of `prompt` tokens has its first, where `match` are in the cache; what finds no
    memory waits as well.
    """
    work = prompt - match
    return load.waiting_tokens + SEQUENCE_TOKENS * load.requests + work + max(0, work - load.free_tokens)


def choose(
    loads: Mapping[int, EngineLoad], prompt: int, matches: Mapping[int, int], favourite: int | None = None
) -> Route | None:
    """The cheapest of these engines; at equal cost the one given fewest requests, then the lowest number. None of none.

    With a `favourite` that one comes first at equal cost, then those of higher numbers.
    """
    if not loads:
        return None

    def order(number: int) -> tuple[int, int, int]:
        of = cost(loads[number], prompt, matches.get(number, 0))
        return (of, loads[number].given, number) if favourite is None else (of, int(number < favourite), number)

    number = min(loads, key=order)
    return Route(number, prompt - matches.get(number, 0))


@dataclass(slots=True)
class _Engine:
    """A record of what is known of one engine. `capacity`: tokens of its KV memory."""

    capacity: int
    prefixes: Prefixes
    load: EngineLoad = EngineLoad()


@dataclass(slots=True, eq=False)
class RoutedRequest:
    """One request to be routed. `chain`: hashes of its blocks. `route`: where it is, None: nowhere. `running`: it had
    an output there.
    """

    chain: HashChain
    tokens: list[int]
    route: Route | None = None
    running: bool = False


@dataclass
class Router:
    """Keeps the books of several engines. `caching`: they have prefix caches. `key`: of the hashes, drawn at random
    unless it is given.

    `favourite`: an engine that comes first at equal cost, in place of turns. Of several routers before the same engines
    each has another one, so that those that are asked at the same moment, and do not know of each other yet, do not all
    choose the same.
    """

    block_size: int
    caching: bool = True
    key: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    favourite: int | None = None
    _engines: dict[int, _Engine] = field(default_factory=dict)

    def add(self, number: int, num_blocks: int) -> None:
        """An engine is there, with empty memory; it may have been there before."""
        known = self._engines.get(number)
        load = replace(known.load, waiting_tokens=0, requests=0) if known else EngineLoad()
        self._engines[number] = _Engine(num_blocks * self.block_size, Prefixes(num_blocks), load)

    def new_request(self, tokens: list[int], salt: str, rows: Sequence[PlacedRows] = ()) -> RoutedRequest:
        """A request with this prompt, which is nowhere yet. `rows`: of it, in places of embeddings."""
        return RoutedRequest(HashChain(self.key, self.block_size, salt, rows), tokens)

    def load(self, number: int) -> EngineLoad:
        """The books of one engine."""
        return self._engines[number].load

    def route(self, routed: RoutedRequest, usages: Mapping[int, float]) -> Route | None:
        """Choose among the engines in `usages`, which gives the share of their KV memory in use, and book the request
        there.

        An engine whose whole KV memory is too small for the prompt is asked only when all are. None when there is no
        engine to choose.
        """
        digests = cacheable(routed.chain, routed.tokens, self.block_size) if self.caching else []
        prompt = len(routed.tokens)
        large = [number for number in usages if self._engines[number].capacity > prompt] or list(usages)
        loads = {number: self._load_now(self._engines[number], usages[number]) for number in large}
        matches = {number: self.block_size * self._engines[number].prefixes.match(digests) for number in large}
        routed.route = choose(loads, prompt, matches, self.favourite)
        if routed.route is not None:
            engine = self._engines[routed.route.number]
            engine.prefixes.add(digests)
            self._change(engine, waiting=routed.route.work, requests=1, given=1)
        return routed.route

    def began(self, routed: RoutedRequest) -> None:
        """Its first output came: the prompt is computed."""
        if routed.route is not None and not routed.running:
            routed.running = True
            self._change(self._engines[routed.route.number], waiting=-routed.route.work)

    def ended(self, routed: RoutedRequest, tokens: list[int] | None = None) -> None:
        """Note that it is with no engine any more. `tokens`: all of it, prompt and answer, which the engine now has in
        its cache.
        """
        if routed.route is None:
            return
        engine = self._engines[routed.route.number]
        self._change(engine, waiting=0 if routed.running else -routed.route.work, requests=-1)
        if tokens is not None and self.caching:
            engine.prefixes.add(cacheable(routed.chain, tokens, self.block_size))
        routed.route, routed.running = None, False

    def book(self, number: int, work: int, digests: Sequence[bytes]) -> RoutedRequest:
        """Somebody else gave the engine a request that leaves it `work` tokens to compute; it is told of like one's
        own.
        """
        engine = self._engines[number]
        engine.prefixes.add(digests)
        self._change(engine, waiting=work, requests=1, given=1)
        return RoutedRequest(HashChain(self.key, self.block_size, ""), [], Route(number, work))

    def remember(self, number: int, digests: Sequence[bytes]) -> None:
        """Somebody else knows that the engine's cache has these blocks."""
        if self.caching:
            self._engines[number].prefixes.add(digests)

    def known(self, number: int) -> list[bytes]:
        """The blocks that its cache is thought to hold, those used longest ago first."""
        return self._engines[number].prefixes.digests

    def has(self, number: int) -> bool:
        """Return whether the engine was ever there."""
        return number in self._engines

    def forget(self, number: int) -> None:
        """The engine lost its memory."""
        self._engines[number].prefixes.forget()

    def known_blocks(self, number: int) -> int:
        """Blocks that the engine's cache is thought to hold; at most as many as it has."""
        return len(self._engines[number].prefixes)

    def _load_now(self, engine: _Engine, usage: float) -> EngineLoad:
        """`usage` does not know yet of what waits."""
        return replace(engine.load, free_tokens=int((1.0 - usage) * engine.capacity) - engine.load.waiting_tokens)

    @staticmethod
    def _change(engine: _Engine, waiting: int = 0, requests: int = 0, given: int = 0) -> None:
        load = engine.load
        engine.load = EngineLoad(
            load.waiting_tokens + waiting, load.requests + requests, load.free_tokens, load.given + given
        )
