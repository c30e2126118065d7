"""The way from an engine's place to the memory of its threads: which node each takes it from, how matrices are spread,
and whether it came true.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

from homenode.compute.ops import PlacedBackend
from homenode.compute.thread_memory import ThreadMemory
from homenode.engine.binding import EngineBinding
from homenode.errors import HostError, UserError
from homenode.host.bind.base.state import open_state
from homenode.host.bind.base.syscalls import Syscalls
from homenode.host.bind.engine_plan import RecordedPlan, record_plan
from homenode.host.bind.memory.pages import bring_home
from homenode.host.bind.memory.residency import PlannedRange
from homenode.host.topology.finding import Finding
from homenode.host.topology.host import Host
from homenode.model.weights.node_placement import matrix_policy
from homenode.model.weights.read import MatrixPolicyOf
from homenode.numa_policy import MATRIX_POLICIES, NumaPolicy
from homenode.units import format_bytes

_SAMPLED_PAGES = 2048  # a millisecond


def team_memory(binding: EngineBinding, host: Host) -> ThreadMemory | None:
    """The nodes of the threads' memory. Under a policy the kernel is asked to take it from there; else it is only known
    where it will be touched.

    None where that is not known: threads that may run anywhere, memory that is bound to several nodes, a host that
    tells of no nodes.
    """
    nodes = binding.thread_memory or _touched_on(binding, host)
    if nodes is None:
        return None
    different = tuple(dict.fromkeys(nodes))
    homes = tuple(different.index(node) for node in nodes)
    return ThreadMemory(homes, different, _bound(binding, host), interleaved=binding.numa == NumaPolicy.INTERLEAVE)


def _bound(binding: EngineBinding, host: Host) -> bool:
    """Return whether the kernel is asked to take memory from nodes that were chosen."""
    return binding.numa is not None and len(host.nodes) > 1


def _touched_on(binding: EngineBinding, host: Host) -> tuple[int, ...] | None:
    """Return where the kernel takes memory from that nobody has bound: the node of the CPU that touches it, or the one
    all memory is bound to.
    """
    if binding.memory_nodes:
        return binding.memory_nodes * len(binding.team) if len(binding.memory_nodes) == 1 else None
    found = [host.cpu_by_id[cpu].node if cpu in host.cpu_by_id else None for cpu in binding.team]
    known = tuple(node for node in found if node is not None)
    with_memory = {node.id for node in host.nodes if node.memory}
    return known if known and len(known) == len(found) and with_memory.issuperset(known) else None


def matrix_policy_of(binding: EngineBinding) -> MatrixPolicyOf:
    """Return how the matrix of a tensor lies under the engine's policy."""
    usual = binding.numa if binding.numa in MATRIX_POLICIES else NumaPolicy.SHARD

    def policy_of(name: str) -> NumaPolicy:
        if binding.numa is None:
            return usual
        found = matrix_policy(name, binding.numa, binding.mirror_tensors)
        return found if found in MATRIX_POLICIES else usual

    return policy_of


def settle_pages(
    backend: PlacedBackend, binding: EngineBinding, host: Host, calls: Syscalls | None = None
) -> tuple[Finding, ...]:
    """Ask where all weights and KV memory lie, bring home what the kernel has put elsewhere, and tell what stays away:
    see `away_from_home`.

    Where there is but one node a sample does: all pages of a large model take seconds to ask for.
    """
    asked = None if len(host.nodes) > 1 else _SAMPLED_PAGES
    seen = backend.residency(asked)
    if _bound(binding, host) and any(_strays(lines) for lines in seen.values()):
        bring_home(chain(*backend.planned().values()), calls or Syscalls())
        seen = backend.residency(asked)
    return away_from_home(seen, binding, host)


def _strays(lines: Sequence[Mapping[str, Any]] | None) -> int:
    return sum(line["present"] - line["local"] for line in lines or ())


def away_from_home(
    seen: Mapping[str, Sequence[Mapping[str, Any]] | None], binding: EngineBinding, host: Host
) -> tuple[Finding, ...]:
    """A finding for each node whose planned memory the kernel has put elsewhere. HostError under --numa-strict, before
    anything is served.

    `seen`: what `NativeBackend.residency` says.
    """
    findings = []
    for use, lines in seen.items():
        for line in lines or ():
            if away := line["present"] - line["local"]:
                findings.append(_off_node_finding(use, line["node"], away, line["present"], host))
    if findings and binding.strict:
        raise HostError(f"--numa-strict: {findings[0].message}. {findings[0].remedy}")
    return tuple(findings)


def leave_plan(binding: EngineBinding, planned: Mapping[str, Sequence[PlannedRange]]) -> None:
    """Tell `homenode verify` what was planned for this process. Nothing depends on it, so where there is no folder to
    write to it is left out.
    """
    cpus = () if binding.sets else tuple(cpu for cpu in binding.team if cpu >= 0)  # in a set no thread is pinned
    with suppress(HostError, UserError):
        record_plan(open_state(), RecordedPlan(binding.numa or "", cpus, planned))


def _off_node_finding(use: str, node: int, away: int, planned: int, host: Host) -> Finding:
    names = {"weights": "weights", "kv": "KV memory", "scratch": "threads' own memory"}
    home = host.node_by_id.get(node)
    free = (
        f"; node {node} had {format_bytes(home.free)} free before" if home is not None and home.free is not None else ""
    )
    where = f"NUMA node {node}" if node >= 0 else "the nodes planned"
    message = (
        f"of {format_bytes(planned)} of {names[use]} planned for {where}, {format_bytes(away)} lie elsewhere{free}"
    )
    remedy = (
        "Make room there (other processes, page cache), or choose with `homenode plan --weights` what fits; every "
        "step reads them from afar."
    )
    return Finding("warning", "remote_pages", message, remedy)
