"""Threads that a device's driver has in the kernel: find them by name, keep them on the plan's CPUs, and compare.

They belong to the host, not to a process, and are seen from the host's own process numbers only. Since Linux 5.17 /proc
shows their whole names, before that the first fifteen characters. Source: proc_pid_stat(5), PF_KTHREAD in the kernel's
include/linux/sched.h.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from pathlib import Path

from homenode.cpuset import format_cpu_list
from homenode.errors import HomenodeError
from homenode.host.bind.base.report import ActionResult, Report, skipped
from homenode.host.bind.base.state import State
from homenode.host.bind.base.syscalls import Syscalls
from homenode.host.bind.base.threads import KERNEL_THREAD, Thread, identify, parse_stat
from homenode.host.bind.undo import remember_kernel_threads
from homenode.host.topology.finding import Finding

KernelThreads = Mapping[str, tuple[int, ...]]

_COMM = 15  # characters of a name that every kernel shows
_PROC = Path("/proc")
_UNSEEN = (
    "Start the container with the host's process numbers (docker run --pid=host), or bind them on the host itself."
)


def find_kernel_threads(name: str, proc: Path = _PROC) -> list[Thread]:
    """The kernel's threads of that name, ascending by number; none where they cannot be seen."""
    found = []
    for pid in sorted(int(entry.name) for entry in proc.iterdir() if entry.name.isdecimal()):
        try:
            stat = parse_stat((proc / str(pid) / "stat").read_bytes().decode("utf-8", "replace"))
        except OSError:  # it has ended
            continue
        if stat is not None and stat.flags & KERNEL_THREAD and stat.name[:_COMM] == name[:_COMM]:
            found.append(Thread(pid, stat.name, stat.start))
    return found


def bind_kernel_threads(
    pid: int, planned: KernelThreads, state: State | None = None, calls: Syscalls | None = None, proc: Path = _PROC
) -> Report:
    """Give the threads named in `planned` their CPUs. What they had is remembered with the binding of process `pid`;
    `state` None: not at all.

    Never raises for what the system refuses: each refusal is a step and a finding, and the others go on.
    """
    calls = calls or Syscalls()
    report = Report()
    for name, cpus, threads in _each(planned, proc):
        if not threads:
            report += _unseen(name)
            continue
        for thread in threads:
            report += _bind(pid, thread, cpus, state, calls)
    return report


def verify_kernel_threads(planned: KernelThreads, calls: Syscalls | None = None, proc: Path = _PROC) -> Report:
    """Compare where the threads named in `planned` may run with the plan. Threads that are not seen are skipped."""
    calls = calls or Syscalls()
    report = Report()
    for name, cpus, threads in _each(planned, proc):
        if not threads:
            report += Report((skipped(name, "no such thread of the kernel is seen from here"),))
        for thread in threads:
            report += _compare(thread, cpus, calls)
    return report


def _each(planned: KernelThreads, proc: Path) -> Iterator[tuple[str, tuple[int, ...], list[Thread]]]:
    for name, cpus in planned.items():
        yield name, cpus, find_kernel_threads(name, proc)


def _bind(pid: int, thread: Thread, cpus: tuple[int, ...], state: State | None, calls: Syscalls) -> Report:
    report = Report()
    try:
        before = calls.affinity(thread.tid)
        if set(before) <= set(cpus):
            return Report((ActionResult(_what(thread), "done", f"CPUs {format_cpu_list(before)} already"),))
        report += _remember(pid, thread, before, state)
        calls.set_affinity(thread.tid, cpus)
        seen = calls.affinity(thread.tid)
    except OSError as error:
        return report + _refused(thread, cpus, error)
    if set(seen) <= set(cpus):
        detail = f"CPUs {format_cpu_list(before)} -> {format_cpu_list(seen)}"
        return report + Report((ActionResult(_what(thread), "done", detail),))
    return report + _off_plan(thread, seen, cpus, "warning")


def _remember(pid: int, thread: Thread, before: tuple[int, ...], state: State | None) -> Report:
    if state is None:
        return Report()
    try:
        remember_kernel_threads(identify(pid), {thread.key: before}, state)
    except HomenodeError as error:
        message = f"the CPUs of {_what(thread)} could not be kept, undoing will not be possible: {error.message}"
        finding = Finding("warning", "undo_not_possible", message, "Set HOMENODE_STATE_DIR to a folder of your own")
        return Report((ActionResult("remember", "degraded", error.message),), (finding,))
    return Report()


def _compare(thread: Thread, cpus: tuple[int, ...], calls: Syscalls) -> Report:
    try:
        seen = calls.affinity(thread.tid)
    except OSError as error:
        return Report((skipped(_what(thread), f"cannot be read: {error.strerror}"),))
    if set(seen) <= set(cpus):
        return Report((ActionResult(_what(thread), "done", f"CPUs {format_cpu_list(seen)}"),))
    return _off_plan(thread, seen, cpus, "warning")


def _off_plan(thread: Thread, seen: tuple[int, ...], cpus: tuple[int, ...], severity: str) -> Report:
    message = (
        f"{_what(thread)} may run on CPUs {format_cpu_list(seen)}, planned are {format_cpu_list(cpus)}: it polls, "
        "and takes time from whoever computes there"
    )
    finding = Finding(
        severity, "kernel_thread_off_plan", message, "Bind again with `homenode bind`, as root on the host."
    )
    return Report((ActionResult(_what(thread), "degraded", message),), (finding,))


def _unseen(name: str) -> Report:
    message = f"no thread {name} of the kernel is seen from here: it polls, and may run on the CPUs of a worker"
    return Report((skipped(name, message),), (Finding("warning", "kernel_threads_not_seen", message, _UNSEEN),))


def _refused(thread: Thread, cpus: tuple[int, ...], error: OSError) -> Report:
    reason = errno.errorcode.get(error.errno or 0, str(error))
    message = f"{_what(thread)} does not go to CPUs {format_cpu_list(cpus)}: {reason}"
    remedy = "Run this as root, in a container with --cap-add SYS_NICE and --pid=host; the worker itself is bound."
    return Report(
        (ActionResult(_what(thread), "failed", message),),
        (Finding("warning", "kernel_thread_refused", message, remedy),),
    )


def _what(thread: Thread) -> str:
    return f"kernel thread {thread.tid} ({thread.name})"
