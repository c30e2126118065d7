"""The text model inside of a folder of one that sees pictures as well: its configuration and its tensors, under the
names it has by itself.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from homenode.model.architectures.registry import ARCHITECTURES
from homenode.model.spec import TensorEntry

# The class of the whole -> that of its text.
_TEXT_OF = {a.folder.picture_class: a.folder.class_name for a in ARCHITECTURES.values() if a.folder.picture_class}
_TOLD_OF_THE_WHOLE = ("bos_token_id", "eos_token_id", "tie_word_embeddings", "quantization_config")
_TEXT = {"language_model.model.": "model.", "language_model.lm_head.": "lm_head.", "model.language_model.": "model."}
_PICTURES = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.")


def holds_text_of(config: dict[str, Any]) -> str | None:
    """The class of the text model inside of the model of this config.json; None where the model is one of text."""
    named = config.get("architectures")
    return _TEXT_OF.get(named[0]) if isinstance(named, list) and named and isinstance(named[0], str) else None


def text_config(config: dict[str, Any], name: str) -> dict[str, object]:
    """What config.json says of the text model, a `name`."""
    text = config.get("text_config")
    told = {key: config[key] for key in _TOLD_OF_THE_WHOLE if key in config}
    return {**(text if isinstance(text, dict) else {}), **told, "architectures": [name]}


def text_tensors(tensors: dict[str, TensorEntry]) -> dict[str, TensorEntry]:
    """The tensors of the text model; those for pictures are left out."""
    found = {}
    for name, entry in tensors.items():
        front = next((front for front in _TEXT if name.startswith(front)), "")
        if not name.startswith(_PICTURES):
            known = _TEXT.get(front, "") + name.removeprefix(front)
            found[known] = replace(entry, name=known)
    return found
