"""The tower of a model that sees: its tensors, out of the folder of the model or a GGUF file that has them apart, and
its rows of pictures.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from homenode.compute.ops import Backend
from homenode.engine.encoder.towers import MediaRows, TowerFiles
from homenode.model.checkpoint.folder import read_whole_tensors
from homenode.model.media.prepared import Array
from homenode.model.pictures.family import PictureConfig, PictureLayout, PreparedPicture
from homenode.model.pictures.gguf_files import gguf_tower
from homenode.model.pictures.mmproj import folder_tensors
from homenode.model.pictures.reader import config_of_words, family_of_words
from homenode.model.pictures.tower import Tower, TowerTensors
from homenode.model.weights.content_digest import tensors_digest
from homenode.model.weights.kept_digests import KeptDigests


class PictureTower:
    """One family's tower. See `MediaTower`."""

    def __init__(self, files: TowerFiles, backend: Backend) -> None:
        """CheckpointError for files that cannot be read, or that lack something."""
        self.family = family_of_words(files.words)
        config = config_of_words(files.words)
        tensors = tower_tensors(backend, config, Path(files.model), files.storage)
        form = self.family.form
        self._tower = Tower(backend, tensors, form.heads, form.head_dim)
        self.family.load(self._tower)
        self.digest = tower_digest(files.words, tensors, files.storage)

    def encode(self, arrays: Sequence[Array], layout: Sequence[Any]) -> MediaRows:
        """Return the rows of a picture."""
        found = self.family.encode(self._tower, PreparedPicture(arrays, PictureLayout.of(layout)))
        return MediaRows(found.rows, found.grid)


load_tower = PictureTower


def tower_tensors(backend: Backend, config: PictureConfig, model: Path, storage: str | None) -> TowerTensors:
    """The tensors of the tower that `config` tells of, as a family's `load` takes them. `model`: the text model's file
    or folder. `storage`: see `TowerTensors`. CheckpointError for files that cannot be read.
    """
    if config.path.suffix != ".gguf":
        return TowerTensors(backend, read_whole_tensors(model), str(model), storage)
    file, form = gguf_tower(config.path, model)
    return TowerTensors(backend, folder_tensors(file, form), str(file.path), storage, form.changes)


def tower_digest(words: Mapping[str, Any], tensors: TowerTensors, storage: str | None) -> bytes:
    """A digest of all that the rows of a picture depend on besides its pixels: the family and what files say of it
    (`words`, but for where they lie), and all bytes of the tensors that were loaded. `storage`: see `TowerTensors`.
    """
    told = json.dumps({**words, "path": ""}, sort_keys=True, default=str)
    content = tensors_digest(tensors.used, KeptDigests())
    return hashlib.blake2b(f"{told}\n{storage}\n{content}".encode("utf-8", "surrogatepass"), digest_size=32).digest()
