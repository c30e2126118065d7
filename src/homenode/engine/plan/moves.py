"""The place to which an engine that runs goes when those beside it on its host come and go. Pure.

Compute threads leave a core that somebody else claims, or that another thread of the engine has, for a free one that is
quiet, or no busier, and a slower kind of core for a faster one. They stay on their node, where their memory is: where
it has no such core they stay where they are. Each move takes a core that nobody had, and leaves one that was shared or
slower, so engines that look one after the other come to rest after a few moves, whoever begins, and nobody goes back.
What does not compute keeps clear of the cores that others compute on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from homenode.engine.binding import EngineBinding
from homenode.engine.plan.free_cores import cpus_for_the_rest
from homenode.engine.plan.placement import UNPINNED, core_of
from homenode.engine.plan.quota_sets import with_cpus_of_sets, with_sets
from homenode.host.plan.neighbours import CoreUse, HostNeighbours, core_uses
from homenode.host.topology.host import Host


class RestPlace(Enum):
    """The place for what does not compute: anywhere; among the CPUs that settings gave it and the compute threads
    together; on those that it has, which no thread is to compute on.
    """

    ANYWHERE = "anywhere"
    WITHIN = "within"
    RESERVED = "reserved"


@dataclass(frozen=True)
class EnginePlaces:
    """`workers`: the place of each, a worker that computes on no CPU with an empty team. `rest`: CPUs of what does not
    compute, empty: wherever it is. `takes_sets`: see `quota_sets`.
    """

    workers: tuple[EngineBinding, ...]
    rest: tuple[int, ...] = ()
    rest_place: RestPlace = RestPlace.ANYWHERE
    takes_sets: bool = False

    @property
    def team(self) -> tuple[int, ...]:
        """The CPU of every compute thread that is bound."""
        return tuple(cpu for binding in self.workers for cpu in binding.team if cpu != UNPINNED)


@dataclass(frozen=True)
class _CorePlacement:
    """The threads, by number, that an engine has together on one core, and the CPU of each."""

    core: CoreUse
    threads: tuple[int, ...]
    cpus: tuple[int, ...]
    shared: bool


def moved_places(host: Host, places: EnginePlaces, neighbours: HostNeighbours) -> EnginePlaces:
    """The places beside these neighbours; the same ones where none are better. `host`: all that the engine may use."""
    reserved = places.rest if places.rest_place is RestPlace.RESERVED else ()
    team = moved_team(host, places.team, neighbours, reserved)
    own, workers = iter(team), []
    for binding in places.workers:
        moved = tuple(cpu if cpu == UNPINNED else next(own) for cpu in binding.team)
        workers.append(replace(binding, team=moved, sets=()))
    found = _with_rest(host, replace(places, workers=tuple(workers)), places, neighbours)
    if not places.takes_sets:
        return found
    settled = with_sets(host, found.workers, neighbours)
    return replace(found, workers=settled, rest=with_cpus_of_sets(found.rest, settled))


def moved_workers(
    workers: Sequence[EngineBinding], before: EngineBinding, place: EngineBinding
) -> tuple[EngineBinding, ...]:
    """The places of the workers of one of several engines that goes from one place to another of as many threads."""
    to = dict(zip(before.team, place.team, strict=True))
    sets = dict(zip(place.team, place.sets, strict=False))
    found = []
    for binding in workers:
        team = tuple(to.get(cpu, cpu) for cpu in binding.team)
        others = {to.get(cpu, cpu) for each in workers if each is not binding for cpu in each.team}
        own = tuple(tuple(cpu for cpu in sets[at] if cpu not in others) for at in team) if sets else ()
        moved = replace(binding, team=team, sets=own)
        rest = place.others or place.spare
        found.append(replace(moved, others=rest) if binding.others else replace(moved, spare=rest))
    return tuple(found)


def _with_rest(host: Host, moved: EnginePlaces, before: EnginePlaces, neighbours: HostNeighbours) -> EnginePlaces:
    """Return the engines with places for what does not compute, by those of before."""
    if moved.rest_place is RestPlace.RESERVED:
        return moved

    def rest(had: Sequence[int], team_before: Sequence[int], team: tuple[int, ...]) -> tuple[int, ...]:
        """Return where those of this team may be, who had these CPUs."""
        within = {*had, *team_before, *team} if moved.rest_place is RestPlace.WITHIN else set(host.allowance.cpus)
        clear = set(cpus_for_the_rest(host, moved.team, neighbours)) & within
        cores = {core_of(host, cpu) for cpu in moved.team}
        free = {cpu for cpu in clear if core_of(host, cpu) not in cores}
        own = {core_of(host, cpu) for cpu in team}
        return tuple(sorted(free or {cpu for cpu in host.allowance.cpus if core_of(host, cpu) in own}))

    everybody, workers = rest(before.rest, before.team, moved.team), []
    for binding, old in zip(moved.workers, before.workers, strict=True):
        apart = moved.rest_place is RestPlace.WITHIN
        own = rest(old.others, old.team, binding.team) if apart else everybody
        workers.append(replace(binding, others=own) if old.others else replace(binding, spare=everybody))
    return replace(moved, workers=tuple(workers), rest=everybody)


def moved_team(
    host: Host, team: Sequence[int], neighbours: HostNeighbours, reserved: Sequence[int] = ()
) -> tuple[int, ...]:
    """The CPU of each compute thread, those that share a core first served. `reserved`: CPUs that none may have."""
    uses = core_uses(host, neighbours)
    taken = {core_of(host, cpu) for cpu in (*team, *reserved)}
    free = [use for use in uses if use.free and use.core.id not in taken]
    moved = list(team)
    for held in sorted(_core_placements(host, uses, team), key=lambda held: (not held.shared, held.core.core.standing)):
        if better := [use for use in free if _is_better(use, held)]:
            chosen = min(better, key=lambda use: _preference(host, use, held))
            free.remove(chosen)
            for thread, cpu in zip(held.threads, held.cpus, strict=True):
                moved[thread] = chosen.core.cpus[sorted(set(held.cpus)).index(cpu)]
    return tuple(moved)


def _core_placements(host: Host, uses: Sequence[CoreUse], team: Sequence[int]) -> list[_CorePlacement]:
    """One for each core; where several threads have the same CPU, one for each time it is had."""
    by_core = {use.core.id: use for use in uses}
    turns: dict[tuple[int, int], list[int]] = {}
    for thread, cpu in enumerate(team):
        if (core := core_of(host, cpu)) in by_core:
            turn = sum(other == cpu for other in team[:thread])
            turns.setdefault((core, turn), []).append(thread)
    return [
        _CorePlacement(
            by_core[core], tuple(threads), tuple(team[each] for each in threads), bool(turn or by_core[core].claims)
        )
        for (core, turn), threads in turns.items()
    ]


def _is_better(use: CoreUse, held: _CorePlacement) -> bool:
    """Return whether it is worth to go there: from a core of one's own only to a faster kind of core."""
    own = held.core.core
    fits = use.core.node == own.node and len(use.core.cpus) >= len(set(held.cpus))
    calm = use.quiet or use.busy <= held.core.busy
    return fits and calm and (held.shared or use.core.standing > own.standing)


def _preference(host: Host, use: CoreUse, held: _CorePlacement) -> tuple[object, ...]:
    """Quiet ones first, then the fastest, then those at the same cache, then in the order of their numbers."""
    here, there = host.cpu_by_id[held.cpus[0]], host.cpu_by_id[use.core.cpus[0]]
    slowness = tuple(-int(part) for part in use.core.standing)
    return not use.quiet, slowness, here.l3 != there.l3, use.core.cpus
