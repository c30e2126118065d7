"""A report of how the weights and KV memory of a worker lie on the NUMA nodes, in lines for the log of --verbose."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from homenode.compute.ops import PlacedBackend
from homenode.cpuset import format_cpu_list
from homenode.engine.binding import EngineBinding
from homenode.host.bind.memory.residency import PlannedRange
from homenode.host.topology.host import Host
from homenode.units import format_bytes

_log = logging.getLogger(__name__)
_USES = {"weights": "of weights", "kv": "of KV memory", "scratch": "of the threads' own"}
_LAYOUTS = {
    "mirror": "weights are mirrored: nodes {nodes} each have a whole copy, which their own threads read",
    "shard": "weights are sharded: nodes {nodes} each have the rows that their own threads multiply",
    "interleave": "weights are interleaved page by page over nodes {nodes}",
    "local": "weights are all on node {nodes}, and so are the threads",
    "replicate": "weights are replicated: this engine has a whole copy of its own on node {nodes}",
}
_ONE_NODE = "weights are not divided among nodes: all that this engine uses is on node {nodes}"
_BY_TOUCH = "weights are neither mirrored nor sharded by a policy: each thread touched its rows first, on nodes {nodes}"
_UNKNOWN = "where weights lie is not known: nothing is said about nodes, or this machine tells of none"

PlannedRanges = Mapping[str, Sequence[PlannedRange]]
Seen = Mapping[str, Sequence[Mapping[str, Any]] | None]


def log_memory(backend: PlacedBackend, binding: EngineBinding, host: Host) -> None:
    """Log how memory lies, where that is asked for: to look at all pages takes a while."""
    if _log.isEnabledFor(logging.DEBUG):
        for line in memory_lines(binding, host, backend.planned(), backend.residency()):
            _log.debug("%s", line)


def memory_lines(binding: EngineBinding, host: Host, planned: PlannedRanges, seen: Seen) -> list[str]:
    """A line about all nodes, and one about each. `planned` and `seen`: as `PlacedBackend` has them. Pure."""
    sizes = _sizes(planned)
    if not any(sizes.values()):
        return [_UNKNOWN]
    nodes = sorted({node for of_use in sizes.values() for node in of_use} - {-1})
    lines = [_layout(binding, sorted({node for part in planned["weights"] for node in part.nodes}))]
    lines += [_node_line(node, binding, host, sizes, seen) for node in nodes]
    turns = [f"{format_bytes(of_use[-1])} {_USES[use]}" for use, of_use in sizes.items() if of_use[-1]]
    return lines + ([f"over several nodes in turn: {', '.join(turns)}"] if turns else [])


def _sizes(planned: PlannedRanges) -> dict[str, Counter[int]]:
    """Bytes of each use that are planned for each node; -1: for several in turn."""
    sizes: dict[str, Counter[int]] = {}
    for use, ranges in planned.items():
        sizes[use] = Counter()
        for part in ranges:
            sizes[use][part.nodes[0] if len(part.nodes) == 1 else -1] += part.size
    return sizes


def _layout(binding: EngineBinding, nodes: Sequence[int]) -> str:
    usual = _ONE_NODE if len(nodes) == 1 else _BY_TOUCH
    text = _LAYOUTS.get(binding.numa or "", usual).format(nodes=format_cpu_list(nodes))
    if binding.mirror_tensors:
        text += f"; mirrored are those named {', '.join(binding.mirror_tensors)}"
    return f"{text} ({binding.numa_why})" if binding.numa_why else text


def _node_line(node: int, binding: EngineBinding, host: Host, sizes: Mapping[str, Counter[int]], seen: Seen) -> str:
    parts = [_use(use, of_use[node], node, seen.get(use)) for use, of_use in sizes.items() if of_use[node]]
    cpus = _threads(binding, host).get(node, ())
    many = "" if len(cpus) == 1 else "s"
    threads = [f"{len(cpus)} compute thread{many} on CPU{many} {format_cpu_list(cpus)}"] if cpus else []
    return f"node {node}: {', '.join((*parts, *threads))}"


def _use(use: str, size: int, node: int, lines: Sequence[Mapping[str, Any]] | None) -> str:
    """Return how much was planned for the node, and what of it the kernel says is there."""
    text = f"{format_bytes(size)} {_USES[use]}"
    line = next((line for line in lines or () if line["node"] == node), None)
    if line is None:
        return f"{text} (the kernel does not tell where it lies)"
    if not line["present"]:
        return f"{text} (not touched yet)"
    present = format_bytes(line["present"])
    touched = "" if present == format_bytes(size) or line["present"] > size else f" of the {present} in use"
    return f"{text} ({line['local'] / line['present']:.0%}{touched} is there)"


def _threads(binding: EngineBinding, host: Host) -> dict[int, list[int]]:
    """The CPUs of the pinned compute threads, by the node that their memory is on."""
    found: dict[int, list[int]] = defaultdict(list)
    for number, cpu in enumerate(binding.team):
        known = host.cpu_by_id.get(cpu)
        node = binding.thread_memory[number] if binding.thread_memory else (known.node if known else None)
        if node is not None and cpu >= 0:
            found[node].append(cpu)
    return found
