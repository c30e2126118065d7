"""The places of several models on one host: whatever the host and the models, each has memory on nodes that hold it and
cores of those nodes, and nobody else has the same cores while there are enough.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from homenode.engine.plan.several_models.cores import most_cores
from homenode.engine.plan.several_models.nodes import ModelDemand
from homenode.engine.plan.several_models.placement import LARGE, ModelPlace, place_models
from homenode.errors import UserError
from homenode.host.discovery.read import read_host
from homenode.host.topology.host import Host
from homenode.testing.hosts.synthetic import synthetic
from tests.examples import seeds
from tests.recorded import NAMES, recorded_host

GIB = 1 << 30
SHAPES = ("1s/1n/2c", "1s/1n/4c", "2s/2n/4c", "2s/4n/8c", "2s/2n/32c/smt2", "2s/4n/32c", "2s/8n/64c", "1s/4n/16c")


def host_of(shape: str) -> Host:
    return read_host(synthetic(shape))


def places(host: Host, demands: Sequence[ModelDemand]) -> dict[str, ModelPlace]:
    made = place_models(host, demands)
    other = place_models(host, list(reversed(demands)))
    assert made.places == other.places and set(made.refused) == set(other.refused)  # the order changes nothing
    return dict(made.places)


def cut_by_threads(host: Host, place: ModelPlace) -> dict[int, float]:
    """The bytes by node that its threads would have there."""
    cores = {host.cpu_by_id[cpu].core: node_of(host, cpu) for cpu in place.cpus}
    on = list(cores.values())
    return {node: place.total * on.count(node) / len(on) for node in set(on)}


def node_of(host: Host, cpu: int) -> int:
    return host.cpu_by_id[cpu].node or 0


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", seeds(6))
def test_whatever_the_models_each_has_its_own(shape: str, seed: int) -> None:
    host, rng = host_of(shape), random.Random(seed)
    room = {node.id: node.memory or 0 for node in host.nodes}
    demands = [
        ModelDemand(f"m{number}", rng.choice((GIB // 2, 2 * GIB, 9 * GIB, 20 * GIB)), pin=rng.random() < 0.3)
        for number in range(rng.randint(1, 7))
    ]
    made = place_models(host, demands)
    found = places(host, demands)
    assert set(found) | set(made.refused) == {each.name for each in demands}
    cores = {cpu.core for cpu in host.cpus}
    for demand in demands:
        if demand.name not in found:
            beside = sum(each.memory for each in demands if each.pin and each.name in found)
            assert demand.memory + beside > min(room.values()), "there was room"
            continue
        place = found[demand.name]
        assert place.cpus and place.reason and place.total == demand.memory
        assert {node_of(host, cpu) for cpu in place.cpus} == set(place.memory)  # nobody else's threads take it there
        assert all(size <= room[node] for node, size in place.memory.items())
        assert place.memory == pytest.approx(cut_by_threads(host, place), abs=8)
        if demand.memory <= LARGE and len(place.memory) > 1:
            assert "no single node has room" in place.reason
    for one in found.values():
        for other in found.values():
            if one.name < other.name and set(one.cpus) & set(other.cpus):
                assert sum(len(place.memory) for place in found.values()) > len(cores)
                assert other.name in one.shared_with and "share" in one.reason
    for node, size in room.items():
        pinned = [found[each.name] for each in demands if each.pin and each.name in found]
        assert sum(place.memory.get(node, 0) for place in pinned) <= size


def test_pinned_models_that_fill_half_a_node_do_not_lie_together() -> None:
    host = host_of("2s/4n/32c")
    half = int(0.55 * min(node.memory or 0 for node in host.nodes))
    found = places(host, [ModelDemand(f"m{number}", half, pin=True) for number in range(4)])
    assert sorted(place.nodes for place in found.values()) == [(0,), (1,), (2,), (3,)]
    five = places(host, [ModelDemand(f"m{number}", half, pin=True) for number in range(5)])
    assert len(five["m4"].nodes) == 2 and "no single node has room" in five["m4"].reason


def test_models_that_are_not_pinned_take_turns_in_memory() -> None:
    host = host_of("2s/2n/8c")
    most = max(node.memory or 0 for node in host.nodes)
    found = places(host, [ModelDemand(f"m{number}", int(0.9 * most)) for number in range(3)])
    assert len(found) == 3 and sum("takes turns in memory" in place.reason for place in found.values()) == 1


def test_a_large_model_has_its_share_of_the_nodes_and_small_ones_lie_side_by_side() -> None:
    host = host_of("2s/8n/64c")
    found = places(host, [ModelDemand("large", 24 * GIB), ModelDemand("small", GIB), ModelDemand("tiny", GIB // 4)])
    assert len(found["large"].nodes) == 2 and "share of 8 nodes" in found["large"].reason
    assert found["small"].nodes != found["tiny"].nodes and len(found["small"].nodes) == 1
    alone = places(host, [ModelDemand("large", 100 * GIB)])["large"]
    assert len(alone.nodes) == 8 and len(alone.cpus) == 63  # one core is the server's


def test_named_cpus_and_nodes_are_taken_as_they_are_and_others_keep_clear() -> None:
    host = host_of("2s/2n/8c")
    found = places(host, [ModelDemand("a", GIB, cpus=(0, 1)), ModelDemand("b", GIB), ModelDemand("c", GIB, nodes=(0,))])
    assert found["a"].cpus == (0, 1) and found["c"].nodes == (0,)
    assert not {0, 1} & {*found["b"].cpus, *found["c"].cpus}
    apart = places(host, [ModelDemand("a", GIB, cpus=(0, 1, 2, 7))])["a"]
    assert apart.memory == {0: 3 * GIB // 4, 1: GIB // 4} == cut_by_threads(host, apart)
    for wrong in (ModelDemand("a", GIB, cpus=(99,)), ModelDemand("a", GIB, nodes=(5,))):
        with pytest.raises(UserError, match=r"models\.a: (cpus|nodes)"):
            place_models(host, [wrong])
    turns = places(
        host, [ModelDemand("a", GIB, cpus=(0, 1)), ModelDemand("b", GIB, cpus=(1, 2)), ModelDemand("c", GIB)]
    )
    assert turns["a"].shared_with == ("b",) and "shares CPUs with b, as settings say" in turns["a"].reason
    assert not turns["c"].shared_with and not {0, 1, 2} & set(turns["c"].cpus)


def test_more_models_than_cores_share_them_the_small_ones_first() -> None:
    found = places(
        host_of("1s/1n/2c"), [ModelDemand(name, size * GIB) for name, size in (("a", 1), ("b", 2), ("c", 3))]
    )
    assert found["a"].cpus == found["b"].cpus != found["c"].cpus
    assert found["a"].shared_with == ("b",) and not found["c"].shared_with


def test_every_recorded_host_has_places_for_three() -> None:
    for recording in NAMES:
        host = recorded_host(recording)
        found = places(host, [ModelDemand(name, GIB // 16) for name in "abc"])
        if len({cpu.core for cpu in host.cpus if cpu.id in host.allowance.cpus}) >= 3 and found:
            assert not any(place.shared_with for place in found.values()), recording


def test_no_model_loses_its_only_core_of_a_node_to_the_server() -> None:
    """Its memory lies on all of its nodes, and only its threads there could have it there."""
    host = host_of("2s/2n/4c")
    size = int(1.1 * max(node.memory or 0 for node in host.nodes))
    found = places(host, [ModelDemand("large", size), ModelDemand("small", GIB)])
    assert sorted({node_of(host, cpu) for cpu in found["large"].cpus}) == [0, 1] == sorted(found["large"].memory)
    assert len(found["large"].cpus) == 2 and len(found["small"].cpus) == 1  # the one that is left is the server's
    with pytest.raises(UserError, match=r"--reserve-cpus 2: .* leave 1"):
        place_models(host, [ModelDemand("large", size), ModelDemand("small", GIB)], 2)


def six_beside(size: float, least: int = 1) -> list[ModelDemand]:
    """A model of both nodes, and six of the first."""
    small = [ModelDemand(f"m{number}", GIB, nodes=(0,)) for number in range(6)]
    return [ModelDemand("large", int(size * GIB), least_cores=least), *small]


@pytest.mark.parametrize(
    ("size", "least", "by_node", "told"),
    [
        (18, 1, [2, 16], "CPUs 14-30, a fair share"),  # 2 + 15: 15.9 GiB lie on the second node, of 16
        (24, 1, [2, 4], "12 cores of node 1 left out: no room"),
        (24, 16, [6, 12], "4 cores of node 0 beyond a fair share; 4 cores of node 1 left out: no room"),
    ],
)
def test_cores_that_a_node_has_no_room_for_are_told_and_none_of_engines_lack(
    size: int, least: int, by_node: list[int], told: str
) -> None:
    """Nodes of 16 GiB and 16 cores; of the first each of seven models has a seventh."""
    host = host_of("2s/2n/32c")
    found = places(host, six_beside(size, least))
    large = found["large"]
    on = [node_of(host, cpu) for cpu in large.cpus]
    kept = by_node[1] - (size == 18)  # where no core is left out one of its own is the server's
    assert [on.count(0), on.count(1)] == [by_node[0], kept] and told in large.reason
    assert large.memory == pytest.approx(cut_by_threads(host, large), abs=8)
    assert len(on) >= least and all(place.cpus and not place.shared_with for place in found.values())


def test_a_model_that_has_no_room_with_a_core_for_each_worker_is_refused_and_others_have_its_place() -> None:
    host = host_of("2s/2n/8c")
    fixed = ModelDemand("fixed", 10 * GIB, pin=True, nodes=(0,))
    made = place_models(host, [fixed, ModelDemand("large", 20 * GIB, least_cores=6), ModelDemand("small", GIB)])
    assert set(made.places) == {"fixed", "small"} and set(made.refused) == {"large"}
    error = str(made.refused["large"])
    assert "fixed" in error and "lacking are" in error and "6 cores or more" not in error  # it has no nodes at all
    hold = place_models(host, six_beside(31, 5)[:5])  # the first node has a core for each, the second room for as much
    assert "5 cores or more" in str(hold.refused["large"]) and "on node 1" in str(hold.refused["large"])
    assert len(hold.places) == 4


def test_cores_left_out_are_those_of_small_models_of_the_node_where_there_are_some() -> None:
    host = host_of("2s/2n/32c")
    found = places(host, [*six_beside(24), ModelDemand("beside", GIB, nodes=(1,))])
    assert "left out" in found["large"].reason
    used = {cpu for place in found.values() for cpu in place.cpus}
    assert len(used) == 31 and len(found["beside"].cpus) == 11  # 8 of its own; one that is left is the server's


def test_named_cpus_whose_nodes_have_no_room_for_their_part_are_refused() -> None:
    host = host_of("2s/2n/8c")
    for cpus, part in (((0, 1), "2GiB on node 0"), ((0, 1, 2, 7), None)):
        made = place_models(host, [ModelDemand("a", 18 * GIB, cpus=cpus), ModelDemand("b", GIB)])
        assert ("a" in made.places) == (part is None) and "b" in made.places
        assert part is None or part in str(made.refused["a"])


@pytest.mark.parametrize("seed", seeds(40))
def test_no_more_cores_fit_than_are_found(seed: int) -> None:
    """Nodes may have their memory on the same one."""
    rng = random.Random(seed)
    cores = [rng.randint(1, 6) for _ in range(rng.randint(1, 3))]
    homes = [rng.randint(0, at) for at in range(len(cores))]
    size, limits = rng.randint(1, 60), {home: rng.choice((float("inf"), rng.randint(0, 40))) for home in homes}

    def fits(counts: Sequence[int]) -> bool:
        by_home = {home: sum(n for n, own in zip(counts, homes, strict=True) if own == home) for home in homes}
        return all(size * count <= limits[home] * sum(counts) for home, count in by_home.items())

    possible = [counts for counts in itertools.product(*(range(1, own + 1) for own in cores)) if fits(counts)]
    found = most_cores(cores, homes, size, limits)
    assert sum(found) == max(map(sum, possible), default=0)
    assert not possible or tuple(found) in possible


def test_a_node_with_fewer_cores_than_models_keeps_no_other_from_giving_to_the_server() -> None:
    host = host_of("2s/2n/8c")
    small = [ModelDemand(f"m{number}", GIB, nodes=(0,)) for number in range(4)]
    demands = [ModelDemand("large", 8 * GIB, nodes=(0, 1)), *small]
    for reserve, used in ((None, 7), (0, 8), (2, 6), (3, 5)):
        made = place_models(host, demands, reserve).places
        assert len({cpu for place in made.values() for cpu in place.cpus}) == used
        assert sorted(made["large"].memory) == [0, 1] == sorted({node_of(host, cpu) for cpu in made["large"].cpus})
        assert "node 0 has fewer cores than models" in made["m3"].reason and made["m3"].shared_with == ("m2",)
    with pytest.raises(UserError, match=r"--reserve-cpus 4: .* leave 3; give 3 or less"):
        place_models(host, demands, 4)
    with pytest.raises(UserError, match=r"--reserve-cpus 1: .* leave 0; give 0$"):
        place_models(host_of("1s/1n/2c"), small[:3], 1)
    workers = [ModelDemand("a", GIB, least_cores=4), ModelDemand("b", GIB, least_cores=3)]
    assert [len(place_models(host, workers, 1).places[name].cpus) for name in "ab"] == [4, 3]


@pytest.mark.parametrize("shape", ("2s/2n/8c", "2s/4n/13c/mem=6GiB", "2s/2n/32c/smt2", "2s/8n/64c"))
@pytest.mark.parametrize("seed", seeds(10))
def test_whatever_settings_name_memory_is_on_nodes_that_hold_it_and_cores_are_kept(shape: str, seed: int) -> None:
    host, rng = host_of(shape), random.Random(seed)
    nodes = {node.id: node.memory or 0 for node in host.nodes}
    demands = []
    for number in range(rng.randint(1, 7)):
        on = tuple(rng.sample(sorted(nodes), rng.randint(1, len(nodes)))) if rng.random() < 0.3 else ()
        cpus = tuple(rng.sample([cpu.id for cpu in host.cpus], 3)) if rng.random() < 0.1 and not on else ()
        size, least = int(rng.choice((0.5, 2, 6, 9, 14, 20, 26)) * GIB), rng.choice((1, 1, 1, 2, 4, 8))
        demands.append(ModelDemand(f"m{number}", size, rng.random() < 0.3, on, cpus, least))
    reserve = rng.choice((None, 0, 1, 2, 5))
    try:
        made = place_models(host, demands, reserve)
    except UserError as error:
        reserve = int(str(error).rpartition("give ")[2].split()[0])
        made = place_models(host, demands, reserve)  # what the error says can be kept
    assert set(made.places) | set(made.refused) == {each.name for each in demands}
    pinned = dict.fromkeys(nodes, 0)
    for demand in demands:
        for node, size in made.places[demand.name].memory.items() if demand.pin and demand.name in made.places else ():
            pinned[node] += size
    assert all(pinned[node] <= size for node, size in nodes.items())
    used = {host.cpu_by_id[cpu].core for place in made.places.values() for cpu in place.cpus}
    named = all(demand.cpus for demand in demands if demand.name in made.places)
    assert named or len({cpu.core for cpu in host.cpus} - used) >= (reserve or 0)
    for demand in demands:
        if (place := made.places.get(demand.name)) is not None:
            assert place.memory == pytest.approx(cut_by_threads(host, place), abs=8)
            beside = {node: 0 if demand.pin else pinned[node] for node in nodes}
            assert all(size + beside[node] <= nodes[node] for node, size in place.memory.items())


@pytest.mark.parametrize(
    ("shape", "models", "reserve", "cores"),
    [
        ("2s/2n/32c", 1, None, [16]),
        ("2s/8n/64c", 4, None, [8] * 4),
        ("2s/8n/64c", 4, 32, [8] * 4),
        ("2s/8n/64c", 7, 10, [8, 8, 8, 8, 8, 7, 7]),
        ("2s/2n/32c", 2, None, [16, 15]),
    ],
)
def test_cores_of_nodes_without_models_are_the_servers_first(
    shape: str, models: int, reserve: int | None, cores: list[int]
) -> None:
    demands = [ModelDemand(f"m{number}", GIB) for number in range(models)]
    made = place_models(host_of(shape), demands, reserve).places
    assert sorted((len(place.cpus) for place in made.values()), reverse=True) == cores


def test_a_model_on_cores_that_settings_give_to_another_says_so() -> None:
    named = ModelDemand("a", GIB, cpus=(0, 1))
    found = places(host_of("1s/1n/2c"), [named, ModelDemand("b", GIB)])
    assert found["b"].shared_with == ("a",) and "settings name all others" in found["b"].reason
