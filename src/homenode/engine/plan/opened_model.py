"""The model of an engine with all that its settings name beside it: whoever opens it, the engine and each worker, gets
the same.
"""

from __future__ import annotations

from pathlib import Path

from homenode.engine.config import EngineConfig
from homenode.engine.plan.drafting import with_drafter
from homenode.engine.plan.pooling import with_runner
from homenode.model.checkpoint.index import OpenedCheckpoint, open_checkpoint


def open_engine_model(config: EngineConfig, *, drafts: bool = True) -> OpenedCheckpoint:
    """The model, whose path is one of this host's. `drafts`: with what drafts for it. Raises what `open_checkpoint` and
    `as_asked` do.
    """
    return as_asked(open_checkpoint(Path(str(config.model.path)), config.model.mmproj), config, drafts=drafts)


def as_asked(checkpoint: OpenedCheckpoint, config: EngineConfig, *, drafts: bool = True) -> OpenedCheckpoint:
    """The model as it is run, and what stands beside it by these settings. UserError, naming the setting, where what
    was asked for is not there or cannot; UnsupportedError for a model that cannot do what is asked.
    """
    checkpoint = with_runner(checkpoint, config.model)
    return with_drafter(checkpoint, config) if drafts else checkpoint
