"""Facts that only the living system tells and no recording holds: what this process may do, what runs beside it, how a
process is doing.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from homenode.errors import HostError
from homenode.host.bind.base.optional_calls import refused_calls
from homenode.host.bind.base.syscalls import Syscalls, thread_cpus
from homenode.host.bind.claims import living_claims
from homenode.host.bind.cpu_load import CpuLoad, read_cpu_load
from homenode.host.bind.interrupts.irqbalance import find_irqbalance
from homenode.host.plan.demand import Claim
from homenode.host.topology.facts import FactReader, parse_number
from homenode.host.topology.finding import Finding
from homenode.host.topology.memory import read_meminfo
from homenode.host.topology.online import NODE_FOLDER
from homenode.host.topology.source import LiveSource, Source

CAP_SYS_PTRACE, CAP_SYS_NICE = 19, 23  # linux/capability.h
_MOST_ENVIRONMENT = 1 << 22


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """A process that was asked about. `swapped`: bytes of it in swap."""

    pid: int
    name: str
    threads: int
    swapped: int


@dataclass(frozen=True, slots=True)
class LiveFacts:
    """`capabilities`: the effective set as bits (capabilities(7)), of the calling process. `memory_policy_refusal`:
    name of the error that set_mempolicy gives, empty where it works. `irqs_writable`: None without interrupts to try.
    `refused`: calls that this process may not make. `swap`, `swap_used`: bytes. `load`: of the CPUs that the calling
    process, or the one asked about, may use. `claims`: of living processes of this user and pid namespace."""

    capabilities: int | None = None
    memory_policy_refusal: str = ""
    irqs_writable: bool | None = None
    irqbalance: int | None = None
    refused: tuple[Finding, ...] = ()
    swap: int = 0
    swap_used: int = 0
    process: ProcessFacts | None = None
    load: CpuLoad | None = None
    claims: tuple[Claim, ...] = ()

    def may(self, capability: int) -> bool:
        """Return whether the capability is held; taken to be where the kernel does not say."""
        return self.capabilities is None or bool(self.capabilities >> capability & 1)


class ProcessSource(LiveSource):
    """This machine as process `pid` finds it: its mask, its control groups, its variables."""

    def __init__(self, pid: int) -> None:
        self._own = f"/proc/{pid}/"
        super().__init__(env=_environment(pid))

    def read(self, path: str) -> str | None:
        return super().read(path.replace("/proc/self/", self._own, 1) if path.startswith("/proc/self/") else path)


def read_live_facts(pid: int | None = None, calls: Syscalls | None = None) -> LiveFacts:
    """Read the facts of the calling process and this system; of process `pid` too. Never raises: what is not told keeps
    its default.
    """
    source = LiveSource(env={})
    memory = read_meminfo(FactReader(source), "/proc/meminfo")
    swap = memory.get("SwapTotal", 0)
    daemon = find_irqbalance()
    return LiveFacts(
        capabilities=_capabilities(source),
        memory_policy_refusal=_memory_policy_refusal(calls or Syscalls()),
        irqs_writable=_irqs_writable(),
        irqbalance=daemon.pid if daemon else None,
        refused=refused_calls(calls, nodes=len(FactReader(source).cpus(f"{NODE_FOLDER}/online") or (0,))),
        swap=swap,
        swap_used=swap - memory.get("SwapFree", swap),
        process=None if pid is None else _process(pid, source),
        load=read_cpu_load(source, _mask(pid), pid),
        claims=living_claims(),
    )


def _mask(pid: int | None) -> tuple[int, ...] | None:
    """The CPUs that a process may use; None where that cannot be told."""
    try:
        return thread_cpus(pid or 0)
    except OSError:
        return None


def _capabilities(source: Source) -> int | None:
    text = _status(source, "self").get("CapEff", "")
    return int(text, 16) if 0 < len(text) <= 16 and set(text) <= set("0123456789abcdef") else None


def _memory_policy_refusal(calls: Syscalls) -> str:
    """Setting the policy that is there already changes nothing, and is refused where setting any is."""
    try:
        mode, nodes = calls.get_mempolicy()
        calls.set_mempolicy(mode, nodes)
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, "error")
    except HostError:
        return "unknown machine"
    return ""


def _irqs_writable() -> bool | None:
    for file in Path("/proc/irq").glob("*/smp_affinity_list"):
        try:
            os.close(os.open(file, os.O_WRONLY | os.O_CLOEXEC))
        except FileNotFoundError:
            continue
        except OSError:
            return False
        return True
    return None


def _process(pid: int, source: Source) -> ProcessFacts:
    status = _status(source, str(pid))
    swapped = parse_number(status.get("VmSwap", "").removesuffix(" kB")) or 0
    return ProcessFacts(pid, status.get("Name", ""), parse_number(status.get("Threads", "")) or 0, swapped * 1024)


def _status(source: Source, pid: str) -> dict[str, str]:
    lines = (source.read(f"/proc/{pid}/status") or "").splitlines()
    return {name: rest.strip() for name, _, rest in (line.partition(":") for line in lines)}


def _environment(pid: int) -> Mapping[str, str]:
    """Variables that the process was started with (proc_pid_environ(5)); none where this user may not read them."""
    try:
        with Path(f"/proc/{pid}/environ").open("rb") as file:
            raw = file.read(_MOST_ENVIRONMENT)
    except OSError:
        return {}
    return dict(_pairs(raw))


def _pairs(raw: bytes) -> Iterator[tuple[str, str]]:
    for entry in raw.split(b"\0"):
        name, equals, value = entry.decode("utf-8", "replace").partition("=")
        if equals:
            yield name, value
