"""Qwen 2 and 2.5: Llama's block with biases on q, k and v; upper layers may use a sliding window."""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.layer_kinds import WINDOW_FIELDS, window_in_use, with_upper_window
from homenode.model.architectures.pre_norm import forward
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(max_position=32768)
# The text of Qwen 2 VL and 2.5 VL: what config.json calls it, by itself and as part of the whole
PICTURE_TYPES = ("qwen2_vl_text", "qwen2_5_vl_text", "qwen2_vl", "qwen2_5_vl")
PICTURE_DEFAULTS = Defaults(
    max_position=32768, heads=64, kv_heads=8, bos_id=151643, eos_id=151645, norm_eps=1e-5, theta=1e6
)
OMNI_TYPE = "qwen2_5_omni_text"  # and that of Qwen 2.5 Omni
OMNI_DEFAULTS = replace(PICTURE_DEFAULTS, heads=28, kv_heads=4, norm_eps=1e-6)
UPPER = 28  # from which layer on there is a window, where config.json does not say
PARAMETERS = (*tables.EMBEDDING_AND_HEAD, *tables.ATTENTION, *tables.QKV_BIASES, *tables.GATED_MLP)


def _read_folder(config: FolderConfig) -> ModelSpec:
    kind = config.fields.text("model_type")
    defaults = OMNI_DEFAULTS if kind == OMNI_TYPE else PICTURE_DEFAULTS if kind in PICTURE_TYPES else DEFAULTS
    spec = config.decoder(defaults)
    return replace(with_upper_window(config, spec, window_in_use(config), UPPER), attention_bias=True)


ARCHITECTURE = Architecture(
    "qwen2",
    FolderFormat(
        "Qwen2ForCausalLM",
        _read_folder,
        fields=DEFAULTS.fields | WINDOW_FIELDS,
        harmless={"attention_bias": "its class always has these biases, as have its tensors"},
        model_types=(*PICTURE_TYPES, OMNI_TYPE),
        picture_classes=(
            "Qwen2VLForConditionalGeneration",
            "Qwen2_5_VLForConditionalGeneration",
            "Qwen2_5OmniModel",
            "Qwen2_5OmniForConditionalGeneration",
            "Qwen2_5OmniThinkerForConditionalGeneration",
            "DotsOCRForCausalLM",
            "LlavaQwenForCausalLM",
        ),
    ),
    GgufFormat("qwen2", GgufConfig.uniform_decoder, picture_names=("qwen2vl",)),
    PARAMETERS,
    forward,
)
