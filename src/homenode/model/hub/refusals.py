"""Reasons why a model is not fetched: too little disk, or an architecture that homenode does not run. Known before its
weights are.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from homenode.errors import CapacityError, UnsupportedError
from homenode.model.architectures.registry import gguf_names, with_gguf_name
from homenode.model.formats.bounded_files import quoted
from homenode.model.hub.candidate import Candidate
from homenode.model.hub.repository import HubFile, HubRepository
from homenode.units import format_bytes


def refuse_gguf_architecture(repository: HubRepository) -> None:
    """UnsupportedError where the Hub says that the GGUF files of the repository are of an architecture that homenode
    does not run.
    """
    name = repository.gguf.get("architecture")
    if isinstance(name, str) and not with_gguf_name(name):
        raise UnsupportedError(
            f"model {repository.name}: architecture {quoted(name)} is not supported; "
            f"homenode runs GGUF files of {', '.join(gguf_names())}",
            param="model",
            architecture=name,
        )


def disk_problem(files: Sequence[HubFile], cache: Path) -> str:
    """Return why the disk of the cache has no room for these files, which are to be fetched; empty where it has."""
    needed, free = sum(file.size for file in files), free_disk(cache)
    if free is None or needed <= free:
        return ""
    return (
        f"not enough disk space: {format_bytes(needed)} are to be fetched, and {format_bytes(free)} are free in {cache}"
    )


def no_disk(candidate: Candidate) -> CapacityError:
    """Return an error that not even this model has room on the disk."""
    return CapacityError(
        f"model {candidate.repository}: {candidate.problem}; "
        "make room (`homenode models` lists what the cache holds), or set HF_HOME to a folder on another disk",
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
