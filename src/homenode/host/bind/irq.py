"""Route the interrupts of a target's devices: match, tell irqbalance, write, read back; verify; put back.

An interrupt that cannot be routed never stops the others, and never touches what else is bound. What the kernel does is
not judged by effective_affinity_list, which follows only when the next interrupt comes.

Source: the kernel's Documentation/core-api/irq/irq-affinity.rst and kernel/irq/proc.c.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from homenode.cpuset import format_cpu_list, parse_cpu_list
from homenode.errors import HomenodeError, UserError
from homenode.host.bind.base.report import ActionResult, Report, skipped
from homenode.host.bind.base.state import State
from homenode.host.bind.base.target import Target
from homenode.host.bind.base.threads import ProcessId, identify
from homenode.host.bind.interrupts.irq_bans import Balance, one_at_a_time, unban
from homenode.host.bind.interrupts.irq_match import Routed, match
from homenode.host.bind.interrupts.irqbalance import Irqbalance, find_irqbalance
from homenode.host.bind.undo import recall, remember_irqs
from homenode.host.topology.facts import FactReader
from homenode.host.topology.finding import Finding
from homenode.host.topology.host import Host
from homenode.host.topology.interrupts import read_interrupts
from homenode.host.topology.source import LiveSource

_STEP = "interrupts"
_MOST_LIST = 1 << 16  # bytes of a CPU list
_NOT_PERMITTED = (errno.EACCES, errno.EPERM, errno.EROFS)
_ROOT = "Run this as root on the host itself, or in a container where /proc/irq is writable"
_MANAGED = (
    "the kernel places this interrupt itself (a managed vector, or one that belongs to a single CPU)",
    "Nothing can be done from here; the settings of the driver's queues decide where such interrupts go",
)
_REFUSALS = {
    errno.EIO: _MANAGED,
    # what newer kernels say instead; who may not write at all is refused when the file is opened
    errno.EPERM: _MANAGED,
    errno.EINVAL: ("none of these CPUs is online", "Plan again on this host"),
    errno.ENOSPC: ("these CPUs have no interrupt vector left", "Spread the interrupts over more CPUs"),
    errno.EACCES: ("this user may not write there", _ROOT),
    errno.EROFS: ("/proc/irq is read-only here", _ROOT),
}


@dataclass(frozen=True)
class Interrupts:
    """The kernel's side: /proc/irq, below `root` in tests; and the irqbalance that must be told."""

    root: str = "/"
    find_daemon: Callable[[], Irqbalance | None] = find_irqbalance

    def read(self, irq: int) -> str:
        """The CPUs that it may go to, as the kernel writes them. Raises OSError."""
        file = os.open(self._file(irq), os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(file, _MOST_LIST).decode("ascii", "replace").strip()
        finally:
            os.close(file)

    def write(self, irq: int, cpus: str) -> None:
        """Send it to `cpus`. Raises OSError: unbuffered, as a buffered file tells of the refusal late, when it is
        closed."""
        file = os.open(self._file(irq), os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(file, cpus.encode("ascii"))
        finally:
            os.close(file)

    def refusal(self, irq: int) -> str:
        """Return why this user may not write; empty when it may, as far as can be told without writing."""
        try:
            os.close(os.open(self._file(irq), os.O_WRONLY | os.O_CLOEXEC))
        except OSError as error:
            return (error.strerror or str(error)) if error.errno in _NOT_PERMITTED else ""
        return ""

    def kept_by_kernel(self, irq: int) -> bool:
        """Return whether nobody can route it, as it is a managed one: its file lacks every write permission then, on
        kernels that tell (6.12 does).
        """
        try:
            return not self._file(irq).stat().st_mode & 0o222
        except OSError:
            return False

    def actions(self) -> dict[int, tuple[str, ...]]:
        """Names of the handlers by interrupt, now."""
        return {one.irq: one.actions for one in read_interrupts(FactReader(LiveSource(self.root, {})))}

    def _file(self, irq: int) -> Path:
        return Path(self.root) / "proc/irq" / str(irq) / "smp_affinity_list"


def route_target(
    pid: int, target: Target, host: Host, state: State | None = None, interrupts: Interrupts | None = None
) -> Report:
    """Route the interrupts of `target` for process `pid`: remembered in `state` (None: not at all), told to irqbalance,
    written, read back.

    Never raises for what the system refuses: each refusal is a step and a finding, and the others go on.
    """
    interrupts = interrupts or Interrupts()
    routed, steps = match(target.irqs, host)
    report = Report(steps)
    if not routed:
        return report
    if refusal := interrupts.refusal(routed[0].irq):
        return report + Report(
            (skipped(_STEP, f"/proc/irq cannot be written to ({refusal}), {len(routed)} stay as they are. {_ROOT}"),)
        )
    try:
        process = identify(pid)
    except HomenodeError as error:
        return report + Report((skipped(_STEP, error.message),))
    before, unread = _read_all(routed, interrupts)
    report += unread
    if not before:
        return report
    with one_at_a_time(state):
        balance = Balance.ask(interrupts.find_daemon(), tuple(before))
        report += _remember(process, routed, before, balance.fresh, state) + balance.ban()
    return sum((_route(one, before[one.irq], interrupts) for one in routed if one.irq in before), report)


def verify_target(target: Target, host: Host, interrupts: Interrupts | None = None) -> Report:
    """Compare where the target's interrupts may go with its routes. Off the plan is an error, but a warning where this
    user, or nobody, can route it."""
    interrupts = interrupts or Interrupts()
    routed, steps = match(target.irqs, host)
    seen, unread = _read_all(routed, interrupts)
    return sum((_compare(one, seen[one.irq], interrupts) for one in routed if one.irq in seen), Report(steps) + unread)


def restore(
    entries: Sequence[Mapping[str, Any]], *, state: State | None = None, interrupts: Interrupts | None = None
) -> Report:
    """Put interrupts back to where `route_target` found them, and let irqbalance have again those that were kept from
    it.

    `entries` as they were remembered; of several for one interrupt the first counts. An interrupt that is gone, or
    belongs to another driver now, is left out. What could not be put back is an error, so that it stays remembered.
    """
    interrupts = interrupts or Interrupts()
    first: dict[int, Mapping[str, Any]] = {}
    banned: set[int] = set()
    for entry in entries:
        irq = entry.get("irq")
        if isinstance(irq, int):
            first.setdefault(irq, entry)
            banned |= {irq} if entry.get("banned") else set()
    actions = interrupts.actions()
    report = sum((_put_back(irq, entry, actions.get(irq, ()), interrupts) for irq, entry in first.items()), Report())
    if banned:
        with one_at_a_time(state):
            report += unban(interrupts.find_daemon(), frozenset(banned))
    return report


def _read_all(routed: Sequence[Routed], interrupts: Interrupts) -> tuple[dict[int, str], Report]:
    seen, report = {}, Report()
    for one in routed:
        try:
            seen[one.irq] = interrupts.read(one.irq)
        except OSError as error:
            report += Report((skipped(one.what, f"{one}: cannot be read: {error.strerror}"),))
    return seen, report


def _remember(
    process: ProcessId, routed: Sequence[Routed], before: Mapping[int, str], fresh: frozenset[int], state: State | None
) -> Report:
    """Keep the lists before the first is written. What is kept already is not kept again: undoing goes back to before
    the first binding."""
    if state is None:
        return Report()
    now = [
        {"irq": one.irq, "list": before[one.irq], "action": one.action, "banned": one.irq in fresh}
        for one in routed
        if one.irq in before
    ]
    try:
        kept = recall(process, state)
        known = {
            (entry.get("irq"), banned)
            for entry in (kept.irqs if kept else ())
            for banned in (False, bool(entry.get("banned")))
        }
        remember_irqs(process, [entry for entry in now if (entry["irq"], entry["banned"]) not in known], state)
    except HomenodeError as error:
        message = f"where the interrupts went before could not be kept, undoing will not be possible: {error.message}"
        finding = Finding("warning", "undo_not_possible", message, "Set HOMENODE_STATE_DIR to a folder of your own")
        return Report((ActionResult("remember", "degraded", error.message),), (finding,))
    return Report()


def _route(one: Routed, before: str, interrupts: Interrupts) -> Report:
    wanted = format_cpu_list(one.cpus)
    try:
        interrupts.write(one.irq, wanted)
        seen = interrupts.read(one.irq)
    except OSError as error:
        return _refused(one.what, str(one), wanted, error, "warning", "irq_refused")
    if _same(seen, one.cpus):
        return Report((ActionResult(one.what, "done", f"{one}: CPUs {before} -> {seen}"),))
    message = f"{one.what} ({one}) may go to CPUs {seen} after {wanted} was written"
    remedy = "See whether something else moves interrupts, such as an irqbalance in another container"
    return Report(
        (ActionResult(one.what, "degraded", message),), (Finding("warning", "irq_not_held", message, remedy),)
    )


def _compare(one: Routed, seen: str, interrupts: Interrupts) -> Report:
    if _same(seen, one.cpus):
        return Report((ActionResult(one.what, "done", f"{one}: CPUs {seen}"),))
    message = f"{one.what} ({one}) may go to CPUs {seen}, planned are {format_cpu_list(one.cpus)}"
    if interrupts.kept_by_kernel(one.irq):
        reason, remedy = _MANAGED
        return Report(
            (ActionResult(one.what, "degraded", message),),
            (Finding("warning", "irq_off_plan", f"{message}; {reason}", remedy),),
        )
    refusal = interrupts.refusal(one.irq)
    remedy = _ROOT if refusal else "Bind again with `homenode bind`, which has irqbalance leave it alone"
    finding = Finding("warning" if refusal else "error", "irq_off_plan", message, remedy)
    return Report((ActionResult(one.what, "failed", message),), (finding,))


def _put_back(irq: int, entry: Mapping[str, Any], actions: Sequence[str], interrupts: Interrupts) -> Report:
    what, before, action = f"irq {irq}", str(entry.get("list", "")), str(entry.get("action", ""))
    if action not in actions:
        return Report((skipped(what, f"{action} has gone"),))
    try:
        wanted = _remembered(before)
        seen = interrupts.read(irq)
        if _same(seen, wanted):
            return Report((ActionResult(what, "undone", f"{action}: CPUs {seen}, nothing had changed"),))
        interrupts.write(irq, before)
        after = interrupts.read(irq)
    except UserError as error:
        finding = Finding(
            "warning", "undo_incomplete", f"{what}: {error.message}", "See `homenode doctor`, and route it by hand"
        )
        return Report((ActionResult(what, "failed", error.message),), (finding,))
    except OSError as error:
        return _refused(what, action, before, error, "error", "undo_incomplete")
    if _same(after, wanted):
        return Report((ActionResult(what, "undone", f"{action}: CPUs {seen} -> {after}"),))
    message = f"{what} ({action}) may go to CPUs {after} after {before} was written"
    return Report(
        (ActionResult(what, "failed", message),), (Finding("error", "undo_incomplete", message, "Run this again"),)
    )


def _remembered(text: str) -> tuple[int, ...]:
    if cpus := parse_cpu_list(text):
        return cpus
    raise UserError("no CPUs are remembered for it")


def _refused(what: str, handler: str, cpus: str, error: OSError, severity: str, code: str) -> Report:
    number = error.errno or 0
    reason, remedy = _REFUSALS.get(number, (error.strerror or str(error), "See proc(5) and the kernel's log"))
    message = f"{what} ({handler}) does not go to CPUs {cpus}: {errno.errorcode.get(number, 'error')}, {reason}"
    return Report((ActionResult(what, "failed", message),), (Finding(severity, code, message, remedy),))


def _same(seen: str, cpus: Sequence[int]) -> bool:
    try:
        return set(parse_cpu_list(seen)) == set(cpus)
    except UserError:
        return False
