"""Bind the workers that a program starts itself, as they appear: `vllm serve` on eight devices is one command and eight
workers.

The launcher leaves a sidecar behind before it becomes the program. This follower looks at the program's descendants,
and binds each to its own pool as soon as its title, command line or environment says which rank it is (`rank_hints`).
It ends with the program.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from homenode.errors import HomenodeError, UserError
from homenode.host.bind.base.report import Report
from homenode.host.bind.base.target import Target
from homenode.host.bind.base.threads import ProcessId, parse_stat, threads
from homenode.host.bind.rank_hints import RankHint, worker_rank_of
from homenode.host.plan.variables import RANK_VARIABLES

TargetOf = Callable[[RankHint], Target | None]
Bind = Callable[[int, Target], Report]
WriteLine = Callable[[str], None]

FIRST_PAUSE_S, LONGEST_PAUSE_S, _GROWTH = 0.05, 2.0, 1.15
_MOST_TITLE, _MOST_ENVIRONMENT = 4096, 1 << 20  # bytes read of a process's command line and environment
_COMM = 15  # characters the kernel keeps of a thread's name
_PROC = Path("/proc")


@dataclass
class Descendants:
    """The processes that come from `root`, found anew at each look. Orphans stay, once seen.

    A process that is no descendant when it appears never becomes one, so only new numbers are looked at: machines with
    hundreds of CPUs have thousands of kernel threads in /proc.
    """

    root: ProcessId
    living: dict[int, ProcessId] = field(default_factory=dict)
    _strangers: set[int] = field(default_factory=set)

    def scan(self) -> tuple[ProcessId, ...]:
        """Return those alive now, ascending by number; not the root itself, nor the calling process."""
        numbers = {int(entry.name) for entry in _PROC.iterdir() if entry.name.isdecimal()}
        self._strangers &= numbers
        fresh = {}
        for pid in sorted(numbers - self._strangers - {self.root.pid, os.getpid()}):
            stat = parse_stat(_read(_PROC / str(pid) / "stat", 4096).decode("utf-8", "replace"))
            if stat is None or stat.state in ("Z", "X", "x"):
                self.living.pop(pid, None)
            elif self.living.get(pid) != ProcessId(pid, stat.start):
                fresh[pid] = (stat.parent, ProcessId(pid, stat.start))
        self.living = {pid: process for pid, process in self.living.items() if pid in numbers and pid not in fresh}
        self._adopt(fresh)
        return tuple(self.living[pid] for pid in sorted(self.living))

    def _adopt(self, fresh: dict[int, tuple[int, ProcessId]]) -> None:
        while found := [pid for pid, (parent, _) in fresh.items() if parent == self.root.pid or parent in self.living]:
            self.living.update({pid: fresh.pop(pid)[1] for pid in found})
        self._strangers.update(fresh)


@dataclass(frozen=True, slots=True)
class _Bound:
    """A record of a process that was bound. `named`: threads it had then that the target has names for; `threads`:
    how many it has now.

    `names_are_final`: they were looked at twice since their number changed, as a thread is born before it takes its
    name.
    """

    hint: RankHint
    named: frozenset[tuple[int, int]]
    threads: int
    names_are_final: bool = False


@dataclass
class Follower:
    """Binds what it recognises, once; again when it says it is somebody else, or when it has new threads that the
    target has names for."""

    root: ProcessId
    target_of: TargetOf
    bind: Bind
    write_line: WriteLine
    _tree: Descendants = field(init=False)
    _inherited: dict[str, str] = field(init=False)
    _titles: dict[ProcessId, tuple[bytes, RankHint | None]] = field(default_factory=dict)
    _bound: dict[ProcessId, _Bound] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._tree = Descendants(self.root)
        self._inherited = _environment(self.root.pid)

    def scan(self) -> bool:
        """Look at all descendants once. True when there was anything to do, so that the next look should come soon."""
        living = self._tree.scan()
        changed = False
        for process in living:
            hint, is_new = self._hint(process)
            changed = changed or is_new
            if hint is not None and self._is_due(process, hint):
                changed = True
                self._bind(process, hint)
        for process in self._titles.keys() - set(living):
            self._titles.pop(process)
            self._bound.pop(process, None)
        return changed

    def _hint(self, process: ProcessId) -> tuple[RankHint | None, bool]:
        """Return what the process tells of itself, and whether it had not told this before."""
        title = _read(_PROC / str(process.pid) / "cmdline", _MOST_TITLE)
        known = self._titles.get(process)
        if known is not None and known[0] == title:
            return known[1], False
        # A rank that the program itself was given is no news about its children.
        environ = {
            name: value for name, value in _environment(process.pid).items() if self._inherited.get(name) != value
        }
        first, *others = title.decode("utf-8", "replace").rstrip("\0").split("\0")
        hint = worker_rank_of(first, environ, others)
        self._titles[process] = (title, hint)
        return hint, True

    def _is_due(self, process: ProcessId, hint: RankHint) -> bool:
        before = self._bound.get(process)
        if before is None or before.hint != hint:
            return True
        target = self.target_of(hint)
        count = _thread_count(process.pid)
        if target is None or not target.threads or (before.names_are_final and before.threads == count):
            return False
        self._bound[process] = replace(before, threads=count, names_are_final=before.threads == count)
        return not _named_threads(process.pid, target) <= before.named

    def _bind(self, process: ProcessId, hint: RankHint) -> None:
        before = self._bound.get(process)
        is_new = before is None or before.hint != hint
        target = self.target_of(hint)
        named = _named_threads(process.pid, target) if target is not None and target.threads else frozenset()
        self._bound[process] = _Bound(hint, named, _thread_count(process.pid))
        if target is None:
            return
        try:
            report = self.bind(process.pid, target)
        except UserError as error:
            if is_new and _thread_count(process.pid):  # else it has ended meanwhile
                self.write_line(f"process {process.pid} is not bound: {error.message}")
        except HomenodeError as error:
            if is_new:
                self.write_line(f"process {process.pid} is not bound: {error.message}")
        else:
            for finding in report.findings if is_new else ():
                self.write_line(f"process {process.pid}: {finding.severity}: {finding.text}")


def follow(follower: Follower, pidfd: int | None = None, until: float = float("inf")) -> None:
    """Look until the program ends, often while things change and rarely when they do not; at the latest until
    time.monotonic() is `until`.

    `pidfd`: of the program; where there is none its start time is looked at instead.
    """
    pause = FIRST_PAUSE_S
    while time.monotonic() < until:
        pause = FIRST_PAUSE_S if follower.scan() else min(pause * _GROWTH, LONGEST_PAUSE_S)
        if _has_ended(follower.root, pidfd, pause):
            return


def _has_ended(root: ProcessId, pidfd: int | None, pause_s: float) -> bool:
    if pidfd is not None:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        return bool(poll.poll(pause_s * 1000))
    time.sleep(pause_s)
    stat = parse_stat(_read(_PROC / str(root.pid) / "stat", 4096).decode("utf-8", "replace"))
    return stat is None or stat.start != root.start or stat.state in ("Z", "X", "x")


def _thread_count(pid: int) -> int:
    try:
        return sum(1 for _ in (_PROC / str(pid) / "task").iterdir())
    except OSError:
        return 0


def _named_threads(pid: int, target: Target) -> frozenset[tuple[int, int]]:
    prefixes = tuple(prefix[:_COMM] for prefix in target.threads)
    try:
        return frozenset(thread.key for thread in threads(pid) if thread.name.startswith(prefixes))
    except HomenodeError:
        return frozenset()


def _environment(pid: int) -> dict[str, str]:
    """The variables of RANK_VARIABLES that the process was started with; others are not looked at."""
    entries = _read(_PROC / str(pid) / "environ", _MOST_ENVIRONMENT).split(b"\0")
    pairs = (entry.decode("utf-8", "replace").partition("=") for entry in entries)
    return {name: value for name, _, value in pairs if name in RANK_VARIABLES}


def _read(file: Path, limit: int) -> bytes:
    try:
        with file.open("rb") as opened:
            return opened.read(limit)
    except OSError:
        return b""
