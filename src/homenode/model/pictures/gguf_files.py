"""The part that sees of a model in GGUF files: what its file says, and how its rows enter the text model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from homenode.errors import HomenodeError, UnsupportedError
from homenode.model.formats.fields import Fields
from homenode.model.formats.gguf_set import find_gguf, read_gguf_set
from homenode.model.pictures.family import PictureConfig
from homenode.model.pictures.mmproj import GgufTower, Mmproj, family_of, read_mmproj
from homenode.model.pictures.registry import family_named
from homenode.model.spec import PictureSpec

_SEEING = frozenset({"qwen2vl", "qwen3vl", "qwen3vlmoe"})  # architectures of texts that see


def gguf_picture_spec(file: Path, text: Mapping[str, Any], *, asked: bool) -> PictureSpec | None:
    """How the rows of the tower in `file` enter the text model whose key-value pairs are `text`. `asked`: the file was
    named: UserError, UnsupportedError or CheckpointError where it cannot be; else None, the text being served, also
    where its rope does not turn by the axes that the tower's rows want.
    """
    try:
        family, config = _described(file, text)
        found = family_named(family).spec(config)
        return found if asked or not found.sections or _has_axes(file, text) else None
    except HomenodeError:
        if asked:
            raise
        return None


def _has_axes(file: Path, text: Mapping[str, Any]) -> bool:
    """Return whether a text model says how its rope turns by time, row and column, or is of an architecture that there
    is for models that see alone, some of whose files leave it out.
    """
    if text.get("general.architecture") in _SEEING:
        return True
    return any(Fields(file, text, f"{text.get('general.architecture')}.").integers("rope.dimension_sections"))


def read_gguf_pictures(file: Path, model: Path) -> tuple[str, PictureConfig]:
    """The family of a file, and what it says of pictures. `model`: the text model's file, or its folder. Raises as
    `read_mmproj`.
    """
    return _described(file, _text_of(model))


def gguf_tower(file: Path, model: Path) -> tuple[Mmproj, GgufTower]:
    """The file that has a tower, and how it is. `model`: see `read_gguf_pictures`."""
    header = read_mmproj(file, _text_of(model))
    return header, _form(header)


def _described(file: Path, text: Mapping[str, Any]) -> tuple[str, PictureConfig]:
    header = read_mmproj(file, text)
    return family_of(header), _picture_config(header, _form(header))


def _form(header: Mmproj) -> GgufTower:
    form = family_named(family_of(header)).gguf
    if form is None:
        raise UnsupportedError(f"{header.path}: towers of this family are not read from GGUF files")
    return form


def _text_of(model: Path) -> Mapping[str, Any]:
    return read_gguf_set(find_gguf(model) if model.is_dir() else model).metadata


def _picture_config(file: Mmproj, tower: GgufTower) -> PictureConfig:
    """What a file says of pictures, as a folder would."""
    config, processor, whole = tower.config(file)
    config.setdefault("text_config", {})
    figures = file.figures
    if figures.has("rope.dimension_sections"):
        sections = list(figures.integers("rope.dimension_sections"))[:3]
        config["text_config"].setdefault("rope_parameters", {"mrope_section": sections})
    if figures.has("attention.layer_norm_rms_epsilon"):
        config["text_config"].setdefault("rms_norm_eps", figures.number("attention.layer_norm_rms_epsilon"))
    return PictureConfig(file.path, config, processor, whole)
