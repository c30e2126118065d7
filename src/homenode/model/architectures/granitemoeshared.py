"""Granite 3 with experts and one that every token uses. GGUF files of it are read as those of `granitemoe`."""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import granitemoe
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.spec import ModelSpec


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    return granitemoe.read_gguf_as(config, granitemoe.SHARED)


ARCHITECTURE = replace(
    granitemoe.ARCHITECTURE,
    name=granitemoe.SHARED,
    folder=granitemoe.ARCHITECTURE.folder.of_class(
        "GraniteMoeSharedForCausalLM",
        read=granitemoe.read_shared_folder,
        fields=granitemoe.ARCHITECTURE.folder.fields | {"shared_intermediate_size"},
    ),
    gguf=replace(granitemoe.ARCHITECTURE.gguf, name="granitemoe", read=read_gguf),
)
