"""The towers that make rows of media, and the module that has each, which is imported in the process of its tower."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from homenode.compute.ops import Backend, FloatArray
from homenode.model.media.prepared import Array

# By medium: a module with `load_tower`.
TOWERS = {"image": "homenode.engine.encoder.picture_tower"}


@dataclass(frozen=True)
class TowerFiles:
    """What a tower is loaded of. `words`: its family, as the reader of the medium takes it. `model`: the text model's
    file or folder. `storage`: what float matrices are kept as; None: as they are stored.
    """

    words: dict[str, Any]
    model: str
    storage: str | None


class MediaRows(NamedTuple):
    """Rows for the text model, [n, columns], in the order of the placeholders that stand for them. `grid`: rows and
    columns of the places by which the text's rope turns; 0, 0: it turns by their numbers.
    """

    rows: FloatArray
    grid: tuple[int, int]


class MediaTower(Protocol):
    """A tower, and the family that it is of. `digest`: of all that rows depend on besides the file."""

    digest: bytes

    def encode(self, arrays: Sequence[Array], layout: Sequence[Any]) -> MediaRows:
        """Return the rows of a file that was decoded. HomenodeError and ValueError where it cannot."""


def load_tower(medium: str, files: TowerFiles, backend: Backend) -> MediaTower:
    """Load the tower of a medium. KeyError for an unknown one, CheckpointError for files that cannot be read."""
    made: MediaTower = importlib.import_module(TOWERS[medium]).load_tower(files, backend)
    return made
