"""Bind a running process to its target: remember, set masks, move pages. A transaction, in which a mask that is refused
takes all back.

The memory policy of another process cannot be set from outside (set_mempolicy(2) has no pid): pages it touches later
come from the node of the CPU it runs on then, which after binding is the planned one unless the program has a policy of
its own.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

from homenode.cpuset import format_cpu_list
from homenode.errors import HomenodeError, HostError, UserError
from homenode.host.bind.base.report import ActionResult, Report, skipped
from homenode.host.bind.base.state import State
from homenode.host.bind.base.syscalls import Syscalls
from homenode.host.bind.base.target import Target
from homenode.host.bind.base.threads import ProcessId, identify, wanted_cpus
from homenode.host.bind.masks import Masks, apply_masks, describe, explain, put_back, read_masks, refused
from homenode.host.bind.memory.memory_map import mems_allowed, read_memory_map
from homenode.host.bind.memory.pages import Moves, Progress, move_private_pages
from homenode.host.bind.preflight import check_running
from homenode.host.bind.undo import Remembered, record_name, remember
from homenode.host.topology.finding import Finding
from homenode.units import format_bytes

SETTLE_S, PAGES_S = 10.0, 60.0


def apply(
    pid: int,
    target: Target,
    *,
    memory: bool = True,
    strict: bool = False,
    state: State | None = None,
    calls: Syscalls | None = None,
    settle_s: float = SETTLE_S,
    pages_s: float = PAGES_S,
    progress: Progress | None = None,
) -> Report:
    """Bind process `pid` and all its threads to `target`; move its existing private memory where `memory` is asked for.

    Masks are remembered in `state` for `undo` (None: not at all). `settle_s` seconds at most go into threads, `pages_s`
    into pages. Interrupts are not routed here. `strict`: a step that does not hold entirely counts as failed, and the
    masks are put back. Raises UserError for a process, CPUs or nodes that are not there or not allowed, and HostError
    where the system refuses: nothing is changed then. What fails later is rolled back and told in the report.
    """
    check_running(target)
    binding = _Binding(identify(pid), target, calls or Syscalls(), state)
    binding.remember(strict)
    if binding.bind_threads(settle_s):
        if memory:
            binding.move_pages(pages_s, progress)
        degraded = [step.what for step in binding.steps if step.outcome == "degraded"]
        if strict and degraded:
            message = f"process {pid} could not be bound entirely: {', '.join(degraded)}"
            binding.roll_back(
                "binding_incomplete", message, "See the other findings; without --strict the steps that hold are kept"
            )
    return Report(tuple(binding.steps), tuple(binding.findings))


@dataclass
class _Binding:
    """One transaction: what is being done to whom, and what has come of it so far."""

    process: ProcessId
    target: Target
    calls: Syscalls
    state: State | None
    earlier: Remembered | None = None  # what a former binding of the same process left to be undone
    journal: Masks | None = None
    steps: list[ActionResult] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def remember(self, strict: bool) -> None:
        """Keep the masks before the first is changed, so that they can be put back even if this process is killed
        half-way."""
        if self.state is None:
            return
        given = tuple(dict.fromkeys(cpus for cpus in (self.target.cpus, *self.target.threads.values()) if cpus))
        try:
            self.earlier = remember(self.process, read_masks(self.process, self.calls), given, self.state)
        except HomenodeError as error:
            if strict:
                raise
            message = (
                f"the masks of process {self.process.pid} before binding could not be kept, undoing will not be "
                f"possible: {error}"
            )
            self._degraded(
                "remember", str(error), "undo_not_possible", message, "Set HOMENODE_STATE_DIR to a folder of your own"
            )

    def bind_threads(self, settle_s: float) -> bool:
        """Set all masks; whether they hold. Raises the error where the very first one is refused."""
        journal = self.journal = apply_masks(
            self.process, lambda thread, _: wanted_cpus(thread.name, self.target) or None, self.calls, settle_s
        )
        pid = self.process.pid
        if journal.refusal is not None:
            what, remedy = explain(self.process, journal.refusal)
            if len(journal.before) == 1 and not self._put_back():
                raise refused(self.process, journal.refusal)
            self.roll_back("affinity_refused", what, remedy)
            return False
        if journal.gone:
            if not journal.before:
                raise UserError(f"no process {pid} any more: it ended while it was being bound", param="pid", pid=pid)
            self.steps.append(skipped("affinity", f"process {pid} ended while it was being bound"))
            return False
        detail = describe([cpus for _, cpus in read_masks(self.process, self.calls).values()])
        if journal.complete:
            self.steps.append(ActionResult("affinity", "done", detail))
        else:
            message = f"process {pid} kept starting threads with other masks for {settle_s:g} s: {detail}"
            self._degraded(
                "affinity", detail, "threads_unsettled", message, "Run this again, or watch the process", "error"
            )
        return True

    def move_pages(self, pages_s: float, progress: Progress | None) -> None:
        """Move private memory; nothing that happens here undoes the masks."""
        nodes, pid = self.target.memory_nodes, self.process.pid
        if not nodes:
            self.steps.append(skipped("pages", "no memory nodes are planned"))
            return
        allowed = mems_allowed(pid)
        usable = tuple(node for node in nodes if not allowed or node in allowed)
        if len(usable) < len(nodes):
            message = (
                f"process {pid} may take memory from nodes {format_cpu_list(allowed)} only, planned are "
                f"{format_cpu_list(nodes)}"
            )
            self._degraded(
                "memory nodes",
                message,
                "memory_node_not_allowed",
                message,
                "Widen cpuset.mems of its container or cgroup",
            )
        if not usable:
            return
        try:
            memory = read_memory_map(pid)
            if memory is None:
                self.steps.append(skipped("pages", "this kernel has no NUMA support, all memory is alike"))
                return
            moves = move_private_pages(pid, memory, usable, self.calls, deadline_s=pages_s, progress=progress)
        except UserError:
            self.steps.append(skipped("pages", f"process {pid} has ended"))
        except HostError as error:
            self._degraded(
                "pages",
                str(error),
                "pages_not_moved",
                str(error),
                "The CPUs are bound; start the program with `homenode run` to bind its memory",
            )
        else:
            self._tell_moves(moves, usable)

    def _tell_moves(self, moves: Moves, nodes: tuple[int, ...]) -> None:
        where = f"node{'s' if len(nodes) > 1 else ''} {', '.join(map(str, nodes))}"
        left = f"; left alone: {_amounts(moves.left)}" if moves.left else ""
        if not moves.wanted:
            self.steps.append(ActionResult("pages", "done", f"nothing to move, all private memory is on {where}{left}"))
            return
        moved = f"{format_bytes(moves.moved)} of {format_bytes(moves.wanted)} moved to {where}"
        stay = f"; could not be moved: {_amounts(moves.stay)}" if moves.stay else ""
        ended = f"; stopped: {moves.stopped}" if moves.stopped else ""
        detail = moved + stay + ended + left
        if not stay and not ended:
            self.steps.append(ActionResult("pages", "done", detail))
            return
        self._degraded("pages", detail, "pages_not_moved", f"process {self.process.pid}: {detail}", _remedy(moves))

    def roll_back(self, code: str, message: str, remedy: str) -> None:
        """Put all masks back and say so, with the finding that it was done for."""
        self.steps.append(ActionResult("affinity", "failed", message))
        self.findings.append(Finding("error", code, message, remedy))
        left = self._put_back()
        if not left:
            self.steps.append(ActionResult("affinity", "undone", "every thread has the CPUs it had before"))
            return
        names = ", ".join(left)
        self.steps.append(ActionResult("affinity", "failed", f"not put back: {names}"))
        message = f"these threads of process {self.process.pid} keep other CPUs than before: {names}"
        self.findings.append(
            Finding(
                "error",
                "rollback_incomplete",
                message,
                f"Put them back by `homenode bind --undo --pid {self.process.pid}`",
            )
        )

    def _put_back(self) -> list[str]:
        """Masks as before, and the record of them too unless it is still needed; the threads that did not take theirs
        back."""
        left = put_back(self.journal, self.calls) if self.journal is not None else []
        if self.state is not None and not left:
            # A record too many does no harm: undoing would give the threads the masks they have.
            with suppress(HostError):
                if self.earlier is not None:
                    self.state.save(self.earlier.name, self.earlier.to_dict())
                else:
                    self.state.remove(record_name(self.process))
        return [f"{thread.tid} ({thread.name})" for thread in left]

    def _degraded(
        self, what: str, detail: str, code: str, message: str, remedy: str, severity: str = "warning"
    ) -> None:
        self.steps.append(ActionResult(what, "degraded", detail))
        self.findings.append(Finding(severity, code, message, remedy))


def _amounts(sizes: Counter[str]) -> str:
    return ", ".join(f"{format_bytes(size)} {reason}" for reason, size in sizes.most_common())


def _remedy(moves: Moves) -> str:
    if moves.stopped.startswith("EPERM"):
        return "Run this as the user who owns the process or as root (CAP_SYS_NICE)"
    if moves.stopped.startswith("EACCES"):
        return "Widen cpuset.mems of its container or cgroup"
    if moves.stopped:
        return "Run this again to move the rest"
    return "Start the program with `homenode run`, so that its memory is placed before it is registered or filled"
