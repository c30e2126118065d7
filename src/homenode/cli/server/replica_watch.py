"""Moves the engines of one service when others of this host come and go: their CPUs are claimed by what has started
them, which therefore looks for all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from homenode.engine.binding import EngineBinding
from homenode.engine.plan.free_cores import takes_lists
from homenode.engine.plan.moves import EnginePlaces, RestPlace
from homenode.engine.plan.placement import UNPINNED
from homenode.engine.plan.replica_assignments import ClaimedEngines
from homenode.engine.router.supervisor import EngineSupervisor
from homenode.engine.runtime.neighbour_watch import NeighbourWatch
from homenode.host.bind.base.threads import descendants


class ReplicaMover:
    """`MovableExecutor` over several engines, each of which is what a worker is to one engine."""

    def __init__(self, supervisors: Sequence[EngineSupervisor[Any]], loop: asyncio.AbstractEventLoop) -> None:
        """`loop`: where supervisors are used."""
        self._supervisors, self._loop = supervisors, loop

    @property
    def processes(self) -> tuple[int, ...]:
        """See `MovableExecutor.processes`: the engines, and their workers."""
        found = [supervisor.client.pid for supervisor in self._supervisors if supervisor.up]
        return tuple(each for pid in found if pid is not None for each in (pid, *descendants(pid)))

    def move(self, places: Sequence[EngineBinding]) -> None:
        """See `MovableExecutor.move`."""
        self._loop.call_soon_threadsafe(self._tell, tuple(places))

    def _tell(self, places: Sequence[EngineBinding]) -> None:
        for supervisor, place in zip(self._supervisors, places, strict=True):
            supervisor.move(place)


class ReplicaWatch:
    """A `NeighbourWatch` over the engines of a service, from the beginning of a `with` block to its end."""

    def __init__(
        self, watch: NeighbourWatch, loop: asyncio.AbstractEventLoop, move_rest: Callable[[tuple[int, ...]], None]
    ) -> None:
        self._watch, self._loop, self._move_rest = watch, loop, move_rest

    def __enter__(self) -> ReplicaWatch:
        self._watch.start(self._rest_changed)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.stop()

    def _rest_changed(self, cpus: tuple[int, ...]) -> None:
        self._loop.call_soon_threadsafe(self._move_rest, cpus)


def watch_replicas(
    claimed: ClaimedEngines,
    supervisors: Sequence[EngineSupervisor[Any]],
    move_rest: Callable[[tuple[int, ...]], None],
) -> ReplicaWatch | None:
    """None where they stay: settings list their CPUs, or they have claimed none. To be called in the event loop.
    `move_rest` is called there with the CPUs for processes that compute nothing."""
    config = claimed.assignments[0].config
    bindings = tuple(each.replica.binding for each in claimed.assignments if each.replica is not None)
    if claimed.host is None or not claimed.claim.cpus or takes_lists(config.placement, claimed.host):
        return None
    if any(binding.workers or UNPINNED in binding.team for binding in bindings):
        return None
    rest = tuple(sorted({cpu for binding in bindings for cpu in binding.others}))
    sets = any(binding.sets for binding in bindings)
    places = EnginePlaces(bindings, rest, RestPlace.WITHIN, sets)
    loop = asyncio.get_running_loop()
    mover = ReplicaMover(supervisors, loop)
    return ReplicaWatch(
        NeighbourWatch(claimed.host, places, claimed.claim, claimed.others, mover, False), loop, move_rest
    )
