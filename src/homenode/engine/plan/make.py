"""The plan of an engine by its settings, the model and the host, and everything that is wrong with the settings: no
weight is read for either.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from homenode.engine.assignment import EngineAssignment
from homenode.engine.config import EngineConfig
from homenode.engine.cpu_claims import claims_of_others
from homenode.engine.devices import executor_kind, is_accelerator
from homenode.engine.experts.group import expert_group_rank, not_in_common
from homenode.engine.experts.sizing import ExpertSharing
from homenode.engine.model_path.locate import locate_model
from homenode.engine.plan.accelerators.device_detection import devices_of_service
from homenode.engine.plan.drafting import heads_left_out, vocabulary_problem, without_spare_drafter
from homenode.engine.plan.engine_plan import EnginePlan
from homenode.engine.plan.free_cores import binds_threads, cpus_for_the_rest, keep_clear, neighbour_findings
from homenode.engine.plan.inline import plan_inline
from homenode.engine.plan.machine import MachineFacts, busy_where_it_counts, read_machine
from homenode.engine.plan.opened_model import as_asked
from homenode.engine.plan.placement import cut
from homenode.engine.plan.pooling import for_runner, with_runner
from homenode.engine.plan.problems.needed_calls import needed_call_problems
from homenode.engine.plan.problems.net_problems import net_problems
from homenode.engine.plan.quota_sets import takes_sets, with_cpus_of_sets, with_sets
from homenode.engine.plan.rules.settings_without_effect import settings_without_effect, worth_telling
from homenode.engine.plan.unbound import unbound_layout
from homenode.engine.plan.worker_layout import computing_cpus
from homenode.engine.problems import SettingProblems
from homenode.errors import UserError
from homenode.host.plan.neighbours import HostNeighbours
from homenode.host.refusals import named_refusals
from homenode.host.topology.finding import Finding
from homenode.host.topology.host import Host
from homenode.model.checkpoint.index import OpenedCheckpoint, open_checkpoint
from homenode.model.parts import read_layer_split
from homenode.model.spec import Checkpoint


def plan_engine(
    assignment: EngineAssignment,
    checkpoint: OpenedCheckpoint,
    machine: MachineFacts,
    common: ExpertSharing | None = None,
) -> EnginePlan:
    """Everything that is decided about an engine before it is loaded: nothing is read here but what the settings name.
    `common`: where several engines keep experts in common. UserError, naming the setting, for what cannot be.
    """
    problems = SettingProblems()
    plan = _plan(assignment, checkpoint, machine, common, problems)
    problems.require_none()
    return plan


def _plan(
    assignment: EngineAssignment,
    checkpoint: OpenedCheckpoint,
    machine: MachineFacts,
    common: ExpertSharing | None,
    problems: SettingProblems,
) -> EnginePlan:
    """The same with what is wrong in `problems`, as far as the rest can be judged without it."""
    checkpoint = with_runner(checkpoint, assignment.config.model)
    assignment = problems.of(partial(for_runner, assignment, checkpoint.spec), assignment)
    if assignment.replica is not None:  # where it runs was decided with all others of its service
        made = _plan_on(assignment, checkpoint, machine, common, problems)
        return _within_sets(made, machine.host, assignment.replica.binding.sets)
    teams = sum(not is_accelerator(device) for device in machine.devices) if binds_threads(assignment.config) else 0
    host, config = keep_clear(machine.host, assignment.config, teams, machine.neighbours)
    assignment, clear = replace(assignment, config=config), replace(machine, host=host)
    made = beside_neighbours(_plan_on(assignment, checkpoint, clear, common, problems), machine)
    return _in_sets(made, machine.host, machine.neighbours) if takes_sets(machine.host, assignment.config) else made


def _in_sets(plan: EnginePlan, host: Host, neighbours: HostNeighbours) -> EnginePlan:
    """The plan with compute threads on any of the host's free CPUs of their nodes."""
    layout = plan.worker_layout
    on_cpus = [worker for worker in layout.workers if not is_accelerator(worker.device)]
    places = with_sets(host, [worker.binding for worker in on_cpus], neighbours)
    found = {worker.number: place for worker, place in zip(on_cpus, places, strict=True)}
    workers = tuple(replace(worker, binding=found.get(worker.number, worker.binding)) for worker in layout.workers)
    return replace(plan, worker_layout=replace(layout, workers=workers, loop=with_cpus_of_sets(layout.loop, places)))


def _within_sets(plan: EnginePlan, host: Host, sets: Sequence[Sequence[int]]) -> EnginePlan:
    """The same of one of several engines, which was given these; as it is where it was given none."""
    if not sets:
        return plan
    own = tuple(sorted({cpu for each in sets for cpu in each}))
    return _in_sets(plan, replace(host, allowance=cut(host, host.allowance, own)), HostNeighbours())


def _plan_on(
    assignment: EngineAssignment,
    checkpoint: OpenedCheckpoint,
    machine: MachineFacts,
    common: ExpertSharing | None,
    problems: SettingProblems,
) -> EnginePlan:
    """The same on the CPUs of the host as it is given."""
    problems.add(*net_problems(assignment.config))
    needs = machine.refused_needs
    problems.add(*needed_call_problems(assignment.config, experts_in_common=common is not None, refused=needs))
    if executor_kind(assignment.config.parallel.executor, machine.devices) == "inline":
        plan = plan_inline(assignment, checkpoint, machine, problems, common)
    else:
        from homenode.engine.plan.workers import plan_workers  # an inline engine starts sooner without

        host, devices, memory = machine.host, machine.devices, machine.devices_memory
        plan = plan_workers(assignment, checkpoint, host, devices, memory, common, problems)
    layout = unbound_layout(plan.worker_layout, machine.binding_refused)
    return replace(plan, worker_layout=replace(layout, findings=(*layout.findings, *machine.refused)))


def claimed_cpus(plan: EnginePlan) -> tuple[int, ...]:
    """The CPUs that others are to keep clear of."""
    return computing_cpus(plan.worker_layout) if binds_threads(plan.config) else ()


def beside_neighbours(plan: EnginePlan, machine: MachineFacts) -> EnginePlan:
    """The plan with what is to be said of its neighbours, and with its other threads where they disturb none."""
    layout, neighbours = plan.worker_layout, machine.neighbours
    team = claimed_cpus(plan)
    if not neighbours or not team:
        return plan
    findings = neighbour_findings(machine.host, team, neighbours)
    loop = layout.loop or cpus_for_the_rest(machine.host, team, neighbours)
    workers = layout.workers
    if plan.executor == "inline" and not workers[0].binding.others:
        workers = (replace(workers[0], binding=replace(workers[0].binding, spare=loop)),)
    layout = replace(layout, workers=workers, loop=loop, findings=(*layout.findings, *findings))
    return replace(plan, worker_layout=layout)


@dataclass
class ConfigCheck:
    """A list of what is wrong with settings, and what is to be told of them as a start tells it; each thing once."""

    problems: list[UserError]
    findings: dict[Finding, None] = field(default_factory=dict)


def check_configs(config: EngineConfig) -> ConfigCheck:
    """Everything wrong with these settings for the engines they ask for, as `check_config` finds it; what several have
    in common, once.

    Where they cannot be placed the settings are looked at as for one engine, so that the rest is told as well.
    """
    from homenode.engine.plan.replica_assignments import replica_assignments  # an engine starts sooner without

    problems, findings = SettingProblems(), dict[Finding, None]()
    alone = EngineAssignment(replace(config, parallel=replace(config.parallel, data_parallel_size=1)))
    for assignment in problems.of(lambda: list(replica_assignments(config)), [alone]):
        checked = judge_config(assignment)
        problems.add(*checked.problems)
        findings |= checked.findings
    return ConfigCheck(problems.found, findings)


def check_config(assignment: EngineAssignment) -> list[UserError]:
    """Everything wrong with these settings for this model on this machine, without reading a weight. Empty: the engine
    would start.

    Raises what opening the model raises: without its figures nothing can be said.
    """
    return judge_config(assignment).problems


@named_refusals("checking the settings")
def judge_config(assignment: EngineAssignment) -> ConfigCheck:
    """The same with what a start would tell of them. Raises as `check_config`."""
    config = locate_model(assignment.config)
    assignment, problems = replace(assignment, config=config), SettingProblems()
    try:
        everybody = devices_of_service(assignment)
        devices = everybody[assignment.number]
        executor_kind(config.parallel.executor, devices)
        read_layer_split(config.parallel.layer_split)
    except UserError as error:
        return ConfigCheck([error])
    group_rank = expert_group_rank(assignment, everybody)
    common = None if group_rank is None else ExpertSharing(group_rank)
    checkpoint, machine = (
        open_checkpoint(Path(str(config.model.path)), config.model.mmproj),
        _machine_now(config, devices),
    )
    checkpoint = problems.of(lambda: as_asked(checkpoint, config), checkpoint)
    problems.add(vocabulary_problem(checkpoint, config))
    found = told_of_settings(assignment, everybody, checkpoint)
    try:
        plan = _plan(assignment, checkpoint, machine, common, problems)
        wrong = _with_memory(plan).problems()
        if wrong and (alone := without_spare_drafter(checkpoint, config)) is not None:
            found = (*found, heads_left_out(checkpoint, wrong[0].message))
            wrong = _with_memory(_plan(assignment, alone, machine, common, problems)).problems()
        problems.add(*wrong)
        found = (*found, *plan.worker_layout.findings)
    except UserError as error:
        problems.add(error)
    return ConfigCheck(problems.found, dict.fromkeys(filter(worth_telling, found)))


def told_of_settings(
    assignment: EngineAssignment, everybody: Sequence[Sequence[str]], checkpoint: Checkpoint
) -> tuple[Finding, ...]:
    """Return what of these settings has no effect, before anything is planned. `everybody`: the devices of
    all engines.
    """
    config, replica = assignment.config, assignment.replica
    ignored = settings_without_effect(
        config,
        everybody[assignment.number],
        os.environ,
        replica.count if replica else None,
        keeps_states=bool(checkpoint.spec.layer_states),
        has_experts=checkpoint.spec.moe is not None,
    )
    return (*not_in_common(assignment, everybody), *ignored)


def _machine_now(config: EngineConfig, devices: Sequence[str]) -> MachineFacts:
    machine = read_machine(config, devices)
    return replace(machine, neighbours=HostNeighbours(claims_of_others(), busy_where_it_counts(config, machine.host)))


def _with_memory(plan: EnginePlan) -> EnginePlan:
    """Return the plan with the memory of each worker; the plan of an inline engine has it."""
    if plan.executor == "inline":
        return plan
    from homenode.engine.plan.workers import with_available_memory  # an inline engine starts sooner without

    return with_available_memory(plan)
