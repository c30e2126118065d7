"""Why a model is not fetched: too little disk or memory, or an architecture that homenode does not run. Known before its weights are."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from homenode.errors import CapacityError, UnsupportedError
from homenode.model.checkpoint.gguf_spec import ARCHITECTURES
from homenode.model.checkpoint.reading import quoted
from homenode.model.hub.repository import HubFile, HubRepository
from homenode.units import format_bytes


def refuse_gguf_architecture(repository: HubRepository, files: Sequence[HubFile]) -> None:
    """UnsupportedError where GGUF files are wanted and the Hub says that they are of an architecture that homenode does not run."""
    name = repository.gguf.get("architecture")
    if isinstance(name, str) and name not in ARCHITECTURES and any(file.name.endswith(".gguf") for file in files):
        raise UnsupportedError(
            f"model {repository.name}: architecture {quoted(name)} is not supported; homenode runs GGUF files of {', '.join(ARCHITECTURES)}",
            param="model",
            architecture=name,
        )


def refuse_without_disk(repository: str, files: Sequence[HubFile], cache: Path) -> None:
    """CapacityError where the disk of the cache has less room than these files, which are to be fetched, take."""
    needed, free = sum(file.size for file in files), free_disk(cache)
    if free is not None and needed > free:
        raise CapacityError(
            f"model {repository}: not enough disk space: {format_bytes(needed)} are to be fetched, and {format_bytes(free)} are free in {cache}; "
            "make room (`homenode models` lists what the cache holds), or set HF_HOME to a folder on another disk",
            param="model",
        )


def refuse_without_memory(repository: str, weights: int, available: int | None) -> None:
    """CapacityError where the weights by themselves take more than the bytes of memory that are `available` (None: not asked)."""
    if available is not None and weights > available:
        raise CapacityError(
            f"model {repository}: not enough memory: its weights take {format_bytes(weights)}, and {format_bytes(available)} are available; "
            "take a smaller model or quantisation, or keep the weights smaller (--quantize)",
            param="model",
        )


def free_disk(folder: Path) -> int | None:
    """Bytes that are free where `folder` is, or would be made; None where the system does not tell."""
    for place in (folder, *folder.parents):
        if os.path.isdir(place):  # noqa: PTH112 - a folder that may not be looked at is passed over
            try:
                return shutil.disk_usage(place).free
            except OSError:
                return None
    return None
