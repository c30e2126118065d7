"""Whom a plan that is only printed disregards: processes of this host that have its CPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from homenode.cli.placement.plan_flags import PlanFlags

if TYPE_CHECKING:
    from homenode.host.topology.finding import Finding
    from homenode.host.topology.host import Host


def claims_on(flags: PlanFlags, host: Host, cpus: Sequence[int]) -> list[Finding]:
    """A finding for each process that has some of these CPUs; none for a recorded host, on which nobody lives. A plan
    says what its flags come to, whoever runs now."""
    from homenode.host.bind.claims import living_claims
    from homenode.host.plan.claimed import overlaps

    if flags.source is not None:
        return []
    why = (
        "this plan is made as if nobody ran; run, bind and serve, and what they print beforehand, keep clear of claims"
    )
    return [replace(finding, severity="info") for finding in overlaps(host, living_claims(), cpus, why)]
