"""Qwen 3 (dense): Llama's block with an RMS norm over each head of q and k before they are rotated."""

from __future__ import annotations

from dataclasses import replace

from homenode.compute.ops import Ops, Tensor
from homenode.model.architectures import common
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.parameters import ForwardContext
from homenode.model.architectures.qwen2 import WINDOW_FIELDS, with_upper_window
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
        spec = with_upper_window(config, config.decoder(NAME, DEFAULTS))
    if labels := config.labels():  # Qwen3-Reranker, where there is one
        template = QWEN3_TEMPLATE if len(labels) == 1 else ""
        spec = replace(spec, pooling=PoolingSpec("last", len(labels), (HeadLayer(_SCORE),), labels, template))
    return replace(spec, attention_bias=bias, output_bias=bias)


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    spec = config.decoder(NAME)
    config.refuse_window(spec)
    return spec


def forward(ops: Ops, model: ForwardContext) -> Tensor:
    """Logits of the step's selected rows, or the rows for the next stage."""
    x = common.enter(ops, model)
    rotation = common.angles(ops, model.rope)
    for index, layer in enumerate(model.parameters.layers):
        q, k, v = common.project_qkv(ops, model, layer, common.normed(ops, model, x, layer["input_norm"]))
        q = common.normed(ops, model, q, layer["q_norm"])
        k = common.normed(ops, model, k, layer["k_norm"])
        x = common.attend(ops, model, index, x, (q, k, v), rotation)
        x = common.feed_forward(ops, model, index, x)
    return common.leave(ops, model, x)


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
