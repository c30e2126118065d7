"""The devices that take part, and which of them a local rank drives. Pure.

A list of devices keeps the order in which the visible-devices variable names them: with `3,1` rank 0 drives device 3,
as the runtime itself counts. Where nothing restricts the devices they come in ascending order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from homenode.errors import PlacementError
from homenode.host.plan.demand import Demand
from homenode.host.plan.variables import LOCAL_RANK_FLAG
from homenode.host.topology.finding import Finding
from homenode.host.topology.host import Accelerator, Accelerators

# Errors of the parsers without which no list of NPUs can be trusted, the gravest first.
_MAP_ERRORS = ("npu_map_empty", "npu_map_unparseable", "npu_map_duplicate")


@dataclass(frozen=True, slots=True)
class Ranks:
    """`devices`: the logical id that each local rank drives, by rank."""

    devices: dict[int, int]
    findings: tuple[Finding, ...] = ()


def npu_inventory(accelerators: Accelerators, named: Sequence[int] | None = None) -> tuple[Accelerator, ...]:
    """All NPUs of the host, ascending by logical id. Their count is the total that slices are made of.

    The documented order of sources for that total (the map, else the affinity rows, else the running devices) is that
    of `read_ascend`, so every strategy counts the same list. Raises PlacementError with the parsers' own codes:
    `npu_map_*`; `no_visible_device` where a variable hides them all.

    `named`: the devices that are asked for, where their places do not depend on how many others there are. A row of the
    map that cannot be read is then no reason to refuse, as long as the map has the named ones.
    """
    chips = accelerators.of_kind("npu")
    if accelerators.hidden_by:
        raise PlacementError(
            "no_visible_device",
            f"{accelerators.hidden_by} hides every NPU from this process",
            seen="an empty list of visible devices",
            wanted="NPUs to bind",
            remedy=f"Name devices in {accelerators.hidden_by}, or take --strategy fair, which then places CPU workers.",
        )
    if not named or not {chip.id for chip in chips}.issuperset(named):
        _raise_first(accelerators, _MAP_ERRORS)
    _raise_first(accelerators, ("npu_map_duplicate",))
    if not chips:
        _raise_tool_error(accelerators)
        raise PlacementError(
            "npu_map_empty",
            "this host shows no Ascend NPU",
            seen="no npu-smi, or one that lists nothing",
            wanted="a map of NPUs from `npu-smi info -m`",
            remedy="Make npu-smi and the device files available in this container, or choose --strategy fair, which "
            "needs neither.",
        )
    return chips


def taking_part(accelerators: Accelerators, chips: Sequence[Accelerator], demand: Demand) -> tuple[int, ...]:
    """The devices that local ranks count over: the running ones that are visible, or, before anything has started, all
    visible ones.

    A device is running when any process at all runs on it. Raises PlacementError `no_running_npu`; before a start
    `bad_visible_devices`; `npu_unmapped` where a process whose device cannot be told may be on one of those that seem
    to be idle, which would count other ranks.
    """
    if demand.before_start:
        return offered([chip.id for chip in chips], demand.visible)
    running = {chip.id for chip in chips if chip.processes}
    order = sorted(running) if demand.visible is None else demand.visible
    if not running.issuperset(chip.id for chip in chips if demand.visible is None or chip.id in demand.visible):
        _raise_first(accelerators, ("npu_unmapped",))
    found = tuple(device for device in order if device in running)
    if not found:
        _raise_tool_error(accelerators)
        raise PlacementError(
            "no_running_npu",
            "no visible NPU has a process on it",
            seen=f"processes on NPUs {_listed(sorted(running))}, visible "
            f"{'all' if demand.visible is None else _listed(demand.visible)}",
            wanted="at least one visible NPU with a running process in the table of `npu-smi info`",
            remedy="Start the workers first or mend ASCEND_RT_VISIBLE_DEVICES; `homenode run` plans before a start.",
        )
    return found


def offered(ids: Sequence[int], visible: Sequence[int] | None) -> tuple[int, ...]:
    """The visible devices in the user's order, or all, ascending. Raises PlacementError `bad_visible_devices` for one
    that the host lacks."""
    if visible is None:
        return tuple(sorted(ids))
    missing = [device for device in visible if device not in ids]
    if missing or not visible:
        raise PlacementError(
            "bad_visible_devices",
            f"the host has no device {_listed(missing)}" if missing else "no device is visible",
            seen=f"visible {_listed(visible)}",
            wanted=f"some of the devices {_listed(sorted(ids))}",
            remedy="Mend --visible-devices or the vendor's variable (for Ascend ASCEND_RT_VISIBLE_DEVICES).",
            param="--visible-devices",
        )
    return tuple(visible)


def assign_ranks(
    devices: Sequence[int], local_rank: int | None, *, single: bool, origin: str = LOCAL_RANK_FLAG
) -> Ranks:
    """Rank i drives the i-th device; `local_rank` None asks for all ranks.

    `single`: the process has been given exactly one device, as a launcher does that narrows the list for every rank;
    then each rank drives it, whatever its number. Any other rank beyond the list raises PlacementError
    `rank_out_of_range`. `origin`: the flag or variable the rank is from.
    """
    if local_rank is None:
        return Ranks(dict(enumerate(devices)))
    if 0 <= local_rank < len(devices):
        return Ranks({local_rank: devices[local_rank]})
    if single and len(devices) == 1 and local_rank > 0:
        note = (
            f"rank {local_rank} sees one device only, {devices[0]}, and is taken to drive it: its launcher gave "
            "each rank a list of its own"
        )
        return Ranks({local_rank: devices[0]}, (Finding("info", "rank_beyond_visible", note),))
    raise PlacementError(
        "rank_out_of_range",
        f"there is no device for local rank {local_rank}"
        + ("" if origin == LOCAL_RANK_FLAG else f", which {origin} says"),
        seen=f"devices {_listed(devices)}",
        wanted=f"a rank from 0 to {len(devices) - 1}",
        remedy=f"Give {LOCAL_RANK_FLAG} within the list of devices, or make more devices visible or running.",
        param=LOCAL_RANK_FLAG,
    )


def given_one(chips: Sequence[Accelerator], visible: Sequence[int] | None) -> bool:
    """Return whether the process has been given exactly one device, by the visible list or because there is
    no other.
    """
    return len(chips if visible is None else visible) == 1


def idle_visible(devices: Sequence[int], visible: Sequence[int] | None) -> tuple[Finding, ...]:
    """A warning when visible devices take no part: ranks are counted without them, so rank and device may not belong
    together."""
    idle = [device for device in visible or () if device not in devices]
    if not idle:
        return ()
    message = (
        f"no process runs on visible NPU {_listed(idle)}: local ranks are counted over NPU {_listed(devices)} only"
    )
    return (
        Finding(
            "warning",
            "visible_not_running",
            message,
            "Plan again when every worker has started, or take them off the visible list.",
        ),
    )


def _raise_first(accelerators: Accelerators, codes: Sequence[str]) -> None:
    for code in codes:
        for error in accelerators.errors:
            if error.code == code:
                raise error


def _raise_tool_error(accelerators: Accelerators) -> None:
    """An npu-smi that hangs or fails is the cause; that nothing was learned from it is only the symptom."""
    for error in accelerators.errors:
        if error.code in ("tool_timeout", "tool_failed", "npu_info_unparseable") and "npu-smi" in error.summary:
            raise error


def _listed(devices: Sequence[int]) -> str:
    return ",".join(map(str, devices)) or "none"
