"""The plan that an engine has for its threads and its memory, kept where `homenode verify` finds it while the engine
serves.

    {"format": "homenode-engine/1", "boot", "pid", "start", "parent", "policy", "cpus": [...], "ranges": [{"use",
    "address", "size", "nodes"}]}

A file for each engine in the state folder, as many as 4 MiB hold: some ten thousand ranges of up to 64 MiB each. It
counts as long as its process lives: number and start together name it. Files of engines that have ended go when the
next one leaves its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from homenode.cpuset import format_cpu_list
from homenode.errors import HostError
from homenode.host.bind.base.report import ActionResult, Report, skipped
from homenode.host.bind.base.state import State, boot_id
from homenode.host.bind.base.syscalls import Syscalls
from homenode.host.bind.base.threads import ProcessId, alive, identify
from homenode.host.bind.masks import read_masks
from homenode.host.bind.memory.residency import NodeResidency, PlannedRange, node_residencies
from homenode.host.topology.finding import Finding
from homenode.units import format_bytes, format_count

_FORMAT = "homenode-engine/1"
_NAMES = {"weights": "weights", "kv": "KV memory", "scratch": "threads' own memory"}
_REMEDY = "Start the engine again; `homenode doctor` tells what moves pages and threads on this host."


@dataclass(frozen=True, slots=True)
class RecordedPlan:
    """`policy`: of --numa, empty where none was asked for. `cpus`: of the compute threads that are pinned. `ranges`: by
    use, `weights`, `kv` and `scratch`."""

    policy: str
    cpus: tuple[int, ...]
    ranges: Mapping[str, Sequence[PlannedRange]]


def record_plan(state: State, plan: RecordedPlan) -> None:
    """Leave the plan of this process. Raises HostError where the folder cannot be written."""
    for name in state.names(_folder()):
        if _process_of(state, name) is None:
            state.remove(f"{_folder()}/{name}")
    process = identify(os.getpid())
    ranges = [
        {"use": use, "address": part.address, "size": part.size, "nodes": list(part.nodes)}
        for use, parts in plan.ranges.items()
        for part in parts
    ]
    saved = {"boot": boot_id(), "pid": process.pid, "start": process.start, "parent": os.getppid()}
    state.save(
        f"{_folder()}/{process.pid}.json",
        {"format": _FORMAT, **saved, "policy": plan.policy, "cpus": plan.cpus, "ranges": ranges},
    )


def recorded_plans(state: State, pid: int) -> dict[int, RecordedPlan]:
    """The plans of process `pid`, or of the engines that it has started, by process number; none where it is no
    engine's."""
    found = {}
    for name in state.names(_folder()):
        process = _process_of(state, name)
        raw = state.load(f"{_folder()}/{name}") or {}
        if process is not None and pid in (process.pid, raw.get("parent")):
            found[process.pid] = _plan(raw)
    return found


def plans_changed_at(state: State) -> float:
    """Return when a plan was last left or taken away, in Unix seconds; 0 where there never was one."""
    try:
        return (state.folder / _folder()).stat().st_mtime
    except OSError:
        return 0.0


def verify_plan(pid: int, plan: RecordedPlan, calls: Syscalls | None = None) -> Report:
    """Ask the kernel for the CPUs of all threads of process `pid` and for the node of every page of its plan.

    Raises UserError for a process that is not there, HostError for one that this user may not look into.
    """
    calls = calls or Syscalls()
    masks = [mask for _, mask in read_masks(identify(pid), calls).values()] if plan.cpus else []
    report = report_threads(pid, plan, masks)
    for use, ranges in plan.ranges.items():
        if ranges:
            report += _pages(pid, use, ranges, calls)
    return report


def report_threads(pid: int, plan: RecordedPlan, masks: Iterable[Sequence[int]]) -> Report:
    """The report of the compute threads of engine `pid`, from the CPUs that each of its threads may run on."""
    if not plan.cpus:
        return Report((skipped("threads", "they were not pinned"),))
    pinned = {mask[0] for mask in masks if len(mask) == 1}
    missing = sorted(set(plan.cpus) - pinned)
    told = f"{format_count(len(plan.cpus), 'compute thread')}, on CPUs {format_cpu_list(sorted(plan.cpus))}"
    if not missing:
        return Report((ActionResult("threads", "done", told),))
    message = (
        f"no thread of engine {pid} is pinned to CPUs {format_cpu_list(missing)} any more, where compute threads "
        "were planned"
    )
    remedy = f"Look whether those CPUs are online and in its cpuset. {_REMEDY}"
    return Report((ActionResult("threads", "failed", told),), (Finding("error", "thread_off_plan", message, remedy),))


def _pages(pid: int, use: str, ranges: Sequence[PlannedRange], calls: Syscalls) -> Report:
    lines = node_residencies(ranges, calls, pid=pid)
    if lines is None:
        return Report((skipped(use, "this kernel, or its container, does not tell where pages are"),))
    findings = tuple(_off_plan(pid, use, line) for line in lines if line.local < line.present)
    told = ", ".join(f"{_where(line)}: {format_bytes(line.local)} of {format_bytes(line.present)}" for line in lines)
    return Report((ActionResult(use, "failed" if findings else "done", told),), findings)


def _off_plan(pid: int, use: str, line: NodeResidency) -> Finding:
    away = line.present - line.local
    message = (
        f"of {format_bytes(line.present)} of {_NAMES[use]} of engine {pid} planned for {_where(line)}, "
        f"{format_bytes(away)} lie elsewhere"
    )
    return Finding("error", "pages_off_plan", message, _REMEDY)


def _where(line: NodeResidency) -> str:
    return f"node {line.node}" if line.node >= 0 else "all nodes in turn"


def _process_of(state: State, name: str) -> ProcessId | None:
    """The living process that left this file; None where it has ended, or the file is none of ours."""
    raw = state.load(f"{_folder()}/{name}")
    try:
        if raw is None or raw["format"] != _FORMAT or raw["boot"] != boot_id():
            return None
        process = ProcessId(int(raw["pid"]), int(raw["start"]))
        return process if name == f"{process.pid}.json" and alive(process) else None
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def _plan(raw: Mapping[str, Any]) -> RecordedPlan:
    try:
        parts = [(str(one["use"]), _range(one)) for one in raw["ranges"]]
        ranges = {use: tuple(part for of, part in parts if of == use) for use in _NAMES}
        return RecordedPlan(str(raw["policy"]), _whole_numbers(raw["cpus"]), ranges)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise HostError(f"what engine {raw.get('pid')} has left in the state folder is damaged: {error!r}") from None


def _range(raw: Mapping[str, Any]) -> PlannedRange:
    address, size = _whole_numbers((raw["address"], raw["size"]))
    return PlannedRange(address, size, _whole_numbers(raw["nodes"]))


def _whole_numbers(values: Iterable[Any]) -> tuple[int, ...]:
    found = tuple(int(value) for value in values)
    if any(value < 0 or value >= 1 << 63 for value in found):
        raise ValueError(f"{found} are no CPUs, nodes or addresses")
    return found


def _folder() -> str:
    """Numbers of processes mean something within one pid namespace only."""
    try:
        return f"engines-{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return "engines"
