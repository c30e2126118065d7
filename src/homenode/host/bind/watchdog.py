"""Look after a program that `run` has become: driver threads it starts later, workers it starts itself, interrupts to
give back at its end."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from homenode.errors import HomenodeError
from homenode.host.bind.apply import apply
from homenode.host.bind.base.report import Report
from homenode.host.bind.base.state import State
from homenode.host.bind.base.target import Target
from homenode.host.bind.base.threads import identify
from homenode.host.bind.follow import Follower, follow
from homenode.host.bind.irq import restore, route_target
from homenode.host.bind.rank_hints import RankHint, local_rank_of
from homenode.host.bind.sidecar import WriteLine, start_sidecar, to_stderr
from homenode.host.bind.undo import undo
from homenode.host.bind.watch import watch
from homenode.host.plan.demand import Parallelism
from homenode.host.topology.host import Host

_LOOK_EVERY_S, _SLOWEST_S = 0.25, 5.0


@dataclass
class Watchdog:
    """The care for one program. `state`: where interrupts are remembered; None: they are not routed, as they could
    not be given back.
    """

    host: Host
    state: State | None
    write_line: WriteLine = to_stderr
    _routed: list[int] = field(default_factory=list)

    def watch_worker(self, target: Target, shape: Parallelism | None = None) -> None:
        """Watch a program that is one worker: call it before binding and executing. Interrupts are routed now, driver
        threads as they come. `shape`: of a program that may start the worker itself, which is then bound as well.

        Nothing is left behind for a target that has neither.
        """
        self._route(os.getpid(), target)
        if not target.threads and not self._routed:
            return
        root = os.getpid()

        def task(pidfd: int | None) -> None:
            with suppress(HomenodeError):  # it ended before the first look
                watch(root, target, every_s=_LOOK_EVERY_S, slowest_s=_SLOWEST_S, on_report=self._print_findings)
            self._restore_interrupts()

        start_sidecar(task, self.write_line)
        if shape is not None and target.threads:
            self._watch_children(replace(target, irqs=()), shape)

    def _watch_children(self, target: Target, shape: Parallelism) -> None:
        """A process that calls itself the program's only worker has the program's target."""

        def target_for(hint: RankHint) -> Target | None:
            alone = shape.ranks_per_engine * shape.data_parallel_size == 1
            return target if hint.role == "worker" or (alone and hint.role == "engine_core") else None

        follower = Follower(identify(os.getpid()), target_for, apply, self.write_line)
        start_sidecar(lambda pidfd: follow(follower, pidfd), self.write_line)

    def watch_ranks(self, targets: Mapping[int, Target], shape: Parallelism) -> None:
        """Watch a program that starts its ranks itself: each is bound to its target when it shows which it is. Call it
        before binding.
        """

        def target_for(hint: RankHint) -> Target | None:
            rank = local_rank_of(hint, shape)
            return None if rank is None else targets.get(rank)

        follower = Follower(identify(os.getpid()), target_for, self._bind, self.write_line)

        def task(pidfd: int | None) -> None:
            follow(follower, pidfd)
            self._restore_interrupts()

        start_sidecar(task, self.write_line)

    def _bind(self, pid: int, target: Target) -> Report:
        report = apply(pid, target)
        if report.ok:
            self._route(pid, target)
        return report

    def _route(self, pid: int, target: Target) -> None:
        if self.state is None or not target.irqs or pid in self._routed:
            return
        report = route_target(pid, target, self.host, self.state)
        self._routed.append(pid)
        for step in report.steps:
            if step.outcome == "skipped":
                self.write_line(f"skipped: {step.what}: {step.detail}")
        self._print_findings(report)

    def _print_findings(self, report: Report) -> None:
        for finding in report.findings:
            self.write_line(f"{finding.severity}: {finding.text}")

    def _restore_interrupts(self) -> None:
        for pid in self._routed:
            if self.state is not None:
                with suppress(HomenodeError):  # nothing was remembered: nothing was changed
                    self._print_findings(undo(pid, self.state, restore_irqs=restore))
