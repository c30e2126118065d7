"""Qwen 3 (dense): Llama's block with an RMS norm over each head of q and k before they are rotated."""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.layer_kinds import WINDOW_FIELDS, window_in_use, with_upper_window
from homenode.model.architectures.pre_norm import forward
from homenode.model.architectures.qwen2 import UPPER
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.pooling import QWEN3_TEMPLATE, HeadLayer, PoolingSpec
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(max_position=32768, head_dim=128, attention_bias=False)
_SCORE = "score.weight"
PICTURE_TYPE = "qwen3_vl_text"  # the text of Qwen 3 VL, which has no window
PICTURE_DEFAULTS = replace(DEFAULTS, max_position=128000, heads=32, kv_heads=32, theta=500000.0)
PARAMETERS = (*tables.EMBEDDING_AND_HEAD, *tables.ATTENTION_AND_ALL, *tables.GATED_MLP)


def _read_folder(config: FolderConfig) -> ModelSpec:
    if config.fields.text("model_type") == PICTURE_TYPE:
        spec = config.uniform_decoder(PICTURE_DEFAULTS)
    else:
        spec = with_upper_window(config, config.decoder(DEFAULTS), window_in_use(config), UPPER)
    if labels := config.labels():  # Qwen3-Reranker, where there is one
        template = QWEN3_TEMPLATE if len(labels) == 1 else ""
        spec = replace(spec, pooling=PoolingSpec("last", len(labels), (HeadLayer(_SCORE),), labels, template))
    return spec


ARCHITECTURE = Architecture(
    "qwen3",
    FolderFormat(
        "Qwen3ForCausalLM",
        _read_folder,
        fields=DEFAULTS.fields | WINDOW_FIELDS | {"id2label", "classifier_from_token"},
        harmless={"is_original_qwen3_reranker": "the words of its scores tell it"},
        older_classes=("Qwen3ForSequenceClassification",),
        model_types=(PICTURE_TYPE,),
        picture_classes=("Qwen3VLForConditionalGeneration", "KeyeForConditionalGeneration"),
    ),
    GgufFormat("qwen3", GgufConfig.uniform_decoder, picture_names=("qwen3vl",)),
    PARAMETERS,
    forward,
)
