"""Whether a service of several engines would start: asked without reading a weight."""

from __future__ import annotations

from dataclasses import replace

from homenode.engine.config import EngineConfig
from homenode.engine.plan.replica_configs import replica_configs
from homenode.engine.runtime.build import check_config
from homenode.errors import UserError


def check_configs(config: EngineConfig) -> list[UserError]:
    """Everything wrong with these settings for the engines they ask for, as `build.check_config` finds it; what several have in common, once.

    Where they cannot be placed the settings are looked at as for one engine, so that the rest is told as well.
    """
    try:
        configs = replica_configs(config)
    except UserError as error:
        return [error, *check_config(replace(config, parallel=replace(config.parallel, data_parallel_size=1)))]
    return list({error.message: error for each in configs for error in check_config(each)}.values())
