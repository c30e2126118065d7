"""Tensors of classes that call the parts of a decoder otherwise -> the names of parameter tables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from homenode.model.formats.bounded_files import damaged
from homenode.model.spec import TensorEntry

_FRONT = "transformer."  # which folders may have or lack in front of every name
_LAYER = re.compile(r"(?<=\.)(?:0|[1-9][0-9]{0,4})(?=\.)")


def renamed_modules(tensors: dict[str, TensorEntry], modules: Mapping[str, str]) -> dict[str, TensorEntry]:
    """The tensors with the modules in their names called as `modules` says, name -> name, `{layer}` standing for the
    number of a layer; one that ends in a dot stands for all modules below it that are not in it. A name that is not in
    it stays. CheckpointError where two would have one name.
    """
    if not modules:
        return tensors
    found: dict[str, TensorEntry] = {}
    for entry in tensors.values():
        name = _renamed(entry.name, modules)
        if name in found:
            raise damaged(entry.file, f"tensor {entry.name}", seen=f"another one that is {name}", wanted="it once")
        found[name] = replace(entry, name=name)
    return found


def _renamed(name: str, modules: Mapping[str, str]) -> str:
    module, _, kind = name.removeprefix(_FRONT).rpartition(".")
    layer = _LAYER.search(module)
    known = modules.get(_LAYER.sub("{layer}", module, count=1) if layer else module)
    if known is not None:
        return f"{known.format(layer=layer[0] if layer else None)}.{kind}"
    front = next((front for front in modules if front.endswith(".") and name.startswith(front)), "")
    return modules[front] + name.removeprefix(front) if front else name
