"""What the documented Ascend strategies have in common: whom they place, the architecture gate, and the plan made of their pools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from homenode.cpuset import format_cpu_list
from homenode.host.placement.demand import Demand
from homenode.host.placement.plan import Plan
from homenode.host.placement.ranks import assign_ranks, given_one, idle_visible, npu_inventory, taking_part
from homenode.host.placement.roles import require_room, worker
from homenode.host.topology.finding import Finding
from homenode.host.topology.host import Accelerator, Host

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
        self, strategy: str, pools: Mapping[int, tuple[int, ...]], why: Mapping[int, str], findings: Sequence[Finding]
    ) -> Plan:
        """Roles, memory and ranks for the pools of `devices`. Raises PlacementError: `pool_too_small`, `rank_out_of_range`.

        In this order, as documented: a host on which some pool is too small has no plan for any rank.
        """
        require_room(pools)
        ranks = assign_ranks(self.devices, self.demand.local_rank, single=given_one(self.chips, self.demand.visible))
        workers = tuple(
            worker(self.host, rank, device, pools[device], why[device]) for rank, device in ranks.devices.items()
        )
        idle = () if self.demand.before_start else idle_visible(self.devices, self.demand.visible)
        return Plan(
            strategy, len(self.chips), self.devices, dict(pools), workers, findings=(*findings, *ranks.findings, *idle)
        )


def npus_of(host: Host, demand: Demand) -> Npus:
    """Whom to place, and on what. Raises PlacementError: `npu_map_*`, `npu_unmapped`, `no_running_npu`, `bad_visible_devices`."""
    chips = npu_inventory(host.accelerators, before_start=demand.before_start)
    devices = taking_part(host.accelerators, chips, demand)
    return Npus(host, demand, chips, devices)


def arm_gate(machine: str) -> tuple[Finding, ...]:
    """The documented gate: this binding is applied on Arm only. A finding `not_arm` says that it is to be skipped; empty on Arm."""
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


def hidden_counted(devices: Sequence[int]) -> tuple[Finding, ...]:
    """Says which NPUs outside the plan took CPUs from it, so that a pool smaller than expected explains itself."""
    if not devices:
        return ()
    message = f"CPUs are kept for NPU {format_cpu_list(devices)}, which this plan does not place: another process may drive them"
    return (Finding("info", "hidden_devices_counted", message),)
