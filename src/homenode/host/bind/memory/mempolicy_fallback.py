"""Memory policy of the calling process, with fallbacks: bind, else prefer, else leave memory alone. Each fallback is
reported with its reason.

bind keeps allocations on the given nodes and fails when they are full; prefer starts there and goes elsewhere when they
are full. Several nodes are preferred together since Linux 5.15 (MPOL_PREFERRED_MANY), the first of them alone before.
Sources: set_mempolicy(2), numa(7).
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass, field

from homenode.cpuset import format_cpu_list
from homenode.errors import HostError
from homenode.host.bind.base.report import ActionResult, Report
from homenode.host.bind.base.syscalls import (
    MODE_NAMES,
    MPOL_BIND,
    MPOL_F_NUMA_BALANCING,
    MPOL_F_RELATIVE_NODES,
    MPOL_F_STATIC_NODES,
    MPOL_PREFERRED,
    MPOL_PREFERRED_MANY,
    Syscalls,
)
from homenode.host.topology.finding import Finding

STEP = "memory policy"
_MODIFIERS = MPOL_F_STATIC_NODES | MPOL_F_RELATIVE_NODES | MPOL_F_NUMA_BALANCING
_GRANT = (
    "Containers often forbid set_mempolicy: start it with the capability SYS_NICE (docker run --cap-add SYS_NICE) "
    "or a seccomp profile that allows it"
)
_REMEDIES = {
    errno.EPERM: _GRANT,
    errno.EACCES: _GRANT,
    errno.EINVAL: "Choose nodes that have memory (`homenode host`) and that cpuset.mems allows (Mems_allowed_list "
    "in /proc/self/status)",
    errno.ENOSYS: "This kernel or sandbox has no NUMA policies; leave out the memory nodes",
}


@dataclass(frozen=True, slots=True)
class MemoryPolicy:
    """A memory policy in the kernel's terms: one of the MPOL_* modes, and nodes."""

    mode: int
    nodes: tuple[int, ...]

    def __str__(self) -> str:
        """Write the policy as /proc/PID/numa_maps writes it: bind:0-1."""
        name = MODE_NAMES[self.mode] if self.mode < len(MODE_NAMES) else f"mode {self.mode}"
        return f"{name}:{format_cpu_list(self.nodes)}" if self.nodes else name


@dataclass
class _Fallbacks:
    """The steps taken so far, and why each was not the last."""

    strict: bool
    steps: list[ActionResult] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def fall_back(self, message: str, remedy: str) -> None:
        """The next fallback is tried; with `strict` HostError is raised instead."""
        if self.strict:
            raise HostError(f"{message}. {remedy}.")
        self.steps.append(ActionResult(STEP, "failed", message))
        self.findings.append(Finding("warning", "memory_policy_refused", message, f"{remedy}."))

    def report(self, policy: str, outcome: str) -> Report:
        """All fallbacks so far, ending with `policy`."""
        return Report((*self.steps, ActionResult(STEP, outcome, policy)), tuple(self.findings))


def current_policy(kernel: Syscalls) -> MemoryPolicy | None:
    """The memory policy of the calling process; None where the kernel does not tell."""
    try:
        mode, nodes = kernel.get_mempolicy()
    except (OSError, HostError):
        return None
    return MemoryPolicy(mode & ~_MODIFIERS, nodes)


def bind_memory(nodes: Sequence[int], kernel: Syscalls, *, strict: bool = False) -> Report:
    """Bind the calling process's memory to `nodes`, best first, as firmly as the kernel lets it; what it starts
    inherits that.

    A binding that is already there, such as numactl's, is a limit: nodes outside it are left out. With `strict`,
    everything short of binding to all the nodes raises HostError.
    """
    fallbacks = _Fallbacks(strict)
    wanted = _inside_inherited(tuple(nodes), current_policy(kernel), fallbacks)
    if not wanted:
        return fallbacks.report("the inherited policy stays", "skipped")
    for policy in _policies_to_try(wanted):
        try:
            kernel.set_mempolicy(policy.mode, policy.nodes)
        except OSError as error:
            code = error.errno or errno.EIO
            reason = f"the kernel refuses {policy}: set_mempolicy: {errno.errorcode.get(code, code)}"
            fallbacks.fall_back(reason, _REMEDIES.get(code, "See set_mempolicy(2) for this error"))
            if code == errno.ENOSYS:
                break
        except HostError as error:
            fallbacks.fall_back(error.message.rstrip("."), "Leave out the memory nodes on this machine")
            break
        else:
            return _read_back(policy, kernel, fallbacks)
    return fallbacks.report("memory is left alone, CPUs only", "skipped")


def _policies_to_try(nodes: tuple[int, ...]) -> tuple[MemoryPolicy, ...]:
    first = MemoryPolicy(MPOL_PREFERRED, nodes[:1])
    return (
        (MemoryPolicy(MPOL_BIND, nodes), first)
        if len(nodes) == 1
        else (MemoryPolicy(MPOL_BIND, nodes), MemoryPolicy(MPOL_PREFERRED_MANY, nodes), first)
    )


def _inside_inherited(nodes: tuple[int, ...], inherited: MemoryPolicy | None, fallbacks: _Fallbacks) -> tuple[int, ...]:
    if inherited is None or inherited.mode != MPOL_BIND:
        return nodes
    inside = tuple(node for node in nodes if node in inherited.nodes)
    if len(inside) != len(nodes):
        outside = format_cpu_list(set(nodes) - set(inside))
        fallbacks.fall_back(
            f"the memory policy inherited from the parent is {inherited}; node {outside} is outside it",
            "Start this without numactl --membind",
        )
    return inside


def _read_back(policy: MemoryPolicy, kernel: Syscalls, fallbacks: _Fallbacks) -> Report:
    """The kernel drops nodes without memory and those outside cpuset.mems silently, as long as one is left."""
    seen = current_policy(kernel)
    if seen is None:
        return fallbacks.report(
            f"{policy}, not read back: get_mempolicy is refused", "degraded" if fallbacks.steps else "done"
        )
    if set(seen.nodes) != set(policy.nodes) or seen.mode != policy.mode:
        lost = format_cpu_list(set(policy.nodes) - set(seen.nodes))
        fallbacks.fall_back(
            f"the kernel made {policy} into {seen}: node {lost} has no memory, or is not in cpuset.mems",
            _REMEDIES[errno.EINVAL],
        )
    return fallbacks.report(str(seen), "degraded" if fallbacks.steps else "done")
