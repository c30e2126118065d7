"""The part of this host that models may have beside others who compute here."""

from __future__ import annotations

from homenode.engine.config import EngineConfig
from homenode.engine.cpu_claims import claims_of_others
from homenode.engine.plan.free_cores import keep_clear
from homenode.host.plan.neighbours import HostNeighbours
from homenode.host.topology.host import Host


def beside_neighbours(host: Host) -> Host:
    """The host without the cores that others claim, as far as enough is left."""
    return keep_clear(host, EngineConfig(), 1, HostNeighbours(claims_of_others()))[0]
