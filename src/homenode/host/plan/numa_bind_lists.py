"""The two lists of `--numa-bind`: one node and one CPU list for each visible device, in the order of the devices. Read
and checked as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from homenode.cpuset import format_cpu_list
from homenode.errors import PlacementError
from homenode.host.plan.demand import Demand
from homenode.host.plan.resources.nodes import nodes_of, permitted_nodes
from homenode.host.plan.resources.numactl import left_out, parse_cpus, refused_node
from homenode.host.topology.finding import Finding
from homenode.host.topology.host import Host
from homenode.units import format_count

T = TypeVar("T")
NODES, CPUS = "--numa-bind-nodes", "--numa-bind-cpus"


@dataclass(frozen=True, slots=True)
class BindLists:
    """The two lists, read and checked; None where not given. `findings`: what was left out of them."""

    nodes: tuple[int, ...] | None
    cpus: tuple[tuple[int, ...], ...] | None
    devices: int  # visible ones
    findings: tuple[Finding, ...] = ()

    def entry(self, flag: str, entries: tuple[T, ...] | None, index: int, device: int) -> T | None:
        """Return what a list says about worker `index`; None when the list was not given. Raises PlacementError
        numa_bind_too_short.
        """
        if entries is None:
            return None
        if index < len(entries):
            return entries[index]
        if len(entries) == self.devices == 1:
            return entries[0]  # a launcher shows each rank one device, and each rank got its own entry
        raise PlacementError(
            "numa_bind_too_short",
            f"{flag} has no entry for device {device}, worker {index}",
            seen=format_count(len(entries), "entry", "entries"),
            wanted=f"at least {index + 1}, one for each visible device in the same order",
            remedy=f"Add the missing entries to {flag}, or leave it out.",
            param=flag,
        )


def read_lists(host: Host, demand: Demand, devices: int) -> BindLists:
    """Both lists from end to end, also the entries that nobody uses."""
    by_id = {node.id: node for node in nodes_of(host)}
    for node in demand.numa_bind_nodes or ():
        if node not in by_id or (by_id[node].memory != 0 and node not in permitted_nodes(host)):
            raise refused_node(host, node, f"{NODES} {' '.join(map(str, demand.numa_bind_nodes or ()))}")
    if demand.numa_bind_cpus is None:
        return BindLists(demand.numa_bind_nodes, None, devices)
    online, allowed = tuple(host.cpu_by_id), host.allowance.cpus
    cpus = tuple(parse_cpus(text, allowed, online, named=f"{CPUS} {text}") for text in demand.numa_bind_cpus)
    findings = []
    for text in demand.numa_bind_cpus:
        if skipped := left_out(text, allowed, online):
            message = f"{CPUS} {text}: CPUs {format_cpu_list(skipped)} are not allowed and are left out"
            findings.append(
                Finding(
                    "warning", "cpus_left_out", message, "Name allowed CPUs only, or widen what this process inherits."
                )
            )
    return BindLists(demand.numa_bind_nodes, cpus, devices, tuple(findings))
