"""Findings about who has been given which CPUs of a host, and who has to share them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any

from homenode.cpuset import format_cpu_list
from homenode.host.plan.demand import Claim
from homenode.host.plan.neighbours import claimed_cores, title
from homenode.host.topology.finding import Finding
from homenode.host.topology.host import Host
from homenode.units import format_count


def kind_of(claim: Claim) -> str:
    """engine: threads of the process itself compute there. devices: it drives accelerators from there. program: it was
    given these CPUs, for itself and whatever it starts."""
    return "engine" if claim.computes else "devices" if claim.devices else "program"


def claim_to_dict(claim: Claim) -> dict[str, Any]:
    """Return the claim as JSON has it."""
    return {
        "pid": claim.pid,
        "kind": kind_of(claim),
        "name": claim.name,
        "cpus": format_cpu_list(claim.cpus),
        "devices": list(claim.devices),
    }


def claim_findings(host: Host, claims: Sequence[Claim]) -> Iterable[Finding]:
    """A finding for each claim, and for each two of programs that have a core in common while neither started the
    other."""
    for claim in claims:
        devices = f", devices {format_cpu_list(claim.devices)}" if claim.devices else ""
        message = f"{title(claim)} has CPUs {format_cpu_list(claim.cpus) or 'none'}{devices} ({kind_of(claim)})"
        yield Finding("info", "cpus_claimed", message)
    for one, other in combinations([claim for claim in claims if claim.computes], 2):
        if common := claimed_cores(host, one) & claimed_cores(host, other):
            message = (
                f"{title(one)} and {title(other)} compute on the same {format_count(len(common), 'core')} "
                f"(CPUs {format_cpu_list(cpu for core in sorted(common) for cpu in host.cores[core])})"
            )
            remedy = "Give each --threads so that they fit side by side, or end one: the other moves to what is free."
            yield Finding("warning", "claims_overlap", message, remedy)
