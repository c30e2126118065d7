"""Every placement setting in every situation: it binds as it says, is refused by name, or is told by name; it is never
dropped. Situations are hosts with more, as many and fewer cores than there are workers, one node and several, ranks,
stages, several engines, accelerators beside, and PyTorch on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from homenode.engine.assignment import EngineAssignment
from homenode.engine.binding import EngineBinding, Replica
from homenode.engine.config import EngineConfig
from homenode.engine.devices import executor_kind, is_accelerator
from homenode.engine.plan.placement import UNPINNED, core_of, place_engine
from homenode.engine.plan.replica_bindings import replica_places
from homenode.engine.plan.rules.settings_without_effect import settings_without_effect
from homenode.engine.plan.worker_bindings import places_elsewhere, worker_places
from homenode.errors import UserError
from homenode.host.discovery.read import read_host
from homenode.host.topology.finding import Finding
from homenode.host.topology.host import Host
from homenode.testing.hosts.synthetic import synthetic

ABSENT_CPU, ABSENT_NODE = 997, 77


@dataclass(frozen=True)
class Case:
    """Workers of one service on a host: `settings` beside the one that is tried, `devices` of each engine."""

    host: str
    devices: tuple[str, ...]
    engines: int = 1
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def workers(self) -> int:
        return len(self.devices) * self.engines


def ranks(host: str, count: int, device: str = "cpu", **settings: Any) -> Case:
    return Case(host, (device,) * count, settings={"tensor_parallel_size": count, **settings})


GPU = "torch:cuda:0"
SITUATIONS = {
    "one worker": Case("2s/2n/8c/smt2", ("cpu",)),
    "one worker on one node": Case("1s/1n/4c", ("cpu",)),
    "one worker on one core": Case("1s/1n/1c", ("cpu",)),
    "one worker of torch in the engine's process": Case("2s/2n/8c", ("cpu",), settings={"backend": "torch"}),
    "one worker by a process": Case("2s/2n/8c", ("cpu",), settings={"executor": "processes"}),
    "one worker on torch:cpu": Case("2s/2n/8c", ("torch:cpu",)),
    "ranks, more than cores": ranks("1s/1n/2c", 4),
    "ranks, more than cores of two nodes": ranks("2s/2n/2c", 4),
    "ranks, as many as cores": ranks("2s/2n/4c", 4),
    "ranks, fewer than cores": ranks("2s/2n/16c", 4),
    "ranks, fewer than nodes": ranks("2s/4n/16c/smt2", 2),
    "ranks on one node with siblings": ranks("1s/1n/8c/smt2", 2),
    "ranks by processes": ranks("2s/2n/8c", 2, executor="processes"),
    "ranks by Ray": ranks("2s/2n/8c", 2, executor="ray"),
    "ranks of torch": ranks("2s/2n/8c", 2, "torch:cpu"),
    "more ranks of torch than cores": ranks("1s/1n/2c", 3, "torch:cpu"),
    "stages, more than cores": Case("1s/1n/2c", ("cpu",) * 3, settings={"pipeline_parallel_size": 3}),
    "stages of ranks": Case(
        "2s/2n/32c", ("cpu",) * 4, settings={"pipeline_parallel_size": 2, "tensor_parallel_size": 2}
    ),
    "two engines": Case("2s/2n/8c", ("cpu",), 2, {"data_parallel_size": 2}),
    "two engines of two ranks": Case(
        "2s/2n/16c", ("cpu", "cpu"), 2, {"data_parallel_size": 2, "tensor_parallel_size": 2}
    ),
    "two engines of more ranks than cores": Case(
        "2s/2n/2c", ("cpu", "cpu"), 2, {"data_parallel_size": 2, "tensor_parallel_size": 2}
    ),
    "a CPU stage beside a GPU": Case("2s/2n/16c/gpu=1", (GPU, "cpu"), settings={"pipeline_parallel_size": 2}),
    "a CPU stage beside a GPU on few cores": Case(
        "1s/1n/2c/gpu=1", ("cpu", GPU), settings={"pipeline_parallel_size": 2}
    ),
    "GPUs alone": Case(
        "2s/2n/16c/gpu=2", (GPU, "torch:cuda:1"), settings={"tensor_parallel_size": 2, "stage_devices": "cuda:0,cuda:1"}
    ),
}


@dataclass(frozen=True)
class Placed:
    """What became of a case: the host, the place of each worker of all engines with its device, and what is told."""

    host: Host
    places: tuple[tuple[str, EngineBinding], ...]
    findings: tuple[Finding, ...]

    @property
    def on_cpu(self) -> list[EngineBinding]:
        return [place for device, place in self.places if not is_accelerator(device)]

    def cpus_of(self, *nodes: int) -> set[int]:
        return {cpu for node in nodes for cpu in self.host.node_by_id[node].cpus}


def everything(place: EngineBinding) -> set[int]:
    return {cpu for cpu in (*place.team, *place.others) if cpu != UNPINNED}


def place(case: Case, **given: Any) -> Placed:
    """As `homenode serve` does: engines are placed first where there are several, and their workers within."""
    host = read_host(synthetic(case.host))
    config = EngineConfig.of(None, {**case.settings, **given})
    told = settings_without_effect(config, case.devices, {}, case.engines)
    assignments = [EngineAssignment(config)]
    if case.engines > 1:
        bindings = replica_places(host, config, case.engines)
        assignments = [
            EngineAssignment(config, Replica(number, case.engines, binding)) for number, binding in enumerate(bindings)
        ]
        told += tuple(finding for binding in bindings for finding in binding.findings)
    if executor_kind(config.parallel.executor, case.devices) == "inline" and case.engines == 1:
        binding = place_engine(config.placement, config.compute.threads, host)
        return Placed(host, (("cpu", binding),), (*told, *binding.findings))
    made = [worker_places(host, assignment, case.devices) for assignment in assignments]
    places = [pair for one in made for pair in zip(case.devices, one.bindings, strict=True)]
    return Placed(host, tuple(places), (*told, *(finding for one in made for finding in one.findings)))


Obeys = Callable[[Placed, Any], bool]


def keeps_free(seen: Placed, count: int) -> bool:
    host = seen.host
    busy = {core_of(host, cpu) for place in seen.on_cpu for cpu in place.team}
    return len(host.allowance.physical_cpus) - len(busy) >= count


def on_nodes(seen: Placed, nodes: list[int]) -> bool:
    per = len(seen.places) // len(nodes)  # one of several engines may have an entry for all its workers
    return all(
        everything(place) <= seen.cpus_of(nodes[n // per]) and place.memory_nodes == (nodes[n // per],)
        for n, (_, place) in enumerate(seen.places)
    )


def on_lists(seen: Placed, lists: list[set[int]]) -> bool:
    per = len(seen.places) // len(lists)
    return all(everything(place) <= lists[n // per] for n, (_, place) in enumerate(seen.places))


def on_one_node(seen: Placed, _: Any) -> bool:
    homes = [{seen.host.cpu_by_id[cpu].node for cpu in everything(place)} for _, place in seen.places]
    return all(
        len(home) == 1 and set(place.memory_nodes) == home for home, (_, place) in zip(homes, seen.places, strict=True)
    )


def teams_are(seen: Placed, lists: list[set[int]]) -> bool:
    per = len(seen.on_cpu) // len(lists)
    parts = [set().union(*(place.team for place in seen.on_cpu[n * per : (n + 1) * per])) for n in range(len(lists))]
    return parts == lists and all(everything(place) <= lists[n // per] for n, place in enumerate(seen.on_cpu))


# Each setting: its flag, how it is given to so many workers of a host, and what it then means.
def nodes_for(host: Host, count: int) -> list[int]:
    """One for each, the last node first, two neighbours on the same."""
    nodes = sorted(host.node_by_id, reverse=True)
    return [nodes[n * len(nodes) // count] for n in range(count)]


def lists_for(host: Host, count: int) -> list[str]:
    """A list for each, from the last CPU down; shared where there are more than CPUs."""
    cpus = sorted(host.allowance.physical_cpus, reverse=True)
    each = max(1, len(cpus) // count)
    return [",".join(map(str, cpus[n % len(cpus) : n % len(cpus) + each])) for n in range(0, count * each, each)]


def sets(lists: list[str]) -> list[set[int]]:
    return [set(map(int, one.split(","))) for one in lists]


Given = Callable[[Host, int], tuple[dict[str, Any], Any]]
SETTINGS: dict[str, tuple[str, Given, Obeys]] = {
    "numa_bind": ("--numa-bind", lambda host, count: ({"numa_bind": True}, None), on_one_node),
    "numa_bind_nodes": (
        "--numa-bind-nodes",
        lambda host, count: (
            {"numa_bind": True, "numa_bind_nodes": tuple(nodes_for(host, count))},
            nodes_for(host, count),
        ),
        on_nodes,
    ),
    "numa_bind_cpus": (
        "--numa-bind-cpus",
        lambda host, count: (
            {"numa_bind": True, "numa_bind_cpus": tuple(lists_for(host, count))},
            sets(lists_for(host, count)),
        ),
        on_lists,
    ),
    "cpu_threads_bind": (
        "--cpu-threads-bind",
        lambda host, count: ({"cpu_threads_bind": "|".join(lists_for(host, count))}, sets(lists_for(host, count))),
        teams_are,
    ),
    "nobind": (
        "--cpu-threads-bind",
        lambda host, count: ({"cpu_threads_bind": "nobind"}, None),
        lambda seen, _: all(not everything(place) for place in seen.on_cpu),
    ),
    "auto": (
        "--cpu-threads-bind",
        lambda host, count: ({"cpu_threads_bind": "auto"}, None),
        lambda seen, _: all(
            {seen.host.cpu_by_id[cpu].node for cpu in place.team} == set(place.memory_nodes) for place in seen.on_cpu
        ),
    ),
    "memory_nodes": (
        "--memory-nodes",
        lambda host, count: ({"memory_nodes": str(max(host.node_by_id))}, max(host.node_by_id)),
        lambda seen, node: all(
            set(place.team) <= seen.cpus_of(node) and place.memory_nodes == (node,) for place in seen.on_cpu
        ),
    ),
    "reserve_cpus": ("--reserve-cpus", lambda host, count: ({"reserve_cpus": 1}, 1), keeps_free),
    "threads": (
        "--threads",
        lambda host, count: ({"threads": 2}, 2),
        lambda seen, count: all(len(place.team) == count for place in seen.on_cpu),
    ),
    "numa_nodes": (
        "--numa",
        lambda host, count: ({"numa": "local", "numa_nodes": str(max(host.node_by_id))}, max(host.node_by_id)),
        lambda seen, node: all(
            set(place.team) <= seen.cpus_of(node) and set(place.thread_memory) == {node} for place in seen.on_cpu
        ),
    ),
    "numa_local": (
        "--numa",
        lambda host, count: ({"numa": "local"}, None),
        lambda seen, _: all(len(set(place.thread_memory)) == 1 and place.numa == "local" for place in seen.on_cpu),
    ),
    "numa_interleave": (
        "--numa",
        lambda host, count: ({"numa": "interleave"}, None),
        lambda seen, _: all(place.numa == "interleave" for place in seen.on_cpu),
    ),
}


def outcome(case: Case, setting: str, lists: int) -> str:
    """How the setting fares: `bound`, `refused` or `told`; anything else is what became of it instead. `lists`: for so
    many workers.
    """
    flag, give, obeys = SETTINGS[setting]
    given, wanted = give(read_host(synthetic(case.host)), lists)
    try:
        seen = place(case, **given)
    except UserError as error:
        return "refused" if flag in error.message else f"refused without {flag}: {error.message}"
    if obeys(seen, wanted):
        return "bound"
    said = [finding.message for finding in seen.findings if flag in f"{finding.message} {finding.remedy}"]
    return "told" if said else f"dropped: {seen.places}"


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_setting_binds_is_refused_or_is_told(situation: str, setting: str) -> None:
    case = SITUATIONS[situation]
    for lists in {len(case.devices), case.workers, case.engines} - {1 if case.workers > 1 and case.engines == 1 else 0}:
        assert outcome(case, setting, lists) in ("bound", "refused", "told"), f"{lists} entries"


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"numa_bind": True, "numa_bind_nodes": "{n}"}, "{n}"),
        ({"numa_bind": True, "numa_bind_cpus": "{c}"}, "{c}"),
        ({"cpu_threads_bind": "{c}"}, "{c}"),
        ({"cpu_threads_bind": "auto", "memory_nodes": "{n}"}, "{n}"),
        ({"memory_nodes": "{n}"}, "{n}"),
        ({"numa": "local", "numa_nodes": "{n}"}, "{n}"),
    ],
)
def test_what_is_not_there_is_refused_by_its_number_wherever_it_is_read(
    situation: str, wrong: dict[str, Any], named: str
) -> None:
    case = SITUATIONS[situation]
    count = case.workers

    def spoilt(name: str, value: Any) -> Any:
        if value == "{n}" and name == "numa_bind_nodes":
            return (*[0] * (count - 1), ABSENT_NODE)
        if name == "numa_bind_cpus":
            return (*["0"] * (count - 1), str(ABSENT_CPU))
        if value == "{c}":
            return "|".join([*["0"] * (count - 1), str(ABSENT_CPU)])
        return str(ABSENT_NODE) if value == "{n}" else value

    given = {name: spoilt(name, value) for name, value in wrong.items()}
    number = named.format(n=ABSENT_NODE, c=ABSENT_CPU)
    try:
        seen = place(case, **given)
    except UserError as error:
        assert number in error.message or f"--{next(iter(wrong)).replace('_', '-')}" in error.message, error.message
        return
    flags = [f"--{name.replace('_', '-')}" for name in wrong]
    assert any(flag in finding.message for finding in seen.findings for flag in flags), "neither refused nor told"


def test_most_settings_bind_where_there_is_room() -> None:
    """So that the matrix is not passed by refusing everything."""
    roomy = {name: outcome(SITUATIONS["ranks, fewer than cores"], name, 4) for name in SETTINGS}
    assert {name for name, came in roomy.items() if came != "bound"} <= {"numa_interleave"}, roomy
    crowded = {name: outcome(SITUATIONS["ranks, more than cores of two nodes"], name, 4) for name in SETTINGS}
    assert {name for name, came in crowded.items() if came != "bound"} <= {"threads", "numa_interleave"}, crowded


@pytest.mark.parametrize("setting", SETTINGS)
def test_on_another_host_settings_bind_or_lists_are_refused_by_name(setting: str) -> None:
    flag, give, obeys = SETTINGS[setting]
    host = read_host(synthetic("2s/2n/8c"))
    given, wanted = give(host, 4)
    config = EngineConfig.of(None, {"tensor_parallel_size": 4, "executor": "ray", **given})
    try:
        made = places_elsewhere(host, EngineAssignment(config), "cpu", 2)
    except UserError as error:
        assert flag in error.message and "list" in error.message
        return
    seen = Placed(host, tuple(("cpu", binding) for binding in made.bindings), made.findings)
    told = [finding for finding in made.findings if flag in finding.message]
    assert told or obeys(seen, wanted)
