"""The state before a running process was bound, kept in the state folder, and put back on request.

One file for each process, bindings/PID-START.json:

    {"format": "homenode-binding/1", "pid", "start", "boot", "main": cpulist,
     "threads": {tid: {"start", "cpus": cpulist}}, "given": [cpulist, ...], "irqs": [...]}

`given` are the masks that the binding handed out: a thread born since that carries one of them has inherited it. `irqs`
belongs to whoever routes interrupts; it is kept and handed back as it is. `kernel_threads`, which older records lack,
has the form of `threads`: threads of a driver in the kernel that were bound with the process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from homenode.cpuset import format_cpu_list, parse_cpu_list
from homenode.errors import HostError, UserError
from homenode.host.bind.base.report import ActionResult, Report, skipped
from homenode.host.bind.base.state import State, boot_id
from homenode.host.bind.base.syscalls import Syscalls
from homenode.host.bind.base.threads import ProcessId, Thread, alive, same
from homenode.host.bind.masks import Cpus, MaskOf, Masks, apply_masks, describe, explain
from homenode.host.topology.finding import Finding

FORMAT = "homenode-binding/1"
FOLDER = "bindings"
Restore = Callable[[Sequence[Mapping[str, Any]]], Report]


@dataclass(frozen=True)
class Remembered:
    """A process before it was bound. `threads`: mask by thread key; `main`: of its main thread, which later ones would
    have inherited."""

    process: ProcessId
    boot: str
    main: Cpus
    threads: dict[tuple[int, int], Cpus]
    given: tuple[Cpus, ...]
    irqs: tuple[dict[str, Any], ...] = field(default=())
    kernel_threads: dict[tuple[int, int], Cpus] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return what it is called in the state folder."""
        return record_name(self.process)

    def earlier_mask(self, thread: Thread, seen: Cpus) -> Cpus | None:
        """The mask to put back; for a thread that was not there then, the main thread's where it has inherited one of
        ours."""
        return self.threads.get(thread.key) or (self.main if seen in self.given else None)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form given above."""
        return {
            "format": FORMAT,
            "pid": self.process.pid,
            "start": self.process.start,
            "boot": self.boot,
            "main": format_cpu_list(self.main),
            "threads": _masks_to_dict(self.threads),
            "kernel_threads": _masks_to_dict(self.kernel_threads),
            "given": [format_cpu_list(cpus) for cpus in self.given],
            "irqs": list(self.irqs),
        }

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Remembered:
        """The inverse of `to_dict`. Raises HostError when it is no such object."""
        try:
            if raw["format"] != FORMAT:
                raise ValueError(f"format {raw['format']!r}")
            return cls(
                process=ProcessId(int(raw["pid"]), int(raw["start"])),
                boot=str(raw["boot"]),
                main=parse_cpu_list(raw["main"]),
                threads=_masks_from_dict(raw["threads"]),
                kernel_threads=_masks_from_dict(raw.get("kernel_threads", {})),
                given=tuple(parse_cpu_list(text) for text in raw["given"]),
                irqs=tuple(dict(entry) for entry in raw["irqs"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError, UserError) as error:
            raise HostError(
                f"a remembered binding is damaged ({type(error).__name__}: {error}); remove its file from the state "
                "folder"
            ) from error


def _masks_to_dict(masks: Mapping[tuple[int, int], Cpus]) -> dict[str, Any]:
    return {str(tid): {"start": start, "cpus": format_cpu_list(cpus)} for (tid, start), cpus in masks.items()}


def _masks_from_dict(raw: Mapping[str, Any]) -> dict[tuple[int, int], Cpus]:
    return {(int(tid), int(was["start"])): parse_cpu_list(was["cpus"]) for tid, was in raw.items()}


def record_name(process: ProcessId) -> str:
    """Return what the record of `process` is called in the state folder."""
    return f"{FOLDER}/{process.pid}-{process.start}.json"


def remember(
    process: ProcessId, masks: Mapping[tuple[int, int], tuple[Thread, Cpus]], given: Sequence[Cpus], state: State
) -> Remembered | None:
    """Keep the masks a process has before it is bound. What an earlier binding remembered wins: undoing goes back to
    before the first.

    Returns what was remembered already.
    """
    now = {key: cpus for key, (_, cpus) in masks.items()}
    main = next((cpus for thread, cpus in masks.values() if thread.tid == process.pid), ())
    with state.locked(FOLDER):
        _forget_ended(state)
        earlier = recall(process, state)
        before = earlier or Remembered(process, boot_id(), main, {}, ())
        fresh = {key: cpus for key, cpus in now.items() if key not in before.threads and cpus not in before.given}
        all_given = tuple(dict.fromkeys((*before.given, *given)))
        before = replace(before, main=before.main or main, threads={**before.threads, **fresh}, given=all_given)
        state.save(before.name, before.to_dict())
    return earlier


def remember_irqs(process: ProcessId, entries: Sequence[Mapping[str, Any]], state: State) -> None:
    """Keep what routed interrupts were before, with the binding of the process that they are routed for; earlier
    entries stay first."""
    with state.locked(FOLDER):
        before = recall(process, state) or Remembered(process, boot_id(), (), {}, ())
        kept = replace(before, irqs=(*before.irqs, *(dict(entry) for entry in entries)))
        state.save(kept.name, kept.to_dict())


def remember_kernel_threads(process: ProcessId, masks: Mapping[tuple[int, int], Cpus], state: State) -> None:
    """Keep the masks that threads of the kernel had, with the binding that they were bound with; earlier ones win."""
    with state.locked(FOLDER):
        before = recall(process, state) or Remembered(process, boot_id(), (), {}, ())
        kept = replace(before, kernel_threads={**masks, **before.kernel_threads})
        state.save(kept.name, kept.to_dict())


def recorded(state: State) -> list[ProcessId]:
    """Processes of which something is remembered, living or not, in no order."""
    parts = [name.removesuffix(".json").partition("-") for name in state.names(FOLDER)]
    return [ProcessId(int(pid), int(start)) for pid, _, start in parts if pid.isdecimal() and start.isdecimal()]


def _forget_ended(state: State) -> None:
    """Drop records that nobody can need: of processes that have ended, with nothing to give back; damaged ones, too."""
    for process in recorded(state):
        try:
            known = recall(process, state)
        except HostError:
            known = None
        if known is None or not (known.irqs or known.kernel_threads or alive(process)):
            state.remove(record_name(process))


def recall(process: ProcessId, state: State) -> Remembered | None:
    """Return what is remembered of `process`; None when nothing is. Raises HostError when the record is damaged."""
    raw = state.load(record_name(process))
    found = None if raw is None else Remembered.from_dict(raw)
    return found if found is not None and found.boot == boot_id() else None


def undo(
    pid: int,
    state: State,
    *,
    calls: Syscalls | None = None,
    restore_irqs: Restore | None = None,
    deadline_s: float = 10.0,
) -> Report:
    """Put back the masks that process `pid` and threads of the kernel had before it was bound, and the interrupt routes
    through `restore_irqs`.

    A process that has ended still gets its interrupts back. Pages that moved stay. Raises UserError when nothing is
    remembered.
    """
    before = _find(pid, state)
    calls = calls or Syscalls()
    report = _undo_masks(before, calls, deadline_s)
    report += sum((_undo_kernel_thread(*each, calls) for each in before.kernel_threads.items()), Report())
    if before.irqs and restore_irqs is not None:
        report += restore_irqs(before.irqs)
    elif before.irqs:
        report += Report((skipped("interrupts", "nothing here knows how to put them back; they stay remembered"),))
    if report.ok and (restore_irqs is not None or not before.irqs):
        state.remove(before.name)
    return report


def _find(pid: int, state: State) -> Remembered:
    """The record of the living process of that number, else the latest of those that have ended."""
    known = sorted(
        (process for process in recorded(state) if process.pid == pid),
        key=lambda process: (alive(process), process.start),
    )
    found = next((before for process in reversed(known) if (before := recall(process, state)) is not None), None)
    if found is None:
        raise UserError(
            f"nothing is remembered of process {pid}: it was not bound by `homenode bind`, or that has been undone",
            param="pid",
            pid=pid,
        )
    return found


def _undo_kernel_thread(key: tuple[int, int], cpus: Cpus, calls: Syscalls) -> Report:
    tid, start = key
    what = f"kernel thread {tid}"
    if not same(ProcessId(tid, start)):
        return Report((skipped(what, "it has ended"),))
    try:
        calls.set_affinity(tid, cpus)
    except OSError as error:
        message = f"{what} does not go back to CPUs {format_cpu_list(cpus)}: {error.strerror}"
        finding = Finding("error", "undo_incomplete", message, "Run this again as root on the host itself")
        return Report((ActionResult(what, "failed", message),), (finding,))
    return Report((ActionResult(what, "undone", f"CPUs {format_cpu_list(cpus)}"),))


def _undo_masks(before: Remembered, calls: Syscalls, deadline_s: float) -> Report:
    mask_of: MaskOf = before.earlier_mask
    journal: Masks = apply_masks(before.process, mask_of, calls, deadline_s)
    if journal.gone:
        return Report((skipped("affinity", f"process {before.process.pid} has ended"),))
    if journal.refusal is None and journal.complete:
        detail = (
            describe([cpus for key in journal.before if (cpus := before.threads.get(key, before.main))])
            or "nothing had changed"
        )
        return Report((ActionResult("affinity", "undone", detail),))
    message, remedy = "new threads kept coming with other masks", "Run this again"
    if journal.refusal:
        message, remedy = explain(before.process, journal.refusal)
    return Report(
        (ActionResult("affinity", "failed", message),), (Finding("error", "undo_incomplete", message, remedy),)
    )
