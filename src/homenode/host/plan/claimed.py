"""Keeping clear of CPUs that living processes have been given. Pure: whose claims are alive is found out elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from homenode.cpuset import format_cpu_list
from homenode.errors import PlacementError
from homenode.host.plan.demand import Claim
from homenode.host.plan.neighbours import title
from homenode.host.plan.resources.cores import AllowedCore, cpus_of
from homenode.host.topology.finding import Finding
from homenode.host.topology.host import Host


def without_claims(
    host: Host, claims: Sequence[Claim], pools: Mapping[int, Sequence[AllowedCore]]
) -> tuple[Mapping[int, Sequence[AllowedCore]], list[Finding]]:
    """The pools without cores that processes hold for other devices, and a finding for each loss. A core with a claimed
    CPU goes as a whole.

    Raises PlacementError `insufficient_cpus` when a pool has nothing left.
    """
    left = dict(pools)
    findings = []
    for claim in claims:
        taken = {host.cpu_by_id[cpu].core for cpu in claim.cpus if cpu in host.cpu_by_id}
        for device, pool in left.items():
            lost = [core for core in pool if core.id in taken and device not in claim.devices]
            if not lost:
                continue
            left[device] = [core for core in pool if core not in lost]
            findings.append(_overlap(claim, f"device {device} does without CPUs {format_cpu_list(cpus_of(lost))}"))
            if not left[device]:
                raise _all_claimed(device, claim, pools[device])
    return left, findings


def kept_clear(host: Host, claims: Sequence[Claim]) -> list[Finding]:
    """Return what to say of claims that CPU workers were planned around."""
    allowed = set(host.allowance.cpus)
    return [_overlap(claim, "CPU workers keep clear of them") for claim in claims if not allowed.isdisjoint(claim.cpus)]


def overlaps(host: Host, claims: Sequence[Claim], cpus: Sequence[int], why: str) -> list[Finding]:
    """Return what to say of claims that a plan for these CPUs does not keep clear of. `why`: in words."""
    cores = {host.cpu_by_id[cpu].core for cpu in cpus if cpu in host.cpu_by_id}
    found = []
    for claim in claims:
        common = [cpu for cpu in claim.cpus if cpu in host.cpu_by_id and host.cpu_by_id[cpu].core in cores]
        if common:
            message = f"{title(claim)} has CPUs {format_cpu_list(common)} of these: {why}"
            remedy = f"Name other CPUs, or end process {claim.pid}; `homenode doctor` says who has which."
            found.append(Finding("warning", "claims_left_aside", message, remedy))
    return found


def _all_claimed(device: int, claim: Claim, pool: Sequence[AllowedCore]) -> PlacementError:
    return PlacementError(
        "insufficient_cpus",
        f"living processes claim every CPU of device {device}",
        seen=f"CPUs {format_cpu_list(cpus_of(pool))}, the last of them claimed by process {claim.pid}",
        wanted="at least one core that nobody claims",
        remedy=f"End process {claim.pid} or bind it elsewhere, or allow this process other CPUs.",
    )


def _overlap(claim: Claim, effect: str) -> Finding:
    message = f"{title(claim)} holds CPUs {format_cpu_list(claim.cpus)}: {effect}"
    return Finding(
        "warning", "claim_overlap", message, f"Give both the same allowance and strategy, or end process {claim.pid}."
    )
