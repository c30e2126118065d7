"""Hunyuan (dense): Llama's block with a norm over each head of q and k behind their rotation. What config.json calls
dynamic is a rope of a larger theta.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.compute.ops import Ops, Tensor
from homenode.model.architectures import common
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.common import layer_weight
from homenode.model.architectures.parameters import ForwardContext
from homenode.model.architectures.pre_norm import Heads, forward_with, normed_heads
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats import limits
from homenode.model.spec import ModelSpec

NAME = "hunyuan_v1_dense"
DEFAULTS = Defaults(max_position=2048, heads=32, vocab=290943, bos_id=1, eos_id=2, norm_eps=1e-5)
ATTENTION = (
    *common.EMBEDDING_AND_HEAD,
    *common.ATTENTION,
    *common.QKV_BIASES,
    *common.OUTPUT_BIAS,
    layer_weight("q_norm", "self_attn.query_layernorm", "attn_q_norm", "head"),
    layer_weight("k_norm", "self_attn.key_layernorm", "attn_k_norm", "head"),
)
PARAMETERS = (*ATTENTION, *common.GATED_MLP)
_ALPHAS = tuple(f"{table}.alpha" for table in ("rope_parameters", "rope_scaling"))
FIELDS = frozenset(("hidden_act", "attention_bias", *_ALPHAS))
HARMLESS = dict.fromkeys(
    ("eod_token_id", "use_qk_norm", "qk_norm", "use_cla", "cla_share_factor"), "transformers does not read it"
)


def decoder(config: FolderConfig, name: str, defaults: Defaults) -> ModelSpec:
    """The figures in config.json but for the experts."""
    fields = config.fields
    config.refuse_activation("hidden_act", "silu")
    config.refuse_other_layers(window=None)
    bias = fields.boolean("attention_bias", False)
    spec = replace(config.decoder(name, defaults), attention_bias=bias, output_bias=bias)
    tables = (fields.table(key) for key in ("rope_scaling", "rope_parameters"))
    table = next((table for table in tables if table is not None and table.names()), None)
    alpha = table.optional_number("alpha", most=1e6) if table is not None and spec.rope.kind == "dynamic" else None
    if not alpha:
        return spec
    theta = spec.rope.theta * alpha ** (spec.head_dim / (spec.head_dim - 2))
    if spec.head_dim <= 2 or theta > limits.MOST_THETA or theta <= 1:
        raise fields.wrong("alpha of the rope", alpha, f"a theta above 1 and up to {limits.MOST_THETA:g}")
    return replace(spec, rope=replace(spec.rope, kind="default", theta=theta))


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    return decoder(config, NAME, DEFAULTS)


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    return config.refuse_window(config.decoder(NAME))


def project(ops: Ops, model: ForwardContext, index: int, h: Tensor, rotation: Tensor) -> Heads:
    """The `Projection` of heads that are normed behind their rotation."""
    qkv = common.project_qkv(ops, model, model.parameters.layers[index], h)
    return normed_heads(ops, model, index, common.rotated(ops, model, index, qkv, rotation))


forward = forward_with(project)
ARCHITECTURE = Architecture(
    NAME,
    FolderFormat("HunYuanDenseV1ForCausalLM", read_folder, fields=FIELDS, harmless=HARMLESS),
    GgufFormat("hunyuan-dense", read_gguf),
    PARAMETERS,
    forward,
)
