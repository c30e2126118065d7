"""More compute threads than CPUs: foreseen from the allowance, and noticed from what the threads measure. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from homenode.engine.binding import EngineBinding
from homenode.host.topology.finding import Finding
from homenode.host.topology.host import Host
from homenode.units import format_count

# Of the CPU time a thread wants. What a quiet machine takes by itself (timers, interrupts) stays well below; every
# thread waits for the slowest.
TELLING_SHARE = 0.1
SHORT_SPIN_US = 2


def too_many_threads(host: Host, binding: EngineBinding) -> tuple[Finding, ...]:
    """A warning when the compute threads outnumber the CPUs they may run on, or the CPU time of this
    process's cgroup.
    """
    threads, allowance = len(binding.team), host.allowance
    cpus = len(allowance.cpus)
    if threads > cpus:
        message = (
            f"{format_count(threads, 'compute thread shares', 'compute threads share')} {format_count(cpus, 'CPU')}"
        )
    elif allowance.cpu_quota is not None and threads > allowance.cpu_quota:
        message = (
            f"{format_count(threads, 'compute thread shares', 'compute threads share')} a CPU quota worth "
            f"{format_count(allowance.cpu_quota, 'CPU')}, and stand still whenever it is used up"
        )
    else:
        return ()
    return (
        Finding(
            "warning",
            "too_many_threads",
            message,
            f"Give --threads {min(cpus, allowance.usable_threads)} or more CPUs.",
        ),
    )


def spin_us(asked_us: int, host: Host, binding: EngineBinding) -> int:
    """Return how long compute threads shall watch for each other: where CPU time is short, watching takes it from those
    who are waited for.
    """
    return min(asked_us, SHORT_SPIN_US) if too_many_threads(host, binding) else asked_us


def interrupted(stats: Mapping[str, Any]) -> Finding | None:
    """A warning when threads lacked their CPUs while they computed. `stats`: what `NativeBackend.statistics` says;
    others say nothing of it.
    """
    shares: list[float] = stats.get("lost_cpu_shares", [])
    many = sum(share >= TELLING_SHARE for share in shares)
    if not many:
        return None
    message = (
        f"{many} of {format_count(len(shares), 'compute thread')} were interrupted: up to {max(shares):.0%} of the "
        "time they wanted their CPUs, something else "
        "ran there or a CPU quota was used up, and all threads wait for the slowest"
    )
    remedy = (
        "Keep other work off these CPUs (homenode doctor shows what is bound to them), raise the quota, or give "
        "fewer --threads."
    )
    return Finding("warning", "threads_interrupted", message, remedy)
