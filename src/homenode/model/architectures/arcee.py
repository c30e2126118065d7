"""Arcee (AFM): Llama's block with an MLP of squared relu without a gate."""

from __future__ import annotations

from dataclasses import replace

from homenode.compute.ops import Ops, Tensor
from homenode.model.architectures import common
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.layer_norm_decoder import BlockStyle, inner_columns, style_of
from homenode.model.architectures.parameters import ForwardContext
from homenode.model.architectures.pre_norm import forward_with
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.spec import ModelSpec

NAME = "arcee"
DEFAULTS = Defaults(
    max_position=4096, heads=32, vocab=32000, bos_id=128000, eos_id=128001, norm_eps=1e-5, intermediate=18432
)
PARAMETERS = (
    *common.EMBEDDING_AND_HEAD,
    *common.ATTENTION,
    *common.QKV_BIASES,
    *common.OUTPUT_BIAS,
    *common.POST_NORM,
    *common.GATE_UP_DOWN[1:],
    *common.MLP_BIASES[1:],
)


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    fields = config.fields
    config.refuse_other_layers(window=None)
    bias = fields.boolean("attention_bias", False)
    return replace(
        config.decoder(NAME, DEFAULTS),
        attention_bias=bias,
        output_bias=bias,
        mlp_bias=fields.boolean("mlp_bias", False),
        own=BlockStyle(config.plain_activation("hidden_act", "relu2")),
    )


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    spec = config.refuse_window(config.decoder(NAME, whole_heads=True))
    mlp_bias = "model.layers.0.mlp.up_proj.bias" in config.tensors
    return replace(spec, mlp_bias=mlp_bias, own=BlockStyle("relu2"))


def feed_forward(ops: Ops, model: ForwardContext, index: int, x: Tensor) -> Tensor:
    """x plus an MLP without a gate."""
    layer = model.parameters.layers[index]
    inner = inner_columns(ops, layer, common.normed(ops, model, x, layer["post_norm"]), style_of(model.spec))
    return common.project_out(ops, model, inner, layer["down"], layer.get("down_bias"), x)


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat("ArceeForCausalLM", read_folder, fields=frozenset(("hidden_act", "attention_bias", "mlp_bias"))),
    GgufFormat("arcee", read_gguf, convert=common.interleaved_heads),
    PARAMETERS,
    forward_with(feed_forward=feed_forward),
)
