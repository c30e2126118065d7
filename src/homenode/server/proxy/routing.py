"""The prefill and the decode server that a request goes to. Pure.

Work is counted in tokens. A prefill server costs what waits there, something for every request it has, and the prompt
less what its prefix cache probably holds; a decode server the same, but a token that is handed over counts a sixteenth
of one that is computed. What a cache holds is guessed from the prompts that were sent there; a wrong guess costs time
only.

A server that takes twice as long as others, or longer, for as much work costs so many times as much (`speed.py`), and
no prompt is left to it for the little that it lacks. As nobody is sent there then while others are free, it is tried
again after so many requests that can tell how fast it is, and at once in another life. Nothing is learned where the
tokens of a prompt do not tell its work, nor behind requests of which that is so or that are of another model; and of a
time that rests on a guess only what holds if the guess is wrong.

Of a decode server of several engines each is a target of its own, as the KV of a prompt goes to one of them. Which
engine of a prefill server computes a prompt is that server's business: what waits there is divided among its engines.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from homenode.engine.router.prefixes import Prefixes, prompt_digests
from homenode.engine.router.router import SEQUENCE_TOKENS
from homenode.server.proxy.speed import ServerSpeed, WorkKind, work_of

BLOCK_TOKENS = 64
REMEMBERED_BLOCKS = 1 << 15  # of each server
TRY_AGAIN = 256  # requests to servers of its part since a slow one had any, so that it is no 99th percentile
LAPSES_AFTER = 64 * TRY_AGAIN  # requests of any kind, after which what was learned of a speed counts no more
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
    """The facts that routing needs of a prompt. `digests`: of its full blocks. `told`: its tokens tell the work that it
    is; `stream`: its answer begins when it is computed.
    """

    tokens: int
    digests: Sequence[bytes] = ()
    told: bool = True
    stream: bool = True


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
    `unanswered`: the requests that wait there. `sent`: the number of the last request by model, among those to all that
    tell something. `learned_at`: how many there were of the model to all, of any kind, when its speed was learned.
    """

    prefixes: Prefixes = field(default_factory=lambda: Prefixes(REMEMBERED_BLOCKS))
    speed: ServerSpeed = field(default_factory=ServerSpeed)
    unanswered: set[RoutedLoad] = field(default_factory=set)
    sent: dict[str, int] = field(default_factory=dict)
    learned_at: dict[str, int] = field(default_factory=dict)
    requests: int = 0
    waiting: float = 0.0
    given: int = 0
    engines: int = 1


@dataclass(eq=False)
class RoutedLoad:
    """A request that was sent to a target, and the part of the target's load that it is. `waiting`: its work as long as
    it has no answer, `held`: what its cache was taken to spare of it. `model`: None: nothing is to be learned from it.
    `begins`: its answer says when the prompt is done with. `ahead`: all the work until its answer, this one's included,
    which is `least` to `most`; `alike`: work of one model. `afresh`: the target had no other for long.
    """

    load: TargetLoad
    waiting: float
    held: float
    kind: WorkKind
    model: str | None
    begins: bool
    ahead: float
    least: float
    most: float
    alike: bool
    afresh: bool
    learned: bool = False


@dataclass
class LoadTable:
    """The work and the probable cache contents of every target. `key`: the key of the hashes, drawn at random unless a
    test gives one.
    """

    key: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    _loads: dict[RouteTarget, TargetLoad] = field(default_factory=dict)
    _sent: Counter[tuple[str, bool]] = field(default_factory=Counter)  # by model, and whether to prefill servers
    _all: Counter[tuple[str, bool]] = field(default_factory=Counter)  # those that tell nothing, too

    def prompt(self, units: Sequence[int], tokens: int, salt: str, *, told: bool = True, stream: bool = True) -> Prompt:
        """`units`: token ids, or numbers that stand for pieces of text, from the beginning; `tokens`: of the whole
        prompt.
        """
        return Prompt(tokens, prompt_digests(self.key, units, BLOCK_TOKENS, salt), told, stream)

    def choose(
        self,
        prompt: Prompt,
        prefillers: Collection[RouteTarget],
        decoders: Collection[RouteTarget],
        fits: Callable[[RouteTarget, RouteTarget], bool],
        min_handover: int = 0,
        model_at: Callable[[RouteTarget], str | None] = lambda target: "",
    ) -> ChosenRoute | None:
        """The cheapest pair that fits, else the cheapest target to decode alone; None without any target. At equal cost
        the targets take turns, in the order given. `model_at`: what `begin` takes.
        """
        if not decoders:
            return None
        slow = self._slowness(prefillers, model_at, True, prompt.told)
        slow |= self._slowness(decoders, model_at, False, prompt.told and prompt.stream)

        def cost(target: RouteTarget, share: float = 1.0) -> tuple[float, int]:
            work, turn = self._cost(target, prompt, share)
            return (work + SEQUENCE_TOKENS) * slow[target], turn

        all_slow = all(slow[target] > 1 for target in decoders)
        near = [
            target
            for target in decoders
            if prompt.tokens - self._match(target, prompt) < min_handover and (all_slow or slow[target] == 1)
        ]
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

    def begin(
        self, target: RouteTarget, prompt: Prompt, kind: WorkKind = WorkKind.WHOLE, model: str | None = ""
    ) -> RoutedLoad:
        """A request goes to a target, which will have its prompt in the cache. `model`: that the target computes, None:
        it has yet to load it, or it is not known which.
        """
        load = self._load(target)
        share = _HANDED_OVER if kind is WorkKind.HANDED_OVER else 1.0
        ahead = self._cost(target, prompt, share)[0] + SEQUENCE_TOKENS
        held = self._match(target, prompt) * share
        if model is not None:
            self._all[model, kind is WorkKind.PREFILL] += 1
        model, begins = model if prompt.told else None, prompt.stream or kind is WorkKind.PREFILL
        entry = RoutedLoad(
            load,
            waiting=prompt.tokens * share - held,
            held=held,
            kind=kind,
            model=model,
            begins=begins,
            ahead=ahead,
            least=ahead - sum(each.waiting for each in load.unanswered) / load.engines,  # which may be nearly done
            most=ahead + held + sum(each.held for each in load.unanswered) / load.engines,
            alike=all(each.model == model for each in load.unanswered),
            afresh=self._is_due(load, model, kind is WorkKind.PREFILL),
        )
        load.requests, load.waiting, load.given = load.requests + 1, load.waiting + entry.waiting, load.given + 1
        load.unanswered.add(entry)
        if model is not None and begins:
            self._sent[model, kind is WorkKind.PREFILL] += 1
            load.sent[model] = self._sent[model, kind is WorkKind.PREFILL]
        load.prefixes.add(prompt.digests)
        return entry

    def learn(self, entry: RoutedLoad, seconds: float) -> None:
        """The target took so long until its answer began."""
        if entry.model is None or not (entry.begins and entry.alike):
            return
        entry.learned = True
        work = work_of(entry.model, entry.kind, entry.ahead)
        if entry.load.speed.learn(work, entry.least, entry.most, seconds, afresh=entry.afresh):
            entry.load.learned_at[entry.model] = self._all[entry.model, entry.kind is WorkKind.PREFILL]

    def answered(self, entry: RoutedLoad) -> None:
        """Its prompt is done with."""
        entry.load.waiting -= entry.waiting
        entry.waiting = 0.0
        entry.load.unanswered.discard(entry)

    def end(self, entry: RoutedLoad) -> None:
        """The request has left its target. To be called once."""
        self.answered(entry)
        if entry.afresh and not entry.learned and entry.model in entry.load.sent:
            entry.load.sent[entry.model] -= TRY_AGAIN // 2  # the next try comes sooner, but not at once
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
        """Return how many times as long as the fastest of others it takes, from twice on; else 1. Of several models or
        engines, that of the slowest.
        """
        theirs = [load.speed for each in others for load in self._of(each)]
        found = (load.speed.slowness(theirs, model) for load in self._of(server) for model in load.speed.models)
        return max(found, default=1.0)

    def _slowness(
        self,
        targets: Collection[RouteTarget],
        model_at: Callable[[RouteTarget], str | None],
        prefill: bool,
        tells: bool,
    ) -> dict[RouteTarget, float]:
        """The same of each of these targets, of its model; 1 for one that is to be tried again, with a request that
        `tells` something.
        """
        loads = {target: self._load(target) for target in targets}
        speeds = [load.speed for load in loads.values()]

        def times(target: RouteTarget, load: TargetLoad) -> float:
            model = model_at(target)
            if model is None or (tells and self._is_due(load, model, prefill)):
                return 1.0
            if self._all[model, prefill] - load.learned_at.get(model, 0) >= LAPSES_AFTER:
                return 1.0  # where nothing is told of it any more, it may have recovered
            return load.speed.slowness(speeds, model)

        return {target: times(target, load) for target, load in loads.items()}

    def _is_due(self, load: TargetLoad, model: str | None, prefill: bool) -> bool:
        """Return whether so many requests that tell something were sent elsewhere since the target had one."""
        return model is not None and self._sent[model, prefill] - load.sent.get(model, 0) >= TRY_AGAIN

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
