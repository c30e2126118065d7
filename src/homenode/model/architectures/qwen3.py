"""Qwen 3 (dense): Llama's block with an RMS norm over each head of q and k before they are rotated."""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import common
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.layer_kinds import WINDOW_FIELDS, window_in_use, with_upper_window
from homenode.model.architectures.pre_norm import forward
from homenode.model.architectures.qwen2 import UPPER
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.pooling import QWEN3_TEMPLATE, HeadLayer, PoolingSpec
from homenode.model.spec import ModelSpec

NAME = "qwen3"
DEFAULTS = Defaults(max_position=32768, head_dim=128)
_SCORE = "score.weight"
PICTURE_TYPE = "qwen3_vl_text"  # the text of Qwen 3 VL, which has no window
PICTURE_DEFAULTS = Defaults(max_position=128000, heads=32, kv_heads=32, head_dim=128, theta=500000.0)
PARAMETERS = (
    *common.EMBEDDING_AND_HEAD,
    *common.ATTENTION,
    *common.HEAD_NORMS,
    *common.QKV_BIASES,
    *common.OUTPUT_BIAS,
    *common.GATED_MLP,
)


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    config.refuse_activation("hidden_act", "silu")
    bias = config.fields.boolean("attention_bias", False)
    if config.fields.text("model_type") == PICTURE_TYPE:
        config.refuse_other_layers(window=None)
        spec = config.decoder(NAME, PICTURE_DEFAULTS)
    else:
        spec = with_upper_window(config, config.decoder(NAME, DEFAULTS), window_in_use(config), UPPER)
    if labels := config.labels():  # Qwen3-Reranker, where there is one
        template = QWEN3_TEMPLATE if len(labels) == 1 else ""
        spec = replace(spec, pooling=PoolingSpec("last", len(labels), (HeadLayer(_SCORE),), labels, template))
    return replace(spec, attention_bias=bias, output_bias=bias)


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    return config.refuse_window(config.decoder(NAME))


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat(
        "Qwen3ForCausalLM",
        read_folder,
        fields=WINDOW_FIELDS | {"hidden_act", "attention_bias", "id2label", "classifier_from_token"},
        harmless={"is_original_qwen3_reranker": "the words of its scores tell it"},
        older_classes=("Qwen3ForSequenceClassification",),
        model_types=(PICTURE_TYPE,),
        picture_classes=("Qwen3VLForConditionalGeneration",),
    ),
    GgufFormat("qwen3", read_gguf, picture_names=("qwen3vl",)),
    PARAMETERS,
    forward,
)
