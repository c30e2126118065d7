"""Finding the model before anything heavy is imported: a front starts its engine sooner for it."""

from __future__ import annotations

import os
from dataclasses import replace

from homenode.compute.devices import accelerators
from homenode.engine.config import EngineConfig
from homenode.host.topology.allowance import Allowance
from homenode.host.topology.source import LiveSource
from homenode.model.checkpoint.reading import refuse_links
from homenode.model.locate import BUILTIN_NAME, locate


def located(config: EngineConfig) -> EngineConfig:
    """The config with the path (and the name, if it had none) of its model filled in; fetches a Hub model that is not in the cache.

    Raises what `locate` raises, and CheckpointError for links in the model where the config forbids them.
    """
    if config.model.path is not None:
        return config
    path = locate(config.model.model, revision=config.model.revision, memory=_memory_for_weights(config))
    if not config.model.links:
        refuse_links(path)
    return replace(config, model=replace(config.model, model=config.model.model or BUILTIN_NAME, path=str(path)))


def _memory_for_weights(config: EngineConfig) -> int | None:
    """Bytes that the weights may take as they are in the file; None where they are kept smaller, or not in this machine's memory alone."""
    parallel = config.parallel
    name = config.model.model
    if config.model.quantize or parallel.workers > 1 or parallel.stage_devices.strip() not in ("auto", "cpu"):
        return None
    if name is None or "/" not in name or os.path.exists(os.path.expanduser(name)):  # noqa: PTH110, PTH111
        return None  # nothing is fetched
    if parallel.stage_devices.strip() == "auto" and accelerators():
        return None
    return Allowance.of_process(LiveSource()).memory_available
