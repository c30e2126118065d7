"""The part that the documented Ascend strategies have in common: whom they place, the architecture gate, and the plan
made of their pools.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from homenode.cpuset import format_cpu_list
from homenode.errors import PlacementError
from homenode.host.plan.demand import Demand
from homenode.host.plan.plan import Plan, WorkerBinding
from homenode.host.plan.ranks import assign_ranks, given_one, idle_visible, npu_inventory, taking_part
from homenode.host.plan.roles import worker
from homenode.host.topology.accelerators.ascend_topo import unreadable_affinity
from homenode.host.topology.finding import Finding
from homenode.host.topology.host import Accelerator, Host

# Beginnings of the names in use for a family, in lower case and without blanks, `ascend` and `atlas`; the longest that
# fits decides.
_FAMILIES = {
    "a2": "A2", "910b": "A2",
    "a3": "A3", "910_93": "A3", "910c": "A3",
    "310p": "310P", "300i": "310P", "300v": "310P", "300": "310P",
    "a5": "950", "950": "950",
}  # fmt: skip
# Makes the worker of one rank: host, rank, device, pool, why.
MakeWorker = Callable[[Host, int, int, tuple[int, ...], str], WorkerBinding]

_X86 = ("x86_64", "amd64", "i386", "i686")


@dataclass(frozen=True, slots=True)
class Npus:
    """`chips`: all NPUs of the host, ascending. `devices`: those to be placed, in rank order."""

    host: Host
    demand: Demand
    chips: tuple[Accelerator, ...]
    devices: tuple[int, ...]

    @property
    def allowed(self) -> tuple[int, ...]:
        """CPUs that this process may use, ascending."""
        return self.host.allowance.cpus

    def plan(
        self,
        strategy: str,
        pools: Mapping[int, tuple[int, ...]],
        why: Mapping[int, str],
        findings: Sequence[Finding],
        refused: Mapping[int, PlacementError],
        make_worker: MakeWorker = worker,
    ) -> Plan:
        """Roles, memory and ranks for the pools of `devices`; `refused` says of each device without a pool why it has
        none.

        A refusal fails the rank of that device only, as documented: the rank is in the plan, not bound, with an error
        as a finding. Raises PlacementError `rank_out_of_range`, and the first refusal where no rank that was asked for
        can be bound.
        """
        single, origin = given_one(self.chips, self.demand.visible), self.demand.local_rank_origin
        ranks = assign_ranks(self.devices, self.demand.local_rank, single=single, origin=origin)
        failed = {rank: refused[device] for rank, device in ranks.devices.items() if device in refused}
        if failed and len(failed) == len(ranks.devices):
            raise next(iter(failed.values()))
        workers = tuple(
            _unbound(rank, device, failed[rank])
            if rank in failed
            else make_worker(self.host, rank, device, pools[device], why[device])
            for rank, device in ranks.devices.items()
        )
        told = [_rank_refused(rank, error) for rank, error in failed.items()]
        told += partly_shown([chip.id for chip in self.chips])
        idle = () if self.demand.before_start else idle_visible(self.devices, self.demand.visible)
        return Plan(
            strategy,
            len(self.chips),
            self.devices,
            {device: pool for device, pool in pools.items() if device not in refused},
            workers,
            findings=(*told, *findings, *ranks.findings, *idle),
        )


def npus_of(host: Host, demand: Demand, *, whole_map: bool = True) -> Npus:
    """Whom to place, and on what. `whole_map`: whether pools depend on how many NPUs the host has.

    Raises PlacementError: `npu_map_*`, `npu_unmapped`, `no_running_npu`, `bad_visible_devices`.
    """
    chips = npu_inventory(host.accelerators, None if whole_map else demand.visible)
    devices = taking_part(host.accelerators, chips, demand)
    return Npus(host, demand, chips, devices)


def _unbound(rank: int, device: int, error: PlacementError) -> WorkerBinding:
    return WorkerBinding(rank, device, (), {}, (), error.summary, bound=False)


def _rank_refused(rank: int, error: PlacementError) -> Finding:
    message = f"rank {rank} is not bound: {error.summary} (seen: {error.seen}; wanted: {error.wanted})"
    return Finding("error", error.code, message, error.remedy)


def device_type_of(host: Host, demand: Demand) -> tuple[str | None, str | None]:
    """The Ascend device type as the flag, else the chips' names give it, and which of the known types that is; None
    where it is none.
    """
    given = demand.device_type if demand.device_type is not None else host.accelerators.device_type
    return given, family(given or "")


def family(device_type: str) -> str | None:
    """`A2`, `A3`, `310P` or `950` for any spelling in use (`a3`, `Ascend 910B3`, `910_93`, `Atlas 300I Duo`); None for
    any other.
    """
    name = device_type.lower().replace(" ", "").removeprefix("ascend").removeprefix("atlas")
    fitting = [known for known in _FAMILIES if name.startswith(known)]
    return _FAMILIES[max(fitting, key=len)] if fitting else None


def no_near_cpus(chip: Accelerator, allowed: Sequence[int]) -> PlacementError:
    """The refusal of an NPU without an allowed CPU in its affinity: `topo_row_unparseable` or `affinity_conflict`."""
    if chip.unreadable_affinity:
        return unreadable_affinity(chip.id, chip.unreadable_affinity)
    if not chip.local_cpus:
        return PlacementError(
            "affinity_conflict",
            f"no tool tells which CPUs are near NPU {chip.id}",
            seen="CPU affinity not reported",
            wanted="a CPU list in its row of `npu-smi info -t topo`",
            remedy="Use the NPUs whose affinity is reported, or choose --strategy fair or global-slice, which do "
            "without it.",
        )
    return PlacementError(
        "affinity_conflict",
        f"no allowed CPU is near NPU {chip.id}",
        seen=f"allowed CPUs {format_cpu_list(allowed) or 'none'}, CPU affinity {format_cpu_list(chip.local_cpus)}",
        wanted="allowed CPUs that are in the NPU's affinity",
        remedy=f"Allow CPUs of {format_cpu_list(chip.local_cpus)} (cpuset, taskset), clear a mask inherited by "
        "accident "
        "(OMP_PROC_BIND leaves one), or choose --strategy fair.",
    )


def arm_gate(machine: str) -> tuple[Finding, ...]:
    """The documented gate: this binding is applied on Arm only. A finding `not_arm` says that it is to be skipped;
    empty on Arm."""
    name = machine.lower()
    if name == "aarch64" or name.startswith("arm"):
        return ()
    if name in _X86:
        return (Finding("info", "not_arm", "CPU binding skipped: non-ARM CPU detected."),)
    remedy = "Choose --strategy fair, which is not limited to Arm."
    return (
        Finding(
            "warning",
            "not_arm",
            f"CPU binding skipped: {machine or 'an unknown machine'} is not known to be Arm.",
            remedy,
        ),
    )


def partly_shown(ids: Sequence[int]) -> tuple[Finding, ...]:
    """Warns of a container that is shown a part of its host's NPUs, as logical numbers that do not run from 0 on tell.

    Such a container plans for the NPUs that it sees. Another one with the same CPUs and other NPUs does likewise, and
    neither can know of the other. `ids`: all NPUs that are shown, ascending.
    """
    if not ids or ids[-1] < len(ids):
        return ()
    message = (
        f"the logical numbers of the NPUs, {format_cpu_list(ids)}, do not run from 0 on: this container is shown a "
        "part of its host's NPUs, and other containers with the same CPUs and other NPUs come to the same CPUs"
    )
    remedy = (
        "Give each container a cpuset of its own (docker run --cpuset-cpus), or show all of them all NPUs and choose "
        "by ASCEND_RT_VISIBLE_DEVICES."
    )
    return (Finding("warning", "npus_partly_shown", message, remedy),)


def hidden_counted(devices: Sequence[int]) -> tuple[Finding, ...]:
    """Says which NPUs outside the plan took CPUs from it, so that a pool smaller than expected explains itself."""
    if not devices:
        return ()
    message = (
        f"CPUs are kept for NPU {format_cpu_list(devices)}, which this plan does not place: another process may "
        "drive them"
    )
    return (Finding("info", "hidden_devices_counted", message),)
