"""The architectures there are: every module of this folder that has an `ARCHITECTURE`. A new one is a file like its
neighbours.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from types import MappingProxyType

from homenode.errors import UnsupportedError
from homenode.model import architectures
from homenode.model.architectures.architecture import Architecture

_LONGEST = 100  # letters of a name that are compared with others


def _found() -> dict[str, Architecture]:
    names = sorted(module.name for module in pkgutil.iter_modules(architectures.__path__))
    modules = (import_module(f"{architectures.__name__}.{name}") for name in names)
    described = (getattr(module, "ARCHITECTURE", None) for module in modules)
    return {found.name: found for found in described if isinstance(found, Architecture)}


ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(_found())
BY_CLASS: Mapping[str, Architecture] = MappingProxyType(
    {name: a for a in ARCHITECTURES.values() for name in (a.folder.class_name, *a.folder.older_classes)}
)
BY_MODEL_TYPE: Mapping[str, Architecture] = MappingProxyType(
    {name: a for a in ARCHITECTURES.values() for name in (a.name, *a.folder.model_types)}
)
GGUF_NAMES = tuple(dict.fromkeys(name for a in ARCHITECTURES.values() for name in a.gguf.all_names))


def nearest(seen: str, names: Sequence[str]) -> str:
    """For messages: how many architectures there are, and which of these names look most like the one seen."""
    alike = get_close_matches(seen[:_LONGEST], names, n=3, cutoff=0.4)
    return f"{len(names)} others{', such as ' if alike else ''}{', '.join(alike)} (docs/models.md has all)"


def architecture_of(name: str) -> Architecture:
    """The architecture `ModelSpec.architecture` names; UnsupportedError lists the known ones."""
    if name not in ARCHITECTURES:
        raise UnsupportedError(
            f"architecture {name!r} is not supported; known: {', '.join(ARCHITECTURES)}", architecture=name
        )
    return ARCHITECTURES[name]
