"""The text model inside of a folder of one that sees pictures as well: its configuration and its tensors, under the
names it has by itself.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from homenode.errors import UnsupportedError
from homenode.model.architectures.registry import ARCHITECTURES, with_model_type, with_picture_class
from homenode.model.formats.bounded_files import quoted
from homenode.model.spec import TensorEntry

# Classes whose text may be of any architecture that text_config names.
ANY_TEXT = frozenset(
    f"{name}ForConditionalGeneration"
    for name in (
        "AyaVision Cohere2Vision GotOcr2 Idefics3 InternVL Lfm2Vl Llava LlavaNext LlavaNextVideo LlavaOnevision "
        "Mistral3 SmolVLM VideoLlava VipLlava Voxtral"
    ).split()
)
_TOLD_OF_THE_WHOLE = ("bos_token_id", "eos_token_id", "tie_word_embeddings", "quantization_config")
# What the names of its tensors begin with, and with what those of the text by itself do; the first that fits counts.
_TEXT = {
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "model.language_model.lm_head.": "lm_head.",
    "model.language_model.": "model.",
    "model.text_model.": "model.",
    "thinker.model.": "model.",
    "thinker.lm_head.": "lm_head.",
}
_PICTURES = re.compile(
    r"(model\.|thinker\.)?(vision_tower|vision_model|visual|vision_encoder|vision_embedder|embed_vision"
    r"|multi_modal_projector|mm_projector|vision_language_adapter|patch_merger"
    r"|pre_mm_projector_norm|audio_tower|audio_encoder|embed_audio"
    r"|connector|image_tower|video_tower|merger|vision_adapter|vision_projection)\..+"
    r"|(model\.|language_model\.)*image_newline|(talker|token2wav|code2wav)\..+"
)


def holds_text_of(config: dict[str, Any]) -> str | None:
    """The class of the text model inside of the model of this config.json; None where the model is one of text."""
    named = config.get("architectures")
    if not isinstance(named, list) or not named or not isinstance(named[0], str):
        return None
    texts, told = with_picture_class(named[0]), _told_of_text(config)
    kind = told.get("model_type") if told is not None else None
    if named[0] in ANY_TEXT:
        text = with_model_type(kind) if isinstance(kind, str) else None
        texts = (text,) if text is not None else tuple(ARCHITECTURES.values())
    if kind is None and len(texts) > 1:
        raise UnsupportedError(
            f"the text of a {named[0]} may be of several architectures; config.json has to say in "
            f"text_config.model_type which: {', '.join(a.name for a in texts)}"
        )
    fitting = [a for a in texts if kind is None or kind in (a.name, *a.folder.model_types)]
    if texts and not fitting:
        raise UnsupportedError(
            f"the text of a {named[0]} is said to be {quoted(kind)}, which is not supported; homenode runs "
            f"{', '.join(a.name for a in texts)} there"
        )
    return fitting[0].folder.class_name if fitting else None


def text_config(config: dict[str, Any], name: str) -> dict[str, object]:
    """What config.json says of the text model, a `name`."""
    text = _told_of_text(config)
    if text is None:  # older files have all of it in the whole
        text = {key: value for key, value in config.items() if key != "vision_config"}
    told = {key: config[key] for key in _TOLD_OF_THE_WHOLE if key in config}
    return {**text, **told, "architectures": [name]}


def _told_of_text(config: dict[str, Any]) -> dict[str, Any] | None:
    """The table of the text model, in some models within that of the part that thinks; None where there is none."""
    inner = config.get("thinker_config")
    text = (inner if isinstance(inner, dict) else config).get("text_config")
    return text if isinstance(text, dict) else None


def text_tensors(tensors: dict[str, TensorEntry]) -> dict[str, TensorEntry]:
    """The tensors of the text model; those for pictures are left out."""
    found = {}
    for name, entry in tensors.items():
        front = next((front for front in _TEXT if name.startswith(front)), "")
        if not _PICTURES.fullmatch(name):
            known = _TEXT.get(front, "") + name.removeprefix(front)
            found[known] = replace(entry, name=known)
    return found
