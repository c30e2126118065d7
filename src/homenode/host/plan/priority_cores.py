"""Priority cores: those that the processor lets run faster than others of the same kind (Intel's Priority Core Turbo,
Speed Select), told by what the kernel says of each core and not by a table of models. Pure.

Workers that drive accelerators, and their engine cores, wait for one thread most of the time: under `numa-bind` they
have the priority cores of their node for themselves, as long as there is one for each of them. Whoever computes on many
cores has those in front.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from homenode.cpuset import format_cpu_list
from homenode.host.plan.plan import Plan
from homenode.host.plan.strategy import Strategy
from homenode.host.topology.finding import Finding
from homenode.host.topology.host import Host
from homenode.units import format_count

_MOST_NAMED = 8  # devices in a message


def priority_cpus(host: Host, cpus: Iterable[int]) -> tuple[int, ...]:
    """Return those of the CPUs that are of priority cores."""
    return tuple(number for number in cpus if (cpu := host.cpu_by_id.get(number)) is not None and cpu.priority)


def of_node(host: Host, node: int, cpus: Sequence[int], workers: int = 0) -> tuple[int, ...]:
    """Return those of a node's CPUs that workers on its accelerators and their engine core have: the priority cores
    where there is one for each of them, else all. `workers`: how many are there, where that is more than accelerators.
    """
    chips = sum(chip.node == node for chip in host.accelerators.chips)
    fast = priority_cpus(host, cpus)
    cores = {host.cpu_by_id[number].core for number in fast}
    return fast if len(cores) > max(workers, chips) else tuple(cpus)


def priority_findings(host: Host, plan: Plan) -> tuple[Finding, ...]:
    """Return which of the allowed cores are priority cores, and who is bound to them."""
    fast = priority_cpus(host, host.allowance.cpus)
    if not fast:
        return ()
    drives = host.accelerators.kind is not None and plan.strategy != Strategy.CPU_THREADS
    whose = "the worker of device" if drives else "CPU worker"
    named = [(f"{whose} {worker.device}", worker.main_cpus) for worker in plan.workers if worker.bound]
    named += [(place.name, place.cpus) for place in plan.processes if place.cpus]
    told = _bound_to_them(set(fast), named)
    message = "; ".join([f"CPUs {format_cpu_list(fast)} are priority cores: {_faster(host)}", *told])
    remedy = ""
    if drives and plan.strategy != Strategy.NUMA_BIND and not host.accelerators.has_own_strategies:
        remedy = "--numa-bind binds workers and engine cores to the priority cores of their node."
    return (Finding("info", "priority_cores", message, remedy),)


def device_finding(host: Host, places: Sequence[tuple[str, Sequence[int]]]) -> tuple[Finding, ...]:
    """The same of an engine's own workers: `places` are names of processes and their CPUs."""
    fast = set(priority_cpus(host, host.allowance.cpus))
    if not any(cpus and fast.issuperset(cpus) for _, cpus in places):
        return ()
    told = _bound_to_them(fast, [(name, cpus) for name, cpus in places if cpus])
    message = "; ".join([f"CPUs {format_cpu_list(fast)} are priority cores: {_faster(host)}", *told])
    return (Finding("info", "priority_cores", message),)


def _bound_to_them(fast: Collection[int], named: Sequence[tuple[str, Sequence[int]]]) -> list[str]:
    """Return who has priority cores alone, and who has some among others."""
    fast = set(fast)
    alone = [name for name, cpus in named if fast.issuperset(cpus)]
    mixed = [
        f"{name} has {format_cpu_list(fast.intersection(cpus)) or 'none'} of them"
        for name, cpus in named
        if not fast.issuperset(cpus)
    ]
    told = [f"{_listed(alone)} {'is' if len(alone) == 1 else 'are'} bound to them"] if alone else []
    return told + ([_listed(mixed)] if mixed else [])


def _faster(host: Host) -> str:
    """Say by which figure they are faster, and how much."""
    fast, others = [cpu for cpu in host.cpus if cpu.priority], [cpu for cpu in host.cpus if not cpu.priority]
    upper = min((cpu.highest_perf or 0 for cpu in fast), default=0)
    lower = max((cpu.highest_perf or 0 for cpu in others), default=0)
    how = f"highest_perf {upper} against {lower}" if upper > lower > 0 else "by their base frequency"
    model = f"; {host.cpu_model}" if host.cpu_model else ""
    return f"they may run faster than the others ({how}{model})"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {format_count(more, 'more')}" if more > 0 else "")
