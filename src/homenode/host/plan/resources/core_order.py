"""The cores that compute where not all do: the fastest first, low-power cores last, and of cores as fast in proportion
to the nodes. The order is the same for every policy and for the threads of an engine. Pure.

    Core Ultra 5: four P cores with two threads each (0-1, 10-15), eight E cores (2-9), two low-power cores (16, 17)
    4 threads     0, 10, 12, 14
    14 threads    the same and 2-9, then the siblings 1 and 11; 16 and 17 come after all others
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from homenode.host.plan.resources.cores import AllowedCore

_Taken = dict[int, list[tuple[AllowedCore, int]]]  # by node, cores and CPUs of them


@dataclass(frozen=True, slots=True)
class _Thread:
    """A CPU of a core, the `part` of the core that it belongs to, and the core's place among those of its node."""

    core: AllowedCore
    cpu: int
    part: int
    place: int


def regular_cores(cores: Sequence[AllowedCore]) -> list[AllowedCore]:
    """The cores that compute unless more are asked for: all but the low-power ones, or all where there are no
    others."""
    return [core for core in cores if not core.low_power] or list(cores)


def without_low_power(cores: Mapping[int, Sequence[AllowedCore]]) -> dict[int, list[AllowedCore]]:
    """The same by node, where one node with regular cores is enough to leave out low-power cores of all."""
    regular = {node: [core for core in own if not core.low_power] for node, own in cores.items()}
    return regular if any(regular.values()) else {node: list(own) for node, own in cores.items()}


def fastest_cores(cores: Mapping[int, Sequence[AllowedCore]], count: int) -> dict[int, list[AllowedCore]]:
    """`count` cores, or all where there are fewer; by node, each node's in the order given (low-power cores behind)."""
    taken = _take(cores, [lambda core: core.cpus[:1]], count)
    return {node: [core for core, _ in own] for node, own in taken.items()}


def fastest_cpus(
    cores: Mapping[int, Sequence[AllowedCore]], count: int, threads_per_core: int = 1
) -> dict[int, tuple[int, ...]]:
    """CPUs for `count` threads, or all where there are fewer; by node. `threads_per_core` CPUs of each core come before
    further siblings."""
    parts = [lambda core: core.cpus[:threads_per_core], lambda core: core.cpus[threads_per_core:]]
    return {node: tuple(cpu for _, cpu in own) for node, own in _take(cores, parts, count).items()}


def in_proportion(total: int, sizes: Sequence[int]) -> list[int]:
    """`total` shared out in proportion to `sizes` (not all 0), rounded so that it adds up; nobody gets more than its
    size while `total` is no more than all."""
    whole = sum(sizes)
    shares = [total * size // whole for size in sizes]
    rest = sorted(range(len(sizes)), key=lambda at: (-(total * sizes[at] % whole), at))
    for at in rest[: total - sum(shares)]:
        shares[at] += 1
    return shares


def _take(
    cores: Mapping[int, Sequence[AllowedCore]], parts: Sequence[Callable[[AllowedCore], Sequence[int]]], count: int
) -> _Taken:
    """CPUs kind after kind: of regular cores `parts` one after the other, each of the fastest cores first; then the
    same of low-power cores."""
    taken: dict[int, list[_Thread]] = {node: [] for node in cores}
    for wave in _waves(cores, parts):
        size = sum(map(len, wave.values()))
        shares = in_proportion(min(count, size), [len(own) for own in wave.values()])
        for (node, own), share in zip(wave.items(), shares, strict=True):
            taken[node] += sorted(own, key=lambda thread: (not thread.core.priority, -thread.core.capacity))[:share]
        count -= min(count, size)
    return {
        node: [
            (thread.core, thread.cpu)
            for thread in sorted(own, key=lambda thread: (thread.core.low_power, thread.part, thread.place))
        ]
        for node, own in taken.items()
    }


def _waves(
    cores: Mapping[int, Sequence[AllowedCore]], parts: Sequence[Callable[[AllowedCore], Sequence[int]]]
) -> list[dict[int, list[_Thread]]]:
    """Threads of equal standing by node, those that compute first in front. No wave is empty."""
    waves: dict[tuple[bool, int, int], dict[int, list[_Thread]]] = {}
    for node, own in cores.items():
        for place, core in enumerate(own):
            for number, part in enumerate(parts):
                if cpus := part(core):
                    wave = waves.setdefault((core.low_power, number, -core.speed_band), {})
                    wave.setdefault(node, []).extend(_Thread(core, cpu, number, place) for cpu in cpus)
    return [waves[standing] for standing in sorted(waves)]
