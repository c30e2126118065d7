"""The limits that a sandboxed process puts on itself before it reads anything of a model.

Where the machine refuses limits (`host.bind.base.optional_calls`), the parent's deadlines stay.

Sources: setrlimit(2), fcntl(2) (F_SETOWN, O_ASYNC), pipe(7).
"""

from __future__ import annotations

import fcntl
import math
import os
import resource
import select
import signal
import sys
import time

from homenode.host.resource_limits import read_limit, set_limit

_LARGEST_FILE = 1 << 20  # what standard error, a memfd, may grow to


def confine(memory_bytes: int) -> None:
    """Limit the address space of this process to `memory_bytes`, forbid core dumps and large files, and tie it to its
    parent.

    Standard input must be a pipe whose other end only the parent holds.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # when to end is the parent's decision
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end_with_parent()
    _lower(resource.RLIMIT_AS, memory_bytes)
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_FSIZE, _LARGEST_FILE)


def end_with_parent(descriptor: int = 0) -> None:
    """Let the kernel end this process by SIGIO as soon as the other end of the pipe `descriptor` is closed.

    This works while native code runs that never comes back, and unlike PR_SET_PDEATHSIG it does not depend on the
    thread of the parent that started this process.
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGIO})
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC)
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    if waiting.poll(0):  # the parent went away before the signal was asked for
        sys.exit(1)


def allow_cpu(seconds: float) -> None:
    """Let this process use `seconds` more of processor time, from now on; the kernel ends it by SIGXCPU when they are
    used up.

    This is the second line: the parent ends a process whose time is over, unless the parent is stopped or does not
    come to run.
    """
    hard = read_limit(resource.RLIMIT_CPU)[1]
    until = math.ceil(time.process_time() + seconds) + 1
    set_limit(resource.RLIMIT_CPU, _least(until, hard), hard)


def _lower(limit: int, value: int) -> None:
    """Set the soft limit, unless it is lower already."""
    soft, hard = read_limit(limit)
    set_limit(limit, _least(value, soft, hard), hard)


def _least(*limits: int) -> int:
    return min(limit for limit in limits if limit != resource.RLIM_INFINITY)
