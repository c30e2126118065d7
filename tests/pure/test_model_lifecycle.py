"""Which of several models is loaded or unloaded next: rules on small cases, and what holds over random histories."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from homenode.engine.config import EngineConfig
from homenode.errors import UserError
from homenode.server.models.lent_cores import CoreOwner, lent_alone, lent_cpus
from homenode.server.models.lifecycle import (
    LOOK_S,
    PATIENCE_S,
    TRANSITIONS,
    Decided,
    Load,
    ModelSituation,
    ModelsMemory,
    ModelState,
    Refuse,
    Unload,
    decide,
)
from homenode.server.models.model_entry import ModelEntry, PlannedModel, check_endpoints
from tests.examples import seeds

UNLOADED, LOADING, LOADED, UNLOADING, FAILED = ModelState
ROOM_FOR_TWO = ModelsMemory(25)


def model(key: str, state: ModelState = LOADED, size: int = 10, node: int = 0, **rest: object) -> ModelSituation:
    return ModelSituation(key, state, {node: size}, **rest)  # type: ignore[arg-type]


def wanted(key: str, size: int = 10, since: float = 0.0, node: int = 0, **rest: object) -> ModelSituation:
    return model(key, UNLOADED, size, node, wanted_since=since, **rest)


def do(models: Sequence[ModelSituation], memory: ModelsMemory = ROOM_FOR_TWO, now: float = 0.0) -> Decided:
    made = decide(models, memory, now)
    assert made == decide(list(reversed(models)), memory, now)  # the order changes nothing
    return made


def unloaded(made: Decided) -> set[str]:
    return {each.key for each in made.decisions if isinstance(each, Unload)}


def test_one_that_is_wanted_is_loaded_where_there_is_room() -> None:
    assert do([model("a"), wanted("b")]).decisions == (Load("b"),)


def test_nothing_is_done_where_nobody_wants_anything() -> None:
    assert do([model("a"), model("b", UNLOADED), model("c", FAILED)]) == Decided()


def test_the_one_that_was_used_longest_ago_goes() -> None:
    models = [model("a", last_used=3.0), model("b", last_used=2.0), wanted("c")]
    assert unloaded(do(models)) == {"b"}
    assert not do([replace(models[0]), model("b", UNLOADING), wanted("c")]).decisions  # its memory is not back yet


@pytest.mark.parametrize("why", ({"pin": True}, {"busy": True}))
def test_neither_a_pinned_nor_a_busy_one_goes(why: dict[str, bool]) -> None:
    assert unloaded(do([model("a", **why), model("b", last_used=9.0), wanted("c")])) == {"b"}


def test_only_those_go_whose_bytes_are_of_use() -> None:
    """On the node that lacks memory, and no more than are needed."""
    memory = ModelsMemory(100, {0: 20, 1: 20})
    models = [
        model("old", node=0, last_used=1.0),
        model("small", size=3, node=1, last_used=2.0),
        model("large", size=15, node=1, last_used=3.0),
        wanted("new", size=18, node=1),
    ]
    assert unloaded(do(models, memory)) == {"small", "large"}
    assert unloaded(do([*models[:-1], wanted("new", size=16, node=1)], memory)) == {"large"}
    assert unloaded(do([*models[:-1], wanted("new", size=5, node=1)], memory)) == {"small"}


def test_what_can_never_fit_is_refused_and_nothing_goes_for_it() -> None:
    made = do([model("a", size=6, pin=True), model("b"), wanted("vast", size=24)])
    assert made.decisions == (Refuse("vast", 24, 5, None, (("a", 6),)),)
    nodes = ModelsMemory(100, {0: 20, 1: 20})
    assert do([wanted("vast", size=24, node=1)], nodes).decisions == (Refuse("vast", 24, 4, 1, ()),)


def test_busy_ones_take_no_newcomers_after_some_time() -> None:
    models = [model("a", busy=True), model("b", busy=True, last_used=1.0), wanted("c", since=0.0)]
    early = do(models, now=1.0)
    assert (early.decisions, early.held, early.look_again) == ((), frozenset(), PATIENCE_S)
    late = do(models, now=PATIENCE_S)
    assert (late.decisions, late.held) == ((), {"a"})
    assert late.look_again == PATIENCE_S + LOOK_S


def test_the_first_who_waits_comes_first_and_later_ones_do_not_take_its_memory() -> None:
    busy = [model("a", busy=True), model("b", busy=True, last_used=1.0)]
    late = do([*busy, wanted("big", 15, since=0.0), wanted("c", 5, since=8.0)], now=9.0)
    assert late.held == {"a"} and not late.decisions  # `c` would fit now, and then `big` would wait for it
    early = do([*busy, wanted("big", 15, since=8.0), wanted("c", 5, since=8.5)], now=9.0)
    assert early.decisions == (Load("c"),)  # it can go again before `big` has waited long
    both = do([model("a"), model("b", last_used=1.0), wanted("y", since=2.0), wanted("x", since=1.0)], now=3.0)
    assert [(each.key, each.because) for each in both.decisions if isinstance(each, Unload)] == [
        ("a", "x needs its memory"),
        ("b", "y needs its memory"),
    ]


def test_a_new_version_takes_the_place_of_the_old_one() -> None:
    """Beside it where there is room, in place of idle ones, and else when it has no requests; even of a pinned one."""
    new = wanted("a2", replaces="a")
    assert do([model("a", pin=True, busy=True), new]).decisions == (Load("a2"),)
    assert unloaded(do([model("a", pin=True), model("b", last_used=9.0), new])) == {"b"}
    tight = ModelsMemory(15)
    assert unloaded(do([model("a", pin=True), new], tight)) == {"a"}
    assert do([model("a", pin=True, busy=True), new], tight).held == {"a"}


def test_a_new_version_waits_for_the_endpoints_of_the_old_one() -> None:
    """Whatever room there is: the old one ends first, also one that is still being loaded, and nobody else does."""
    one, room = frozenset({"tcp://127.0.0.1:5557"}), ModelsMemory(100)
    new = wanted("a2", replaces="a", endpoints=one)
    assert unloaded(do([model("a", pin=True, endpoints=one), model("b"), new], room)) == {"a"}
    assert do([model("a", busy=True, endpoints=one), new], room) == Decided((), frozenset({"a"}), LOOK_S)
    for state in (LOADING, UNLOADING):
        assert do([model("a", state, endpoints=one), new], room) == Decided()
    assert do([model("a", UNLOADED, endpoints=one), new], room).decisions == (Load("a2"),)
    other = frozenset({"tcp://127.0.0.1:6000"})
    assert do([model("a", busy=True, endpoints=other), new], room).decisions == (Load("a2"),)


def entry_with_events(name: str, engines: int = 1, **keys: str) -> ModelEntry:
    config = json.dumps({"enable_kv_cache_events": True, **keys})
    return ModelEntry(name, engine=EngineConfig.of("m", {"kv_events_config": config, "data_parallel_size": engines}))


def test_two_models_have_endpoints_of_their_own() -> None:
    first = entry_with_events("a", 2)
    assert first.endpoints == {"tcp://127.0.0.1:5557", "tcp://127.0.0.1:5558"}
    assert entry_with_events("b", endpoint="tcp://a-router:5557").endpoints == set()  # it is connected to
    assert ModelEntry("c").endpoints == set()
    check_endpoints([first, entry_with_events("b", endpoint="tcp://127.0.0.1:5559"), ModelEntry("c")])
    with pytest.raises(UserError, match=r"models\.b: kv-events-config has tcp://127\.0\.0\.1:5558, which a has"):
        check_endpoints([first, entry_with_events("b", replay_endpoint="tcp://127.0.0.1:5558", endpoint="ipc:///b")])


def test_idle_ones_go_in_time() -> None:
    models = [model("a", expires=5.0), model("b", expires=7.0, busy=True), model("c", leaves=True)]
    made = do(models, now=4.0)
    assert unloaded(made) == {"c"} and made.look_again == 5.0
    assert unloaded(do(models, now=5.0)) == {"a", "c"}


def test_cores_are_given_back_before_their_owner_is_loaded() -> None:
    one, two = frozenset({0}), frozenset({1})
    owner, lent = wanted("two", cpus=two), model("one", cpus=one, lent=two)
    assert do([lent, owner]).decisions == (Unload("one", "two gets its cores back", again=True),)
    busy = do([replace(lent, busy=True), owner], now=PATIENCE_S / 2)
    assert not busy.decisions and not busy.held and busy.look_again == PATIENCE_S
    assert do([replace(lent, busy=True), owner], now=PATIENCE_S).held == {"one"}
    for state in (LOADING, UNLOADING):
        assert not do([replace(lent, state=state), owner]).decisions
    assert do([replace(lent, lent=frozenset()), owner]).decisions == (Load("two"),)


MOVES = {"moves": True, "next_cpus": frozenset({5})}
ASKED_TO_GO = {"leaves": True, "next_cpus": frozenset({5})}  # while it was to move
REMOVED = {"leaves": True, "next_cpus": frozenset()}


@pytest.mark.parametrize("why", (MOVES, ASKED_TO_GO, REMOVED))
def test_one_is_not_loaded_on_cores_that_another_has_yet_to_leave(why: dict[str, Any]) -> None:
    both = frozenset({0, 1})
    large, small = wanted("large", cpus=both), model("small", cpus=frozenset({0}), **why)
    because = "it moves to other cores" if "moves" in why else "it was asked for"
    assert do([small, large]).decisions == (Unload("small", because, again="moves" in why),)
    for state, busy in ((LOADED, True), (LOADING, False), (UNLOADING, False)):
        assert not do([replace(small, state=state, busy=busy), large]).decisions
    for elsewhere in (replace(small, state=UNLOADED), replace(small, cpus=frozenset({2})), model("b", cpus=both)):
        assert Load("large") in do([elsewhere, large]).decisions
    shares = replace(small, busy=True, leaves=True, next_cpus=None)  # these cores, by settings as they are
    assert do([shares, large]).decisions == (Load("large"),)


def test_one_that_moves_is_in_use_until_its_new_cores_are_free() -> None:
    """Those of one with requests are not; nor are those of one that waits for such in turn."""

    def moving(key: str, before: int, after: int, **rest: object) -> ModelSituation:
        own, new = frozenset({before}), frozenset({after})
        return model(key, cpus=own, next_cpus=new, moves=own != new, size=1, **rest)

    chain = [moving("a", 1, 2), moving("b", 2, 3), moving("c", 3, 4)]
    assert unloaded(do(chain)) == {"a", "b", "c"} and not do(chain).staying
    busy = [*chain[:2], replace(chain[2], busy=True)]
    assert do(busy) == Decided(staying=frozenset({"a", "b"}))  # `c` takes no newcomers, and so it ends some time
    assert do([*chain[:2], replace(chain[2], state=LOADING)]).staying == {"a", "b"}
    assert unloaded(do([*chain[:2], replace(chain[2], state=UNLOADING)])) == {"a", "b"}
    assert unloaded(do([replace(chain[0], expires=0.0), *busy[1:]], now=1.0)) == {"a"}
    assert do([replace(each, settles=True, leaves=False) for each in busy]) == do(busy)
    owner = wanted("new", size=1, cpus=frozenset({1}))
    assert do([*busy, owner]).decisions == (Unload("a", "new gets its cores back", again=True),)
    late = do([replace(busy[0], busy=True), *busy[1:], owner], now=PATIENCE_S)
    assert (late.decisions, late.held) == ((), {"a"})
    swap = [moving("a", 1, 2), moving("b", 2, 1)]
    assert unloaded(do(swap)) == {"a", "b"}
    assert do([swap[0], replace(swap[1], busy=True)]) == Decided(staying=frozenset({"a"}))
    assert do([replace(each, busy=True) for each in swap]).staying == {"a", "b"}


def test_cores_of_an_earlier_version_are_given_to_others_when_the_new_one_is_there() -> None:
    """And not to those if that has failed, nor to the new version of another one, which would wait in turn."""
    old = model("a", cpus=frozenset({0, 1}), next_cpus=frozenset({0}), size=1)
    new, other = wanted("a2", size=1, cpus=frozenset({0}), replaces="a"), wanted("b", size=1, cpus=frozenset({1}))
    room = ModelsMemory(2)
    assert do([old, new, other]).decisions == (Load("a2"),)
    assert do([old, new, replace(other, wanted_since=-1.0)], room).decisions == (Load("a2"),)  # the memory is not `b`'s
    assert not do([old, replace(new, state=LOADING, wanted_since=None), other]).decisions
    assert do([old, replace(new, state=FAILED, wanted_since=None), other]).decisions == (Load("b"),)
    assert Load("b2") in do([old, new, replace(other, key="b2", replaces="b")]).decisions
    there = replace(new, state=LOADED, wanted_since=None, replaces=None)
    assert not do([replace(old, leaves=True, busy=True), there, other]).decisions
    assert do([there, other]).decisions == (Load("b"),)


def test_one_is_loaded_on_other_cores_while_nobody_wants_anything() -> None:
    settling = model("one", settles=True)
    assert do([settling]).decisions == (Unload("one", "it is lent other cores by now", again=True),)
    assert not do([replace(settling, busy=True)]).decisions
    assert do([settling, wanted("two")]).decisions == (Load("two"),)


def test_every_state_has_its_transitions() -> None:
    assert set(TRANSITIONS) == set(ModelState)
    for state, after in TRANSITIONS.items():
        assert after and state not in after
    assert {state.word for state in ModelState} == {"unloaded", "loading", "loaded", "failed"}


# ---- random histories


@dataclass
class World:
    """Models of random sizes on two nodes, whose requests come, wait, run and end; loads and unloads take a while."""

    seed: int
    now: float = 0.0
    running: dict[str, list[float]] = field(default_factory=dict)  # ends of requests
    waiting: dict[str, list[float]] = field(default_factory=dict)  # since when
    longest: float = 0.0

    def __post_init__(self) -> None:
        rng = self.rng = random.Random(self.seed)
        self.memory = ModelsMemory(rng.randint(20, 40), {0: rng.randint(12, 25), 1: rng.randint(12, 25)})
        self.models = {}
        for number in range(rng.randint(2, 6)):
            parts = {node: rng.randint(1, 9) for node in rng.choice(((0,), (1,), (0, 1)))}
            cpus = frozenset({2 * number, 2 * number + 1})
            self.models[f"m{number}"] = ModelSituation(f"m{number}", UNLOADED, parts, pin=number == 0, cpus=cpus)
        self.works: dict[str, float] = {}
        self.held: frozenset[str] = frozenset()
        self.staying: frozenset[str] = frozenset()
        self.again: dict[str, float] = {}
        self.lent = 0

    def to(self, key: str, state: ModelState) -> None:
        assert state in TRANSITIONS[self.models[key].state], (key, self.models[key].state, state)
        self.models[key] = replace(self.models[key], state=state)

    def step(self) -> None:
        self.now += self.rng.choice((0.1, 0.5, 1.0))
        for key in tuple(self.models):
            self.running[key] = [end for end in self.running.get(key, ()) if end > self.now]
            if self.works.get(key, self.now + 1) <= self.now:
                del self.works[key]
                loading = self.models[key].state is LOADING
                failed = loading and self.rng.random() < 0.1
                self.to(key, FAILED if failed else LOADED if loading else UNLOADED)
                if failed:
                    self.waiting[key] = []  # refused
                if not loading:
                    self.models[key] = replace(self.models[key], lent=frozenset())
                if loading and key in self.again:
                    del self.again[key]
                if not (loading and not failed):
                    self.move(key)
        if self.rng.random() < 0.7:
            key = self.rng.choice(self.named())
            self.waiting.setdefault(key, []).append(self.now)
        if self.rng.random() < 0.03:
            self.plan_anew()
        if self.rng.random() < 0.03:
            self.replace_one()
        if self.rng.random() < 0.03:
            self.unload_one()
        self.admit()
        self.decide()

    def plan_anew(self) -> None:
        """Two models have each other's cores from now on."""
        pair = self.rng.sample(self.named(), 2)
        cpus = [self.to_have(key) for key in pair]
        for key, new in zip(pair, reversed(cpus), strict=True):
            one = self.models[key]
            moves = one.state in (LOADED, LOADING) and new != one.cpus and not one.leaves
            self.models[key] = replace(one, moves=moves, next_cpus=new)
            if one.state in (UNLOADED, FAILED):
                self.move(key)

    def named(self) -> list[str]:
        return sorted(key for key, each in self.models.items() if each.next_cpus != frozenset())

    def to_have(self, key: str) -> frozenset[int]:
        one = self.models[key]
        return one.cpus if one.next_cpus is None else one.next_cpus

    def replace_one(self) -> None:
        """A model is named no more, and another one is to have its cores."""
        key = self.rng.choice(self.named())
        cpus, one = self.to_have(key), self.models[key]
        self.models[f"n{len(self.running)}"] = ModelSituation(f"n{len(self.running)}", UNLOADED, one.memory, cpus=cpus)
        self.models[key] = replace(one, leaves=True, moves=False, next_cpus=frozenset())
        self.waiting.pop(key, None)
        self.again.pop(key, None)
        if one.state in (UNLOADED, FAILED):
            self.move(key)

    def unload_one(self) -> None:
        """Somebody wants a model unloaded."""
        key = self.rng.choice(self.named())
        self.again.pop(key, None)
        one = self.models[key]
        self.models[key] = replace(one, leaves=one.state in (LOADED, LOADING), moves=False)

    def move(self, key: str) -> None:
        """It is where it is to be from its next load on, or gone."""
        cpus, one = self.to_have(key), self.models[key]
        if cpus:
            self.models[key] = replace(one, cpus=cpus, moves=False, leaves=False, next_cpus=None)
        else:
            del self.models[key]

    def admit(self) -> None:
        for key, since in self.waiting.items():
            one = self.models.get(key)
            goes = one is None or one.leaves or (one.moves and key not in self.staying)
            if one is not None and since and one.state is LOADED and key not in self.held and not goes:
                self.longest = max(self.longest, self.now - min(since))
                self.running.setdefault(key, []).extend(self.now + self.rng.uniform(0.1, 6.0) for _ in since)
                self.waiting[key] = []
                self.models[key] = replace(one, last_used=self.now)

    def seen(self) -> list[ModelSituation]:
        lent = self.lendings()
        return [
            replace(
                each,
                busy=bool(self.running.get(key)),
                wanted_since=self.wanted_since(key),
                settles=lent.get(key, each.lent) != each.lent and each.last_used + 5.0 < self.now,
            )
            for key, each in self.models.items()
        ]

    def wanted_since(self, key: str) -> float | None:
        by_itself = [self.again[key]] if self.models[key].state is UNLOADED and key in self.again else []
        return min([*(self.waiting.get(key) or []), *by_itself], default=None)

    def lendings(self) -> Mapping[str, frozenset[int]]:
        owners = [
            CoreOwner(
                key,
                tuple(sorted(each.cpus)),
                None if each.pin or each.next_cpus == frozenset() else 0,
                each.state.holds_memory or self.wanted_since(key) is not None,
                each.last_used + 8.0,
                each.lent,
            )
            for key, each in self.models.items()
        ]
        self.rng.shuffle(owners)
        return lent_cpus(owners, self.now)

    def decide(self) -> None:
        seen = self.seen()
        made = decide(seen, self.memory, self.now)
        shuffled = list(seen)
        self.rng.shuffle(shuffled)
        assert made == decide(shuffled, self.memory, self.now)
        self.held, self.staying = made.held, made.staying
        for decision in made.decisions:
            one = self.models[decision.key]
            if isinstance(decision, Load):
                self.to(decision.key, LOADING)
                lent = self.lendings()[decision.key]
                self.models[decision.key] = replace(self.models[decision.key], lent=lent)
                self.lent += bool(lent)
                self.works[decision.key] = self.now + self.rng.uniform(0.1, 2.0)
            elif isinstance(decision, Unload):
                assert one.moves or one.leaves or not one.pin, "a pinned model was unloaded"
                assert not self.running.get(decision.key), "a busy model was unloaded"
                if "moves" in decision.because:
                    busy = [each for key, each in self.models.items() if self.running.get(key)]
                    assert not any((each.cpus | each.lent) & self.to_have(one.key) for each in busy), "it cannot load"
                self.to(decision.key, UNLOADING)
                if decision.again:
                    self.again[decision.key] = self.now
                self.works[decision.key] = self.now + self.rng.uniform(0.1, 1.0)
            else:
                self.waiting[decision.key] = []
                assert decision.lacking > 0
        for place, limit in ((None, self.memory.total), *self.memory.nodes.items()):
            taken = [each for each in self.models.values() if each.state.holds_memory]
            used = sum(each.total if place is None else each.memory.get(place, 0) for each in taken)
            assert used <= limit, f"{used} of {limit} at {place}"
        computing = [each.cpus | each.lent for each in self.models.values() if each.state.holds_memory]
        assert len(frozenset().union(*computing)) == sum(map(len, computing)), "two models compute on one CPU"


@pytest.mark.parametrize("seed", seeds(40))
def test_over_random_histories_memory_is_never_exceeded_no_core_is_shared_and_nobody_waits_for_ever(seed: int) -> None:
    world = World(seed)
    for _ in range(250):
        world.step()
    since = [at for waits in world.waiting.values() for at in waits]
    # A round for each model before it, of patience, of the longest request, and of an unload and a load; as many again
    # for those that are loaded again as they give cores back, or move.
    most = 2 * len(world.models) * (PATIENCE_S + 6.0 + 3.0 + 2.0)
    assert max(world.longest, *(world.now - at for at in since), 0.0) <= most


def owner(key: str, *cpus: int, loaded: bool = False, node: int | None = 0, lends_from: float = 0.0) -> CoreOwner:
    return CoreOwner(key, cpus, node, loaded, lends_from)


@pytest.mark.parametrize(
    ("owners", "lent"),
    [
        ([owner("a", 0, loaded=True), owner("b", 1), owner("c", 2)], {"a": {1, 2}}),
        ([owner("a", 0, loaded=True), owner("b", 1, lends_from=9.0), owner("c", 2, node=1)], {"a": set()}),
        ([owner("a", 0, loaded=True), owner("b", 1, node=None), owner("c", 2, loaded=True)], {"a": set(), "c": set()}),
        ([owner("a", 0, loaded=True), owner("b", 1, loaded=True), owner("c", 2, 3), owner("d", 4)],
         {"a": {2, 3}, "b": {4}}),
        ([owner("a", 0, 1, 2, loaded=True), owner("b", 3, loaded=True), owner("c", 4)], {"a": set(), "b": {4}}),
        ([owner("a", 0), owner("b", 1)], {}),
        ([owner("a", 0, loaded=True), replace(owner("b", 1, loaded=True), lent=frozenset({2})), owner("c", 2)],
         {"a": set(), "b": {2}}),
        ([replace(owner("a", 0, loaded=True, node=None), lent=frozenset()), owner("b", 1)], {"a": set()}),
        ([owner("a", 0, loaded=True), owner("b", 1, loaded=True), owner("b (version 1)", 1)], {"a": set(), "b": set()}),
        ([owner("a", 0, loaded=True), owner("b", 1, 2), owner("c", 2, loaded=True, node=None), owner("d", 3)],
         {"a": {3}, "c": set()}),
    ],
)  # fmt: skip
def test_cores_of_models_that_nobody_asks_for_are_dealt(owners: list[CoreOwner], lent: dict[str, set[int]]) -> None:
    assert lent_cpus(owners, 1.0) == lent_cpus(reversed(owners), 1.0) == lent


def entry(name: str, *cpus: int, nodes: tuple[int, ...] = (0,), shares: bool = False, **rest: Any) -> PlannedModel:
    threads = rest.pop("threads", None)
    config = replace(EngineConfig(), compute=replace(EngineConfig().compute, threads=threads))
    return PlannedModel(ModelEntry(name, **rest), config, {0: 1}, nodes, cpus, shares_cpus=shares)


def test_a_model_alone_has_the_cores_of_those_that_nobody_asks_for() -> None:
    """Those that are pinned, not on demand, on several nodes, or whose settings say where they compute, lend none."""
    others = [
        entry("pinned", 2, pin=True), entry("settled", 3, cpus=(3,)), entry("counted", 4, threads=1),
        entry("wide", 5, nodes=(0, 1)), entry("turns", 6, shares=True), entry("far", 8, nodes=(1,)),
    ]  # fmt: skip
    assert lent_alone([entry("one", 0), entry("two", 1), *others]) == {"one": {1}, "two": {0}}
    assert lent_alone([entry("one", 0), entry("two", 1, on_demand=False), *others]) == {"two": {0}}
