"""The target of a binding: what one process should look like once it is bound: the part of a plan that concerns it, in
the kernel's terms. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from homenode.host.plan.plan import WorkerBinding
from homenode.host.topology.accelerator_kinds import KINDS
from homenode.host.topology.host import Accelerator

# Threads that an accelerator's driver library starts inside a worker, by role. Names are matched from the start: comm
# holds 15 characters.
DRIVER_THREADS = {"acl": ("acl_thread",), "release": ("release_thread",)}
# Threads that a KV store (UCM of vllm-ascend) runs beside the process: they copy all the time, and have the back half
# of its CPUs, so that the front half is the process's own.
STORE_THREADS = "ucm_"
# Interrupts of an Ascend device: submissions go to the first CPU of the irq role, completions (there may be sixteen) to
# the second.


@dataclass(frozen=True, slots=True)
class IrqRoute:
    """Interrupts of the PCI device at `address` whose action starts with `action` (any action when empty) go to
    `cpus`."""

    address: str
    action: str
    cpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Target:
    """`cpus`: of the process and of every thread without a name of its own in `threads` (name prefix -> CPUs).

    `memory_nodes`: nodes its memory is bound to, best first; empty: memory is left alone.
    """

    cpus: tuple[int, ...]
    threads: dict[str, tuple[int, ...]] = field(default_factory=dict)
    memory_nodes: tuple[int, ...] = ()
    irqs: tuple[IrqRoute, ...] = ()


def target_of(worker: WorkerBinding, chip: Accelerator | None) -> Target:
    """The target of one worker of a plan; `chip` is its accelerator, for the interrupts."""
    threads = {
        prefix: worker.roles[role]
        for role, prefixes in DRIVER_THREADS.items()
        if worker.roles.get(role)
        for prefix in prefixes
    }
    if threads and (back := worker.main_cpus[(len(worker.main_cpus) + 1) // 2 :]):
        threads[STORE_THREADS] = back
    return Target(worker.main_cpus, threads, worker.memory_nodes, _routes(worker.roles.get("irq", ()), chip))


def _routes(cpus: tuple[int, ...], chip: Accelerator | None) -> tuple[IrqRoute, ...]:
    if not cpus or chip is None or chip.address is None:
        return ()
    names = KINDS[chip.kind].interrupts
    if not names:
        return (IrqRoute(chip.address, "", cpus),)
    return tuple(IrqRoute(chip.address, name, cpus[place : place + 1] or cpus[:1]) for place, name in enumerate(names))
