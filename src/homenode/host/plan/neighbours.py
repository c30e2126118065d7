"""Neighbours: who else uses the CPUs of a host, and which of its cores are free beside them. Pure: who lives, and what
each CPU does, is found out elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from homenode.host.plan.demand import Claim
from homenode.host.plan.resources.cores import AllowedCore, allowed_cores
from homenode.host.topology.host import Host

BUSY = 0.5  # of a short look: what a quiet machine does by itself stays well below


@dataclass(frozen=True)
class HostNeighbours:
    """`claims`: of living processes, without those of whoever asks. `busy`: for each CPU the part (0 to 1) of a short
    look in which anybody else ran there; empty where nobody looked."""

    claims: tuple[Claim, ...] = ()
    busy: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))

    def __bool__(self) -> bool:
        return bool(self.claims or self.busy)


@dataclass(frozen=True, slots=True)
class CoreUse:
    """A core, how many processes claim CPUs of it, and the part of a short look in which others ran there."""

    core: AllowedCore
    claims: int
    busy: float

    @property
    def free(self) -> bool:
        """Return whether nobody claims it."""
        return not self.claims

    @property
    def quiet(self) -> bool:
        """Return whether nobody claims it and hardly anybody runs there."""
        return not self.claims and self.busy < BUSY


def core_uses(host: Host, neighbours: HostNeighbours, nodes: Collection[int] | None = None) -> list[CoreUse]:
    """Every core that this process may use, on these nodes (None: on all), in the order in which cores are given out.
    A core is claimed as a whole: whoever computes on its other CPU slows this one down."""
    cores = [core for node, own in allowed_cores(host).items() if nodes is None or node in nodes for core in own]
    claimed = [claimed_cores(host, claim) for claim in neighbours.claims]
    return [
        CoreUse(
            core,
            sum(core.id in taken for taken in claimed),
            max((neighbours.busy.get(cpu, 0.0) for cpu in core.cpus), default=0.0),
        )
        for core in cores
    ]


def claimed_cores(host: Host, claim: Claim) -> set[int]:
    """The names of the cores of which a claim has CPUs."""
    return {host.cpu_by_id[cpu].core for cpu in claim.cpus if cpu in host.cpu_by_id}


def least_used(uses: Iterable[CoreUse]) -> list[CoreUse]:
    """Return those that nobody claims and hardly anybody uses first, then by claims and by use; of equal ones the
    faster first.
    """
    return sorted(uses, key=lambda use: (use.claims, use.busy if use.busy >= BUSY else 0.0, _slowness(use.core)))


def _slowness(core: AllowedCore) -> tuple[int, ...]:
    return tuple(-int(part) for part in core.standing)


def title(claim: Claim) -> str:
    """Return whose claim it is, in words."""
    return f"process {claim.pid}{f' ({claim.name})' if claim.name else ''}"
