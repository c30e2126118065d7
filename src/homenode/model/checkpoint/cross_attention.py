"""The text of a model some of whose layers attend to pictures (Llama 3.2 Vision): without a picture it passes these
over, so that they are no layers of the text by itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from homenode.model.formats import limits
from homenode.model.formats.fields import Fields
from homenode.model.formats.tensor_parts import rows_of
from homenode.model.spec import TensorEntry
from homenode.units import format_count

LAYERS = "cross_attention_layers"
_OF_PICTURES = 8  # rows of the embedding behind the vocabulary, for tokens that stand for a picture
_LAYER = re.compile(r"(model\.layers\.)([0-9]{1,5})(\..+)")


def attending_layers(text: Fields) -> frozenset[int]:
    """The layers of the text that attend to pictures. CheckpointError where config.json names others than it has."""
    layers = text.integer("num_hidden_layers", maximum=limits.MOST_LAYERS)
    found = frozenset(named := text.integers(LAYERS))
    if len(found) != len(named) or not all(layer < layers for layer in found) or len(found) == layers:
        raise text.wrong(LAYERS, list(named), f"some of the {format_count(layers, 'layer')}, each once")
    return found


def without_attending_layers(
    tensors: Mapping[str, TensorEntry], attending: frozenset[int], vocabulary: int
) -> dict[str, TensorEntry]:
    """The tensors of the layers that do not attend to pictures, counted without those that do, and of the embedding the
    rows of the vocabulary.
    """
    found = {}
    for name, entry in tensors.items():
        if match := _LAYER.fullmatch(name):
            layer = int(match[2])
            if layer in attending:
                continue
            name = f"{match[1]}{layer - sum(other < layer for other in attending)}{match[3]}"
        elif name == limits.EMBEDDING and entry.shape[:1] == (vocabulary + _OF_PICTURES,):
            entry = rows_of(entry, name, 0, vocabulary)
        found[name] = replace(entry, name=name)
    return found
