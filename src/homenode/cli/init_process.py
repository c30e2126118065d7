"""Duties of the first process of a container towards the others: orphans are its children, and stay there as zombies
until it asks for their end.

A process that serves cannot ask for everybody's end, as whoever started a child of its own wants to know how that
ended. So the first process becomes two: one that passes signals on and buries, as `docker run --init` has it, and the
command. Sources: pid_namespaces(7), wait(2), sigwaitinfo(2).
"""

from __future__ import annotations

import os
import signal
import sys

_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_SI_KERNEL = 0x80  # a terminal's Ctrl-C, which reaches all processes in front of it by itself


def leave_first_process() -> None:
    """Return in a child where this is the first process of its pid namespace; that one stays behind, and ends as the
    child does. Elsewhere nothing happens. To be called before there are threads.
    """
    if os.getpid() == 1:
        divide()


def divide() -> None:
    """Return in a child; this process ends as that does, after passing signals on and burying what ends below it."""
    awaited = {signal.SIGCHLD, *_PASSED_ON}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)  # none is missed between fork and wait
    try:
        child = os.fork()
    except OSError:  # no room for another process: zombies cost less than not to serve
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    sys.stdout.flush()
    os._exit(_watch(child, awaited))


def _watch(child: int, awaited: set[signal.Signals]) -> int:
    """The exit code of the child, as a shell has it."""
    while True:
        told = signal.sigwaitinfo(awaited)
        if told.si_signo == signal.SIGCHLD:
            if (status := _bury(child)) is not None:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
        elif told.si_code != _SI_KERNEL:
            os.kill(child, told.si_signo)


def _bury(child: int) -> int | None:
    """Ask for the end of all that have ended; how the child has, if it is among them."""
    found = None
    while True:
        try:
            ended, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if ended == 0:
            return found
        if ended == child:
            found = status
