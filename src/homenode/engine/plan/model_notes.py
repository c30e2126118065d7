"""Notes of a model's files and the settings for it that is no error: a setting without effect, and what of its
configuration nobody knows.
"""

from __future__ import annotations

from pathlib import Path

from homenode.engine.config import EngineConfig
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.checkpoint.unknown_names import sees_more_than_text, unknown_names
from homenode.model.weights.layout import unaffected

_SHOWN = 20  # names of a list that may be long


def remarks_on_settings(config: EngineConfig) -> tuple[str, ...]:
    """Return, of a located model, whether `--quantize` or `--dtype` has nothing to do. Opens the model only where one
    of them is given.
    """
    if config.model.quantize is None and config.model.dtype == "auto":
        return ()
    tensors = open_checkpoint(Path(str(config.model.path))).tensors.values()
    matrices = (entry for entry in tensors if len(entry.shape) == 2)
    told = unaffected(matrices, config.model.quantize, config.model.dtype)
    return () if told is None else (told,)


def remarks_on_model(config: EngineConfig) -> tuple[str, ...]:
    """Return, of a located model, that only its text is served, and the fields of its configuration that homenode
    neither reads nor knows to be harmless.
    """
    checkpoint = open_checkpoint(Path(str(config.model.path)))
    names = unknown_names(checkpoint)
    whole = sees_more_than_text(checkpoint)
    told = (
        (f"the model is a {whole}, of which homenode serves the text; what it sees or hears is left out",)
        if whole
        else ()
    )
    if not names:
        return told
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return (
        *told,
        "the model's configuration has fields that homenode does not know and leaves alone: "
        f"{', '.join(names[:_SHOWN])}{more}",
    )
