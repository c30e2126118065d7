"""The way from flags to what one process is to look like: the step that `run`, `bind` and `verify` share.

Planning and claiming are one critical section, so that two commands started at the same moment do not both take the
same CPUs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from homenode.cli.placement.flag_demand import demand_from_flags, plan_for
from homenode.cli.placement.given_settings import check_settings, cpu_binding_off, settings_without_effect
from homenode.cli.placement.plan_flags import PlanFlags, with_plan_flags
from homenode.errors import PlacementError, UserError
from homenode.host.plan.strategy import Strategy

if TYPE_CHECKING:
    from homenode.host.bind.base.target import Target
    from homenode.host.bind.claims import ClaimTable
    from homenode.host.plan.demand import Claim, Demand
    from homenode.host.plan.plan import Plan, WorkerBinding
    from homenode.host.topology.finding import Finding
    from homenode.host.topology.host import Accelerator, Host


@dataclass(frozen=True)
class BindingPlan:
    """`target`: None when the process is to stay unbound. `workers`: those that are to be bound; the process starts
    them itself (`starts_ranks`) where the plan has more than one, bound or not.

    `lines`: messages to print before anything is done. `ignored`: messages about settings that were given and have no
    effect; they are printed whatever is done.
    """

    target: Target | None
    host: Host
    plan: Plan | None = None
    workers: tuple[WorkerBinding, ...] = ()
    lines: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    @property
    def starts_ranks(self) -> bool:
        """Return whether the process is a program that starts the ranks itself, rather than one of them."""
        return self.plan is not None and len(self.plan.workers) > 1


def with_target_flags(command: Any) -> Any:
    """Decorator: the plan's flags and `--cpus LIST`."""
    command = click.option(
        "--cpus",
        metavar="LIST",
        help="Bind to these CPUs instead of a plan's; --memory-nodes then says where memory goes.",
    )(command)
    return with_plan_flags(command)


def warn(line: str) -> None:
    """One line on stderr, if stderr can be written; a message that cannot be written must not end the program."""
    with suppress(OSError):
        if sys.stderr is not None:
            sys.stderr.write(f"homenode: {line}\n")
            sys.stderr.flush()


def plan_binding(
    flags: PlanFlags,
    cpus: str | None,
    *,
    strict: bool,
    pid: int,
    claims: bool = True,
    beside_claims: bool = True,
    strict_claims: bool = False,
    before_start: bool = False,
) -> BindingPlan:
    """Decide for process `pid`. Raises UserError and PlacementError where that process must not be started or touched.

    `strict`: a process that cannot be planned is refused. `claims`: what it is given is claimed for it.
    `beside_claims`: others' claims are planned around. `strict_claims`: claims that cannot be kept are refused, by
    HostError.
    """
    from homenode.host.bind.base.threads import ancestors
    from homenode.host.bind.claims import living_claims

    if cpus is not None or (
        flags.memory_nodes is not None and flags.strategy is None and flags.cpu_threads_bind is None
    ):
        return _direct(flags, cpus)
    with _claim_table(claims, strict_claims) as table:
        # What a program claimed when it was started as a whole is not claimed against its own ranks.
        own = {pid, *ancestors(pid)}
        there = table.claims if table else living_claims() if beside_claims else ()
        others = tuple(claim for claim in there if claim.pid not in own)
        host, demand = demand_from_flags(flags, before_start=before_start, claims=others)
        demand = _of_rank(demand, flags, host)
        found = _aim_by_plan(flags, host, demand, strict)
        if table is not None and found.target is not None and _exists(pid):
            table.add(claim_of(pid, found))
    ignored = settings_without_effect(flags, host, demand, flags.chosen_strategy)
    return replace(found, ignored=_lines(ignored))


def _aim_by_plan(flags: PlanFlags, host: Host, demand: Demand, strict: bool) -> BindingPlan:
    if line := _switched_off(flags, host):
        return BindingPlan(None, host, lines=(line,))
    try:
        plan = plan_for(flags, host, demand)
    except PlacementError as error:
        return _unplanned(flags, host, demand, error, strict)
    if strict:
        _require_bound(flags, plan)
    return _planned(flags, host, demand, plan)


def _direct(flags: PlanFlags, cpus: str | None) -> BindingPlan:
    """Return the plan for the CPUs of --cpus, or all that are allowed, and the memory of --memory-nodes. Raises
    UserError for flags that say otherwise.
    """
    from homenode.cpuset import parse_cpu_list
    from homenode.host.bind.base.target import Target
    from homenode.host.discovery.read import read_host
    from homenode.host.plan.demand import Demand
    from homenode.host.plan.settings_read import LISTED
    from homenode.host.plan.variables import memory_nodes
    from homenode.host.topology.source import LiveSource

    if flags.strategy is not None or flags.numa_bind:
        raise UserError("--cpus says where to run, and so does a strategy; give one of them", param="--cpus")
    if flags.source is not None:
        raise UserError(
            f"--from {flags.source} names a host to plan for, and --cpus and --memory-nodes are of this one; "
            "give one of them",
            param="--from",
        )
    host = read_host(LiveSource(), accelerators=False)
    if cpus is not None:
        wanted = parse_cpu_list(cpus)
        if not wanted:
            raise UserError("--cpus: the list is empty; write numbers and ranges, such as 0-3,8", param="--cpus")
    else:
        wanted = host.allowance.cpus
    nodes = memory_nodes(flags.memory_nodes, {})
    demand = Demand(memory_nodes=nodes)
    check_settings(flags, host, demand, LISTED)
    # Variables are for plans, and nobody asked for one.
    ignored = settings_without_effect(flags, replace(host, variables={}), demand, LISTED)
    return BindingPlan(Target(wanted, memory_nodes=nodes or ()), host, ignored=_lines(ignored))


def _lines(findings: Iterable[Finding]) -> tuple[str, ...]:
    return tuple(f"{finding.severity}: {finding.text}" for finding in findings)


def _of_rank(demand: Demand, flags: PlanFlags, host: Host) -> Demand:
    """The demand of one rank, if the flag or a launcher's variable says which this is."""
    from homenode.host.plan.variables import local_rank_origin, rank_of_environment

    rank = flags.local_rank if flags.local_rank is not None else rank_of_environment(host.variables)
    return replace(demand, local_rank=rank, local_rank_origin=local_rank_origin(flags.local_rank, host.variables))


def _switched_off(flags: PlanFlags, host: Host) -> str:
    """Return why the Ascend binding is not applied at all, if so: the switch, or the documented gate."""
    from homenode.host.plan.policies.ascend_plan import arm_gate
    from homenode.host.plan.settings_read import is_ascend

    if off := cpu_binding_off(flags, host, flags.chosen_strategy):
        return off.message + "."
    own = flags.chosen_strategy == Strategy.NUMA_BIND and host.accelerators.has_own_strategies
    if not own and not is_ascend(flags.chosen_strategy):
        return ""
    return next((finding.message for finding in arm_gate(host.machine)), "")


def _unplanned(flags: PlanFlags, host: Host, demand: Demand, error: PlacementError, strict: bool) -> BindingPlan:
    """A rank that cannot be planned runs unbound, with one warning; what the user wrote wrongly is refused before
    anything starts."""
    if (
        strict
        or flags.chosen_strategy in (Strategy.NUMA_BIND, Strategy.CPU_THREADS)
        or error.code.startswith(("bad_", "no_such"))
    ):
        raise error
    rank = "" if demand.local_rank is None else f" in rank {demand.local_rank}"
    return BindingPlan(None, host, lines=(f"warning: not bound{rank}: {error.message}",))


def _require_bound(flags: PlanFlags, plan: Plan) -> None:
    """Raises UserError for a rank that the Ascend binding refuses: --strict has all of them bound or none."""
    from homenode.host.plan.settings_read import is_ascend

    if is_ascend(flags.chosen_strategy) and not all(worker.bound for worker in plan.workers):
        refused = next(finding for finding in plan.findings if finding.severity == "error")
        raise UserError(f"{refused.message}. {refused.remedy}")


def _planned(flags: PlanFlags, host: Host, demand: Demand, plan: Plan) -> BindingPlan:
    from homenode.host.bind.base.target import Target, target_of
    from homenode.host.plan.settings_read import is_ascend

    printed_elsewhere = ("setting_ignored",)
    lines = list(_lines(f for f in plan.findings if f.severity != "info" and f.code not in printed_elsewhere))
    bound = tuple(worker for worker in plan.workers if worker.bound)
    if is_ascend(flags.chosen_strategy) and bound:
        from homenode.host.plan.policies.ascend import log_lines

        mode = (
            Strategy.TOPO_AFFINITY
            if any(finding.code == "topo_affinity_missing" for finding in plan.findings)
            else plan.strategy
        )
        lines += log_lines(plan, mode, bound[0].local_rank, demand.visible or plan.devices_running)
    if not bound:
        return BindingPlan(None, host, plan, plan.workers, (*lines, "not bound, as the plan says"))
    if len(plan.workers) == 1:
        return BindingPlan(target_of(bound[0], chip_of(host, plan, bound[0])), host, plan, bound, tuple(lines))
    # A program that starts its ranks itself: it may use what all of them have; memory is theirs to place.
    everything = {cpu for worker in bound for cpu in worker.cpus} | {
        cpu for place in plan.processes for cpu in place.cpus
    }
    if len(bound) < len(plan.workers):  # a rank that is not bound may use what this process may
        everything |= set(host.allowance.cpus)
    return BindingPlan(Target(tuple(sorted(everything))), host, plan, bound, tuple(lines))


def chip_of(host: Host, plan: Plan, worker: WorkerBinding) -> Accelerator | None:
    """The accelerator that a worker of the plan drives; None for CPU workers. Its PCI address is asked for where the
    tool has not told it yet."""
    from homenode.host.plan.check import chips_by_device
    from homenode.host.topology.accelerators.ascend import board_address
    from homenode.host.topology.source import LiveSource

    chip = chips_by_device(host, plan).get(worker.device)
    if chip is not None and chip.kind == "npu" and chip.address is None:
        return replace(chip, address=board_address(LiveSource(), chip))
    return chip


@contextmanager
def _claim_table(enabled: bool, strict: bool) -> Iterator[ClaimTable | None]:
    """The claims of this host, held alone where they can be; else the arithmetic alone keeps processes apart, and
    with `strict` HostError is raised."""
    if not enabled:
        yield None
        return
    from homenode.host.bind.base.state import open_state
    from homenode.host.bind.claims import exclusive, exclusive_if_possible

    with exclusive(open_state()) if strict else exclusive_if_possible(warn) as table:
        for finding in table.findings:
            warn(f"{finding.severity}: {finding.text}")
        yield table


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def claim_of(pid: int, found: BindingPlan) -> Claim:
    """Return what process `pid` takes for itself by this binding plan: CPUs and accelerators."""
    from homenode.host.plan.check import places_devices
    from homenode.host.plan.demand import Claim

    drives = found.plan is not None and found.host.accelerators.kind is not None and places_devices(found.plan)
    devices = tuple(worker.device for worker in found.workers) if drives else ()
    cpus = tuple(sorted({cpu for worker in found.workers for cpu in worker.cpus}))
    return Claim(pid, cpus, devices, found.plan.strategy if found.plan else "")


def print_lines(lines: Iterable[str], write: Callable[[str], None] = warn) -> None:
    """Print all the messages of a binding plan."""
    for line in lines:
        write(line)
