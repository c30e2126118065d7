"""Where the compute threads of engines are, against where they were planned: CPU by CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from homenode.errors import HomenodeError
from homenode.host.bind.base.report import Report
from homenode.host.bind.base.state import State
from homenode.host.bind.base.syscalls import Syscalls
from homenode.host.bind.base.threads import identify
from homenode.host.bind.engine_plan import RecordedPlan, recorded_plans, report_threads
from homenode.host.bind.masks import Cpus, read_masks


@dataclass(frozen=True, slots=True)
class ThreadPlace:
    """A CPU on which a compute thread of engine `pid` was planned. `thread`: the one that is bound to it; None where
    there is none: it has strayed.
    """

    cpu: int
    pid: int
    thread: int | None

    @property
    def strayed(self) -> bool:
        """Return whether no thread is bound to the CPU any more."""
        return self.thread is None


@dataclass(frozen=True)
class EngineThreads:
    """The compute threads of one engine. `elsewhere`: threads that are bound to a single CPU which was not planned, by
    that CPU, where some have strayed.
    """

    pid: int
    places: tuple[ThreadPlace, ...]
    elsewhere: Mapping[int, int]
    report: Report


def engine_plans(state: State, pids: Sequence[int]) -> dict[int, RecordedPlan]:
    """The plans of all engines that one of `pids` has started, of workers that these have started, and of `pids`."""
    found: dict[int, RecordedPlan] = {}
    asked = list(pids)
    while asked:
        new = {pid: plan for pid, plan in recorded_plans(state, asked.pop()).items() if pid not in found}
        found |= new
        asked += new
    return found


def look_at_threads(pid: int, plan: RecordedPlan, calls: Syscalls | None = None) -> EngineThreads | None:
    """Ask the kernel for the CPUs of all threads of an engine; None where it has ended, or may not be looked at."""
    if not plan.cpus:
        return EngineThreads(pid, (), {}, report_threads(pid, plan, ()))
    try:
        masks = {thread.tid: cpus for thread, cpus in read_masks(identify(pid), calls or Syscalls()).values()}
    except (HomenodeError, OSError):
        return None
    return place_threads(pid, plan, masks) if masks else None


def place_threads(pid: int, plan: RecordedPlan, masks: Mapping[int, Cpus]) -> EngineThreads:
    """Compare the CPUs of threads, by thread number, with the plan."""
    bound: dict[int, int] = {}
    for tid, cpus in masks.items():
        if len(cpus) == 1:
            bound.setdefault(cpus[0], tid)
    places = tuple(ThreadPlace(cpu, pid, bound.get(cpu)) for cpu in plan.cpus)
    strayed = any(place.strayed for place in places)
    elsewhere = {cpu: tid for cpu, tid in bound.items() if cpu not in plan.cpus} if strayed else {}
    return EngineThreads(pid, places, elsewhere, report_threads(pid, plan, tuple(masks.values())))
