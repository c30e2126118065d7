"""The cores a policy may hand out: allowed SMT siblings together, by NUMA node, neighbours in a cache next to each
other. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from homenode.host.topology.host import Cpu, Host

NO_NODE = -1  # stands for the one node of a host that tells of none

_SPEED_BANDS = (
    8  # cores within an eighth of the fastest core's speed count as equal: turbo bins are no other kind of core
)


@dataclass(frozen=True, slots=True)
class AllowedCore:
    """One core as far as it is allowed. `cpus`: its allowed logical CPUs, ascending. `capacity`: 1024 is the fastest
    core of the host. `low_power`, `priority`: as a `Cpu` has them."""

    id: int
    cpus: tuple[int, ...]
    node: int
    socket: int
    capacity: int
    low_power: bool = False
    priority: bool = False

    @property
    def speed_band(self) -> int:
        """Cores of one band are taken to be equally fast; higher is faster."""
        return self.capacity * _SPEED_BANDS // 1025

    @property
    def standing(self) -> tuple[bool, int, bool]:
        """The kind of core it is; a higher one is of more use to whoever computes."""
        return not self.low_power, self.speed_band, self.priority


def allowed_cores(host: Host, without: Collection[int] = ()) -> dict[int, list[AllowedCore]]:
    """Allowed online cores by node, nodes ascending; on a node in the order of L3, cluster, core, so that a contiguous
    run shares caches.

    A core of which a CPU is in `without` is left out as a whole: its siblings are no free core.
    """
    threads: dict[int, list[Cpu]] = {}
    known = host.cpu_by_id
    for number in host.allowance.cpus:
        if (cpu := known.get(number)) is not None:
            threads.setdefault(cpu.core, []).append(cpu)
    taken = {known[number].core for number in without if number in known}
    nodes: dict[int, list[tuple[tuple[int, int, int], AllowedCore]]] = {}
    for name, cpus in threads.items():
        if name in taken:
            continue
        first = cpus[0]
        node = next((cpu.node for cpu in cpus if cpu.node is not None), NO_NODE)
        ids, capacity = tuple(sorted(cpu.id for cpu in cpus)), max(cpu.capacity for cpu in cpus)
        core = AllowedCore(name, ids, node, first.socket, capacity, first.low_power, first.priority)
        nodes.setdefault(node, []).append((_neighbourhood(first), core))
    return {
        node: [core for _, core in sorted(found, key=lambda pair: pair[0])] for node, found in sorted(nodes.items())
    }


def cpus_of(cores: Iterable[AllowedCore]) -> tuple[int, ...]:
    """Their CPUs, core after core."""
    return tuple(cpu for core in cores for cpu in core.cpus)


def deal(cores: Sequence[AllowedCore], parts: int) -> list[list[AllowedCore]]:
    """`cores` in `parts` contiguous runs whose lengths differ by one core at most, longer ones first.

    Where cores differ in speed each kind is dealt by itself, faster ones first, so that nobody gets only the slow ones;
    the total stays as even.
    """
    dealt: list[list[AllowedCore]] = [[] for _ in range(parts)]
    kinds: dict[tuple[bool, int, bool], list[AllowedCore]] = {}
    for core in cores:
        kinds.setdefault(core.standing, []).append(core)
    given = 0
    for _, band in sorted(kinds.items(), reverse=True):
        start = 0
        for part, run in enumerate(dealt):
            size = _even(given + len(band), parts, part) - _even(given, parts, part)
            run.extend(band[start : start + size])
            start += size
        given += len(band)
    return dealt


def deal_in_turn(cores: Sequence[AllowedCore], parts: int) -> list[list[AllowedCore]]:
    """Deal as `deal`; where there are more parts than cores each gets one core, and neighbours the same."""
    if len(cores) >= parts:
        return deal(cores, parts)
    return [[cores[part * len(cores) // parts]] for part in range(parts)]


def _even(total: int, parts: int, part: int) -> int:
    return total // parts + (part < total % parts)


def _neighbourhood(cpu: Cpu) -> tuple[int, int, int]:
    return (-1 if cpu.l3 is None else cpu.l3, -1 if cpu.cluster is None else cpu.cluster, cpu.core)
