"""From the settings of a service to those of each of its engines: reads the machine once, before any of them takes memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from homenode.engine.config import EngineConfig
from homenode.engine.place import EnginePlace, Replica
from homenode.engine.replicas.places import memory_shares, replica_places
from homenode.engine.settle import memory_room
from homenode.host.topology.allowance import Allowance
from homenode.host.topology.host import Host
from homenode.host.topology.read import read_host
from homenode.host.topology.source import LiveSource


def replica_configs(config: EngineConfig) -> tuple[EngineConfig, ...]:
    """The config of each engine that --data-parallel-size asks for; the one that was given when that is 1. Raises as `replica_places`."""
    count = config.parallel.data_parallel_size
    if count == 1:
        return (config,)
    host = read_host(LiveSource(), accelerators=False)
    return configs_in(config, host, replica_places(host, config, count))


def configs_in(config: EngineConfig, host: Host, places: Sequence[EnginePlace]) -> tuple[EngineConfig, ...]:
    """A config for an engine in each of these places, with its share of the memory that is free now."""
    rooms = [memory_room(place) for place in places]
    shares = memory_shares([(room.size, room.nodes) for room in rooms], Allowance.of_process().memory_available)
    return tuple(
        replace(config, replica=Replica(number, len(places), place, host.allowance.cpus, share))
        for number, (place, share) in enumerate(zip(places, shares, strict=True))
    )
