"""Hosts as plain values for tests of placement: what `read_host` would make of a machine of this shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from homenode.cpuset import parse_cpu_list
from homenode.host.topology.allowance import Allowance
from homenode.host.topology.host import Accelerator, Accelerators, Cpu, Host, Node
from homenode.host.topology.nodes import tells_place


@dataclass(frozen=True)
class Shape:
    """One NUMA node. `l3`: cores that share a last-level cache, 0 where the kernel does not tell. `capacities`: of its
    cores, in turn.
    """

    id: int
    cores: int
    smt: int = 1
    socket: int = 0
    memory: int = 64 << 30
    l3: int = 0
    capacities: tuple[int, ...] = (1024,)


def host_of(
    shapes: Sequence[Shape],
    near: Mapping[int, Sequence[int]] | None = None,
    *,
    kind: str = "npu",
    allowed: str | None = None,
    offline: Sequence[int] = (),
    mems: Sequence[int] = (),
    distances: Mapping[tuple[int, int], int] | None = None,
    siblings_apart: bool = False,
    affinity: Mapping[int, str] | None = None,
    quota: float | None = None,
    isolated: Sequence[int] = (),
    numa_balancing: bool = False,
) -> Host:
    """`near`: nodes by device, none for an unknown place. `siblings_apart`: threads of a core are numbered as x86 does
    it, a whole round apart.

    Distances are 10 on a node, 12 within a socket, 20 beyond, unless given by (lower id, higher id).
    """
    cpus = [cpu for cpu in _cpus(shapes, siblings_apart) if cpu.id not in offline]
    cpus = _named_after_the_first_online(cpus)
    nodes = tuple(_node(shape, shapes, cpus, distances or {}) for shape in shapes)
    mask = {cpu.id for cpu in cpus} if allowed is None else set(parse_cpu_list(allowed))
    usable = tuple(cpu.id for cpu in cpus if cpu.id in mask)
    chips = tuple(_chip(kind, device, own, nodes, (affinity or {}).get(device)) for device, own in (near or {}).items())
    return Host(
        machine="aarch64",
        kernel="6.18.0",
        cpus=tuple(cpus),
        offline=tuple(offline),
        nodes=nodes,
        devices=(),
        interrupts=(),
        accelerators=Accelerators(chips),
        allowance=Allowance(usable, usable, quota, None, 1 << 40, tuple(mems)),
        numa_balancing=numa_balancing,
        transparent_huge_pages="madvise",
        isolated=tuple(isolated),
    )


def local_cpus(host: Host, nodes: Sequence[int]) -> set[int]:
    """Online CPUs of these nodes."""
    return {cpu.id for cpu in host.cpus if cpu.node in nodes}


def _cpus(shapes: Sequence[Shape], siblings_apart: bool) -> list[Cpu]:
    total = sum(shape.cores for shape in shapes)
    found = []
    number = 0
    threads = 0
    for shape in shapes:
        first = number
        for at in range(shape.cores):
            ids = (
                [number + total * thread for thread in range(shape.smt)]
                if siblings_apart
                else range(threads, threads + shape.smt)
            )
            cache = first + at // shape.l3 * shape.l3 if shape.l3 else None
            capacity = shape.capacities[at % len(shape.capacities)]
            found += [Cpu(cpu, number, shape.socket, 0, None, cache, shape.id, capacity) for cpu in ids]
            number += 1
            threads += shape.smt
    return sorted(found, key=lambda cpu: cpu.id)


def _named_after_the_first_online(cpus: Sequence[Cpu]) -> list[Cpu]:
    """Cores and caches are counted while the CPUs are made; their names are their lowest online CPUs."""
    cores: dict[int, int] = {}
    caches: dict[int, int] = {}
    for cpu in cpus:
        cores.setdefault(cpu.core, cpu.id)
        if cpu.l3 is not None:
            caches.setdefault(cpu.l3, cpu.id)
    return [
        Cpu(
            cpu.id,
            cores[cpu.core],
            cpu.socket,
            0,
            None,
            None if cpu.l3 is None else caches[cpu.l3],
            cpu.node,
            cpu.capacity,
        )
        for cpu in cpus
    ]


def _node(shape: Shape, shapes: Sequence[Shape], cpus: Sequence[Cpu], distances: Mapping[tuple[int, int], int]) -> Node:
    row = {}
    for other in shapes:
        pair = (min(shape.id, other.id), max(shape.id, other.id))
        row[other.id] = 10 if other.id == shape.id else distances.get(pair, 12 if other.socket == shape.socket else 20)
    return Node(shape.id, tuple(cpu.id for cpu in cpus if cpu.node == shape.id), shape.memory, row)


def _chip(kind: str, device: int, own: Sequence[int], nodes: Sequence[Node], affinity: str | None) -> Accelerator:
    cpus = tuple(cpu for node in nodes if node.id in own for cpu in node.cpus)
    local = cpus if affinity is None else parse_cpu_list(affinity)
    computing = [node.id for node in nodes if node.id in own and node.cpus]
    return Accelerator(
        kind,
        device,
        "chip",
        f"0000:{device:02x}:00.0",
        local_cpus=local,
        node=min(computing, default=None) if tells_place(local, nodes) else None,
    )
