"""The processes that a model sees with, out of its files: nothing of it runs before the first picture comes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from homenode.engine.encoder.client import Encoder
    from homenode.engine.messages import EngineReady
    from homenode.model.pictures.decoder import PictureDecoder
    from homenode.model.pictures.family import PictureConfig, PictureFamily

_MOST_CONFIG_BYTES = 2**24


class PictureParts(NamedTuple):
    """What a model sees with. Whoever has it closes `decoder` and `encoder`."""

    family: PictureFamily
    decoder: PictureDecoder
    encoder: Encoder


def picture_parts(path: Path, ready: EngineReady, cpus: Sequence[int] = ()) -> PictureParts | None:
    """What the model at `path` sees with, whose engine is ready; None where the engine takes no rows or homenode knows
    no family of its class. `cpus`: that encode; none: those of the text model. UnsupportedError and CheckpointError
    where what sees of a known family cannot be run.
    """
    mmproj = str(ready.details.get("mmproj") or "")
    if ready.pooling is not None or (not mmproj and not ready.row_columns):
        return None
    if not mmproj and (not path.is_dir() or _family_name(path / "config.json") is None):
        return None
    from homenode.engine.encoder.client import Encoder, EncoderSettings
    from homenode.model.pictures.decoder import PictureDecoder, family_words
    from homenode.model.pictures.registry import family_named

    family, config = _described(path, mmproj)
    format = family_named(family)
    made, spec = format.make(config), format.spec(config)
    if not ready.row_columns:
        return None
    words, compute = family_words(family, config), _compute_of(ready.details)
    usual = compute.pop("cpus")
    settings = EncoderSettings(str(path), cpus or usual, **compute)
    encoder = Encoder(words, settings, made.placeholder, together=spec.sees_both_ways != "none")
    return PictureParts(made, PictureDecoder(words), encoder)


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
