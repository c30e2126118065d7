"""`homenode run`: any program, bound before it starts; then this process becomes that program."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from homenode.cli.flags.logs import lines_from, taken_level, with_log_flags
from homenode.cli.flags.many_values import ManyValuesCommand
from homenode.cli.output.report import plain_errors, print_error, print_json
from homenode.cli.placement.binding_plan import BindingPlan, chip_of, plan_binding, print_lines, warn, with_target_flags
from homenode.cli.placement.plan_flags import PlanFlags

if TYPE_CHECKING:
    from homenode.host.plan.plan import Plan


@click.command(cls=ManyValuesCommand, context_settings={"allow_interspersed_args": False})
@with_target_flags
@click.option("--strict", is_flag=True, help="Refuse to start when something cannot be bound as planned.")
@click.option("--dry-run", is_flag=True, help="Say what would be bound to what, and start nothing.")
@with_log_flags
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
def run(cpus: str | None, strict: bool, dry_run: bool, command: tuple[str, ...], **values: Any) -> None:
    """Bind this process by a plan, or to --cpus and --memory-nodes, and become COMMAND.

    The rank is --local-rank, or what torchrun, MPI or Slurm put into the variables. A program that starts its ranks
    itself gets the CPUs of all of them, and each rank is bound to its own as soon as it shows which it is. Nothing
    escapes a limit that was inherited. Exit codes are the program's own; 127 when it is not there, 2 when what was
    asked for cannot be.
    """
    from homenode.host.bind.launch import ProgramError, find_program, run_bound

    write_line = lines_from(taken_level(values), warn)
    flags = PlanFlags.taken_from(values)
    with plain_errors():
        try:
            program = find_program(command[0], os.environ)
            found = plan_binding(
                _with_program(flags, program, command),
                cpus,
                strict=strict,
                pid=os.getpid(),
                claims=not dry_run,
                strict_claims=strict,
                before_start=True,
            )
            print_lines((*found.ignored, *found.lines, *_details(found)), write_line)
            if dry_run:
                print_json(dry(found, command))
                return
            _start_watchdog(found, command, write_line)
            run_bound(found.target, command, strict=strict, allowance=found.host.allowance, write_line=write_line)
        except ProgramError as error:
            print_error(error)
            sys.exit(error.exit_code)


def _with_program(flags: PlanFlags, program: str, command: tuple[str, ...]) -> PlanFlags:
    """The flags with what the program tells of itself, where a plan depends on it and nobody said otherwise."""
    from homenode.host.bind.bound_program import read_program
    from homenode.host.plan.strategy import Strategy

    found = read_program(program, command) if flags.chosen_strategy == Strategy.CPU_THREADS else None
    if found is None:
        return flags
    told = flags.vllm_version is not None or "HOMENODE_VLLM_VERSION" in os.environ
    version = flags.vllm_version if told else found.vllm_version
    return replace(flags, vllm_version=version, kv_transfer=flags.kv_transfer or found.kv_transfer)


def dry(
    found: BindingPlan,
    command: tuple[str, ...] = (),
    *,
    memory: bool = True,
    irqs: bool = True,
    children: tuple[int, ...] | None = None,
) -> dict[str, Any]:
    """Return what would be done, as JSON. `memory`, `irqs`: whether it would be moved and they routed. `children`:
    processes bound as well, if asked for.
    """
    from homenode.cpuset import format_cpu_list

    target = found.target
    if target is None:
        return {"command": list(command), "bound": False}
    routes = [
        {"device": route.address, "action": route.action, "cpus": format_cpu_list(route.cpus)}
        for route in (target.irqs if irqs else ())
    ]
    return {
        "command": list(command),
        "bound": True,
        "cpus": format_cpu_list(target.cpus),
        "threads": {name: format_cpu_list(cpus) for name, cpus in target.threads.items()},
        "memory_nodes": list(target.memory_nodes if memory else ()),
        "irqs": routes,
        **({} if children is None else {"children": list(children)}),
        "plan": found.plan.to_dict() if found.plan else None,
    }


def _details(found: BindingPlan) -> list[str]:
    """Return where the program will run, for --verbose."""
    from homenode.cpuset import format_cpu_list

    target = found.target
    if target is None:
        return ["debug: the program runs unbound"]
    nodes = f"memory of nodes {format_cpu_list(target.memory_nodes)}" if target.memory_nodes else "memory unbound"
    lines = [f"debug: the program runs on CPUs {format_cpu_list(target.cpus)}, {nodes}"]
    lines += [f"debug: its threads {name} run on CPUs {format_cpu_list(c)}" for name, c in target.threads.items()]
    return lines


def _start_watchdog(found: BindingPlan, command: tuple[str, ...], write_line: Callable[[str], None]) -> None:
    """Leave somebody behind for what can only be bound once the program runs: its ranks, its driver's threads,
    interrupts to give back."""
    if not found.workers or found.target is None:
        return
    from homenode.errors import HostError
    from homenode.host.bind.base.state import open_state
    from homenode.host.bind.base.target import target_of
    from homenode.host.bind.rank_hints import parallelism_of
    from homenode.host.bind.watchdog import Watchdog

    try:
        state = open_state()
    except HostError as error:
        write_line(f"warning: interrupts are left alone: {error.message}")
        state = None
    if found.plan is not None and found.plan.kernel_threads:
        _bind_kernel_threads(found.plan, write_line)
    watchdog = Watchdog(found.host, state)
    if found.plan is None or not found.starts_ranks:
        watchdog.watch_worker(found.target, parallelism_of(command))
    else:
        targets = {
            worker.local_rank: target_of(worker, chip_of(found.host, found.plan, worker)) for worker in found.workers
        }
        watchdog.watch_ranks(targets, parallelism_of(command))


def _bind_kernel_threads(plan: Plan, write_line: Callable[[str], None]) -> None:
    """Bind them once and for good: they are the host's, and workers of other programs count on their places, too."""
    from homenode.host.bind.kernel_threads import bind_kernel_threads

    for finding in bind_kernel_threads(os.getpid(), plan.kernel_threads).findings:
        write_line(f"{finding.severity}: {finding.text}")
