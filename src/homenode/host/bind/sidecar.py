"""A small process that stays behind when a launcher becomes the program it launches, and does something for that
program.

It is forked twice, so that the program finds no child that it does not know, has a session of its own, so that a Ctrl-C
in the terminal is the program's alone, and holds nothing of the program's but its standard error. It learns of the
program's end from a pidfd (pidfd_open(2)).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

Task = Callable[[int | None], None]
WriteLine = Callable[[str], None]


def to_stderr(line: str) -> None:
    """One line on standard error, for as long as anybody reads it."""
    with suppress(OSError):
        os.write(2, f"homenode: {line}\n".encode())


def start_sidecar(task: Task, write_line: WriteLine = to_stderr) -> None:
    """Leave a process behind that does `task` and ends. `task` gets a pidfd of the calling process; None where the
    kernel has none.

    Call it from the main thread of a process without others, before binding: the sidecar keeps the affinity of this
    moment. `task` should end when the pidfd becomes readable. What it raises is reported through `write_line`, and so
    is that no process can be had (a limit on processes).
    """
    pidfd = _open_pidfd(os.getpid())
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with suppress(OSError):
                stream.flush()
    try:
        child = os.fork()
    except OSError as error:
        child = -1
        write_line(f"warning: nobody looks after threads, ranks and interrupts of the program: {error.strerror}")
    if child == 0:
        _become_sidecar(task, pidfd, write_line)
    if child > 0:
        os.waitpid(child, 0)  # the one in between
    if pidfd is not None:
        os.close(pidfd)


def _become_sidecar(task: Task, pidfd: int | None, write_line: WriteLine) -> NoReturn:
    """Run in the forked process: nothing may return from here into the launcher's code, whatever happens."""
    try:
        os.setsid()
        if os.fork() == 0:
            _let_go({2, pidfd} if pidfd is not None else {2})
            task(pidfd)
    except BaseException as error:  # reported here, as no caller is left to report it
        write_line(f"workers are not looked after any more: {type(error).__name__}: {error}")
    finally:
        os._exit(0)


def _let_go(keep: Iterable[int]) -> None:
    """Hold no file, pipe, lock or folder of the program's, so that nobody waits for this process."""
    os.chdir("/")
    for descriptor in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if descriptor not in keep:
            with suppress(OSError):  # the folder that was being listed
                os.close(descriptor)
    for _ in range(2):
        os.open(os.devnull, os.O_RDWR)  # the lowest free numbers: standard input and output


def _open_pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except OSError:  # Linux before 5.3, or a sandbox
        return None
