"""The number of cores that a deployment needs at least, and whether this process may use so many.

The field's rule (vLLM's optimisation guide): a physical core for each process that never rests, A + DP + N + (1 if DP >
1): API servers, engine cores, one worker for each device, and the coordinator of several engines. Fewer cores make the
processes take turns, and the devices wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from homenode.errors import PlacementError
from homenode.host.plan.demand import Demand
from homenode.host.plan.parallelism import check_sizes, world_size
from homenode.host.topology.finding import Finding
from homenode.host.topology.host import Host
from homenode.units import format_count

Parts = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class EngineNeed:
    """The cores that homenode's own CPU engine needs for the same deployment. `physical_cores`: at least, `parts` added
    up. `compute_cores`: what each worker's threads would have on this host, when everything else has its core; 0 where
    the minimum is not met.
    """

    physical_cores: int
    met: bool
    compute_cores: int
    parts: Parts

    def to_dict(self) -> dict[str, Any]:
        """`{"physical_cores", "met", "compute_cores", "parts"}`."""
        parts = [{"what": what, "cores": cores} for what, cores in self.parts]
        return {
            "physical_cores": self.physical_cores,
            "met": self.met,
            "compute_cores": self.compute_cores,
            "parts": parts,
        }


@dataclass(frozen=True, slots=True)
class Requirements:
    """`physical_cores` and `vcpus` (logical CPUs) are needed, `have_cores` and `have_vcpus` are there: allowed, and
    within the CPU quota.

    `formula`: the rule with its figures. `parts`: what the cores are for.
    """

    physical_cores: int
    vcpus: int
    met: bool
    have_cores: int
    have_vcpus: int
    formula: str
    parts: Parts
    homenode: EngineNeed
    findings: tuple[Finding, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The JSON form of `homenode plan --requirements --json`."""
        return {
            "physical_cores": self.physical_cores,
            "vcpus": self.vcpus,
            "met": self.met,
            "have": {"physical_cores": self.have_cores, "vcpus": self.have_vcpus},
            "formula": self.formula,
            "parts": [{"what": what, "cores": cores} for what, cores in self.parts],
            "homenode": self.homenode.to_dict(),
            "findings": [finding.to_dict() for finding in self.findings],
        }


def requirements(host: Host, demand: Demand) -> Requirements:
    """The core count question for one deployment on one host. Raises PlacementError bad_parallelism."""
    check_sizes(demand)
    devices = _devices(demand)
    engines = demand.parallelism.data_parallel_size
    servers = demand.parallelism.api_server_count or engines
    coordinator = int(engines > 1)
    parts = (
        ("API servers", servers),
        ("engine cores", engines),
        ("workers, one for each device", devices),
        ("data-parallel coordinator", coordinator),
    )
    needed = servers + engines + devices + coordinator
    cores, vcpus = _have(host)
    return Requirements(
        physical_cores=needed,
        vcpus=needed * _threads_per_core(host),
        met=cores >= needed,
        have_cores=cores,
        have_vcpus=vcpus,
        formula=f"A + DP + N + (1 if DP > 1 else 0) = {servers} + {engines} + {devices} + {coordinator} = {needed}",
        parts=parts,
        homenode=_engine_need(demand, servers, cores),
        findings=_findings(host, demand, needed, cores),
    )


def _devices(demand: Demand) -> int:
    told = world_size(demand.parallelism)
    devices = demand.parallelism.devices or told
    if devices < told:
        raise PlacementError(
            "bad_parallelism",
            "there are fewer devices than workers",
            seen=format_count(devices, "device"),
            wanted=f"{told}: data-parallel x tensor-parallel x pipeline-parallel size",
            remedy="Give more --devices, or lower the parallel sizes.",
            param="--devices",
        )
    return devices


def _have(host: Host) -> tuple[int, int]:
    """Whole physical cores and logical CPUs that this process may use, each cut to the CPU quota (cpu.max, rounded
    down)."""
    allowed = set(host.allowance.cpus) & set(host.cpu_by_id)
    whole = sum(1 for cpus in host.cores.values() if allowed.issuperset(cpus))
    quota = host.allowance.cpu_quota
    limit = len(allowed) if quota is None else int(quota)
    return min(whole, limit), min(len(allowed), limit)


def _threads_per_core(host: Host) -> int:
    return max((len(cpus) for cpus in host.cores.values()), default=1)


def _engine_need(demand: Demand, servers: int, cores: int) -> EngineNeed:
    """Front processes, and workers with one compute thread each at least: the scheduler lives in a worker's process and
    rests while it computes.

    Without --workers there is one CPU worker for each rank of the parallel sizes.
    """
    workers = demand.workers or world_size(demand.parallelism)
    parts = (("front", servers), ("compute threads, one for each worker at least", workers))
    needed = servers + workers
    return EngineNeed(needed, cores >= needed, (cores - servers) // workers if cores >= needed else 0, parts)


def _findings(host: Host, demand: Demand, needed: int, cores: int) -> tuple[Finding, ...]:
    findings = []
    if cores < needed:
        message = (
            f"{format_count(needed, 'physical core is', 'physical cores are')} needed and {cores} are there: "
            "processes will take turns and devices will wait"
        )
        findings.append(
            Finding(
                "warning",
                "too_few_cores",
                message,
                "Allow more whole cores or a larger CPU quota, or start fewer processes.",
            )
        )
    allowed = set(host.allowance.cpus)
    cut = sum(1 for cpus in host.cores.values() if not allowed.isdisjoint(cpus) and not allowed.issuperset(cpus))
    if cut:
        message = (
            f"of {format_count(cut, 'core')} only some threads are allowed; somebody else may compute on the "
            "others, so they are not counted"
        )
        findings.append(Finding("info", "cores_in_part", message, "Allow whole cores."))
    quota = host.allowance.cpu_quota
    if quota is not None and quota < len(allowed):
        message = (
            f"the CPU quota allows {format_count(quota, 'CPU')} worth of time on "
            f"{format_count(len(allowed), 'allowed CPU')}"
        )
        findings.append(
            Finding("info", "quota_below_cpus", message, "Raise cpu.max, or count with the smaller number.")
        )
    told = world_size(demand.parallelism)
    if demand.parallelism.devices > told > 1:
        message = (
            f"{format_count(demand.parallelism.devices, 'device is', 'devices are')} given and the parallel sizes "
            f"use {told} of them"
        )
        findings.append(Finding("info", "devices_unused", message, "Raise a parallel size to use them all."))
    return tuple(findings)
