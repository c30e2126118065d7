"""The families of models that see, each of which is imported when it is asked for."""

from __future__ import annotations

import importlib
from functools import cache

from homenode.model.pictures.classes import CLASSES, FAMILY_OF_CLASS
from homenode.model.pictures.family import FamilyFormat


def family_of_class(name: str) -> FamilyFormat | None:
    """The family of a class; None for a class that has none here."""
    return family_named(FAMILY_OF_CLASS[name]) if name in FAMILY_OF_CLASS else None


@cache
def family_named(name: str) -> FamilyFormat:
    """The family of this name. KeyError for another."""
    if name not in CLASSES:
        raise KeyError(name)
    found: FamilyFormat = importlib.import_module(f"homenode.model.pictures.families.{name}").FAMILY
    return found
