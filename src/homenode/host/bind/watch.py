"""Keep an eye on a bound process: threads born late are bound as they appear, others that leave the plan are reported
and, if asked, put back."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from homenode.cpuset import format_cpu_list
from homenode.host.bind.base.report import ActionResult, Report
from homenode.host.bind.base.syscalls import Syscalls
from homenode.host.bind.base.target import Target
from homenode.host.bind.base.threads import ProcessId, Thread, identify, wanted_cpus
from homenode.host.bind.masks import Cpus, Masks, explain, one_pass
from homenode.host.bind.verify import drift_finding
from homenode.host.topology.finding import Finding

_GROWTH = 1.25
_SHORTEST_S = 0.01  # between two looks: a smaller wish would keep a CPU busy


def watch(
    pid: int,
    target: Target,
    *,
    every_s: float = 1.0,
    slowest_s: float | None = None,
    until: float | None = None,
    on_report: Callable[[Report], None],
    bind_late: bool = True,
    repair: bool = False,
    calls: Syscalls | None = None,
) -> Report:
    """Look at process `pid` every `every_s` seconds, until it ends or until `until` (a time of time.monotonic()); the
    last look's report.

    With `slowest_s` the pauses grow up to that while there is nothing to do: looking at a process of hundreds of
    threads is not free.

    `bind_late`: threads that are new, or have taken a name with a role of its own, are bound when they are off the
    plan. Any other thread off the plan is reported, once for each mask it is seen with, and put back if `repair`. With
    neither, nothing is touched. `on_report` gets a report at once whenever there is something to tell. Raises UserError
    for a process that is not there.
    """
    watched = _Watched(identify(pid), target, calls or Syscalls(), bind_late, repair)
    ending = _Ending(pid)
    pause = every_s
    try:
        while True:
            report = watched.check()
            if report.steps or report.findings:
                on_report(report)
                pause = every_s
            left = pause if until is None else min(pause, until - time.monotonic())
            pause = min(pause * _GROWTH, max(every_s, slowest_s or every_s))
            if watched.gone or (until is not None and left <= 0) or ending.wait(max(left, _SHORTEST_S)):
                return report
    finally:
        ending.close()


@dataclass
class _Watched:
    """A record of the threads. `known`: the mask each is to have, by thread key; `reported`: the masks that were
    off the plan and reported.
    """

    process: ProcessId
    target: Target
    calls: Syscalls
    bind_late: bool
    repair: bool
    known: dict[tuple[int, int], Cpus] = field(default_factory=dict)
    reported: dict[tuple[int, int], Cpus] = field(default_factory=dict)
    refused: set[tuple[int, int]] = field(default_factory=set)
    gone: bool = False
    _seen: set[tuple[int, int]] = field(default_factory=set)
    _drifted: list[tuple[Thread, Cpus, Cpus]] = field(default_factory=list)

    def check(self) -> Report:
        """One pass over all threads: what was done and found."""
        journal = Masks(self.process)
        self._seen, self._drifted = set(), []
        one_pass(journal, self._planned_mask, self.calls)
        self.gone = journal.gone
        findings = [drift_finding(self.process.pid, *each) for each in self._drifted]
        steps = []
        for key, (thread, before) in journal.before.items():
            if key in journal.checked:
                self.reported.pop(key, None)  # put back: should it leave again, that is news
                detail = (
                    f"{thread.tid} ({thread.name}) from CPUs {format_cpu_list(before)} to "
                    f"{format_cpu_list(self.known[key])}"
                )
                steps.append(ActionResult("affinity", "done", detail))
        if journal.refusal is not None:
            self.refused.add(journal.refusal.thread.key)
            what, remedy = explain(self.process, journal.refusal)
            steps.append(ActionResult("affinity", "failed", what))
            findings.append(Finding("error", "affinity_refused", what, remedy))
        else:
            self._forget_ended()
        return Report(tuple(steps), tuple(findings))

    def _forget_ended(self) -> None:
        """Drop what is known of threads that the last look, a whole one, has not met: programs may start and end
        millions."""
        self.known = {key: cpus for key, cpus in self.known.items() if key in self._seen}
        self.reported = {key: cpus for key, cpus in self.reported.items() if key in self._seen}
        self.refused &= self._seen

    def _planned_mask(self, thread: Thread, seen: Cpus) -> Cpus | None:
        """The mask to give to a thread now; None where it is on the plan, or is not to be touched."""
        self._seen.add(thread.key)
        cpus = wanted_cpus(thread.name, self.target)
        fresh = self.known.get(thread.key) != cpus
        self.known[thread.key] = cpus
        if not cpus or set(cpus) == set(seen):
            self.reported.pop(thread.key, None)
            return None
        late = fresh and self.bind_late
        if not late and self.reported.get(thread.key) != seen:
            self.reported[thread.key] = seen
            self._drifted.append((thread, seen, cpus))
        return cpus if (late or self.repair) and thread.key not in self.refused else None


class _Ending:
    """Waits for a process to end through a pidfd (pidfd_open(2)), or just waits where the kernel is older than 5.3."""

    def __init__(self, pid: int) -> None:
        try:
            self._descriptor: int | None = os.pidfd_open(pid)
        except OSError:
            self._descriptor = None

    def wait(self, seconds: float) -> bool:
        """Wait that long, or until the process has ended; whether it is known to have."""
        if self._descriptor is None:
            time.sleep(seconds)
            return False
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def close(self) -> None:
        """Give the descriptor back."""
        if self._descriptor is not None:
            os.close(self._descriptor)
