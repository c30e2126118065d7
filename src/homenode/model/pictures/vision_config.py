"""Figures of towers in config.json, as several families say them."""

from __future__ import annotations

from homenode.errors import UnsupportedError
from homenode.model.formats import limits
from homenode.model.formats.fields import Fields
from homenode.model.pictures.blocks import ACTIVATIONS
from homenode.model.pictures.family import PictureConfig


def vision_of(config: PictureConfig) -> Fields:
    """What config.json says of the tower."""
    return config.config.table("vision_config") or Fields(config.config.path, {})


def text_of(config: PictureConfig) -> Fields:
    """What config.json says of the text model."""
    return config.config.table("text_config") or config.config


def layers_of(vision: Fields, usual: int, key: str = "num_hidden_layers") -> int:
    """How many layers the tower has."""
    return vision.integer(key, usual, maximum=limits.MOST_LAYERS)


def activation_of(vision: Fields, usual: str, key: str = "hidden_act") -> str:
    """The activation of the tower, by the name that blocks have for it."""
    name = vision.text(key) or usual
    if name not in ACTIVATIONS:
        raise UnsupportedError(f"{vision.path}: {key} {name!r} of a tower is not supported", activation=name)
    return ACTIVATIONS[name]


def rope_theta(vision: Fields, usual: float) -> float:
    """The base of the tower's rope."""
    table = vision.table("rope_parameters")
    found = table.optional_number("rope_theta") if table is not None else None
    return found or vision.optional_number("rope_theta") or usual
