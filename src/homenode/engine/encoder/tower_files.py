"""The tensors of a tower, out of the folder of its model or a GGUF file that has them apart."""

from __future__ import annotations

from pathlib import Path

from homenode.compute.ops import Backend
from homenode.model.checkpoint.folder import read_whole_tensors
from homenode.model.pictures.family import PictureConfig
from homenode.model.pictures.gguf_files import gguf_tower
from homenode.model.pictures.mmproj import folder_tensors
from homenode.model.pictures.tower import TowerTensors


def tower_tensors(backend: Backend, config: PictureConfig, model: Path, storage: str | None) -> TowerTensors:
    """The tensors of the tower that `config` tells of, as a family's `load` takes them. `model`: the text model's file
    or folder. `storage`: see `TowerTensors`. CheckpointError for files that cannot be read.
    """
    if config.path.suffix != ".gguf":
        return TowerTensors(backend, read_whole_tensors(model), str(model), storage)
    file, form = gguf_tower(config.path, model)
    return TowerTensors(backend, folder_tensors(file, form), str(file.path), storage, form.changes)
