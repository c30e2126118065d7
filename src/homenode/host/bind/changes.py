"""Changes that binding a running process would make: masks of threads, memory, interrupts. Only looks."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from homenode.cpuset import format_cpu_list
from homenode.errors import HostError
from homenode.host.bind.base.syscalls import Syscalls
from homenode.host.bind.base.target import Target
from homenode.host.bind.base.threads import identify, wanted_cpus
from homenode.host.bind.interrupts.irq_match import match
from homenode.host.bind.irq import Interrupts
from homenode.host.bind.masks import Cpus, read_masks
from homenode.host.bind.memory.memory_map import read_memory_map
from homenode.host.topology.host import Host
from homenode.units import format_bytes, format_count


@dataclass(frozen=True, slots=True)
class Change:
    """`what` would be moved from `before` to `after`, all three in words."""

    what: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.what}: {self.before} -> {self.after}"

    def to_dict(self) -> dict[str, str]:
        """`{"what", "before", "after"}`."""
        return asdict(self)


def changes_of_process(
    pid: int, target: Target, *, memory: bool = True, calls: Syscalls | None = None
) -> tuple[Change, ...]:
    """Return what would change of process `pid`: its threads, and with `memory` where its private memory lies.

    Memory that this user may not look into is left out. Raises UserError for a process that is not there, HostError for
    one whose threads cannot be looked at.
    """
    found = _changes_of_threads(pid, target, calls or Syscalls())
    return (*found, *(_changes_of_memory(pid, target.memory_nodes) if memory and target.memory_nodes else ()))


def changes_of_interrupts(target: Target, host: Host, interrupts: Interrupts | None = None) -> tuple[Change, ...]:
    """Return which of the target's interrupts would go to other CPUs. Those that cannot be read are left out."""
    interrupts, found = interrupts or Interrupts(), []
    for routed in match(target.irqs, host)[0]:
        wanted = format_cpu_list(routed.cpus)
        with suppress(OSError):
            if (seen := interrupts.read(routed.irq)) != wanted:
                found.append(Change(routed.what, f"CPUs {seen}", f"CPUs {wanted}"))
    return tuple(found)


def name_and_owner(pid: int) -> str:
    """`4711 (sleep) of root`, as far as it can be told."""
    import pwd

    folder, name, owner = Path("/proc") / str(pid), "", ""
    with suppress(OSError):
        name = f" ({(folder / 'comm').read_text(errors='replace').strip()})"
        number = folder.stat().st_uid
        try:
            owner = f" of {pwd.getpwuid(number).pw_name}"
        except KeyError:
            owner = f" of user {number}"
    return f"{pid}{name}{owner}"


def _changes_of_threads(pid: int, target: Target, calls: Syscalls) -> tuple[Change, ...]:
    """One for each pair of masks, with how many threads have it, the commonest first."""
    moves: Counter[tuple[Cpus, Cpus]] = Counter()
    for thread, seen in read_masks(identify(pid), calls).values():
        wanted = wanted_cpus(thread.name, target)
        if wanted and set(seen) != set(wanted):
            moves[seen, wanted] += 1
    return tuple(
        Change(format_count(count, "thread"), f"CPUs {format_cpu_list(seen)}", f"CPUs {format_cpu_list(wanted)}")
        for (seen, wanted), count in moves.most_common()
    )


def _changes_of_memory(pid: int, nodes: tuple[int, ...]) -> tuple[Change, ...]:
    try:
        memory = read_memory_map(pid)
    except HostError:  # another user's: whoever may bind it sees more
        return ()
    away = (
        {node: size for node, size in memory.bytes_by_node().items() if node not in nodes} if memory is not None else {}
    )
    if not away:
        return ()
    amount = f"{format_bytes(sum(away.values()))} of private memory"
    return (Change(amount, f"memory nodes {format_cpu_list(tuple(away))}", f"memory nodes {format_cpu_list(nodes)}"),)
