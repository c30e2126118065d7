"""CPU masks of all threads of a running process: set, read back, and put back as they were.

A thread inherits the mask of the thread that starts it, so the main thread goes first, and passes are made over
/proc/PID/task until two in a row find every mask as planned: then no thread is left that could give birth to one with
an old mask. The kernel cuts a mask to the thread's cpuset without a word (sched_setaffinity(2), "NOTES"), hence each is
read back.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from homenode.cpuset import format_cpu_list, parse_cpu_list
from homenode.errors import HomenodeError, HostError, UserError
from homenode.host.bind.base.syscalls import Syscalls
from homenode.host.bind.base.threads import ProcessId, Thread, same, threads
from homenode.units import format_count

Cpus = tuple[int, ...]
# From a thread and its mask to the mask it should have; None: leave it alone.
MaskOf = Callable[[Thread, Cpus], Cpus | None]

_QUIET_PASSES = 2
_CUT = (0, errno.EINVAL)  # the mask and the cpuset have some CPUs in common, or none


@dataclass(frozen=True, slots=True)
class Refusal:
    """Thread `thread` did not take the mask `planned`: `seen` is what it has instead, `code` the errno where the call
    failed."""

    thread: Thread
    planned: Cpus
    seen: Cpus
    code: int = 0


@dataclass
class Masks:
    """The work done so far, by thread key.

    `first`: threads there were at the first look. `before`: masks of those that were changed. `checked`: those that are
    as planned. `given`: masks that were handed out.
    """

    process: ProcessId
    first: frozenset[tuple[int, int]] | None = None
    before: dict[tuple[int, int], tuple[Thread, Cpus]] = field(default_factory=dict)
    given: set[Cpus] = field(default_factory=set)
    checked: set[tuple[int, int]] = field(default_factory=set)
    refusal: Refusal | None = None
    complete: bool = False
    gone: bool = False


def apply_masks(process: ProcessId, mask_of: MaskOf, calls: Syscalls, deadline_s: float) -> Masks:
    """Give every thread its mask, until two passes in a row change nothing.

    Ends early, with the journal saying why, at the first mask that is refused, when the process ends, or after
    `deadline_s` seconds.
    """
    journal = Masks(process)
    end = time.monotonic() + deadline_s
    quiet = 0
    while quiet < _QUIET_PASSES:
        changed = one_pass(journal, mask_of, calls)
        if journal.refusal or journal.gone:
            return journal
        quiet = 0 if changed else quiet + 1
        if time.monotonic() > end and quiet < _QUIET_PASSES:
            return journal
    journal.complete = True
    return journal


def one_pass(journal: Masks, mask_of: MaskOf, calls: Syscalls) -> int:
    """Look at every thread once; the number of masks that had to be changed."""
    changed = 0
    for thread in _threads_of(journal):
        try:
            changed += _set(thread, mask_of, calls, journal)
        except ProcessLookupError:
            continue
        if journal.refusal:
            break
    return changed


def _threads_of(journal: Masks) -> list[Thread]:
    """Its threads; none, and `gone` set, when it has ended, also where its number has been given to another since."""
    try:
        found = threads(journal.process.pid) if same(journal.process) else []
    except UserError:
        found = []
    journal.gone = not found
    if journal.first is None:
        journal.first = frozenset(thread.key for thread in found)
    return found


def _set(thread: Thread, mask_of: MaskOf, calls: Syscalls, journal: Masks) -> int:
    seen = calls.affinity(thread.tid)
    cpus = mask_of(thread, seen)
    if cpus is None or set(cpus) == set(seen):
        journal.checked.add(thread.key)
        return 0
    journal.before.setdefault(thread.key, (thread, seen))
    try:
        calls.set_affinity(thread.tid, cpus)
    except ProcessLookupError:
        raise
    except OSError as error:
        journal.refusal = Refusal(thread, tuple(sorted(cpus)), seen, error.errno or errno.EIO)
        return 0
    now = calls.affinity(thread.tid)
    journal.given.add(now)
    if set(now) != set(cpus):
        journal.refusal = Refusal(thread, tuple(sorted(cpus)), now)
        return 0
    journal.checked.add(thread.key)
    return 1


def put_back(journal: Masks, calls: Syscalls, deadline_s: float = 10.0) -> list[Thread]:
    """Give changed threads the masks they had; those that did not take theirs back. Vanished ones need nothing.

    Threads born meanwhile that have inherited one of the masks given out get the one the main thread had, as they would
    have without us.
    """
    left: dict[tuple[int, int], Thread] = {}
    main = next((cpus for thread, cpus in journal.before.values() if thread.tid == journal.process.pid), None)

    def earlier_mask(thread: Thread, seen: Cpus) -> Cpus | None:
        if thread.key in left:
            return None
        if thread.key in journal.before:
            return journal.before[thread.key][1]
        return main if thread.key not in (journal.first or ()) and seen in journal.given else None

    while (refusal := apply_masks(journal.process, earlier_mask, calls, deadline_s).refusal) is not None:
        left[refusal.thread.key] = refusal.thread
    return list(left.values())


def read_masks(process: ProcessId, calls: Syscalls) -> dict[tuple[int, int], tuple[Thread, Cpus]]:
    """The masks of all its threads now, by thread key. Empty when it has ended."""
    found = {}
    for thread in _threads_of(Masks(process)):
        try:
            found[thread.key] = (thread, calls.affinity(thread.tid))
        except ProcessLookupError:
            continue
    return found


def explain(process: ProcessId, refusal: Refusal) -> tuple[str, str]:
    """Return what happened with a refused mask, and what to do about it."""
    thread, cpus = refusal.thread, format_cpu_list(refusal.planned)
    who = f"thread {thread.tid} ({thread.name}) of process {process.pid}"
    if refusal.code in _CUT:
        cpuset = cpuset_of(process.pid) or ()
        # A group that this process cannot see must be the narrower one.
        told = () if set(refusal.planned) <= set(cpuset) else cpuset
        allowed = format_cpu_list(told or (() if refusal.code else refusal.seen))
        what = f"{who} cannot run on CPUs {cpus}: its cpuset allows {allowed or 'none of them'}"
        return what, "Choose CPUs inside it, or widen the cpuset of its container or cgroup"
    why = f"{errno.errorcode.get(refusal.code, str(refusal.code))}, {os.strerror(refusal.code)}"
    return f"may not change the CPUs of {who}: {why}", "Run this as the user who owns it or as root (CAP_SYS_NICE)"


def refused(process: ProcessId, refusal: Refusal) -> HomenodeError:
    """The error of a refused mask."""
    what, remedy = explain(process, refusal)
    if refusal.code in _CUT:
        return UserError(f"{what}. {remedy}", pid=process.pid, cpus=refusal.planned)
    return HostError(f"{what}. {remedy}", pid=process.pid)


def cpuset_of(pid: int) -> Cpus | None:
    """CPUs that the cgroup of a process allows, from cgroup v2 or the v1 cpuset hierarchy; None where this cannot be
    seen (cpuset(7))."""
    folder = _text(Path("/proc") / str(pid) / "cpuset")
    if folder is None:
        return None
    for mount, name in (
        ("/sys/fs/cgroup", "cpuset.cpus.effective"),
        ("/sys/fs/cgroup/cpuset", "cpuset.effective_cpus"),
    ):
        text = _text(Path(mount) / folder.lstrip("/") / name)
        if text:
            return parse_cpu_list(text)
    return None


def describe(masks: Sequence[Cpus]) -> str:
    """`12 threads on CPUs 0-3, 1 thread on CPUs 4`: how many threads have which mask, the commonest first."""
    counts: dict[Cpus, int] = {}
    for cpus in masks:
        counts[cpus] = counts.get(cpus, 0) + 1
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{format_count(count, 'thread')} on CPUs {format_cpu_list(cpus)}" for cpus, count in ordered)


def _text(file: Path) -> str | None:
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None
