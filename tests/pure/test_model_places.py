"""The places of several models on one host: whatever the host and the models, each has memory on nodes that hold it and
cores of those nodes, and nobody else has the same cores while there are enough.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from homenode.engine.plan.model_places import LARGE, ModelDemand, ModelPlace, place_models
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
