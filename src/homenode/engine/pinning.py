"""Make an engine's place true for the process it runs in: before threads are started and memory is taken, which both
inherit it.

And how much memory there is then: a process bound to nodes is killed when they are full, however much is free on
others.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path

from homenode.cpuset import format_cpu_list
from homenode.engine.binding import EngineBinding
from homenode.errors import HostError
from homenode.host.bind.base.optional_calls import affinity_refusal, attempt
from homenode.host.bind.base.syscalls import Syscalls
from homenode.host.bind.memory.memory_map import read_memory_map
from homenode.host.bind.memory.mempolicy_fallback import bind_memory
from homenode.host.bind.memory.pages import OUT_OF_TIME, move_private_pages
from homenode.host.topology.finding import Finding
from homenode.units import format_bytes

_log = logging.getLogger(__name__)
_BRING_ALONG_S = 30.0  # some tens of MiB: a fraction of a second, or 1.5 s where a processor is emulated and has a CPU


def apply_binding(binding: EngineBinding, kernel: Syscalls | None = None) -> tuple[Finding, ...]:
    """Bind memory and the threads there are; compute threads are pinned by the team itself. Findings tell of what the
    kernel refused.
    """
    kernel = kernel or Syscalls()
    findings: tuple[Finding, ...] = ()
    if binding.memory_nodes:
        findings = (*bind_memory(binding.memory_nodes, kernel).findings, *_bring_along(binding.memory_nodes, kernel))
    if binding.others:
        findings += pin_process_threads(binding.others, kernel)
    return findings


def pin_process_threads(cpus: tuple[int, ...], kernel: Syscalls | None = None) -> tuple[Finding, ...]:
    """Bind every thread of this process to these CPUs; later ones inherit it. A finding tells when something else binds
    it as well.
    """
    kernel = kernel or Syscalls()
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # a thread that has ended meanwhile
            if not attempt(kernel.set_affinity, int(thread.name), cpus):
                return tuple(filter(None, (affinity_refusal(kernel),)))
    return _read_back(cpus, kernel)


def move_process_threads(cpus: tuple[int, ...]) -> None:
    """The same of a process that computes nothing, which goes on where it is if the kernel refuses; that is logged."""
    try:
        findings = pin_process_threads(cpus)
    except (OSError, HostError) as error:
        _log.warning("this process stays on its CPUs, as it could not be moved to CPUs %s: %s", cpus, error)
        return
    for finding in findings:
        _log.warning("%s", finding.text)


def _bring_along(nodes: tuple[int, ...], kernel: Syscalls) -> tuple[Finding, ...]:
    """Move what the interpreter and its libraries have taken before. What the kernel does not let us move is little,
    and works where it is; a finding tells of what there was no time for.
    """
    with suppress(HostError):
        memory = read_memory_map(os.getpid())
        if memory is not None:
            moves = move_private_pages(os.getpid(), memory, nodes, kernel, deadline_s=_BRING_ALONG_S)
            if moves.stopped == OUT_OF_TIME:
                message = (
                    f"{format_bytes(moves.moved)} of {format_bytes(moves.wanted)} that this process had taken before "
                    f"it was bound were moved to nodes {format_cpu_list(nodes)} within {_BRING_ALONG_S:g} s; the rest "
                    "stays where it is"
                )
                return (Finding("warning", "memory_left_behind", message, "Start it again when the host is less busy"),)
    return ()


def _read_back(planned: tuple[int, ...], kernel: Syscalls) -> tuple[Finding, ...]:
    seen = kernel.affinity(os.getpid())
    if set(seen) == set(planned):
        return ()
    message = f"the threads beside the computing ones may run on CPUs {seen}, planned are {planned}"
    return (Finding("warning", "affinity_cut", message, "Something else binds this process; see `homenode doctor`."),)
