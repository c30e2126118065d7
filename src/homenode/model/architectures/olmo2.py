"""OLMo 2: no norm before attention and MLP, but one after each, before it is added; and a norm over all of q and all of
k before they are rotated.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.compute.ops import Ops, Tensor
from homenode.model.architectures import common
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.common import layer_weight
from homenode.model.architectures.llama import has_no_window
from homenode.model.architectures.parameters import ForwardContext
from homenode.model.architectures.pre_norm import Heads
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.spec import ModelSpec

NAME = "olmo2"
DEFAULTS = Defaults(max_position=2048, norm_eps=1e-5, eos_id=50279)
BIASES = (
    common.QKV_BIASES[0],
    replace(common.QKV_BIASES[1], shape=("all_kv",)),
    common.QKV_BIASES[2],
    *common.OUTPUT_BIAS,
)
PARAMETERS = (
    *common.EMBEDDING_AND_HEAD,
    *common.PROJECTIONS_NORMED_WHOLE,
    *BIASES,
    layer_weight("attended_norm", "post_attention_layernorm", "post_attention_norm", "hidden"),
    *common.GATE_UP_DOWN,
    layer_weight("mlp_norm", "post_feedforward_layernorm", "post_ffw_norm", "hidden"),
)


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    config.refuse_activation("hidden_act", "silu")
    config.refuse_other_layers(window=None)
    bias = config.fields.boolean("attention_bias", False)
    return replace(config.decoder(NAME, DEFAULTS), attention_bias=bias, output_bias=bias)


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    return config.decoder(NAME)


def layer_of(ops: Ops, model: ForwardContext, index: int, x: Tensor, qkv: Heads) -> Tensor:
    """x after layer `index` of this stage, of which q, k and v are there, rotated; of the model's last layer the
    selected rows only.
    """
    layer = model.parameters.layers[index]
    inner = common.select_last(ops, model, index, common.attended(ops, model, index, qkv, None))
    out = common.project_out(ops, model, inner, layer["o"], layer.get("o_bias"), None)
    x = ops.add(common.select_last(ops, model, index, x), common.normed(ops, model, out, layer["attended_norm"]))
    h = common.normed(ops, model, x, layer["post_norm"]) if "post_norm" in layer else x
    if "router" in layer:
        out = common.mixture(ops, model, index, h, None)
    else:
        out = common.project_out(ops, model, common.gated(ops, layer, h), layer["down"], None, None)
    return ops.add(x, common.normed(ops, model, out, layer["mlp_norm"]))


def forward(ops: Ops, model: ForwardContext) -> Tensor:
    """Logits of the step's selected rows, or the rows for the next stage."""
    x = common.enter(ops, model)
    rotation = common.rotation_by_layer(ops, model)
    for index, layer in enumerate(model.parameters.layers):
        qkv = common.project_qkv_normed_whole(ops, model, layer, x)
        x = layer_of(ops, model, index, x, common.rotated(ops, model, index, qkv, rotation(index)))
    return common.leave(ops, model, x)


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat("Olmo2ForCausalLM", read_folder, fields=frozenset(("hidden_act", "attention_bias"))),
    GgufFormat("olmo2", read_gguf, accepts=has_no_window),
    PARAMETERS,
    forward,
)
