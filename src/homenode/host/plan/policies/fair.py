"""`fair`, the default: disjoint pools of whole cores, each device its share of its own nodes; cores of other nodes only
where that share is too small to work with.

    two devices on node 0, none on node 1:
    |========= node 0 =========|--------- node 1 ---------|
    |  device 0   |  device 1  |          nobody          |

The arithmetic is over all devices of the host, visible or not: processes that do not know of each other never overlap.
Memory is on the device's own node. A host without accelerators gets CPU workers, one for each node unless told
otherwise, by the same arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from homenode.cpuset import format_cpu_list
from homenode.errors import PlacementError
from homenode.host.plan.claimed import kept_clear, without_claims
from homenode.host.plan.demand import Demand
from homenode.host.plan.plan import Plan, ProcessBinding, WorkerBinding
from homenode.host.plan.ranks import assign_ranks, given_one, npu_inventory, offered
from homenode.host.plan.resources.core_order import regular_cores
from homenode.host.plan.resources.cores import NO_NODE, AllowedCore, allowed_cores, cpus_of
from homenode.host.plan.resources.device_nodes import assign_nodes, in_local_order, local_nodes, taking_part
from homenode.host.plan.resources.fair_roles import ROLES_APART, assign_roles
from homenode.host.plan.resources.memory_nodes import memory_nodes
from homenode.host.plan.resources.share import Shares, set_aside, share
from homenode.host.plan.strategy import Strategy
from homenode.host.topology.finding import Finding
from homenode.host.topology.host import Accelerator, Host
from homenode.units import format_count

STRATEGY = Strategy.FAIR
_NPU_MAP_ERRORS = "npu_map_"


@dataclass(frozen=True, slots=True)
class _Places:
    """`shares`: what every device has. `local_nodes`: nodes known to be its own, empty when unknown."""

    shares: Shares
    local_nodes: Mapping[int, tuple[int, ...]]


def plan(host: Host, demand: Demand) -> Plan:
    """Pools of the visible devices (all, where nothing restricts them) in the user's order, or of CPU workers.

    Raises PlacementError: `npu_map_*` and `tool_*` when the list of NPUs cannot be trusted, `bad_visible_devices`,
    `rank_out_of_range`, `bad_worker_count`, `insufficient_cpus` when there are fewer cores than devices that share
    them.
    """
    kind = host.accelerators.kind
    if kind in (None, "npu") and (kind or host.accelerators.errors):
        npu_inventory(host.accelerators)
    chips = host.accelerators.of_kind(kind) if kind else ()
    if chips or demand.visible is not None:
        return _for_devices(host, demand, kind, chips)
    return _for_workers(host, demand)


def _for_devices(host: Host, demand: Demand, kind: str | None, chips: Sequence[Accelerator]) -> Plan:
    devices, missing = _present(chips, demand.visible)
    single, origin = given_one(chips, demand.visible), demand.local_rank_origin
    ranks = assign_ranks(devices, demand.local_rank, single=single, origin=origin)
    places = _shared_out(
        {chip.id: local_nodes(host, chip) for chip in in_local_order(chips)}, host, devices, allowed_cores(host)
    )
    unclaimed, claimed = without_claims(
        host, demand.claims, {device: places.shares.pools[device] for device in devices}
    )
    pools, kept = _kept_back(unclaimed, demand.reserve_cpus or 0, _unclaimed_loans(host, demand, places))
    workers = tuple(_worker(host, kind, rank, device, pools[device], places) for rank, device in ranks.devices.items())
    unknown = [device for device, own in places.local_nodes.items() if not own and device in places.shares.pools]
    findings = (*_fact_findings(host), *missing, *_unknown(unknown), *ranks.findings, *claimed, *_roles_shared(workers))
    return Plan(
        strategy=STRATEGY,
        devices_total=len(chips),
        devices_running=devices,
        pools={device: cpus_of(pools[device]) for device in devices},
        workers=workers,
        processes=_reserved(host, kept),
        findings=findings,
    )


def _for_workers(host: Host, demand: Demand) -> Plan:
    """On all allowed cores, where the workers asked for meet no claim: ranks that are started one by one come to the
    same cut. Else on the rest."""
    claimed = {cpu for claim in demand.claims for cpu in claim.cpus}
    plan = _workers_on(host, demand, allowed_cores(host))
    if all(claimed.isdisjoint(worker.cpus) for worker in plan.workers):
        return plan
    return _workers_on(host, demand, allowed_cores(host, claimed)).with_findings(kept_clear(host, demand.claims))


def _workers_on(host: Host, demand: Demand, cores: Mapping[int, Sequence[AllowedCore]]) -> Plan:
    count = max(1, len(cores)) if demand.workers is None else demand.workers
    if count < 1:
        raise PlacementError(
            "bad_worker_count",
            "there is nobody to place",
            seen=format_count(count, "worker"),
            wanted="one worker or more",
            remedy="Give a positive number of workers, or none to have one for each node.",
        )
    _require_cores(sum(map(len, cores.values())), count, 0)
    ranks = assign_ranks(range(count), demand.local_rank, single=False, origin=demand.local_rank_origin)
    places = _shared_out(dict.fromkeys(range(count), ()), host, range(count), cores)
    pools, kept = _kept_back(places.shares.pools, demand.reserve_cpus or 0, {})
    hidden_by = host.accelerators.hidden_by
    why = f"{hidden_by} hides all accelerators" if hidden_by else "no accelerator was found"
    note = f"{why}: {format_count(count, 'CPU worker')} on the nodes with allowed CPUs"
    return Plan(
        strategy=STRATEGY,
        devices_total=0,
        devices_running=(),
        pools={worker: cpus_of(pool) for worker, pool in pools.items()},
        workers=tuple(
            _worker(host, None, rank, worker, pools[worker], places) for rank, worker in ranks.devices.items()
        ),
        processes=_reserved(host, kept),
        findings=(Finding("info", "no_accelerators", note),),
    )


def _present(chips: Sequence[Accelerator], visible: Sequence[int] | None) -> tuple[tuple[int, ...], list[Finding]]:
    """The visible devices that the host has. Ranks count over them, as over the documented list, which lacks the others
    too."""
    ids = [chip.id for chip in chips]
    there = [device for device in visible or () if device in ids]
    missing = [device for device in visible or () if device not in ids]
    if not there or not missing:
        return offered(ids, visible), []
    message = (
        f"the host has no device {format_cpu_list(missing)}: ranks are counted over the visible devices without it"
    )
    return tuple(there), [Finding("warning", "visible_missing", message, "Mend the list of visible devices.")]


def _shared_out(
    local_nodes: Mapping[int, tuple[int, ...]],
    host: Host,
    asked: Sequence[int],
    cores: Mapping[int, Sequence[AllowedCore]],
) -> _Places:
    among = taking_part(local_nodes, asked, cores)
    _require_cores(sum(map(len, cores.values())), len(among), 0)
    known = {device: local_nodes[device] for device in among}
    return _Places(share(host, cores, assign_nodes(host, known, cores), known), known)


def _unclaimed_loans(host: Host, demand: Demand, places: _Places) -> dict[int, list[AllowedCore]]:
    """Cores that no pool has and nobody claims, by the device that they may be kept back for."""
    claimed = {host.cpu_by_id[cpu].core for claim in demand.claims for cpu in claim.cpus if cpu in host.cpu_by_id}
    return {device: [core for core in own if core.id not in claimed] for device, own in places.shares.lent.items()}


def _kept_back(
    pools: Mapping[int, Sequence[AllowedCore]], reserve: int, lent: Mapping[int, Sequence[AllowedCore]]
) -> tuple[Mapping[int, Sequence[AllowedCore]], Sequence[AllowedCore]]:
    """Cores of the asked devices only, so that two engines that keep back different numbers still do not meet. What is
    left then of low-power cores is nobody's."""
    kept: Sequence[AllowedCore] = ()
    if reserve:
        there = sum(map(len, pools.values())) + sum(len(lent.get(device, ())) for device in pools)
        _require_cores(there, len(pools), reserve)
        pools, kept = set_aside(pools, reserve, lent)
    return {device: regular_cores(pool) for device, pool in pools.items()}, kept


def _require_cores(have: int, parties: int, reserve: int) -> None:
    if have >= parties + reserve:
        return
    raise PlacementError(
        "insufficient_cpus",
        "there are too few cores for one in each pool" + (" besides those kept back" if reserve else ""),
        seen=f"{format_count(have, 'core')} that can be given out, for {parties} pools"
        + (f", {reserve} to be kept back" if reserve else ""),
        wanted=f"at least {parties + reserve}",
        remedy="Allow this process more CPUs (cpuset, taskset), keep fewer back, or end what claims them.",
    )


def _worker(
    host: Host, kind: str | None, rank: int, device: int, pool: Sequence[AllowedCore], places: _Places
) -> WorkerBinding:
    used_nodes = places.local_nodes[device] or places.shares.device_nodes[device]
    local = [core for core in pool if core.node in used_nodes]
    cpus = cpus_of(pool)
    memory = memory_nodes(host, _most_first(pool if kind is None else local) or used_nodes)
    return WorkerBinding(
        rank,
        device,
        cpus,
        assign_roles(kind, pool, len(local)),
        memory,
        _why(kind, device, cpus, len(cpus_of(local)), places),
    )


def _roles_shared(workers: Sequence[WorkerBinding]) -> list[Finding]:
    crowded = [worker.device for worker in workers if set(worker.main_cpus) == set(worker.cpus)]
    if not crowded:
        return []
    message = (
        f"the pools of devices {format_cpu_list(crowded)} are small: interrupts and driver threads share CPUs with "
        "the process"
    )
    return [Finding("info", "roles_shared", message, f"Roles lie apart in pools of {ROLES_APART} CPUs or more.")]


def _why(kind: str | None, device: int, cpus: Sequence[int], local: int, places: _Places) -> str:
    own_nodes = places.shares.device_nodes[device]
    if own_nodes == (NO_NODE,):
        return f"{format_count(len(cpus), 'CPU')}; the kernel tells of no NUMA node for them"
    where, own = _nodes_named(own_nodes), places.local_nodes[device]
    if own and not set(own).intersection(own_nodes):
        where = f"its own {_nodes_named(own)}; its share is of {where}"
    elif own:
        where = f"its own {where}"
    elif kind is not None:
        where = f"{where}, given to it as its locality is unknown"
    return (
        f"{local} of its {format_count(len(cpus), 'CPU')} {'is' if local == 1 else 'are'} on "
        f"{where}{_beside(device, places, 'worker' if kind is None else 'device')}"
    )


def _nodes_named(nodes: Sequence[int]) -> str:
    return f"node{'s' if len(nodes) > 1 else ''} {format_cpu_list(nodes)}"


def _beside(device: int, places: _Places, what: str) -> str:
    own_nodes = set(places.shares.device_nodes[device])
    others = [
        other
        for other, nodes in places.shares.device_nodes.items()
        if other != device and own_nodes.intersection(nodes)
    ]
    return f", shared with {what}{'s' if len(others) > 1 else ''} {format_cpu_list(others)}" if others else ""


def _most_first(pool: Sequence[AllowedCore]) -> tuple[int, ...]:
    """Nodes of a pool, that with most of its CPUs first; its own order among equals."""
    counts: dict[int, int] = {}
    for core in pool:
        counts[core.node] = counts.get(core.node, 0) + len(core.cpus)
    return tuple(sorted(counts, key=lambda node: -counts[node]))


def _reserved(host: Host, kept: Sequence[AllowedCore]) -> tuple[ProcessBinding, ...]:
    if not kept:
        return ()
    why = f"{format_count(len(kept), 'core')} kept back for API server, tokenizer, scheduler and KV transfer"
    return (ProcessBinding("reserved", cpus_of(kept), memory_nodes(host, _most_first(kept)), why),)


def _unknown(devices: Sequence[int]) -> list[Finding]:
    if not devices:
        return []
    message = (
        f"no tool tells which node is near devices {format_cpu_list(devices)}: they are spread over the nodes in "
        "their order"
    )
    return [Finding("info", "locality_unknown", message)]


def _fact_findings(host: Host) -> list[Finding]:
    """Return what the vendors' tools said that could not be read; the plan was made without it."""
    return [
        Finding("warning", error.code, f"{error.summary} (seen: {error.seen}); planned without it", error.remedy)
        for error in host.accelerators.errors
        if not error.code.startswith(_NPU_MAP_ERRORS)
    ]
