"""The plan of an engine by its settings, the model and the host, and everything that is wrong with the settings: no
weight is read for either.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from homenode.engine.binding import EngineBinding
from homenode.engine.config import EngineConfig
from homenode.engine.devices import is_accelerator
from homenode.engine.experts.group import expert_group_rank
from homenode.engine.experts.sizing import ExpertSharing
from homenode.engine.memory.sizing import with_kv_memory_variable
from homenode.engine.model_path.locate import locate_model
from homenode.engine.plan.device_detection import devices_of_service, memory_of_devices
from homenode.engine.plan.engine_plan import EnginePlan
from homenode.engine.plan.inline import (
    binding_of,
    expert_settings_problem,
    model_problems,
    plan_inline,
    with_numa_decided,
)
from homenode.engine.plan.layout import executor_kind
from homenode.engine.plan.settings_without_effect import settings_without_effect
from homenode.errors import UserError
from homenode.host.discovery.read import read_host
from homenode.host.refusals import named_refusals
from homenode.host.topology.finding import Finding
from homenode.host.topology.host import Host
from homenode.host.topology.source import LiveSource
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.parts import read_layer_split
from homenode.model.spec import Checkpoint


def plan_engine(
    config: EngineConfig,
    checkpoint: Checkpoint,
    host: Host,
    devices: Sequence[str],
    devices_memory: Mapping[str, int] = MappingProxyType({}),
    common: ExpertSharing | None = None,
) -> EnginePlan:
    """Everything that is decided about an engine before it is loaded. `devices`: of its workers; `devices_memory`:
    bytes that workers may take of accelerators, as far as known; `common`: where several engines keep experts in
    common. UserError, naming the setting, for what cannot be.
    """
    if executor_kind(config, devices) == "inline":
        return plan_inline(config, checkpoint, host, common)
    from homenode.engine.plan.workers import plan_workers  # an inline engine starts sooner without

    return plan_workers(config, checkpoint, host, devices, devices_memory, common)


def check_configs(config: EngineConfig) -> list[UserError]:
    """Everything wrong with these settings for the engines they ask for, as `check_config` finds it; what several have
    in common, once.

    Where they cannot be placed the settings are looked at as for one engine, so that the rest is told as well.
    """
    from homenode.engine.plan.replica_configs import replica_configs  # an engine starts sooner without

    try:
        configs = replica_configs(config)
    except UserError as error:
        return [error, *check_config(replace(config, parallel=replace(config.parallel, data_parallel_size=1)))]
    return list({error.message: error for each in configs for error in check_config(each)}.values())


@named_refusals("checking the settings")
def check_config(config: EngineConfig) -> list[UserError]:
    """Everything wrong with these settings for this model on this machine, without reading a weight. Empty: the engine
    would start.

    Raises what opening the model raises: without its figures nothing can be said.
    """
    config = locate_model(config)
    try:
        everybody = devices_of_service(config)
        devices = everybody[config.replica.number if config.replica else 0]
        inline = executor_kind(config, devices) == "inline"
        read_layer_split(config.parallel.layer_split)
    except UserError as error:
        return [error]
    group_rank = expert_group_rank(config, everybody)
    common = None if group_rank is None else ExpertSharing(group_rank)
    if not inline:
        return check_engine_of_workers(config, devices, common)
    host = read_host(LiveSource(), accelerators=False)
    found: list[UserError] = []
    binding = EngineBinding(())
    try:
        config = with_kv_memory_variable(config, host)
    except UserError as error:
        found.append(error)
    checkpoint = open_checkpoint(Path(str(config.model.path)))
    if problem := expert_settings_problem(config, checkpoint.spec):
        found.append(problem)
    config = with_numa_decided(config, checkpoint, host)
    try:
        binding = binding_of(config, checkpoint, host)
    except UserError as error:
        found.append(error)
    return found + model_problems(config, checkpoint, host, binding, common)


def unused_settings(config: EngineConfig) -> tuple[Finding, ...]:
    """The settings that were given and have no effect, for what `check_config` has found nothing wrong with."""
    config = locate_model(config)
    return settings_without_effect(config, devices_of_service(config)[0], os.environ)


def check_engine_of_workers(
    config: EngineConfig, devices: Sequence[str], common: ExpertSharing | None = None
) -> list[UserError]:
    """Everything wrong with these settings, as `check_config` finds it for one worker."""
    from homenode.engine.plan.workers import plan_workers, with_available_memory

    checkpoint = open_checkpoint(Path(str(config.model.path)))
    host = read_host(LiveSource(), accelerators=any(map(is_accelerator, devices)))
    try:
        return with_available_memory(
            plan_workers(config, checkpoint, host, devices, memory_of_devices(devices, config), common)
        ).problems()
    except UserError as error:
        return [error]
