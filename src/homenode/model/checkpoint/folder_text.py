"""The text model inside of a folder of one that sees or hears as well: its configuration and its tensors, under the
names it has by itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from homenode.errors import UnsupportedError
from homenode.model.architectures.registry import (
    ARCHITECTURES,
    instead_of,
    with_class,
    with_model_type,
    with_picture_class,
)
from homenode.model.checkpoint.cross_attention import LAYERS, attending_layers, without_attending_layers
from homenode.model.checkpoint.wrappers import ANY_TEXT, BY_VERSION, PLACES, SIZES
from homenode.model.formats.bounded_files import quoted
from homenode.model.formats.fields import Fields
from homenode.model.spec import TensorEntry

_TOLD_OF_THE_WHOLE = ("bos_token_id", "eos_token_id", "tie_word_embeddings", "quantization_config")
# What the names of all tensors of the text begin with, besides those of its output matrix.
_FRONTS = (
    "model.language_model.",
    "language_model.",
    "model.text_model.",
    "text_model.",
    "model.llm.",
    "llm.",
    "language.",
)
_PART_THAT_THINKS = "thinker."
# What follows there where the names are those that the text has by itself; else they are those below `model.`.
_OWN_NAMES = ("model.", "lm_head.", "backbone.", "transformer.", "output.")
_OUTPUT = "lm_head."
_PREDICTION = "mtp."  # blocks that predict further tokens, beside the model
# As transformers saves the layers of some, whose makers call them `model.layers`.
_RENAMED_LAYERS = re.compile(r"model\.(?:blocks|encoder\.layers)\.")
# Tensors beside those of a text that has the names it has by itself.
_BESIDE = re.compile(
    r"(model\.)?(vision_tower|vision_model|visual|vision_encoder|vision_embedder|embed_vision"
    r"|multi_modal_projector|mm_projector|pre_mm_projector_norm|vision_language_adapter|patch_merger|audio_tower"
    r"|audio_encoder|embed_audio"
    r"|connector|image_tower|video_tower|merger|vision_adapter|vision_projection|vision_resampler|embed_tokens_extend"
    r"|vision_embed_tokens|resampler_model|sam_model|qwen2_model|projector|siglip2|vit"
    r"|mlp_AR)\..+"
    r"|(model\.|language_model\.)*(image_newline|view_sep[ae]rator)"
)
# Adapters for pictures and sound, which text does not pass.
_ADAPTER, _BELOW_ADAPTERS = re.compile(r".+\.lora_[AB]\..+"), ".base_layer."
# Fields of a config.json that tells of all in one table, which are not of the text.
_FIELDS_BESIDE = re.compile(
    r".*(vision|visual|audio|image|img|video|speech|tts|embd_layer).*|(.*_)?mm_.*|slice_.*|query_num|version"
)


def holds_text_of(path: Path, config: dict[str, Any]) -> str | None:
    """The class of the text model inside of the model of this config.json, which lies at `path`; None where the model
    is one of text. UnsupportedError for a text that homenode does not run, CheckpointError for what cannot be.
    """
    named = config.get("architectures")
    if not isinstance(named, list) or not named or not isinstance(named[0], str):
        return None
    whole = named[0]
    if whole in ANY_TEXT:
        return _class_of_any(path, config, whole)
    if whole in BY_VERSION:
        version, kinds = _version(config), BY_VERSION[whole]
        if version not in kinds:
            raise Fields(path, config).wrong("version", config.get("version"), f"one of {', '.join(kinds)}")
        return ARCHITECTURES[kinds[version]].folder.class_name
    if (text := with_picture_class(whole)) is None:
        return None
    kind = _kind(_told_of_text(path, config))
    if kind and kind not in (text.name, *text.folder.model_types, *text.folder.class_names):
        raise UnsupportedError(
            f"the text of a {whole} is said to be {quoted(kind)}, which is not supported; homenode runs {text.name} "
            "there"
        )
    return text.folder.class_name


def _class_of_any(path: Path, config: dict[str, Any], whole: str) -> str:
    """Return the class of a `whole` whose text may be of any architecture."""
    kind = _kind(_told_of_text(path, config))
    if not kind:
        raise Fields(path, config).wrong(f"{ANY_TEXT[whole]}.model_type", None, f"what the text of this {whole} is")
    text = with_model_type(kind) or with_class(kind)
    if text is None:
        raise UnsupportedError(
            f"the text of a {whole} is said to be {quoted(kind)}, which is not supported; "
            f"{instead_of(kind, tuple(ARCHITECTURES))}",
            architecture=kind,
        )
    return text.folder.class_name


def text_config(path: Path, config: dict[str, Any], name: str) -> dict[str, object]:
    """Return what config.json says of the text model, a `name`."""
    text = _told_of_text(path, config)
    if text is None:  # all of it is in the whole
        text = {key: value for key, value in config.items() if not _FIELDS_BESIDE.fullmatch(key)}
    elif "text_config" in config or "thinker_config" in config:
        text = {**text, **{key: config[key] for key in _TOLD_OF_THE_WHOLE if key in config}}
    else:  # where the makers' own classes make the text of its table alone
        text = {**{key: config[key] for key in _TOLD_OF_THE_WHOLE if key in config}, **text}
    sizes = SIZES.get(str(text.get("model_type")), {})
    text = {**text, "architectures": [name], **{key: size for key, size in sizes.items() if key not in text}}
    if LAYERS in text:
        fields = Fields(path, text)
        text["num_hidden_layers"] = fields.integer("num_hidden_layers") - len(attending_layers(fields))
    return text


def _told_of_text(path: Path, config: dict[str, Any]) -> dict[str, Any] | None:
    """The table of the text model, None where there is none. CheckpointError where something else is there."""
    whole = config["architectures"][0]
    for where in (ANY_TEXT[whole],) if whole in ANY_TEXT else PLACES:
        inside, table = config, Fields(path, config)
        for key in where.split("."):
            found = table.table(key)
            if found is None:
                break
            inside, table = inside[key], found
        else:
            return inside
    return None


def _kind(text: dict[str, Any] | None) -> str:
    """Return what the text is said to be: its `model_type`, or its class where it has none. Empty where nobody says."""
    if text is None:
        return ""
    if text.get("use_mla") is False:  # as DeepSeek V2 without its latent attention is told
        return "deepseek"
    if isinstance(kind := text.get("model_type"), str) and kind:
        return kind
    named = text.get("architectures")
    return named[0] if isinstance(named, list) and named and isinstance(named[0], str) else ""


def _version(config: dict[str, Any]) -> str:
    """Return it as a number with one place behind the point; of the first models, which do not say it, by
    their width.
    """
    version = config.get("version")
    if version is None:
        return "2.0" if config.get("hidden_size") == 2304 else "2.5"
    try:
        return f"{float(version):.1f}"
    except (TypeError, ValueError, OverflowError):
        return ""


def text_tensors(path: Path, config: dict[str, Any], tensors: Mapping[str, TensorEntry]) -> dict[str, TensorEntry]:
    """The tensors of the text model inside of the model of this config.json; those for pictures and sound are left
    out.
    """
    named = {name: entry for name, entry in tensors.items() if not _ADAPTER.fullmatch(name)}
    if any(name.startswith(_PART_THAT_THINKS) for name in named):
        named = {
            name.removeprefix(_PART_THAT_THINKS): entry
            for name, entry in named.items()
            if name.startswith(_PART_THAT_THINKS)
        }
    front = next((front for front in _FRONTS if any(name.startswith(front) for name in named)), None)
    found = {}
    for name, entry in named.items():
        if known := _own_name(name.replace(_BELOW_ADAPTERS, "."), front):
            found[known] = replace(entry, name=known)
    text = _told_of_text(path, config)
    if text is not None and LAYERS in text:
        fields = Fields(path, {**SIZES.get(_kind(text), {}), **text})
        found = without_attending_layers(found, attending_layers(fields), fields.integer("vocab_size"))
    return found


def _own_name(name: str, front: str | None) -> str:
    """Return what a tensor of the text is called by itself, `front` being what all its names begin with, None where
    nothing is; empty for a tensor of another part.
    """
    if front is None:
        return "" if _BESIDE.fullmatch(name) else name
    if not name.startswith(front):
        return name if name.startswith((_OUTPUT, _PREDICTION)) else ""
    own = _RENAMED_LAYERS.sub("model.layers.", name.removeprefix(front), count=1)
    return own if own.startswith(_OWN_NAMES) else f"model.{own}"
