"""Granite 3 with experts and one that every token uses. GGUF files of it are read as those of `granitemoe`."""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import granitemoe
from homenode.model.config.folder_config import FolderConfig
from homenode.model.formats import limits
from homenode.model.spec import ModelSpec

_LIKE = granitemoe.ARCHITECTURE


def _read_folder(config: FolderConfig) -> ModelSpec:
    size = config.fields.integer("shared_intermediate_size", 0, minimum=0, maximum=limits.MOST_INTERMEDIATE)
    return granitemoe.read_folder_with(config, size)


ARCHITECTURE = replace(
    _LIKE,
    name="granitemoeshared",
    folder=_LIKE.folder.of_class(
        "GraniteMoeSharedForCausalLM", read=_read_folder, fields=_LIKE.folder.fields | {"shared_intermediate_size"}
    ),
    gguf=replace(_LIKE.gguf, name="granitemoe"),
)
