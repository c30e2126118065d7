"""Pictures as a medium: a family in words, and what reads the files of pictures for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from homenode.model.media.prepared import FileReader, PreparedFile
from homenode.model.pictures.family import PictureConfig, PictureFamily


def family_words(family: str, config: PictureConfig) -> dict[str, Any]:
    """A family and its configuration as JSON has them."""
    return {
        "family": family,
        "path": str(config.path),
        "config": dict(config.raw),
        "processor": dict(config.processor),
        "whole": dict(config.whole),
    }


def config_of_words(words: dict[str, Any]) -> PictureConfig:
    """The configuration out of `family_words`."""
    return PictureConfig(Path(str(words["path"])), words["config"], words["processor"], words["whole"])


def family_of_words(words: dict[str, Any]) -> PictureFamily:
    """The family out of `family_words`."""
    from homenode.model.pictures.registry import family_named

    return family_named(str(words["family"])).make(config_of_words(words))


def file_reader(words: dict[str, Any]) -> FileReader:
    """Return what decodes, scales and cuts pictures for a family."""
    from homenode.model.pictures.decoded import read_picture

    family = family_of_words(words)

    def read(data: bytes, alone: bool) -> PreparedFile:
        found = family.prepare(read_picture(data), alone)
        return PreparedFile(found.tiles, found.layout)

    return read
