"""Run a program bound: bind the calling process, then become the program. What the kernel inherits over execve needs
nobody to look after it.

Nothing escapes an inherited limit: CPUs outside the mask or cpuset that this process was started with are refused,
never added. Exit codes and signals are the program's own, as it is the program that ends. Sources:
sched_setaffinity(2), execve(2); POSIX on exit codes 126 and 127.
"""

from __future__ import annotations

import errno
import os
import signal
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from homenode.cpuset import format_cpu_list
from homenode.errors import HostError, PlacementError, UserError
from homenode.host.bind.base.report import ActionResult, Report
from homenode.host.bind.base.syscalls import Syscalls
from homenode.host.bind.base.target import Target
from homenode.host.bind.memory.mempolicy_fallback import bind_memory
from homenode.host.bind.preflight import check_exists
from homenode.host.bind.sidecar import to_stderr
from homenode.host.topology.allowance import Allowance
from homenode.host.topology.finding import Finding
from homenode.host.topology.source import Source

NOT_FOUND, NOT_EXECUTABLE = 127, 126  # exit codes of shells for a program that is not there, or that is no program
_NO_EXECUTE = "may not be executed; run `chmod +x` on it, or name its interpreter"
_IGNORED_BY_PYTHON = ("SIGPIPE", "SIGXFZ", "SIGXFSZ")
_ORIGINS = {
    "cpuset": "its cpuset (container or cgroup)",
    "inherited": "whoever started it (taskset, numactl, a batch system)",
    "openmp": "an OpenMP runtime that pinned itself, by accident (OMP_PROC_BIND)",
}
_WIDEN = {
    "cpuset": "Choose from them, or give the container or cgroup more CPUs (cpuset.cpus, docker run --cpuset-cpus).",
    "inherited": "Choose from them, or start this without that limit (taskset, numactl --physcpubind, srun "
    "--cpu-bind).",
    "openmp": "Choose from them, or unset OMP_PROC_BIND and OMP_PLACES where this is started.",
}


class ProgramError(UserError):
    """The program to run cannot be: `exit_code` is what a shell would end with."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message, exit_code=exit_code)
        self.exit_code = exit_code


def find_program(name: str, env: Mapping[str, str]) -> str:
    """The file that `name` runs: itself when it holds a slash, else the first executable of that name in PATH.

    Raises ProgramError, with exit code 127 when there is none and 126 when there is one that may not be executed.
    """
    if not name or "\0" in name:
        raise ProgramError(f"not the name of a program: {name!r}", NOT_FOUND)
    if "/" in name:
        refusal = _refusal(name)
        if refusal is None:
            raise ProgramError(f"{name}: there is no such file", NOT_FOUND)
        if refusal:
            raise ProgramError(f"{name}: {refusal}", NOT_EXECUTABLE)
        return name
    refusals = {path: _refusal(path) for path in (f"{folder or '.'}/{name}" for folder in os.get_exec_path(dict(env)))}
    for path, refusal in sorted(refusals.items(), key=lambda found: found[1] != ""):
        if refusal == "":
            return path
        if refusal == _NO_EXECUTE:
            raise ProgramError(f"{path}: {refusal}", NOT_EXECUTABLE)
    raise ProgramError(f"{name}: there is no such program in PATH", NOT_FOUND)


def _refusal(path: str) -> str | None:
    """Return why the file cannot be executed; empty when it can, None when it is not there."""
    try:
        mode = Path(path).stat().st_mode
    except PermissionError:
        return "this user may not look into its folder"
    except OSError:
        return None
    if stat.S_ISDIR(mode):
        return "is a folder"
    return "" if stat.S_ISREG(mode) and os.access(path, os.X_OK) else _NO_EXECUTE


def check_allowed(target: Target, allowance: Allowance, source: Source | None = None) -> None:
    """Refuse what the machine does not have, and CPUs outside `allowance`. Raises PlacementError, whose message names
    them."""
    if not target.cpus:
        raise PlacementError(
            "no_cpus",
            "there are no CPUs to run on",
            seen="an empty list",
            wanted="at least one CPU",
            remedy="Give some.",
        )
    check_exists(target, source)
    if outside := set(target.cpus) - set(allowance.cpus):
        origin = allowance.mask_origin if allowance.mask_origin in _ORIGINS else "inherited"
        raise PlacementError(
            "cpus_not_allowed",
            f"CPU {format_cpu_list(outside)} is outside the CPUs that this process has inherited from "
            f"{_ORIGINS[origin]}",
            seen=f"inherited CPUs {format_cpu_list(allowance.cpus)}",
            wanted=format_cpu_list(target.cpus),
            remedy=_WIDEN[origin],
        )


def bind_self(target: Target, *, strict: bool = False, kernel: Syscalls | None = None) -> Report:
    """Bind the calling thread, and what it starts or becomes, to a target that `check_allowed` has passed.

    What the kernel refuses is left out, each with a finding; with `strict` the first refusal raises HostError.
    """
    kernel = kernel or Syscalls()
    report = _bind_cpus(target.cpus, kernel, strict)
    return report + bind_memory(target.memory_nodes, kernel, strict=strict) if target.memory_nodes else report


def run_bound(
    target: Target | None,
    argv: Sequence[str],
    *,
    strict: bool = False,
    allowance: Allowance | None = None,
    env: Mapping[str, str] | None = None,
    kernel: Syscalls | None = None,
    write_line: Callable[[str], None] = to_stderr,
) -> NoReturn:
    """Bind the calling process to `target` and become the program `argv`; does not return. `target` None: run it
    unbound.

    `allowance`: the inherited limit, read here when None. `write_line` gets one line for each thing that is not as
    asked. Raises ProgramError, PlacementError (both before anything is changed) and, when the kernel refuses something
    and `strict` is set, HostError.
    """
    env = os.environ if env is None else env
    if not argv:
        raise UserError("there is no program to run; give one behind `--`")
    program = find_program(argv[0], env)
    if target is not None:
        check_allowed(target, allowance or Allowance.of_process())
        for finding in bind_self(target, strict=strict, kernel=kernel).findings:
            write_line(f"{finding.severity}: {finding.text}")
    execute(program, argv, env)


def execute(program: str, argv: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """Become the program, with the signals that Python ignores as they were before Python. Raises ProgramError when the
    kernel refuses."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # closed before we started
            with suppress(OSError):  # nobody reads it any more, or its disk is full: the program will see for itself
                stream.flush()
    for name in _IGNORED_BY_PYTHON:
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execve(program, list(argv), dict(env))
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            raise ProgramError(
                f"{program}: the interpreter in its first line, or its dynamic loader, is not there", NOT_FOUND
            ) from error
        if error.errno == errno.ENOEXEC:
            raise ProgramError(
                f"{program}: no program for this machine, and no script with a #! line", NOT_EXECUTABLE
            ) from error
        raise ProgramError(f"{program}: cannot be executed: {error.strerror}", NOT_EXECUTABLE) from error
    except ValueError as error:  # a NUL in an argument
        raise ProgramError(f"{program}: cannot be executed: {error}", NOT_EXECUTABLE) from error


def _bind_cpus(cpus: tuple[int, ...], kernel: Syscalls, strict: bool) -> Report:
    wanted = format_cpu_list(cpus)
    try:
        kernel.set_affinity(0, cpus)
        seen = kernel.affinity(0)
    except OSError as error:
        name = errno.errorcode.get(error.errno or errno.EIO, str(error.errno))
        remedy = "Look for a seccomp profile that forbids sched_setaffinity, or a cpuset that has just changed."
        return _cpus_refused(f"the kernel refuses CPUs {wanted}: sched_setaffinity: {name}", remedy, strict)
    if set(seen) != set(cpus):
        remedy = "CPUs went offline or the cpuset changed at this moment; try again."
        return _cpus_refused(f"the kernel made CPUs {wanted} into {format_cpu_list(seen)}", remedy, strict)
    return Report((ActionResult("affinity", "done", wanted),))


def _cpus_refused(message: str, remedy: str, strict: bool) -> Report:
    if strict:
        raise HostError(f"{message}. {remedy}")
    return Report(
        (ActionResult("affinity", "failed", message),), (Finding("error", "affinity_refused", message, remedy),)
    )
