"""What a served model sees with, out of its files: nothing of it runs before the first picture comes."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from homenode.cpuset import format_cpu_list
from homenode.errors import HomenodeError, UserError

if TYPE_CHECKING:
    from homenode.engine.messages import EngineReady
    from homenode.model.pictures.family import PictureConfig
    from homenode.server.http.config import ServedModelConfig
    from homenode.server.models.media_work import MediaWork

_LOG = logging.getLogger("homenode.server")
_MOST_CONFIG_BYTES = 2**24


def picture_work(path: Path, ready: EngineReady, asked: ServedModelConfig) -> MediaWork | None:
    """What encodes pictures for the model at `path`, whose engine is ready; None where the engine takes no rows or
    homenode knows no family of its class. What of a known family cannot be run is logged. UserError for CPUs that this
    process may not use.
    """
    check_encoder_cpus(asked.encoder_cpus)
    mmproj = str(ready.details.get("mmproj") or "")
    if not mmproj and not ready.row_columns:
        return None
    if not mmproj and (not path.is_dir() or _family_name(path / "config.json") is None):
        return None
    from homenode.engine.encoder.client import Encoder, EncoderSettings
    from homenode.model.media.decoder import FileDecoder
    from homenode.model.pictures.family import PictureLayout
    from homenode.model.pictures.reader import family_words
    from homenode.model.pictures.registry import family_named
    from homenode.server.models.media_work import MediaWork

    try:
        family, config = _described(path, mmproj)
        format = family_named(family)
        made, spec = format.make(config), format.spec(config)
    except HomenodeError as error:
        _LOG.warning("this model sees, but images are refused: %s", error.message)
        return None
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:  # of a figure of some type nobody expects
        _LOG.warning("this model sees, but images are refused: what its files say of them cannot be read: %r", error)
        return None
    if not ready.row_columns:
        if mmproj:
            _LOG.warning("images are refused: %s was found beside the model, and does not fit it", mmproj)
        return None
    words, compute = family_words(family, config), _compute_of(ready.details)
    cpus = compute.pop("cpus")
    settings = EncoderSettings(str(path), asked.encoder_cpus or cpus, **compute)
    encoder = Encoder("image", words, settings, made.placeholder, together=spec.sees_both_ways != "none")
    decoder = FileDecoder("image", words, PictureLayout.of)
    return MediaWork(made, decoder, encoder, asked.encoder_cache_size)


def check_encoder_cpus(cpus: Sequence[int]) -> None:
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


def _described(path: Path, mmproj: str) -> tuple[str, PictureConfig]:
    """The family of a model, and what its files say of pictures. `mmproj`: the file that has its tower, "": it is a
    folder.
    """
    if not mmproj:
        from homenode.model.pictures.config_files import read_picture_config

        return _family_name(path / "config.json") or "", read_picture_config(path)
    from homenode.model.pictures.gguf_files import read_gguf_pictures

    return read_gguf_pictures(Path(mmproj), path)


def _family_name(file: Path) -> str | None:
    """The family of the class that a config.json names; a file that cannot be read has none, as its text has said."""
    from homenode.model.pictures.classes import FAMILY_OF_CLASS

    try:
        with file.open("rb") as opened:
            config: Any = json.loads(opened.read(_MOST_CONFIG_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    named = config.get("architectures") if isinstance(config, dict) else None
    return FAMILY_OF_CLASS.get(named[0]) if isinstance(named, list) and named and isinstance(named[0], str) else None


def _compute_of(details: Mapping[str, Any]) -> dict[str, Any]:
    """Where and how the text model computes, which the tower does as well."""
    compute = details.get("compute")
    told = compute if isinstance(compute, Mapping) else {}
    cpus = [int(cpu) for cpu in details.get("cpus") or ()]
    threads = int(told.get("threads") or 1)
    storage = details.get("storage")
    return {
        "cpus": cpus or [-1] * threads,
        "isa": str(told["level"]) if told.get("level") else None,
        "storage": str(storage) if storage else None,
    }
