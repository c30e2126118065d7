"""The life of a model of a server of several, and which one is loaded or unloaded next. Pure.

                 +-----------------------------------------+
                 v                                         |
    unloaded -> loading -> loaded -> unloading -> unloaded |
                   |          |                            |
                   +----------+-----> failed --------------+

A model is loaded when somebody waits for it, first come, first served. Where memory lacks for it, on the nodes that it
is to be on or in all, those are unloaded that were used longest ago, as far as their bytes are of use there: never one
that is pinned, and never one that has requests. One that has waited for some time for others that are always busy
stops these from taking new requests: they end what they have, and their own newcomers wait in turn. So nobody waits
for ever. What can never fit is refused, with the bytes that lack and who has them. Cores that others were lent are
given back in the same way: those are unloaded, and loaded again on fewer. So are cores of one that is to be elsewhere
since settings have changed, or that they name no more. One that moves for that stays in use until its new cores are
free, or somebody waits for the old ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, TypeAlias

PATIENCE_S: Final = 3.0  # that one waits for busy ones before they take no newcomers
LOOK_S: Final = 1.0  # between looks whether those have ended what they had, as nobody tells of some of it


class ModelState(Enum):
    """The state of a model: what becomes of its engine."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    LOADED = "loaded"
    UNLOADING = "unloading"
    FAILED = "failed"

    @property
    def holds_memory(self) -> bool:
        """Return whether its bytes are taken, or about to be."""
        return self in (ModelState.LOADING, ModelState.LOADED, ModelState.UNLOADING)

    @property
    def word(self) -> str:
        """The state as lists of models have it: one whose memory is not back yet is loaded."""
        return ModelState.LOADED.value if self is ModelState.UNLOADING else self.value


TRANSITIONS: Final[Mapping[ModelState, frozenset[ModelState]]] = {
    ModelState.UNLOADED: frozenset({ModelState.LOADING, ModelState.FAILED}),
    ModelState.LOADING: frozenset({ModelState.LOADED, ModelState.FAILED, ModelState.UNLOADING}),
    ModelState.LOADED: frozenset({ModelState.UNLOADING, ModelState.FAILED}),
    ModelState.UNLOADING: frozenset({ModelState.UNLOADED}),
    ModelState.FAILED: frozenset({ModelState.LOADING, ModelState.UNLOADED}),
}


@dataclass(frozen=True)
class ModelSituation:
    """All that a decision needs to know of a model. Times are of one clock.

    `memory`: bytes by node while it is loaded. `busy`: it has requests. `wanted_since`: when the first of those came
    who wait for it; None: nobody does. `leaves`: it is to be unloaded as soon as it has no requests. `expires`: when
    it is unloaded if nobody asks for it. `replaces`: the key of the version that it takes the place of, which gives way
    even if it is pinned. `cpus`: its own; `lent`: those that it has of others; `settles`: it would be lent others by
    now, and nobody has asked for it for some time. `next_cpus`: its own, or those of its next version, as settings are
    by now; None: the same. `moves`: it leaves for these, as others are to have some that it has now. `endpoints`: that
    its engine binds, and that nobody else can have as long.
    """

    key: str
    state: ModelState
    memory: Mapping[int, int] = field(default_factory=dict)
    pin: bool = False
    busy: bool = False
    wanted_since: float | None = None
    last_used: float = 0.0
    leaves: bool = False
    expires: float | None = None
    replaces: str | None = None
    cpus: frozenset[int] = frozenset()
    lent: frozenset[int] = frozenset()
    settles: bool = False
    next_cpus: frozenset[int] | None = None
    moves: bool = False
    endpoints: frozenset[str] = frozenset()

    @property
    def total(self) -> int:
        """Bytes on all nodes."""
        return sum(self.memory.values())

    @property
    def cpus_of_others(self) -> frozenset[int]:
        """Return those of its CPUs that it gives back when their owner is loaded."""
        return self.lent if self.next_cpus is None else self.lent | (self.cpus - self.next_cpus)

    @property
    def comes(self) -> bool:
        """Return whether it is being loaded, or waits for that."""
        return self.state is ModelState.LOADING or self.wanted_since is not None


@dataclass(frozen=True)
class ModelsMemory:
    """`total`: bytes that models may take together; `nodes`: that each node has for them, where it is known."""

    total: int
    nodes: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Load:
    """Start the engine of this model."""

    key: str


@dataclass(frozen=True)
class Unload:
    """End the engine of this model. `because`: in words. `again`: it is loaded again at once."""

    key: str
    because: str
    again: bool = False


@dataclass(frozen=True)
class Refuse:
    """Tell those who wait for this model that it cannot be loaded. `takes`, `lacking`: bytes; `node`: on which these
    lack, None: of all together. `holders`: models that have what is lacking, and their bytes.
    """

    key: str
    takes: int
    lacking: int
    node: int | None
    holders: tuple[tuple[str, int], ...]


Decision: TypeAlias = Load | Unload | Refuse


@dataclass(frozen=True)
class Decided:
    """`decisions`: what to do now. `held`: loaded models that take no newcomers, as another has waited too long for
    their memory. `staying`: those that are to move and take newcomers all the same, as others with requests have their
    new cores. `look_again`: when something is to be decided although nothing happened; None: never.
    """

    decisions: tuple[Decision, ...] = ()
    held: frozenset[str] = frozenset()
    look_again: float | None = None
    staying: frozenset[str] = frozenset()


class _MemoryLeft:
    """The memory while it is given out: of each node, and in all (under None)."""

    def __init__(self, memory: ModelsMemory) -> None:
        self._limits = _by_place(memory.nodes, memory.total)
        self._taken: dict[int | None, int] = dict.fromkeys(self._limits, 0)

    def take(self, memory: Mapping[int, int], sign: int = 1) -> None:
        for place, size in _by_place(memory).items():
            if place in self._taken:
                self._taken[place] += sign * size

    def lacking(self, memory: Mapping[int, int]) -> dict[int | None, int]:
        """Bytes that lack for this, by place; empty where it fits."""
        wanted = {place: size for place, size in _by_place(memory).items() if place in self._limits}
        short = {place: self._taken[place] + size - self._limits[place] for place, size in wanted.items()}
        return {place: size for place, size in short.items() if size > 0}


def _by_place(memory: Mapping[int, int], total: int | None = None) -> dict[int | None, int]:
    found: dict[int | None, int] = {None: sum(memory.values()) if total is None else total}
    found.update(memory.items())
    return found


def decide(
    models: Iterable[ModelSituation], memory: ModelsMemory, now: float, patience_s: float = PATIENCE_S
) -> Decided:
    """Decide what is to be done next. The order of `models` changes nothing."""
    everybody = {model.key: model for model in sorted(models, key=lambda each: each.key)}
    decisions: list[Decision] = []
    blocked = frozenset(each.key for each in everybody.values() if _waits_for_cores(each, everybody))
    going = _expired(everybody.values(), blocked, now)
    decisions += going
    gone = {each.key for each in going}
    room = _MemoryLeft(memory)
    for model in everybody.values():
        if model.state.holds_memory:
            room.take(model.memory)
    leaving = [model for model in everybody.values() if model.state is ModelState.UNLOADING or model.key in gone]
    held: set[str] = set()
    again = [each.expires for each in everybody.values() if _may_expire(each) and each.expires is not None]
    for model in sorted(everybody.values(), key=lambda each: (_since(each), each.key)):
        if model.wanted_since is None or model.state not in (ModelState.UNLOADED, ModelState.FAILED):
            continue
        if (refusal := _never_fits(model, everybody.values(), memory)) is not None:
            decisions.append(refusal)
            continue
        found = _make_room(model, everybody, room, leaving, held, now, patience_s)
        decisions += found.decisions
        leaving += [everybody[each.key] for each in found.decisions if isinstance(each, Unload)]
        held |= found.held
        if found.look_again is not None:
            again.append(found.look_again)
        if found.reserves:  # later ones do not take what it waits for
            room.take(model.memory)
    if not decisions and all(model.wanted_since is None for model in everybody.values()):
        decisions += _settling(each for each in everybody.values() if each.key not in blocked)
    staying = frozenset(key for key in blocked if everybody[key].moves)
    return Decided(tuple(decisions), frozenset(held), min((at for at in again if at > now), default=None), staying)


@dataclass(frozen=True)
class _Found(Decided):
    reserves: bool = True


def _make_room(
    model: ModelSituation,
    everybody: Mapping[str, ModelSituation],
    room: _MemoryLeft,
    leaving: Sequence[ModelSituation],
    held: Collection[str],
    now: float,
    patience_s: float,
) -> _Found:
    """Decide about one that waits. Memory of those that leave is counted as taken until it is back."""
    if having := [each for each in everybody.values() if each.state.holds_memory and each.endpoints & model.endpoints]:
        return _give_endpoints_back(model, having, leaving, now)
    if not room.lacking(model.memory):
        return _give_cores_back(model, everybody, leaving, now, patience_s)
    coming = _Freed(room, model, leaving)
    if not coming.lacking:
        return _Found()
    others = [
        each
        for each in everybody.values()
        if each.state is ModelState.LOADED
        and (not each.pin or each.key == model.replaces)
        and each.key not in {gone.key for gone in leaving}
    ]
    idle = sorted(
        (each for each in others if not each.busy), key=lambda each: (each.key == model.replaces, *_use(each))
    )
    if (victims := coming.choose(idle)) is not None:
        return _Found(tuple(Unload(each.key, f"{model.key} needs its memory") for each in victims))
    waited = now - _since(model)
    chosen = coming.choose([*idle, *sorted((each for each in others if each.busy), key=_use)])
    if chosen is None:  # somebody who is loading now has to be waited for
        return _Found(look_again=now + patience_s, reserves=waited >= patience_s)
    if waited < patience_s and model.replaces not in {each.key for each in chosen}:
        return _Found(look_again=_since(model) + patience_s, reserves=False)
    return _Found(held=frozenset(each.key for each in chosen), look_again=now + LOOK_S)


def _give_endpoints_back(
    model: ModelSituation, having: Sequence[ModelSituation], leaving: Sequence[ModelSituation], now: float
) -> _Found:
    """Decide about one whose endpoints others have, which are earlier versions of it: these end first."""
    gone = {each.key for each in leaving}
    staying = [each for each in having if each.state is ModelState.LOADED and each.key not in gone]
    found = tuple(Unload(each.key, f"{model.key} needs its endpoints") for each in staying if not each.busy)
    busy = frozenset(each.key for each in staying if each.busy)
    return _Found(found, busy, now + LOOK_S if busy else None)


def _give_cores_back(
    model: ModelSituation,
    everybody: Mapping[str, ModelSituation],
    leaving: Sequence[ModelSituation],
    now: float,
    patience_s: float,
) -> _Found:
    """Decide about one for which there is memory: it is loaded when nobody computes on its cores any more. Versions
    that others are about to take the place of go by themselves, and those others may need the memory first.
    """
    replaced = {each.replaces for each in everybody.values() if each.comes and model.replaces is None}
    gone = {each.key for each in leaving} | replaced
    having = _having_cores(model, model.cpus, everybody)
    if not having:
        return _Found((Load(model.key),))
    staying = [each for each in having if each.state is ModelState.LOADED and each.key not in gone]
    idle = [each for each in staying if not each.busy]
    found = tuple(Unload(each.key, f"{model.key} gets its cores back", again=True) for each in idle)
    if len(idle) == len(staying):
        return _Found(found, reserves=all(each.key not in replaced for each in having))
    if now - _since(model) < patience_s:
        return _Found(found, look_again=_since(model) + patience_s)
    return _Found(found, frozenset(each.key for each in staying if each.busy), now + LOOK_S)


def _having_cores(
    model: ModelSituation, cpus: frozenset[int], everybody: Mapping[str, ModelSituation]
) -> list[ModelSituation]:
    """Those that compute on these CPUs, which the model is to have, and that are to leave them. An earlier version
    leaves for no other new version, so that two of these do not wait for each other, and stays if its own has failed.
    """
    following = {each.replaces: each for each in everybody.values() if each.replaces is not None}

    def leaves(each: ModelSituation) -> frozenset[int]:
        new = following.get(each.key)
        goes_on = new is not None and (model.replaces is not None or not new.comes)
        return each.lent if goes_on else each.cpus_of_others

    others = [each for each in everybody.values() if each.key != model.key and each.state.holds_memory]
    return [each for each in others if leaves(each) & cpus]


def _waits_for_cores(model: ModelSituation, everybody: Mapping[str, ModelSituation]) -> bool:
    """Return whether it could not be loaded again soon: others have the cores that it is to have and requests, or wait
    in turn for cores of such. Idle ones that have each other's cores do not wait.
    """
    if model.state is not ModelState.LOADED or model.next_cpus is None or model.next_cpus == model.cpus:
        return False
    reached, left = {model.key: model}, [model]
    while left:
        one = left.pop()
        cpus = one.next_cpus if one is model or one.moves else None
        new = [each for each in _having_cores(one, cpus or frozenset(), everybody) if each.key not in reached]
        reached.update((each.key, each) for each in new)
        left += new
    coming = {each.replaces for each in everybody.values() if each.comes}
    others = [each for each in reached.values() if each is not model]
    return any(each.busy or each.state is ModelState.LOADING or each.key in coming for each in others)


class _Freed:
    """The bytes that lack for a model once some others have left."""

    def __init__(self, room: _MemoryLeft, model: ModelSituation, leaving: Iterable[ModelSituation]) -> None:
        self._room, self._model, self._leaving = room, model, tuple(leaving)
        self.lacking = self._without(())

    def choose(self, candidates: Iterable[ModelSituation]) -> tuple[ModelSituation, ...] | None:
        """The first of these that make enough room together, without those that make none where it lacks; None where
        all do not.
        """
        chosen: list[ModelSituation] = []
        lacking = self.lacking
        for each in candidates:
            if lacking and any(place in _by_place(each.memory) for place in lacking):
                chosen.append(each)
                lacking = self._without(chosen)
        if lacking:
            return None
        for each in tuple(chosen[:-1]):  # one of several nodes may have made an earlier one needless
            rest = [other for other in chosen if other is not each]
            if not self._without(rest):
                chosen = rest
        return tuple(chosen)

    def _without(self, others: Iterable[ModelSituation]) -> dict[int | None, int]:
        gone = [*self._leaving, *others]
        for each in gone:
            self._room.take(each.memory, -1)
        lacking = self._room.lacking(self._model.memory)
        for each in gone:
            self._room.take(each.memory)
        return lacking


def _never_fits(model: ModelSituation, everybody: Iterable[ModelSituation], memory: ModelsMemory) -> Refuse | None:
    """Return why it cannot be loaded even when all others that may go have gone; None where it can."""
    room, pinned = _MemoryLeft(memory), []
    for each in everybody:
        if each.pin and each.state.holds_memory and each.key not in (model.key, model.replaces):
            room.take(each.memory)
            pinned.append(each)
    lacking = room.lacking(model.memory)
    if not lacking:
        return None
    place = max(lacking, key=lambda at: (lacking[at], at is None, at or 0))
    holders = tuple((each.key, _by_place(each.memory).get(place, 0)) for each in pinned)
    return Refuse(model.key, model.total, lacking[place], place, tuple(each for each in holders if each[1]))


def _expired(models: Iterable[ModelSituation], blocked: Collection[str], now: float) -> list[Unload]:
    found = []
    for model in models:
        if model.state is not ModelState.LOADED or model.busy:
            continue
        if model.leaves:
            found.append(Unload(model.key, "it was asked for"))
        elif model.moves and model.key not in blocked:
            found.append(Unload(model.key, "it moves to other cores", again=True))
        elif model.expires is not None and model.expires <= now and model.wanted_since is None:
            found.append(Unload(model.key, "nobody has asked for it"))
    return found


def _settling(models: Iterable[ModelSituation]) -> list[Unload]:
    """Those that are loaded again on as many cores as there are for them: one at a time."""
    idle = [each for each in models if each.settles and each.state is ModelState.LOADED and not each.busy]
    return [Unload(each.key, "it is lent other cores by now", again=True) for each in idle[:1]]


def _may_expire(model: ModelSituation) -> bool:
    return model.state is ModelState.LOADED and not model.busy


def _since(model: ModelSituation) -> float:
    return float("inf") if model.wanted_since is None else model.wanted_since


def _use(model: ModelSituation) -> tuple[float, str]:
    return model.last_used, model.key
