"""Where the workers of one engine run: they divide the engine's CPUs, nodes kept whole where there are enough of them.
Pure.

Host threads of accelerators are bound to the CPUs that are local to the device and compute nothing. Without settings
CPU workers divide what the engine may use as several engines divide a host (`plan.replica_bindings`); with them, a
worker is one of the plan that `homenode plan` would print. Under `--numa` each keeps its weights on its own nodes
(`node_policy`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from homenode.cpuset import format_cpu_list
from homenode.engine.assignment import EngineAssignment
from homenode.engine.binding import EngineBinding
from homenode.engine.config import EngineConfig
from homenode.engine.devices import is_accelerator
from homenode.engine.plan.node_policy import divided_host, over_own_nodes
from homenode.engine.plan.placement import UNPINNED, core_of, cut
from homenode.engine.plan.replica_bindings import divided_places
from homenode.errors import UserError
from homenode.host.topology.finding import Finding
from homenode.host.topology.host import Accelerator, Host
from homenode.units import format_count


@dataclass(frozen=True)
class WorkerBindings:
    """`bindings`: of each worker. `loop`: CPUs of the engine's own threads, empty: wherever they are. `shared`: CPU
    workers have to share cores, so none may watch for another. `findings`: of all together.
    """

    bindings: tuple[EngineBinding, ...]
    loop: tuple[int, ...] = ()
    shared: bool = False
    findings: tuple[Finding, ...] = ()


def worker_places(host: Host, assignment: EngineAssignment, devices: Sequence[str]) -> WorkerBindings:
    """A place for the worker of each device. UserError and PlacementError for what this host cannot meet."""
    replica = assignment.replica
    within = _within(host, replica.binding) if replica else host
    on_cpu = [number for number, device in enumerate(devices) if not is_accelerator(device)]
    if replica and UNPINNED in replica.binding.team:
        made = _unpinned(len(replica.binding.team), len(on_cpu))
    else:
        made = _on_cpus(within, assignment, len(on_cpu))
    found = dict(zip(on_cpu, made.bindings, strict=True))
    team = {core_of(host, cpu) for binding in made.bindings for cpu in binding.team}
    for number, device in enumerate(devices):
        if number not in found:
            found[number] = _beside(within, device, team)
    loop = made.loop or tuple(cpu for cpu in within.allowance.cpus if core_of(host, cpu) not in team)
    return replace(made, bindings=tuple(found[number] for number in range(len(devices))), loop=loop)


def _within(host: Host, binding: EngineBinding) -> Host:
    """The host as far as it is the engine's: its compute threads' cores are what its workers divide."""
    cpus = tuple(cpu for cpu in binding.team if cpu != UNPINNED)
    if not cpus:
        return host
    quota = host.allowance.cpu_quota
    own = cut(host, host.allowance, cpus)
    return replace(host, allowance=replace(own, cpu_quota=None if quota is None else min(quota, float(len(cpus)))))


def _unpinned(threads: int, count: int) -> WorkerBindings:
    each = max(1, threads // max(1, count))
    return WorkerBindings((EngineBinding((UNPINNED,) * each),) * count, shared=threads < count)


def _on_cpus(host: Host, assignment: EngineAssignment, count: int) -> WorkerBindings:
    if not count:
        return WorkerBindings(())
    config, replica = assignment.config, assignment.replica
    if config.placement.numa is not None and not replica:
        return _under_a_policy(host, assignment, count)
    cores = host.allowance.physical_cpus
    if len(cores) < count:
        return _sharing(host, config, count)
    # What was asked for made the engine's place.
    settings = replace(config, placement=type(config.placement)()) if replica else config
    if replica:  # where the loop goes was decided with it, so every core of it computes
        settings = replace(settings, placement=replace(settings.placement, reserve_cpus=0))
    bindings = divided_places(
        host, settings, count, what="worker", flags="--pipeline-parallel-size x --tensor-parallel-size"
    )
    findings = dict.fromkeys(finding for binding in bindings for finding in binding.findings)
    apart = tuple(replace(binding, findings=()) for binding in bindings)
    return WorkerBindings(apart, replica.binding.others if replica else bindings[0].spare, findings=tuple(findings))


def _under_a_policy(host: Host, assignment: EngineAssignment, count: int) -> WorkerBindings:
    """The cores divided as without one, then spread over each worker's nodes as --numa says."""
    config = assignment.config
    host = divided_host(host, config.placement)
    bare = replace(config, placement=type(config.placement)(reserve_cpus=config.placement.reserve_cpus))
    if len(host.allowance.physical_cpus) < count:
        return _sharing(host, bare, count)
    made = _on_cpus(host, EngineAssignment(replace(bare, compute=replace(bare.compute, threads=None))), count)
    bindings, findings = over_own_nodes(host, assignment, made.bindings)
    return replace(made, bindings=bindings, findings=(*made.findings, *findings))


def _sharing(host: Host, config: EngineConfig, count: int) -> WorkerBindings:
    """More workers than cores: each computes on one, in turn with others."""
    cores = host.allowance.physical_cpus
    if config.compute.threads is not None and config.compute.threads > 1:
        raise UserError(
            f"--threads {config.compute.threads}: {format_count(count, 'worker shares', 'workers share')} "
            f"{format_count(len(cores), 'physical core')}; leave it out, or allow more CPUs",
            param="threads",
        )
    message = (
        f"{format_count(count, 'worker shares', 'workers share')} {format_count(len(cores), 'physical core')} "
        f"({format_cpu_list(cores)}), so they wait for each other's turns"
    )
    finding = Finding(
        "warning",
        "workers_share_cores",
        message,
        f"Allow {format_count(count, 'core')} or more, or have fewer stages and ranks.",
    )
    bindings = tuple(EngineBinding((cores[number * len(cores) // count],)) for number in range(count))
    return WorkerBindings(bindings, shared=True, findings=(finding,))


def _beside(host: Host, device: str, computing: set[int]) -> EngineBinding:
    """The host threads of an accelerator: on its local CPUs, those without a compute thread if there are any; memory
    from its node.
    """
    chip = _chip(host, device)
    local = tuple(cpu for cpu in (chip.local_cpus if chip else ()) if cpu in host.allowance.cpus)
    free = tuple(cpu for cpu in local if core_of(host, cpu) not in computing)
    node = chip.node if chip is not None and len(host.nodes) > 1 else None
    return EngineBinding((), free or local, () if node is None else (node,))


def _chip(host: Host, device: str) -> Accelerator | None:
    kind, _, number = device.removeprefix("torch:").partition(":")
    chips = [chip for chip in host.accelerators.chips if ("cuda" if chip.kind == "rocm" else chip.kind) == kind]
    return next((chip for chip in chips if chip.id == int(number or 0)), None)
