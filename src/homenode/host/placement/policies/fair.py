"""`fair`, the default: disjoint pools of whole cores, each device its share of its own node first, then of what is nearest.

    two devices on node 0, none on node 1:
    |========= node 0 =========|--------- node 1 ---------|
    |  device 0   |  device 1  |  device 0  |  device 1   |

The arithmetic is over all devices of the host, visible or not: processes that do not know of each other never overlap. Memory is on the device's
own node. A host without accelerators gets CPU workers, one for each node unless told otherwise, by the same arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from homenode.cpuset import format_cpu_list
from homenode.errors import PlacementError
from homenode.host.placement.cores import Core, allowed_cores, cpus_of
from homenode.host.placement.demand import Claim, Demand
from homenode.host.placement.fair_roles import ROLES_APART, assign_roles
from homenode.host.placement.homes import local_nodes, settle, taking_part
from homenode.host.placement.memory_nodes import memory_nodes
from homenode.host.placement.plan import Place, Plan, Worker
from homenode.host.placement.ranks import assign_ranks, given_one, npu_inventory, offered
from homenode.host.placement.share import set_aside, share
from homenode.host.topology.finding import Finding
from homenode.host.topology.host import Accelerator, Host

STRATEGY = "fair"
_NPU_MAP_ERRORS = "npu_map_"


@dataclass(frozen=True, slots=True)
class _Shares:
    """`pools`: cores by device, own nodes first. `homes`: where each has its share. `near`: nodes known to be its own, empty when unknown."""

    pools: Mapping[int, Sequence[Core]]
    homes: Mapping[int, tuple[int, ...]]
    near: Mapping[int, tuple[int, ...]]
    reserve: tuple[Place, ...]


def plan(host: Host, demand: Demand) -> Plan:
    """Pools of the visible devices (all, where nothing restricts them) in the user's order, or of CPU workers.

    Raises PlacementError: `npu_map_*` and `tool_*` when the list of NPUs cannot be trusted, `bad_visible_devices`, `rank_out_of_range`,
    `bad_worker_count`, `insufficient_cpus` when there are fewer cores than devices that share them.
    """
    kind = host.accelerators.kind
    if kind in (None, "npu") and (kind or host.accelerators.errors):
        npu_inventory(host.accelerators, before_start=True)
    chips = host.accelerators.of_kind(kind) if kind else ()
    return _for_devices(host, demand, kind, chips) if chips else _for_workers(host, demand)


def _for_devices(host: Host, demand: Demand, kind: str | None, chips: Sequence[Accelerator]) -> Plan:
    devices = offered([chip.id for chip in chips], demand.visible)
    ranks = assign_ranks(devices, demand.local_rank, single=given_one(chips, demand.visible))
    near = {chip.id: local_nodes(host, chip) for chip in chips}
    shares = _shared_out(host, demand, near, devices, allowed_cores(host))
    pools, claimed = _without_claims(host, demand.claims, {device: shares.pools[device] for device in devices})
    workers = tuple(_worker(host, kind, rank, device, pools[device], shares) for rank, device in ranks.devices.items())
    unknown = [chip.id for chip in chips if not chip.local_cpus and chip.node is None and chip.id in shares.pools]
    findings = (*_fact_findings(host), *_unknown(unknown), *ranks.findings, *claimed, *_roles_shared(workers))
    return Plan(
        strategy=STRATEGY,
        devices_total=len(chips),
        devices_running=devices,
        pools={device: cpus_of(pools[device]) for device in devices},
        workers=workers,
        processes=shares.reserve,
        findings=findings,
    )


def _for_workers(host: Host, demand: Demand) -> Plan:
    claimed = {cpu for claim in demand.claims for cpu in claim.cpus}
    cores = allowed_cores(host, claimed)
    count = max(1, sum(map(bool, cores.values()))) if demand.workers is None else demand.workers
    if count < 1:
        raise PlacementError(
            "bad_worker_count",
            "there is nobody to place",
            seen=f"{count} workers",
            wanted="one worker or more",
            remedy="Give a positive number of workers, or none to have one for each node.",
        )
    workers = tuple(range(count))
    ranks = assign_ranks(workers, demand.local_rank, single=False)
    shares = _shared_out(host, demand, dict.fromkeys(workers, ()), workers, cores)
    placed = tuple(_worker(host, None, rank, worker, shares.pools[worker], shares) for rank, worker in ranks.devices.items())
    note = f"no accelerator was found: {count} CPU {'worker' if count == 1 else 'workers'} on the nodes with allowed CPUs"
    return Plan(
        strategy=STRATEGY,
        devices_total=0,
        devices_running=(),
        pools={worker: cpus_of(shares.pools[worker]) for worker in workers},
        workers=placed,
        processes=shares.reserve,
        findings=(Finding("info", "no_accelerators", note), *_kept_clear(host, demand.claims)),
    )


def _shared_out(
    host: Host, demand: Demand, near: Mapping[int, tuple[int, ...]], asked: Sequence[int], cores: Mapping[int, Sequence[Core]]
) -> _Shares:
    among = taking_part(near, asked, cores)
    reserve, total = demand.reserve_cpus or 0, sum(map(len, cores.values()))
    if total - reserve < len(among):
        raise _too_few(total, reserve, among, bool(host.accelerators.kind))
    known = {device: near[device] for device in among}
    homes = settle(host, known, cores)
    left, kept = set_aside(cores, homes, reserve)
    return _Shares(share(host, left, homes), homes, known, _reserved(host, kept))


def _too_few(total: int, reserve: int, among: Sequence[int], devices: bool) -> PlacementError:
    what = "devices" if devices else "workers"
    return PlacementError(
        "insufficient_cpus",
        f"there are too few cores for a pool of at least one core for each of {len(among)} {what}",
        seen=f"{total} allowed cores, {reserve} of them kept back, for {what} {format_cpu_list(among)}",
        wanted=f"at least {len(among) + reserve} allowed cores",
        remedy="Allow this process more CPUs (cpuset, taskset), keep fewer back, or end what claims them.",
    )


def _worker(host: Host, kind: str | None, rank: int, device: int, pool: Sequence[Core], shares: _Shares) -> Worker:
    home = shares.near[device] or shares.homes[device]
    local = [core for core in pool if core.node in home]
    cpus = cpus_of(pool)
    memory = memory_nodes(host, _most_first(pool if kind is None else local) or home)
    return Worker(rank, device, cpus, assign_roles(kind, pool, local), memory, _why(kind, device, cpus, len(cpus_of(local)), shares))


def _roles_shared(workers: Sequence[Worker]) -> list[Finding]:
    crowded = [worker.device for worker in workers if set(worker.main_cpus) == set(worker.cpus)]
    if not crowded:
        return []
    message = f"the pools of devices {format_cpu_list(crowded)} are small: interrupts and driver threads share CPUs with the process"
    return [Finding("info", "roles_shared", message, f"Roles lie apart in pools of {ROLES_APART} CPUs or more.")]


def _why(kind: str | None, device: int, cpus: Sequence[int], local: int, shares: _Shares) -> str:
    home = shares.homes[device]
    nodes = f"node{'s' if len(home) > 1 else ''} {format_cpu_list(home)}"
    if kind is None:
        return (
            f"{local} of its {len(cpus)} CPUs are on {nodes}{_beside(device, shares, 'worker')}" if home != (-1,) else f"{len(cpus)} CPUs"
        )
    if home == (-1,):
        return f"{len(cpus)} CPUs; the host tells of no NUMA node"
    where = f"its own {nodes}" if shares.near[device] else f"{nodes}, given to it as its locality is unknown"
    return f"{local} of its {len(cpus)} CPUs are on {where}{_beside(device, shares, 'device')}"


def _beside(device: int, shares: _Shares, what: str) -> str:
    home = set(shares.homes[device])
    others = [other for other, nodes in shares.homes.items() if other != device and home.intersection(nodes)]
    return f", shared with {what}{'s' if len(others) > 1 else ''} {format_cpu_list(others)}" if others else ""


def _most_first(pool: Sequence[Core]) -> tuple[int, ...]:
    """Nodes of a pool, that with most of its CPUs first; its own order among equals."""
    counts: dict[int, int] = {}
    for core in pool:
        counts[core.node] = counts.get(core.node, 0) + len(core.cpus)
    return tuple(sorted(counts, key=lambda node: -counts[node]))


def _reserved(host: Host, kept: Sequence[Core]) -> tuple[Place, ...]:
    if not kept:
        return ()
    why = f"{len(kept)} core{'' if len(kept) == 1 else 's'} kept back for API server, tokenizer, scheduler and KV transfer"
    return (Place("reserved", cpus_of(kept), memory_nodes(host, _most_first(kept)), why),)


def _without_claims(
    host: Host, claims: Sequence[Claim], pools: Mapping[int, Sequence[Core]]
) -> tuple[Mapping[int, Sequence[Core]], list[Finding]]:
    """The pools without cores that living processes hold for other devices. A core with a claimed CPU goes as a whole."""
    if not claims:
        return pools, []
    left = dict(pools)
    findings = []
    for claim in claims:
        taken = {host.cpu_by_id[cpu].core for cpu in claim.cpus if cpu in host.cpu_by_id}
        for device, pool in left.items():
            lost = [core for core in pool if core.id in taken and device not in claim.devices]
            if not lost:
                continue
            left[device] = [core for core in pool if core not in lost]
            findings.append(_overlap(claim, f"device {device} does without CPUs {format_cpu_list(cpus_of(lost))}"))
            if not left[device]:
                raise _all_claimed(device, claim, pool)
    return left, findings


def _all_claimed(device: int, claim: Claim, pool: Sequence[Core]) -> PlacementError:
    return PlacementError(
        "insufficient_cpus",
        f"living processes claim every CPU of device {device}",
        seen=f"CPUs {format_cpu_list(cpus_of(pool))} claimed by process {claim.pid}, among others perhaps",
        wanted="at least one core that nobody claims",
        remedy=f"End process {claim.pid} or bind it elsewhere, or allow this process other CPUs.",
    )


def _overlap(claim: Claim, effect: str) -> Finding:
    who = f"process {claim.pid}{f' ({claim.name})' if claim.name else ''}"
    message = f"{who} holds CPUs {format_cpu_list(claim.cpus)}: {effect}"
    return Finding("warning", "claim_overlap", message, f"Give both the same allowance and strategy, or end process {claim.pid}.")


def _kept_clear(host: Host, claims: Sequence[Claim]) -> list[Finding]:
    allowed = set(host.allowance.cpus)
    return [_overlap(claim, "CPU workers keep clear of them") for claim in claims if not allowed.isdisjoint(claim.cpus)]


def _unknown(devices: Sequence[int]) -> list[Finding]:
    if not devices:
        return []
    message = f"no tool tells which node is near devices {format_cpu_list(devices)}: they are spread over the nodes in their order"
    return [Finding("info", "locality_unknown", message)]


def _fact_findings(host: Host) -> list[Finding]:
    """What the vendors' tools said that could not be read; the plan was made without it."""
    return [
        Finding("warning", error.code, f"{error.summary} (seen: {error.seen}); planned without it", error.remedy)
        for error in host.accelerators.errors
        if not error.code.startswith(_NPU_MAP_ERRORS)
    ]
