"""Make an engine's place true for the process it runs in: before threads are started and memory is taken, which both inherit it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from homenode.engine.placement import EnginePlace
from homenode.host.binding.ladder import bind_memory
from homenode.host.binding.syscalls import Syscalls
from homenode.host.topology.finding import Finding


def settle(place: EnginePlace, kernel: Syscalls | None = None) -> tuple[Finding, ...]:
    """Bind memory and the threads there are; compute threads are pinned by the team itself. Findings tell of what the kernel refused."""
    kernel = kernel or Syscalls()
    findings: tuple[Finding, ...] = ()
    if place.memory_nodes:
        findings = bind_memory(place.memory_nodes, kernel).findings
    if place.others:
        for thread in Path("/proc/self/task").iterdir():
            with suppress(ProcessLookupError):  # a thread that has ended meanwhile
                kernel.set_affinity(int(thread.name), place.others)
        findings += _read_back(place.others, kernel)
    return findings


def _read_back(wanted: tuple[int, ...], kernel: Syscalls) -> tuple[Finding, ...]:
    seen = kernel.affinity(os.getpid())
    if set(seen) == set(wanted):
        return ()
    message = f"the engine's threads may run on CPUs {seen}, planned are {wanted}"
    return (Finding("warning", "affinity_cut", message, "Something else binds this process; see `homenode doctor`."),)
