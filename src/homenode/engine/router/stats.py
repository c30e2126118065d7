"""The figures of several engines as one. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import msgspec

from homenode.engine.binding import EngineBinding
from homenode.engine.messages import DiskStats, EngineReady, EngineStats, QueueLimits
from homenode.transfer import scheduler_events
from homenode.units import format_count

# Fields of `EngineStats` that are of now; all others count since the start.
_GAUGES = ("num_running", "num_waiting", "waiting_for", "waiting_for_kv", "kv_usage", "step_errors", "compute")
_PARTS = ("transfer", "states", "disk")  # those that have counters and gauges of their own
_COUNTERS = tuple(name for name in EngineStats.__struct_fields__ if name not in (*_GAUGES, *_PARTS))
_OF_ONE_ENGINE = ("kv_usage", "step_errors", "compute", *_PARTS)  # those that say nothing when they are added

_DISK_GAUGES = ("nbytes", "parked_bytes")


def since_start(before: EngineStats, now: EngineStats) -> EngineStats:
    """Counters over a restart: those of the engine that was lost and those of its successor. Gauges are of now."""
    counters = {name: _added([getattr(before, name), getattr(now, name)]) for name in _COUNTERS}
    transfer = scheduler_events.over_restart(before.transfer, now.transfer)
    states = now.states
    if before.states is not None:
        after = states or msgspec.structs.replace(before.states, used=0, snapshots=0, hits=0, recomputed_tokens=0)
        states = msgspec.structs.replace(
            after,
            hits=before.states.hits + after.hits,
            recomputed_tokens=before.states.recomputed_tokens + after.recomputed_tokens,
        )
    disk = _disk_since_start(before.disk, now.disk)
    return msgspec.structs.replace(now, **counters, transfer=transfer, states=states, disk=disk)


def _disk_since_start(before: DiskStats | None, now: DiskStats | None) -> DiskStats | None:
    if before is None or now is None:
        return now or before
    names = [name for name in DiskStats.__struct_fields__ if name not in _DISK_GAUGES]
    return msgspec.structs.replace(now, **{name: getattr(before, name) + getattr(now, name) for name in names})


def at_rest(last: EngineStats) -> EngineStats:
    """Return the figures of an engine that is no more: what it had counted, and nothing running."""
    transfer = None if last.transfer is None else scheduler_events.at_rest(last.transfer)
    states = None if last.states is None else msgspec.structs.replace(last.states, used=0, snapshots=0)
    disk = None if last.disk is None else msgspec.structs.replace(last.disk, parked_bytes=0)
    gauges: dict[str, Any] = {
        "num_running": 0,
        "num_waiting": 0,
        "waiting_for": {},
        "waiting_for_kv": 0,
        "kv_usage": 0.0,
    }
    return msgspec.structs.replace(last, **gauges, compute={}, transfer=transfer, states=states, disk=disk)


def total(parts: Sequence[EngineStats]) -> EngineStats:
    """Return the figures of all engines together; KV memory in use on average. What computes is told engine by engine
    only.
    """
    if not parts:
        return EngineStats()
    names = [name for name in EngineStats.__struct_fields__ if name not in _OF_ONE_ENGINE]
    added = {name: _added([getattr(part, name) for part in parts]) for name in names}
    return EngineStats(**added, kv_usage=sum(part.kv_usage for part in parts) / len(parts))


def all_ready(parts: Sequence[EngineReady], bindings: Sequence[EngineBinding]) -> EngineReady:
    """Return what all engines together hold, and of a single sequence what each of them takes."""
    first = parts[0]
    return msgspec.structs.replace(
        first,
        max_model_len=min(part.max_model_len for part in parts),
        num_blocks=sum(part.num_blocks for part in parts),
        queue=QueueLimits(*map(sum, zip(*(msgspec.structs.astuple(part.queue) for part in parts), strict=True))),
        details={
            **first.details,
            "engines": len(parts),
            "load_seconds": max(_number(part, "load_seconds") for part in parts),
            "weight_bytes": sum(_number(part, "weight_bytes") for part in parts),
            "shared_weight_bytes": sum(_number(part, "shared_weight_bytes") for part in parts),
            "kv_bytes": sum(_number(part, "kv_bytes") for part in parts),
            "state_slots": sum(_number(part, "state_slots") for part in parts),
            "state_bytes": sum(_number(part, "state_bytes") for part in parts),
            "kv_growth": f"each of {format_count(len(parts), 'engine')}: {growth}"
            if (growth := first.details.get("kv_growth"))
            else "",
            "notes": _notes(parts),
            "compute": _compute([part.details.get("compute") for part in parts]),
            "cpus": sorted({cpu for binding in bindings for cpu in binding.team if cpu >= 0}),
            "cpu_sets": sorted({cpu for binding in bindings for own in binding.sets for cpu in own}),
            "free_cpus": list(_free_cpus(bindings)),
            "kv_events": _kv_events(parts),
        },
    )


def _added(parts: Sequence[Any]) -> Any:
    """Numbers added up; lists place by place, where the longest has places beyond the others' ends; mappings name by
    name.
    """
    if isinstance(parts[0], Mapping):
        names = sorted({name for part in parts for name in part})
        return {name: _added([part[name] for part in parts if name in part]) for name in names}
    if isinstance(parts[0], list):
        return [sum(each) for each in zip_longest(*parts, fillvalue=0)]
    return sum(parts)


def _number(part: EngineReady, name: str) -> Any:
    found = part.details.get(name, 0)
    return found if isinstance(found, int | float) else 0


def _kv_events(parts: Sequence[EngineReady]) -> dict[str, Any]:
    """Where each engine tells what it holds, by its number."""
    told = [part.details.get("kv_events") for part in parts]
    return {number: source for each in told if isinstance(each, dict) for number, source in each.items()}


def _notes(parts: Sequence[EngineReady]) -> list[str]:
    """Return what all say is said once; anything else with the engine's number."""
    told: dict[str, list[int]] = {}
    for number, part in enumerate(parts):
        notes = part.details.get("notes")
        for note in notes if isinstance(notes, list) else ():
            told.setdefault(note, []).append(number)
    return [
        note if len(numbers) == len(parts) else f"engine {', '.join(map(str, numbers))}: {note}"
        for note, numbers in told.items()
    ]


def _compute(parts: Sequence[object]) -> dict[str, Any]:
    """The first one's figures, with threads and pages of all added up."""
    known = [part for part in parts if isinstance(part, dict)]
    found: dict[str, Any] = dict(known[0]) if known else {}
    if "threads" in found:
        found["threads"] = sum(part.get("threads", 0) for part in known)
    for name in ("weight_pages", "shared_pages", "kv_pages"):
        if isinstance(found.get(name), dict):
            found[name] = _added([part[name] for part in known if isinstance(part.get(name), dict)])
    return found


def _free_cpus(bindings: Sequence[EngineBinding]) -> tuple[int, ...]:
    """Return where the front disturbs no compute thread of any engine."""
    computing = {cpu for binding in bindings for cpu in binding.team}
    return tuple(
        sorted({cpu for binding in bindings for cpu in (binding.spare or binding.free_of_compute)} - computing)
    )
