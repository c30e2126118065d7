"""System calls that are a help, and that a container's seccomp profile, a unit's system call filter or a sandbox may
refuse: what each is for, what goes on without it, and what to do.

A trial changes nothing: it asks for what is there already, or for what a kernel that knows the call finds wrong.
Sources: systemd.exec(5) on SystemCallFilter=, seccomp(2), and the manual page of each call.
"""

from __future__ import annotations

import errno
import mmap
import os
import resource
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from homenode.errors import HostError
from homenode.host.bind.base.syscalls import Syscalls
from homenode.host.refused_errors import REFUSALS, REMEDY
from homenode.host.socket_pair import NEEDED_FOR, open_socket_pair
from homenode.host.topology.finding import Finding

_NUMA = f"{REMEDY} (docker run --cap-add SYS_NICE)."
AFFINITY = "sched_setaffinity"
MEMORY_FILE = "memfd_create"
LOCAL_SOCKET = "socket(AF_UNIX)"


@dataclass(frozen=True, slots=True)
class OptionalCall:
    """A system call that may be missing. `without`: a finding whose message says what is done then, or no longer.
    `trial`: raises OSError where it is refused. `helps_numa`: only a host with several memory nodes gains by it.
    `at_start`: an engine tells of it whatever its settings; what others cost is told where they are used, and by
    `doctor`."""

    name: str
    without: Finding
    trial: Callable[[Syscalls], object]
    helps_numa: bool = False
    at_start: bool = False

    def finding(self, code: int) -> Finding:
        """Return what a refusal with this errno comes to."""
        seen = f"{self.name} is refused here ({errno.errorcode.get(code, code)})"
        return replace(self.without, message=f"{seen}: {self.without.message}")


def _same_policy(calls: Syscalls) -> None:
    mode, nodes = calls.get_mempolicy()
    calls.set_mempolicy(mode, nodes)


def _memory_file(_calls: Syscalls) -> None:
    os.close(os.memfd_create("homenode trial", os.MFD_CLOEXEC))


def _local_socket(_calls: Syscalls) -> None:
    socket.socket(socket.AF_UNIX, socket.SOCK_STREAM).close()


def _socket_pair(_calls: Syscalls) -> None:
    for end in open_socket_pair():
        end.close()


def _advice(_calls: Syscalls) -> None:
    with mmap.mmap(-1, mmap.PAGESIZE) as page:
        page.madvise(mmap.MADV_NORMAL)


def _same_limit(_calls: Syscalls) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, resource.getrlimit(resource.RLIMIT_CORE))


OPTIONAL_CALLS = (
    OptionalCall(
        AFFINITY,
        Finding(
            "warning",
            "affinity_refused",
            "threads run wherever the kernel puts them, bound to no CPU and to no memory node, which costs speed "
            "beside other programs and on hosts with several memory nodes",
            f"{REMEDY}; --cpu-threads-bind nobind asks for no binding.",
        ),
        lambda calls: calls.set_affinity(0, ()),
        at_start=True,
    ),
    OptionalCall(
        "set_mempolicy",
        Finding(
            "warning",
            "memory_policy_refused",
            "memory comes from wherever the thread runs that touches it first",
            _NUMA,
        ),
        _same_policy,
        helps_numa=True,
    ),
    OptionalCall(
        "mbind",
        Finding(
            "warning",
            "mbind_refused",
            "weights and KV memory come from the node of the thread that touches them first",
            _NUMA,
        ),
        lambda calls: calls.mbind(0, 0, 0, ()),
        helps_numa=True,
        at_start=True,
    ),
    OptionalCall(
        "move_pages",
        Finding(
            "warning",
            "move_pages_refused",
            "pages stay on the node where they are, and nobody can tell which that is",
            _NUMA,
        ),
        lambda calls: calls.move_pages(0, (), None),
        helps_numa=True,
    ),
    OptionalCall(
        MEMORY_FILE,
        Finding(
            "warning",
            "memfd_create_refused",
            "several workers, experts in common and KV transfer over shared memory have no memory to share; elsewhere "
            "files without a name stand in for it",
            f"{REMEDY}.",
        ),
        _memory_file,
    ),
    OptionalCall(
        "pidfd_open",
        Finding(
            "warning",
            "pidfd_open_refused",
            "processes are watched by their number, so that their end is noticed later",
            f"{REMEDY}.",
        ),
        lambda _calls: os.close(os.pidfd_open(os.getpid())),
    ),
    OptionalCall(
        LOCAL_SOCKET,
        Finding(
            "warning",
            "unix_socket_refused",
            "no Unix domain socket can be opened, as --uds and KV transfer over shared memory want",
            "Allow AF_UNIX in the unit (RestrictAddressFamilies=) or in the container's seccomp profile.",
        ),
        _local_socket,
    ),
    OptionalCall(
        "socketpair",
        Finding("error", "socketpair_refused", NEEDED_FOR, f"{REMEDY}."),
        _socket_pair,
    ),
    OptionalCall(
        "madvise",
        Finding(
            "warning",
            "madvise_refused",
            "no huge pages are asked for, and KV memory that is not used any more is not given back",
            f"{REMEDY}.",
        ),
        _advice,
        at_start=True,
    ),
    OptionalCall(
        "prlimit64",
        Finding(
            "warning",
            "prlimit64_refused",
            "the processes that read a model's chat template and vocabulary have no limits of memory and processor "
            "time of their own, and the number of open files stays as it is",
            f"{REMEDY}; serve only models that you trust meanwhile.",
        ),
        _same_limit,
        at_start=True,
    ),
    OptionalCall(
        "sched_getaffinity",
        Finding(
            "info",
            "sched_getaffinity_refused",
            "the CPUs that threads may run on are read from /proc instead",
            f"{REMEDY}.",
        ),
        lambda _calls: os.sched_getaffinity(0),
    ),
)


def refusal_of(call: OptionalCall, calls: Syscalls) -> Finding | None:
    """Return what to tell of it; None where it works, or where it fails for another reason than that it is
    not allowed.
    """
    try:
        call.trial(calls)
    except OSError as error:
        return call.finding(error.errno) if error.errno in REFUSALS else None
    except HostError:  # a machine whose numbers of calls are not known
        return None
    return None


def refused_calls(
    calls: Syscalls | None = None, among: Iterable[OptionalCall] = OPTIONAL_CALLS, nodes: int = 1
) -> tuple[Finding, ...]:
    """A finding for each of these calls that this process may not make, where a host with so many memory nodes loses by
    it."""
    calls = calls or Syscalls()
    tried = (refusal_of(call, calls) for call in among if nodes > 1 or not call.helps_numa)
    return tuple(finding for finding in tried if finding is not None)


def refused_at_start(nodes: int, calls: Syscalls | None = None) -> tuple[Finding, ...]:
    """Return those of which every engine tells."""
    return refused_calls(calls, (call for call in OPTIONAL_CALLS if call.at_start), nodes)


def refused_needs(calls: Syscalls | None = None) -> Mapping[str, Finding]:
    """Return, by name, what to tell of those without which some settings cannot be met at all
    (`engine.plan.problems.needed_calls`).
    """
    calls = calls or Syscalls()
    tried = {call.name: refusal_of(call, calls) for call in OPTIONAL_CALLS if call.name in (MEMORY_FILE, LOCAL_SOCKET)}
    return {name: finding for name, finding in tried.items() if finding is not None}


def affinity_refusal(calls: Syscalls | None = None) -> Finding | None:
    """Return what to tell where no thread can be bound to CPUs."""
    return refusal_of(OPTIONAL_CALLS[0], calls or Syscalls())


def attempt(action: Callable[..., Any], *arguments: object) -> bool:
    """Return whether it was done; False where the kernel or a filter refuses the call as such. Other errors
    are raised.
    """
    try:
        action(*arguments)
    except OSError as error:
        if error.errno not in REFUSALS:
            raise
        return False
    return True
