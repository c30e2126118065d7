"""Processes and their threads, as /proc shows them, and which CPUs a target gives to each thread.

Sources: proc_pid_stat(5), proc_pid_task(5). Threads come and go while they are read: one that has vanished is left out,
never an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from homenode.errors import HostError, UserError
from homenode.host.bind.base.target import Target

_COMM = 15  # characters the kernel keeps of a thread's name
_ENDED = ("Z", "X", "x")
KERNEL_THREAD = 0x00200000  # PF_KTHREAD in the flags of /proc/PID/stat
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process that no later one can be mistaken for: numbers are used again, the start (clock ticks since boot)
    differs."""

    pid: int
    start: int


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread. `name` is its comm, at most 15 characters for a thread of a program; `start` in clock ticks since
    boot."""

    tid: int
    name: str
    start: int

    @property
    def key(self) -> tuple[int, int]:
        """Return what stays the same when the thread renames itself, and differs when its number is used again."""
        return self.tid, self.start


@dataclass(frozen=True, slots=True)
class _Stat:
    name: str
    state: str
    parent: int
    flags: int
    start: int


def identify(pid: int) -> ProcessId:
    """The living process `pid`.

    Raises UserError when there is none, when it has ended, or when `pid` is a kernel's thread or a thread's number.
    """
    stat = _read_stat(_PROC / str(pid) / "stat") if pid > 0 else None
    if stat is None:
        raise UserError(
            f"no process {pid}; look for its number with `ps -e` in the same container or pid namespace",
            param="pid",
            pid=pid,
        )
    if stat.flags & KERNEL_THREAD:
        raise UserError(
            f"process {pid} ({stat.name}) is a thread of the kernel; give the number of a program's process",
            param="pid",
            pid=pid,
        )
    leader = _leader(pid)
    if leader not in (None, pid):
        raise UserError(f"{pid} is the number of a thread of process {leader}; give {leader}", param="pid", pid=pid)
    if not threads(pid):
        raise UserError(
            f"no process {pid} any more: it has ended and waits for its parent to take notice", param="pid", pid=pid
        )
    return ProcessId(pid, stat.start)


def refuse_first_process(pid: int) -> None:
    """UserError for process 1: it starts all others, and each inherits the CPUs that it may use."""
    if pid == 1:
        raise UserError(
            "process 1 (init) is not bound: every process that it starts, and every later service, would inherit its "
            "CPUs. Give the number of the program's own process, or start the program by `homenode run`",
            param="pid",
            pid=pid,
        )


def same(process: ProcessId) -> bool:
    """Return whether the number is still that of this process, living or only not yet waited for by its parent."""
    stat = _read_stat(_PROC / str(process.pid) / "stat")
    return stat is not None and stat.start == process.start


def alive(process: ProcessId) -> bool:
    """Return whether it still runs, and is not another one that has got its number."""
    try:
        return same(process) and bool(threads(process.pid))
    except UserError:
        return False


def threads(pid: int) -> list[Thread]:
    """Its living threads, the main thread first and then by number.

    Raises UserError when there is no such process, HostError when this user may not look at it.
    """
    folder = _PROC / str(pid) / "task"
    try:
        tids = sorted((int(entry.name) for entry in folder.iterdir()), key=lambda tid: (tid != pid, tid))
    except (FileNotFoundError, ProcessLookupError):
        raise UserError(f"no process {pid}", param="pid", pid=pid) from None
    except PermissionError:
        raise HostError(
            f"may not look at process {pid}: it belongs to another user; run this as that user or as root", pid=pid
        ) from None
    found = []
    for tid in tids:
        stat = _read_stat(folder / str(tid) / "stat")
        if stat is not None and stat.state not in _ENDED:
            found.append(Thread(tid, stat.name, stat.start))
    return found


def descendants(pid: int) -> tuple[int, ...]:
    """Processes started by `pid` and by those in turn, ascending; orphans that init has taken over cannot be told any
    more."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdecimal() and (stat := _read_stat(entry / "stat")) is not None and stat.state not in _ENDED:
            children.setdefault(stat.parent, []).append(int(entry.name))
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        fresh = [child for child in children.get(waiting.pop(), ()) if child not in found]
        found.update(fresh)
        waiting.extend(fresh)
    return tuple(sorted(found))


def ancestors(pid: int) -> tuple[int, ...]:
    """The process that started `pid`, the one that started that, and so on, as far as they can be seen from here."""
    found: list[int] = []
    while (stat := _read_stat(_PROC / str(pid) / "stat")) is not None and stat.parent > 0 and stat.parent not in found:
        pid = stat.parent
        found.append(pid)
    return tuple(found)


def wanted_cpus(name: str, target: Target) -> tuple[int, ...]:
    """CPUs for a thread called `name`: those of the longest matching name in the target, else the process's. Empty: it
    is left alone."""
    matching = [prefix for prefix in target.threads if name.startswith(prefix[:_COMM])]
    return target.threads[max(matching, key=len)] if matching else target.cpus


def parse_stat(text: str) -> _Stat | None:
    """The fields that are needed of a line of /proc/PID/stat; None when it is no such line. The name may hold spaces
    and brackets."""
    head, _, rest = text.rpartition(")")
    _, bracket, name = head.partition("(")
    words = rest.split()
    if not bracket or len(words) < 20 or not all(words[index].isdecimal() for index in (1, 6, 19)):
        return None
    return _Stat(name, words[0], int(words[1]), int(words[6]), int(words[19]))


def _read_stat(file: Path) -> _Stat | None:
    try:
        return parse_stat(file.read_bytes().decode("utf-8", "replace"))
    except OSError:
        return None


def _leader(pid: int) -> int | None:
    try:
        lines = (_PROC / str(pid) / "status").read_bytes().decode("utf-8", "replace").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("Tgid:")), None)
