"""The plan of an engine by its settings, the model and the host, and everything that is wrong with the settings: no
weight is read for either.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path

from homenode.engine.assignment import EngineAssignment
from homenode.engine.config import EngineConfig
from homenode.engine.experts.group import expert_group_rank
from homenode.engine.experts.sizing import ExpertSharing
from homenode.engine.model_path.locate import locate_model
from homenode.engine.plan.device_detection import devices_of_service
from homenode.engine.plan.engine_plan import EnginePlan
from homenode.engine.plan.inline import plan_inline
from homenode.engine.plan.machine import MachineFacts, read_machine
from homenode.engine.plan.pooling import for_runner, with_runner
from homenode.engine.plan.settings_without_effect import settings_without_effect
from homenode.engine.plan.worker_layout import executor_kind
from homenode.engine.problems import SettingProblems
from homenode.errors import UserError
from homenode.host.refusals import named_refusals
from homenode.host.topology.finding import Finding
from homenode.model.checkpoint.index import OpenedCheckpoint, open_checkpoint
from homenode.model.parts import read_layer_split


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
    if executor_kind(assignment.config, machine.devices) == "inline":
        return plan_inline(assignment, checkpoint, machine, problems, common)
    from homenode.engine.plan.workers import plan_workers  # an inline engine starts sooner without

    host, devices, memory = machine.host, machine.devices, machine.devices_memory
    return plan_workers(assignment, checkpoint, host, devices, memory, common, problems)


def check_configs(config: EngineConfig) -> list[UserError]:
    """Everything wrong with these settings for the engines they ask for, as `check_config` finds it; what several have
    in common, once.

    Where they cannot be placed the settings are looked at as for one engine, so that the rest is told as well.
    """
    from homenode.engine.plan.replica_assignments import replica_assignments  # an engine starts sooner without

    problems = SettingProblems()
    alone = EngineAssignment(replace(config, parallel=replace(config.parallel, data_parallel_size=1)))
    for assignment in problems.of(lambda: list(replica_assignments(config)), [alone]):
        problems.add(*check_config(assignment))
    return problems.found


@named_refusals("checking the settings")
def check_config(assignment: EngineAssignment) -> list[UserError]:
    """Everything wrong with these settings for this model on this machine, without reading a weight. Empty: the engine
    would start.

    Raises what opening the model raises: without its figures nothing can be said.
    """
    config = locate_model(assignment.config)
    assignment, problems = replace(assignment, config=config), SettingProblems()
    try:
        everybody = devices_of_service(assignment)
        devices = everybody[assignment.number]
        executor_kind(config, devices)
        read_layer_split(config.parallel.layer_split)
    except UserError as error:
        return [error]
    group_rank = expert_group_rank(assignment, everybody)
    common = None if group_rank is None else ExpertSharing(group_rank)
    checkpoint, machine = open_checkpoint(Path(str(config.model.path))), read_machine(config, devices)
    try:
        plan = _plan(assignment, checkpoint, machine, common, problems)
        problems.add(*_with_memory(plan).problems())
    except UserError as error:
        problems.add(error)
    return problems.found


def _with_memory(plan: EnginePlan) -> EnginePlan:
    """With the memory of each worker; the plan of an inline engine has it."""
    if plan.executor == "inline":
        return plan
    from homenode.engine.plan.workers import with_available_memory  # an inline engine starts sooner without

    return with_available_memory(plan)


def unused_settings(config: EngineConfig) -> tuple[Finding, ...]:
    """The settings that were given and have no effect, for what `check_config` has found nothing wrong with."""
    config = locate_model(config)
    keeps_states = bool(open_checkpoint(Path(str(config.model.path))).spec.layer_states)
    devices = devices_of_service(EngineAssignment(config))[0]
    return settings_without_effect(config, devices, os.environ, keeps_states=keeps_states)
