"""The files of a folder that say how its model sees, in the forms that they have.

Newer folders have one processor_config.json, with the fields of the image processor in a table of it; older ones have
these in preprocessor_config.json.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from homenode.errors import CheckpointError
from homenode.model.formats.bounded_files import is_there, read_json
from homenode.model.pictures.classes import FAMILY_OF_CLASS, TOKENS
from homenode.model.pictures.family import PictureConfig

_MOST_JSON_BYTES = 2**24
_TOKENIZER = "tokenizer_config.json"
_WHOLE, _OLDER, _NESTED = "processor_config.json", "preprocessor_config.json", "image_processor"


def read_picture_config(folder: Path) -> PictureConfig:
    """What the files of a folder say of pictures. CheckpointError for files that cannot be read."""
    whole: dict[str, Any] = read_json(folder / _WHOLE, _MOST_JSON_BYTES) if is_there(folder / _WHOLE) else {}
    processor = whole.get(_NESTED)
    if not isinstance(processor, dict):
        processor = read_json(folder / _OLDER, _MOST_JSON_BYTES) if is_there(folder / _OLDER) else {}
    config = read_json(folder / "config.json", _MOST_JSON_BYTES)
    rest: dict[str, Any] = {key: value for key, value in whole.items() if key != _NESTED}
    if wanted := _named_tokens(config):
        rest["tokens"] = _ids_of(wanted, folder)
    return PictureConfig(folder / "config.json", config, processor, rest)


def _named_tokens(config: dict[str, Any]) -> tuple[str, ...]:
    """The tokens of a family that its config.json gives no ids of."""
    named = config.get("architectures")
    name = named[0] if isinstance(named, list) and named and isinstance(named[0], str) else ""
    return TOKENS.get(FAMILY_OF_CLASS.get(name, ""), ())


def _ids_of(names: tuple[str, ...], folder: Path) -> dict[str, int]:
    """The ids of tokens by their names, of those that the tokenizer's file adds to a vocabulary."""
    file = folder / _TOKENIZER
    added = read_json(file, _MOST_JSON_BYTES).get("added_tokens_decoder") if is_there(file) else None
    found = {}
    for number, token in added.items() if isinstance(added, dict) else ():
        if isinstance(token, dict) and token.get("content") in names and str(number).isdecimal():
            found[str(token["content"])] = int(number)
    if missing := [name for name in names if name not in found]:
        text = f"{folder}: no id of the token {missing[0]!r}, which stands for images, in {_TOKENIZER}; fetch that file"
        raise CheckpointError(text)
    return found
