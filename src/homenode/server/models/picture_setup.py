"""What a served model sees with, out of its files: nothing of it runs before the first picture comes."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from homenode.cpuset import format_cpu_list
from homenode.engine.encoder.setup import picture_parts
from homenode.errors import HomenodeError, UserError

if TYPE_CHECKING:
    from homenode.engine.messages import EngineReady
    from homenode.server.http.config import ServedModelConfig
    from homenode.server.models.picture_work import PictureWork

_LOG = logging.getLogger("homenode.server")
_SETTINGS = ("limit_images", "media_path", "media_domains", "encoder_cache_size", "encoder_cpus")


def picture_work(path: Path, ready: EngineReady, asked: ServedModelConfig) -> PictureWork | None:
    """What encodes pictures for the model at `path`, whose engine is ready; None where the engine takes no rows or
    homenode knows no family of its class. What of a known family cannot be run is logged. UserError for CPUs that this
    process may not use.
    """
    _check_cpus(asked.encoder_cpus)
    try:
        parts = picture_parts(path, ready, asked.encoder_cpus)
    except HomenodeError as error:
        _LOG.warning("this model sees, but images are refused: %s", error.message)
        return None
    if parts is None:
        return None
    from homenode.server.models.picture_work import PictureWork

    return PictureWork(parts.family, parts.decoder, parts.encoder, asked.encoder_cache_size)


def _check_cpus(cpus: Sequence[int]) -> None:
    """UserError where no thread of this process may run on one of these CPUs."""
    refused: list[int] = []

    def look() -> None:
        for cpu in cpus:
            try:
                os.sched_setaffinity(0, (cpu,))  # of this thread
            except (OSError, ValueError, OverflowError):
                refused.append(cpu)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    if refused:
        text = f"--encoder-cpus: CPU {format_cpu_list(refused)} is not there, or may not be used here; leave it out"
        raise UserError(text, param="encoder_cpus")


def unread_settings(config: ServedModelConfig) -> list[str]:
    """The flags about images that were given, for a model that sees none."""
    usual = {each.name: each.default for each in fields(config)}
    given = [name for name in _SETTINGS if getattr(config, name) != usual[name]]
    return [f"--{name.replace('_', '-')}" for name in given]
