"""Read a running process back from the kernel and compare it with its target: masks, memory policy, where its pages
are."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from homenode.cpuset import format_cpu_list
from homenode.errors import UserError
from homenode.host.bind.base.report import ActionResult, Report, skipped
from homenode.host.bind.base.syscalls import Syscalls
from homenode.host.bind.base.target import Target
from homenode.host.bind.base.threads import ProcessId, Thread, identify, wanted_cpus
from homenode.host.bind.masks import Cpus, describe, read_masks
from homenode.host.bind.memory.memory_map import MemoryMap, Policy, read_memory_map
from homenode.host.bind.preflight import check_running
from homenode.host.topology.finding import Finding
from homenode.units import format_bytes, format_count

PLANNED_SHARE = 0.95  # of private memory that should lie on the planned nodes
_MOST_NAMED = 16  # threads that get a finding of their own; a process may have thousands
_UNBOUND = ("default", "local")  # policies that take memory from the node of the CPU that touches it first


def verify(
    pid: int,
    target: Target,
    *,
    calls: Syscalls | None = None,
    policy_expected: bool = False,
    readers: Sequence[Callable[[], Report]] = (),
) -> Report:
    """Return what of `target` holds for process `pid` now: one step each for affinity, memory policy and pages, and
    findings where it does not.

    Memory is looked at when the target has memory nodes. A process that was bound while it ran has kept its own memory
    policy, as nobody can set that of another: the default one is accepted, and its pages alone are judged.
    `policy_expected`: it was started bound, so the default is off the plan too. `readers`: further checks (of
    interrupts) whose reports are added. Raises UserError for a process, CPUs or nodes that are not there, HostError for
    a process this user may not look into.
    """
    check_running(target)
    process = identify(pid)
    report = _affinity(process, target, calls or Syscalls())
    if target.memory_nodes:
        memory = read_memory_map(pid)
        if memory is None:
            report += Report((skipped("memory", "this kernel has no NUMA support, all memory is alike"),))
        else:
            report += _policy(pid, memory.policy, target, policy_expected) + _pages(pid, memory, target)
    return sum((reader() for reader in readers), report)


def drift_finding(pid: int, thread: Thread, seen: Cpus, wanted: Cpus) -> Finding:
    """The finding for one thread that is not where it should be."""
    message = (
        f"thread {thread.tid} ({thread.name}) of process {pid} may run on CPUs {format_cpu_list(seen)}, planned "
        f"are {format_cpu_list(wanted)}"
    )
    return Finding("error", "thread_off_plan", message, _bind_again(pid))


def _affinity(process: ProcessId, target: Target, calls: Syscalls) -> Report:
    masks = list(read_masks(process, calls).values())
    if not masks:
        raise UserError(
            f"no process {process.pid} any more: it ended while it was being looked at", param="pid", pid=process.pid
        )
    compared = ((thread, seen, wanted_cpus(thread.name, target)) for thread, seen in masks)
    off = [(thread, seen, wanted) for thread, seen, wanted in compared if wanted and set(seen) != set(wanted)]
    findings = [drift_finding(process.pid, *each) for each in off[:_MOST_NAMED]]
    if len(off) > _MOST_NAMED:
        others = describe([seen for _, seen, _ in off[_MOST_NAMED:]])
        message = (
            f"{format_count(len(off) - _MOST_NAMED, 'more thread')} of process {process.pid} are off the plan: {others}"
        )
        findings.append(Finding("error", "thread_off_plan", message, _bind_again(process.pid)))
    return Report(
        (ActionResult("affinity", "failed" if off else "done", describe([seen for _, seen in masks])),), tuple(findings)
    )


def _policy(pid: int, policy: Policy, target: Target, expected: bool) -> Report:
    nodes = format_cpu_list(target.memory_nodes)
    if policy.mode in _UNBOUND and not policy.nodes and not expected:
        return Report(
            (ActionResult("memory policy", "done", f"{policy}, the policy that processes have by themselves"),)
        )
    if policy.nodes and set(policy.nodes) <= set(target.memory_nodes):
        return Report((ActionResult("memory policy", "done", str(policy)),))
    message = f"process {pid} takes new memory by the policy {policy}, planned are nodes {nodes}"
    remedy = (
        f"Start it again bound: homenode run --memory-nodes {nodes} -- ...; the policy of a running process cannot "
        "be changed from outside"
    )
    return Report(
        (ActionResult("memory policy", "failed", str(policy)),), (Finding("error", "policy_off_plan", message, remedy),)
    )


def _pages(pid: int, memory: MemoryMap, target: Target) -> Report:
    by_node = memory.bytes_by_node()
    total, on_plan = sum(by_node.values()), sum(size for node, size in by_node.items() if node in target.memory_nodes)
    spread = ", ".join(f"node {node}: {format_bytes(size)}" for node, size in by_node.items()) or "none touched yet"
    if on_plan >= PLANNED_SHARE * total:
        return Report((ActionResult("pages", "done", spread),))
    nodes = format_cpu_list(target.memory_nodes)
    message = f"{on_plan / total:.0%} of the private memory of process {pid} is on the planned nodes {nodes} ({spread})"
    remedy = f"Move it: homenode bind --pid {pid} --memory-nodes {nodes} with its CPUs"
    return Report((ActionResult("pages", "failed", spread),), (Finding("error", "pages_off_plan", message, remedy),))


def _bind_again(pid: int) -> str:
    return f"Bind it again: homenode bind --pid {pid} with the same plan, or --watch if the program sets its own CPUs"
