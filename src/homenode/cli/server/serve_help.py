"""Groups in which `homenode serve --help` shows its settings, and those of them that it shows at first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from homenode.cli.flags.equivalents import EquivalentsCommand
from homenode.cli.flags.help_groups import GroupedHelpCommand, HelpGroup
from homenode.cli.flags.logs import ServiceLogConfig
from homenode.cli.flags.many_values import ManyValuesCommand
from homenode.cli.flags.settings import settings_of
from homenode.engine.config import EngineConfig
from homenode.model.tokenizer.config import TextConfig
from homenode.server.http.config import ServerConfig
from homenode.server.models.several_config import SeveralModelsConfig

# By the part of EngineConfig in which a setting is.
_OF_PART = {
    "model": HelpGroup.MODEL,
    "scheduler": HelpGroup.SERVER,
    "kv": HelpGroup.MEMORY,
    "compute": HelpGroup.PLACEMENT,
    "placement": HelpGroup.PLACEMENT,
    "parallel": HelpGroup.PARALLEL,
    "transfer": HelpGroup.TRANSFER,
}

# Settings of another group than their part's.
_OF_SETTING = {
    "backend": HelpGroup.MODEL,
    "isa": HelpGroup.MODEL,
    "attention_backend": HelpGroup.MODEL,
    "enforce_eager": HelpGroup.MODEL,
    "gpu_memory_utilization": HelpGroup.MEMORY,
    "api_server_count": HelpGroup.PARALLEL,
    "ray_address": HelpGroup.RAY,
    "ray_placement": HelpGroup.RAY,
}


def _groups() -> Iterator[tuple[str, HelpGroup]]:
    for config in (ServerConfig, ServiceLogConfig):
        yield from ((setting.name, HelpGroup.SERVER) for setting in settings_of(config))
    for of_models in (SeveralModelsConfig, TextConfig):
        yield from ((setting.name, HelpGroup.MODEL) for setting in settings_of(of_models))
    for setting in settings_of(EngineConfig):
        yield setting.name, _OF_PART.get(setting.path[0], HelpGroup.SERVER)
    yield from _OF_SETTING.items()


class ServeCommand(GroupedHelpCommand, ManyValuesCommand, EquivalentsCommand):
    """`homenode serve`."""

    groups: ClassVar = dict(_groups())
    first: ClassVar = frozenset(
        {
            "models",
            "quantize",
            "max_model_len",
            "host",
            "port",
            "api_key",
            "served_model_name",
            "kv_cache_memory",
            "threads",
            "numa",
            "verbose",
        }
    )
