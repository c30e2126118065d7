"""Findings about what of a host, a plan and the living system is in the way of speed, and what to do about it: one page
of findings. Pure.

An error is what keeps something from working as planned, a warning what costs speed for certain, an info what may, or
what is good to know.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from homenode.errors import PlacementError
from homenode.host.bind.cpu_load import CpuLoad
from homenode.host.doctor.checks import runtime_findings
from homenode.host.doctor.claims import claim_findings
from homenode.host.doctor.live_facts import CAP_SYS_NICE, CAP_SYS_PTRACE, LiveFacts, ProcessFacts
from homenode.host.doctor.machine import machine_findings
from homenode.host.plan.plan import Plan
from homenode.host.topology.describe import fingerprint
from homenode.host.topology.finding import SEVERITIES, Finding, worst
from homenode.host.topology.host import Host
from homenode.units import format_bytes, format_count

_BUSY = 0.3  # part of the time of the allowed CPUs
_WAITING = 0.3  # part of ten seconds in which some thread waited for a CPU
_STOLEN = 0.02  # part of the time of the allowed CPUs


def doctor(host: Host, plan: Plan | PlacementError | None = None, live: LiveFacts | None = None) -> list[Finding]:
    """Everything to be said of the host, of a plan for it (or of the refusal of one), and of the living system; the
    gravest first.

    What the plan itself says of a matter is not said again. When nothing is wrong, one finding says what was looked at.
    """
    of_plan = list(_of_plan(host, plan))
    told = {finding.code for finding in of_plan}
    rest = [
        *host.notes,
        *host.accelerators.notes,
        *_tools(host),
        *machine_findings(host),
        *runtime_findings(host),
        *_living(host, live),
    ]
    found = list(dict.fromkeys([*of_plan, *(finding for finding in rest if finding.code not in told)]))
    found.sort(key=lambda finding: -SEVERITIES.index(finding.severity))
    if worst(found) in (None, "info"):
        found.append(_nothing_wrong(host, plan, live))
    return found


def _of_plan(host: Host, plan: Plan | PlacementError | None) -> Iterable[Finding]:
    if isinstance(plan, PlacementError):
        yield Finding("error", plan.code, f"{plan.summary} (seen: {plan.seen}; wanted: {plan.wanted})", plan.remedy)
    elif plan is not None:
        if plan.host and plan.host != fingerprint(host):
            message = "the plan was made for another host, or for this one before its CPUs, nodes or limits changed"
            yield Finding("error", "plan_of_another_host", message, "Plan again here: homenode plan.")
        yield from plan.findings


def _tools(host: Host) -> Iterable[Finding]:
    for error in host.accelerators.errors:
        yield Finding(
            "warning", error.code, f"{error.summary} (seen: {error.seen}; wanted: {error.wanted})", error.remedy
        )


def _living(host: Host, live: LiveFacts | None) -> Iterable[Finding]:
    if live is not None:
        yield from _permissions(host, live)
        yield from _daemons(live)
        if live.load is not None:
            yield from _load(live.load)
        if live.process is not None:
            yield from _process(host, live.process)
        yield from claim_findings(host, live.claims)


def _permissions(host: Host, live: LiveFacts) -> Iterable[Finding]:
    if live.memory_policy_refusal in ("EPERM", "EACCES"):
        message = (
            f"set_mempolicy is refused ({live.memory_policy_refusal}), as by a container's seccomp profile: memory "
            "cannot be bound"
        )
        yield Finding(
            "warning",
            "memory_policy_refused",
            message,
            "Start the container with --cap-add SYS_NICE, or a profile that allows it.",
        )
    elif live.memory_policy_refusal and len(host.nodes) > 1:
        message = f"set_mempolicy does not work here ({live.memory_policy_refusal}): memory cannot be bound"
        yield Finding(
            "warning",
            "memory_policy_refused",
            message,
            "Bind CPUs: memory then comes from the node of the CPU that touches it first.",
        )
    yield from (finding for finding in live.refused if finding.code != "memory_policy_refused")
    missing = [name for name, bit in (("SYS_NICE", CAP_SYS_NICE), ("SYS_PTRACE", CAP_SYS_PTRACE)) if not live.may(bit)]
    if missing:
        names = " and ".join(f"CAP_{name}" for name in missing)
        message = f"{names} missing: processes of other users cannot be bound, nor their pages moved"
        yield Finding(
            "info",
            "capability_missing",
            message,
            f"Run as root, or in a container with {' '.join(f'--cap-add {name}' for name in missing)}.",
        )
    if live.irqs_writable is False:
        message = "/proc/irq cannot be written to: interrupts stay where they are"
        severity = "warning" if host.accelerators.chips else "info"
        yield Finding(severity, "irqs_not_writable", message, "Run `homenode bind` as root on the host itself.")


def _daemons(live: LiveFacts) -> Iterable[Finding]:
    if live.irqbalance is not None:
        message = f"irqbalance (process {live.irqbalance}) moves interrupts about, those that a tool has routed too"
        yield Finding(
            "info",
            "irqbalance_running",
            message,
            "Nothing to do: `homenode bind` has it leave the device's interrupts alone.",
        )
    if live.swap_used:
        message = (
            f"{format_bytes(live.swap_used)} of {format_bytes(live.swap)} swap is used: weights that come back "
            "from it stall every token"
        )
        yield Finding(
            "warning", "swap_used", message, "Free memory, then: swapoff -a && swapon -a; or lower vm.swappiness."
        )
    elif live.swap:
        message = f"{format_bytes(live.swap)} swap is on: weights may be written there when memory gets short"
        yield Finding("info", "swap_on", message, "sysctl vm.swappiness=1, or swapoff -a on a host that only serves.")


def _load(load: CpuLoad) -> Iterable[Finding]:
    """Compute threads wait for each other: a CPU that something else keeps busy holds all of them up."""
    waiting = load.waiting is not None and load.waiting >= _WAITING
    if load.busy >= _BUSY or waiting:
        told = [f"programs used {load.busy:.0%} of the CPU time of {format_count(load.cpus, 'allowed CPU')}"]
        told += [] if load.load_average is None else [f"the load average is {load.load_average:.1f}"]
        told += [f"threads waited for a CPU in {load.waiting:.0%} of the last 10 s"] if load.waiting else []
        yield Finding(
            "warning",
            "machine_busy",
            f"this machine is busy: {', '.join(told)}",
            "Look with top who computes; end it, or bind it and homenode to CPUs of their own: homenode run --cpus "
            "LIST.",
        )
    if load.stolen >= _STOLEN:
        yield Finding(
            "warning",
            "cpu_time_stolen",
            f"the hypervisor gave {load.stolen:.0%} of the CPU time of this guest to others",
            "Take an instance with CPUs of its own, or pin its virtual CPUs on the host.",
        )


def _process(host: Host, process: ProcessFacts) -> Iterable[Finding]:
    who = f"process {process.pid} ({process.name})"
    quota, cpus = host.allowance.cpu_quota, len(host.allowance.cpus)
    if quota is not None and process.threads > quota:
        message = (
            f"{who} has {format_count(process.threads, 'thread')}, its control group {format_count(quota, 'CPU')} "
            "worth of time: when all are busy they are throttled"
        )
        yield Finding(
            "warning",
            "quota_below_threads",
            message,
            f"Start it with {format_count(max(1, int(quota)), 'compute thread')}, or raise cpu.max.",
        )
    if process.swapped:
        message = f"{format_bytes(process.swapped)} of {who} are in swap"
        yield Finding("warning", "swapped_out", message, "Free memory and start it again, or swapoff -a.")
    if cpus == 1 and len(host.cpus) > 1 and process.threads > 1:
        message = (
            f"all {format_count(process.threads, 'thread')} of {who} share CPU {host.allowance.cpus[0]} of "
            f"{len(host.cpus)}"
        )
        yield Finding(
            "warning",
            "threads_on_one_cpu",
            message,
            f"Widen it: homenode bind --pid {process.pid}, or start it without OMP_PROC_BIND.",
        )


def _nothing_wrong(host: Host, plan: Plan | PlacementError | None, live: LiveFacts | None) -> Finding:
    looked: Sequence[str] = [
        format_count(len(host.cpus), "CPU"),
        format_count(len(host.nodes), "NUMA node"),
        format_count(len(host.devices), "PCI function"),
        format_count(len(host.accelerators.chips), "accelerator"),
        "limits, masks and variables",
        *(["a plan"] if plan is not None else []),
        *(["permissions, daemons, swap and load"] if live is not None else []),
    ]
    return Finding("info", "nothing_wrong", f"nothing is in the way; looked at: {', '.join(looked)}")
