"""Arcee (AFM): Llama's block with an MLP of squared relu without a gate."""

from __future__ import annotations

from dataclasses import replace

from homenode.compute.ops import Ops, Tensor
from homenode.model.architectures import llama, stage, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat
from homenode.model.architectures.layer_norm_decoder import BlockStyle, inner_columns, style_of
from homenode.model.architectures.parameters import ForwardContext
from homenode.model.architectures.pre_norm import forward_with
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(
    max_position=4096, heads=32, vocab=32000, bos_id=128000, eos_id=128001, norm_eps=1e-5, intermediate=18432,
    activation=None, attention_bias=False, mlp_bias=False,
)  # fmt: skip
PARAMETERS = (
    *tables.EMBEDDING_AND_HEAD,
    *tables.ATTENTION_AND_BIASES,
    *tables.POST_NORM,
    *tables.GATE_UP_DOWN[1:],
    *tables.MLP_BIASES[1:],
)


def _read_folder(config: FolderConfig) -> ModelSpec:
    style = BlockStyle(config.plain_activation("hidden_act", "relu2"))
    return replace(config.uniform_decoder(DEFAULTS), own=style)


def feed_forward(ops: Ops, model: ForwardContext, index: int, x: Tensor) -> Tensor:
    """x plus an MLP without a gate."""
    layer = model.parameters.layers[index]
    inner = inner_columns(ops, layer, stage.normed(ops, model, x, layer["post_norm"]), style_of(model.spec))
    return stage.project_out(ops, model, inner, layer["down"], layer.get("down_bias"), x)


ARCHITECTURE = Architecture(
    "arcee",
    FolderFormat("ArceeForCausalLM", _read_folder, fields=DEFAULTS.fields | {"hidden_act"}),
    llama.gguf_format("arcee", lambda config: replace(llama.read_gguf(config), own=BlockStyle("relu2"))),
    PARAMETERS,
    forward_with(feed_forward=feed_forward),
)
