"""The way from a model's place to the assignment of each of its engines: they have the model's CPUs to themselves, and
divide them as the engines of a service divide a host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from homenode.engine.assignment import EngineAssignment
from homenode.engine.binding import Replica
from homenode.engine.config import EngineConfig, PlacementConfig
from homenode.engine.plan.inline import place_of_engine, with_numa_decided
from homenode.engine.plan.placement import cut
from homenode.engine.plan.replica_assignments import replica_assignments
from homenode.engine.plan.replica_bindings import replica_places
from homenode.engine.plan.unbound import unbound
from homenode.host.bind.base.optional_calls import affinity_refusal
from homenode.host.plan.neighbours import HostNeighbours
from homenode.host.topology.host import Host
from homenode.model.checkpoint.index import OpenedCheckpoint


def assign_model(
    config: EngineConfig, checkpoint: OpenedCheckpoint, host: Host, cpus: Sequence[int], *, shared: bool
) -> tuple[EngineAssignment, ...]:
    """The assignments of the engines of a model on these CPUs of a host. `shared`: other models compute there, too, so
    that no thread may watch for work. Raises what placing an engine raises.
    """
    own = replace(host, allowance=cut(host, host.allowance, tuple(cpus)))
    placement = config.placement
    if placement.reserve_cpus is None:  # what is kept for the server is kept of the host
        config = replace(config, placement=replace(placement, reserve_cpus=0))
    if shared:
        config = replace(config, compute=replace(config.compute, spin_us=0))
    if config.may_be_several:
        made = replica_assignments(config, own, HostNeighbours())
        if made[0].replica is not None:
            return made
    assignment = EngineAssignment(config)
    if config.parallel.workers > 1:
        binding = replica_places(own, _without_policy(config), 1)[0]  # its workers divide it, by the policy if any
    else:
        assignment = with_numa_decided(assignment, checkpoint, own, None)
        by_policy = assignment.numa_decision is not None or config.placement.numa is not None
        binding = place_of_engine(assignment, checkpoint, own) if by_policy else replica_places(own, config, 1)[0]
    crowded = tuple(found for found in binding.findings if found.code != "too_few_cores")  # the plan of all says it
    binding = unbound(replace(binding, findings=crowded), affinity_refusal())
    replica = Replica(0, 1, binding, own.allowance.cpus)
    return (replace(assignment, replica=replica),)


def _without_policy(config: EngineConfig) -> EngineConfig:
    """Return the settings without --numa, and what goes with it."""
    usual = PlacementConfig()
    names = ("numa", "numa_nodes", "numa_mirror_tensors", "numa_strict", "numa_measured")
    return replace(config, placement=replace(config.placement, **{name: getattr(usual, name) for name in names}))
