"""The files of a folder that say how its model sees, in the forms that they have.

Newer folders have one processor_config.json, with the fields of the image processor in a table of it; older ones have
these in preprocessor_config.json.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from homenode.model.formats.bounded_files import is_there, read_json
from homenode.model.pictures.family import PictureConfig

_MOST_JSON_BYTES = 2**24
_WHOLE, _OLDER, _NESTED = "processor_config.json", "preprocessor_config.json", "image_processor"


def read_picture_config(folder: Path) -> PictureConfig:
    """What the files of a folder say of pictures. CheckpointError for files that cannot be read."""
    whole: dict[str, Any] = read_json(folder / _WHOLE, _MOST_JSON_BYTES) if is_there(folder / _WHOLE) else {}
    processor = whole.get(_NESTED)
    if not isinstance(processor, dict):
        processor = read_json(folder / _OLDER, _MOST_JSON_BYTES) if is_there(folder / _OLDER) else {}
    config = read_json(folder / "config.json", _MOST_JSON_BYTES)
    rest = {key: value for key, value in whole.items() if key != _NESTED}
    return PictureConfig(folder / "config.json", config, processor, rest)
