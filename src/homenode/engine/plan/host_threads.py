"""Cores for the threads that drive accelerators: each device has one of its own near it, beside one for the engine and
one for the front (the field's rule, 2 + N physical cores). An NPU has as many as its roles need (`npu_roles`). Pure.

CPU workers of the same engine leave these cores to them, as far as each keeps one to compute.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from homenode.engine.binding import EngineBinding
from homenode.engine.devices import is_accelerator, is_npu
from homenode.engine.plan.accelerators.driven_chips import chip_of
from homenode.engine.plan.placement import core_of, cut
from homenode.host.plan.policies.numa_bind import device_node
from homenode.host.plan.priority_cores import of_node
from homenode.host.plan.resources.cores import AllowedCore, allowed_cores
from homenode.host.plan.resources.fair_roles import ROLES_APART
from homenode.host.plan.resources.memory_nodes import memory_nodes
from homenode.host.plan.resources.nodes import allowed_cpus, nodes_of
from homenode.host.plan.resources.share import set_aside
from homenode.host.topology.finding import Finding
from homenode.host.topology.host import Accelerator, Host
from homenode.units import format_count

_ENGINE_AND_FRONT = 2


def accelerators_of(devices: Sequence[str]) -> tuple[str, ...]:
    """Return those of the workers' devices whose host threads need cores."""
    return tuple(device for device in devices if is_accelerator(device))


def left_to_accelerators(host: Host, devices: Sequence[str]) -> Host:
    """The host as far as it is the CPU workers': without the cores that the host threads of accelerators, the engine
    and the front are to have.
    """
    pools = {node: list(cores) for node, cores in allowed_cores(host).items()}
    driven = accelerators_of(devices)
    spare = sum(map(len, pools.values())) - (len(devices) - len(driven))
    kept: list[AllowedCore] = []
    for device in driven[: max(0, spare)]:
        kept.append(_nearest(pools, _local_cpus(host, device)))
    kept += _for_roles(host, pools, driven, spare - len(kept) - _ENGINE_AND_FRONT)
    more = min(_ENGINE_AND_FRONT, max(0, spare - len(kept)))
    kept += set_aside(pools, more, {})[1]
    taken = {core.id for core in kept}
    left = tuple(cpu for cpu in host.allowance.cpus if core_of(host, cpu) not in taken)
    return replace(host, allowance=cut(host, host.allowance, left))


def _for_roles(
    host: Host, pools: Mapping[int, list[AllowedCore]], driven: Sequence[str], spare: int
) -> list[AllowedCore]:
    """Further cores near each NPU, whose roles lie apart on five CPUs. None where that would leave CPU workers less
    than half of what they have."""
    npus = [device for device in driven if is_npu(device)]
    a_core = max((len(core.cpus) for pool in pools.values() for core in pool), default=1)
    more = -(-ROLES_APART // a_core) - 1
    if not npus or len(npus) * more > spare // 2:
        return []
    return [_nearest(pools, _local_cpus(host, device)) for device in npus for _ in range(more)]


def _nearest(pools: Mapping[int, list[AllowedCore]], local: Collection[int]) -> AllowedCore:
    """Take a core near the device out of the pools: the last of its local ones, a priority core if there are any, else
    of the largest pool."""
    near = [(node, core) for node, pool in pools.items() for core in pool if not set(core.cpus).isdisjoint(local)]
    if not near:
        return max(pools.values(), key=len).pop()
    node, core = ([pair for pair in near if pair[1].priority] or near)[-1]
    pools[node].remove(core)
    return core


def beside(host: Host, device: str, computing: Collection[int], home: EngineBinding | None = None) -> EngineBinding:
    """The host threads of an accelerator: on its local CPUs, those of cores that are not `computing` if there are any,
    else on the nearest free ones; memory from its node. `home`: where settings have them, with the same preference.
    """
    chip = chip_of(host, device)
    free = tuple(cpu for cpu in host.allowance.cpus if core_of(host, cpu) not in computing)
    if home is not None:
        here = home.others or home.team
        return EngineBinding((), tuple(cpu for cpu in here if cpu in free) or here, home.memory_nodes)
    local = tuple(cpu for cpu in (chip.local_cpus if chip else ()) if cpu in host.allowance.cpus)
    near = tuple(cpu for cpu in local if cpu in free)
    node = chip.node if chip is not None and len(host.nodes) > 1 else None
    return EngineBinding((), near or _by_distance(host, node, free) or local, () if node is None else (node,))


def home_of_device(host: Host, device: str) -> EngineBinding:
    """The node of a device, its allowed CPUs (the priority cores, where there are enough) and its memory, as
    --numa-bind has it. Raises PlacementError numa_node_unknown where nothing tells the node.
    """
    kind, _, number = device.removeprefix("torch:").partition(":")
    node = device_node(host, chip_of(host, device) or Accelerator(kind, int(number or 0), ""))
    cpus = allowed_cpus(host, next(found for found in nodes_of(host) if found.id == node))
    return EngineBinding((), of_node(host, node, cpus), memory_nodes(host, (node,))[:1])


def _by_distance(host: Host, node: int | None, free: Sequence[int]) -> tuple[int, ...]:
    """The free CPUs of the node nearest to that of the device; all where its node is not known."""
    nodes = {host.cpu_by_id[cpu].node for cpu in free} - {None}
    if node is None or not nodes:
        return tuple(free)
    nearest = min(
        (found for found in nodes if found is not None), key=lambda found: (host.distance(node, found), found)
    )
    return tuple(cpu for cpu in free if host.cpu_by_id[cpu].node == nearest)


def too_few_beside(host: Host, devices: Sequence[str], computing: Collection[int]) -> tuple[Finding, ...]:
    """A warning when accelerators' host threads, engine and front have fewer cores than processes. `computing`: cores
    with compute threads.
    """
    driven = accelerators_of(devices)
    if not driven:
        return ()
    cores = {core_of(host, cpu) for cpu in host.allowance.physical_cpus}
    wanted, free = _ENGINE_AND_FRONT + len(driven), len(cores - set(computing))
    if free >= wanted:
        return ()
    workers = len(devices) - len(driven)
    names = ", ".join(device.removeprefix("torch:") for device in driven)
    message = (
        f"{format_count(wanted + workers, 'physical core is', 'physical cores are')} the least for this engine "
        f"(front: 1, engine: 1, host threads of {names}: {len(driven)}, CPU workers: {workers}), and this process "
        f"may use {len(cores)}"
        if len(cores) < wanted + workers
        else f"compute threads leave {free} of {format_count(len(cores), 'physical core')} to front, engine and the "
        f"host threads of {names}, which want {wanted}"
    )
    remedy = (
        f"Allow more CPUs, keep {wanted} free (--reserve-cpus {wanted}), or expect accelerators to wait for their "
        "turns on the CPU."
    )
    return (Finding("warning", "too_few_cores", message, remedy),)


def _local_cpus(host: Host, device: str) -> frozenset[int]:
    """Return the CPUs that its tool tells, else those of its node."""
    chip = chip_of(host, device)
    if chip is None:
        return frozenset()
    node = None if chip.node is None else host.node_by_id.get(chip.node)
    return frozenset(chip.local_cpus or (node.cpus if node else ()))
