"""Finding the model before anything heavy is imported: a front starts its engine sooner for it."""

from __future__ import annotations

from dataclasses import replace

from homenode.engine.config import EngineConfig
from homenode.model.checkpoint.reading import refuse_links
from homenode.model.locate import BUILTIN_NAME, locate


def located(config: EngineConfig) -> EngineConfig:
    """The config with the path (and the name, if it had none) of its model filled in; fetches a Hub model that is not in the cache.

    Raises what `locate` raises, and CheckpointError for links in the model where the config forbids them.
    """
    if config.model.path is not None:
        return config
    path = locate(config.model.model, revision=config.model.revision)
    if not config.model.links:
        refuse_links(path)
    return replace(config, model=replace(config.model, model=config.model.model or BUILTIN_NAME, path=str(path)))
