"""Blocks that predict further tokens (multi-token prediction, MTP, or NextN): known by their tensors' names, and left
unread, as the layers before them compute the same without.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

from homenode.errors import UnsupportedError
from homenode.model.config.gguf_config import trunk_layers
from homenode.model.formats import limits
from homenode.model.formats.fields import Fields
from homenode.model.spec import TensorEntry

_GGUF_BLOCK = re.compile(r"blk\.(0|[1-9][0-9]{0,4})\.(.+)")
_OF_GGUF = "nextn."  # in front of the names of what such a block has besides a layer's tensors
_NAMED = re.compile(r"(model\.)?mtp(_layers)?\..+")
_FOLDER_LAYER = re.compile(r"model\.layers\.(0|[1-9][0-9]{0,4})\.(.+)")
_OF_FOLDER = "eh_proj."  # the matrix that only such a block has
_Tensor = TypeVar("_Tensor")


def without_prediction_blocks(config: Fields, tensors: Mapping[str, _Tensor]) -> dict[str, _Tensor]:
    """The tensors of a GGUF file, by their names there, without those of such blocks. `config`: the keys of its
    architecture.

    UnsupportedError for a file of such blocks alone. A block behind the layers that is none of them is kept: nothing
    will be found to need it.
    """
    known = {name: match for name in tensors if (match := _GGUF_BLOCK.fullmatch(name))}
    predict = {int(match[1]) for match in known.values() if match[2].startswith(_OF_GGUF)}
    if predict and not any(int(match[1]) not in predict for match in known.values()):
        raise UnsupportedError(
            f"{config.path}: only the block that predicts further tokens (multi-token prediction), not a model; give "
            f"the file of the whole model"
        )
    layers = trunk_layers(config) if predict else 0
    left = {block for block in predict if block >= layers}
    return {name: each for name, each in tensors.items() if name not in known or int(known[name][1]) not in left}


def without_prediction_layers(tensors: Mapping[str, TensorEntry], config: Fields) -> dict[str, TensorEntry]:
    """The tensors of a folder with this config.json, without those of such blocks."""
    layers = config.optional_integer("num_hidden_layers", maximum=limits.MOST_LAYERS)
    predict = set(_predicting(tensors, layers)) if layers else set()

    def is_left(name: str) -> bool:
        match = _FOLDER_LAYER.fullmatch(name)
        return bool(_NAMED.fullmatch(name)) or (match is not None and int(match[1]) in predict)

    return {name: entry for name, entry in tensors.items() if not is_left(name)}


def _predicting(names: Iterable[str], layers: int) -> Iterable[int]:
    """The numbers behind the last layer whose tensors are those of such a block."""
    for name in names:
        match = _FOLDER_LAYER.fullmatch(name)
        if match and int(match[1]) >= layers and match[2].startswith(_OF_FOLDER):
            yield int(match[1])
