"""The way from settings, host and model to workers: what computes each, which part of the model it has, where it runs,
how much memory it may take. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from homenode.engine.binding import EngineBinding, Replica
from homenode.engine.config import EngineConfig
from homenode.engine.devices import is_accelerator
from homenode.engine.plan.placement import UNPINNED
from homenode.engine.plan.worker_bindings import WorkerBindings
from homenode.host.topology.finding import Finding
from homenode.model.part import ModelPart


@dataclass(frozen=True)
class WorkerPlan:
    """One worker: `number` counts those of its engine, stage after stage. `name`: of its process. `memory`: bytes it
    may take for weights, buffers and KV memory; None on a device with memory of its own. `memory_nodes`: NUMA nodes
    that these are of, empty: any.
    """

    number: int
    name: str
    device: str
    part: ModelPart
    binding: EngineBinding
    memory: int | None = None
    memory_nodes: tuple[int, ...] = ()

    @property
    def stage(self) -> int:
        """Its stage."""
        return self.part.stage

    @property
    def rank(self) -> int:
        """Its rank within the stage."""
        return self.part.rank


@dataclass(frozen=True)
class WorkerLayout:
    """All workers of an engine. `loop`: CPUs of the engine's own threads, empty: wherever they are. `shared`: CPU
    workers share cores.
    """

    workers: tuple[WorkerPlan, ...]
    loop: tuple[int, ...] = ()
    shared: bool = False
    findings: tuple[Finding, ...] = ()


def lay_out(
    replica: Replica | None, parts: Sequence[ModelPart], devices: Sequence[str], bindings: WorkerBindings
) -> WorkerLayout:
    """The workers, one for each part. `replica`: which of several engines they are for."""
    first = replica.number * len(parts) if replica else 0
    workers = tuple(
        WorkerPlan(number, f"homenode-worker-{first + number}", device, part, binding)
        for number, (part, device, binding) in enumerate(zip(parts, devices, bindings.bindings, strict=True))
    )
    findings = () if replica else bindings.findings  # of several engines it is said with their places
    return WorkerLayout(
        workers,
        bindings.loop,
        bindings.shared,
        (*findings, *(f for binding in bindings.bindings for f in binding.findings)),
    )


def computing_cpus(layout: WorkerLayout) -> tuple[int, ...]:
    """The CPUs of all compute threads that are bound to one."""
    cpus = {cpu for worker in layout.workers if not is_accelerator(worker.device) for cpu in worker.binding.team}
    return tuple(sorted(cpus - {UNPINNED}))


def cpus_of_sets(layout: WorkerLayout) -> tuple[int, ...]:
    """The CPUs that compute threads may choose among; none where each has its own."""
    return tuple(sorted({cpu for worker in layout.workers for own in worker.binding.sets for cpu in own}))


def with_memory(
    layout: WorkerLayout, weight_bytes: Sequence[int], capacities: Sequence[tuple[int, tuple[int, ...]]], total: int
) -> WorkerLayout:
    """The workers with what each may take: its weights, and equal parts of what all weights leave, so that memory
    several could have is counted once.

    `weight_bytes` and `capacities`: for each worker; a room is bytes free on the nodes it is bound to, and those nodes
    (empty: not bound). `total`: bytes that all may take together.
    """
    on_host = [n for n, worker in enumerate(layout.workers) if not is_accelerator(worker.device)]
    shares: dict[int, int] = {}
    for n in on_host:
        size, nodes = capacities[n]
        near = [m for m in on_host if not nodes or not capacities[m][1] or not set(nodes).isdisjoint(capacities[m][1])]
        left = max(0, min(size, total) - sum(weight_bytes[m] for m in near)) // len(near)
        shares[n] = weight_bytes[n] + left
    promised = sum(shares.values())
    cut = total / promised if promised > total else 1.0
    return replace(
        layout,
        workers=tuple(
            replace(w, memory=int(shares[w.number] * cut) if w.number in shares else None) for w in layout.workers
        ),
    )


def config_of_workers(config: EngineConfig, layout: WorkerLayout) -> EngineConfig:
    """The engine's settings as they are for its workers: those that share cores watch for nothing."""
    return replace(config, compute=replace(config.compute, spin_us=0)) if layout.shared else config
