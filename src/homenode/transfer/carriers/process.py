"""Which process of which host a peer is, where the socket does not tell."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec


class ProcessIdentity(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`host`: the boot and the PID namespace in which `pid` counts; `started`: in clock ticks after the boot, so that a
    pid used again is noticed."""

    host: str
    pid: int
    started: int


def this_process() -> ProcessIdentity:
    """Of this process."""
    return ProcessIdentity(_host(), os.getpid(), _started(os.getpid()))


def find_process(process: ProcessIdentity) -> int | None:
    """A pidfd, owned by the caller; None for a process that is not on this host, not this user's, or that has ended."""
    if process.host != _host() or not process.host or not 0 < process.pid < 1 << 22:
        return None
    try:
        found = os.pidfd_open(process.pid)
    except OSError:
        return None
    try:
        if _started(process.pid) == process.started and Path(f"/proc/{process.pid}").stat().st_uid == os.geteuid():
            return found
    except OSError:
        pass
    os.close(found)
    return None


def _host() -> str:
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _started(pid: int) -> int:
    """proc(5): field 22 of stat; the second may hold anything. -1: unknown."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return -1
