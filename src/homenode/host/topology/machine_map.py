"""A host as a picture is drawn of it: what lies inside what, from sockets down to CPUs. Plain values, small enough to
be sent to whoever draws.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

from homenode.host.topology.host import Cpu, Host

_Key = TypeVar("_Key", bound=Hashable)


def machine_map(host: Host) -> dict[str, Any]:
    """Return `{"model", "machine", "sockets": [{"id", "nodes": [{"id", "memory", "caches": [[[cpu, ...], ...]]}]}],
    "memory_nodes": [{"id", "memory"}]}`.

    A cache is a list of cores, and a core a list of its CPUs; CPUs of no known cache are a list of their own. `id` of a
    node is None on a host without nodes. A node that spans sockets is in each of them, with the CPUs that are there;
    `memory_nodes` are those without CPUs, or whose CPUs are in lower ones already.
    """
    drawn = {cpu.node for cpu in host.cpus}
    return {
        "model": host.cpu_model,
        "machine": host.machine,
        "sockets": [
            {"id": socket, "nodes": _nodes(host, cpus)} for socket, cpus in _grouped(host.cpus, lambda cpu: cpu.socket)
        ],
        "memory_nodes": [{"id": node.id, "memory": node.memory} for node in host.nodes if node.id not in drawn],
    }


def _nodes(host: Host, cpus: Iterable[Cpu]) -> list[dict[str, Any]]:
    found = []
    for number, members in _grouped(cpus, lambda cpu: cpu.node):
        node = None if number is None else host.node_by_id.get(number)
        caches = [_cores(part) for _, part in _grouped(members, lambda cpu: cpu.l3)]
        found.append({"id": number, "memory": node.memory if node else None, "caches": caches})
    return found


def _cores(cpus: Iterable[Cpu]) -> list[list[int]]:
    return [[cpu.id for cpu in members] for _, members in _grouped(cpus, lambda cpu: cpu.core)]


def _grouped(cpus: Iterable[Cpu], key: Callable[[Cpu], _Key]) -> list[tuple[_Key, list[Cpu]]]:
    """Groups in the order of their first CPUs."""
    found: dict[_Key, list[Cpu]] = {}
    for cpu in cpus:
        found.setdefault(key(cpu), []).append(cpu)
    return list(found.items())
