"""Hunyuan (dense): Llama's block with a norm over each head of q and k behind their rotation. What config.json calls
dynamic is a rope of a larger theta.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.compute.ops import Ops, Tensor
from homenode.model.architectures import attention, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.parameters import ForwardContext
from homenode.model.architectures.pre_norm import Heads, forward_with, normed_heads
from homenode.model.architectures.tables import layer_weight
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats import limits
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(max_position=2048, heads=32, vocab=290943, bos_id=1, eos_id=2, norm_eps=1e-5, attention_bias=False)
ATTENTION = (
    *tables.EMBEDDING_AND_HEAD,
    *tables.ATTENTION_AND_BIASES,
    layer_weight("q_norm", "self_attn.query_layernorm", "attn_q_norm", "head"),
    layer_weight("k_norm", "self_attn.key_layernorm", "attn_k_norm", "head"),
)
PARAMETERS = (*ATTENTION, *tables.GATED_MLP)
_ALPHAS = tuple(f"{table}.alpha" for table in ("rope_parameters", "rope_scaling"))
FIELDS = DEFAULTS.fields.union(_ALPHAS)
HARMLESS = dict.fromkeys(
    ("eod_token_id", "use_qk_norm", "qk_norm", "use_cla", "cla_share_factor"), "transformers does not read it"
)


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    config = _of_one_axis(config)
    fields = config.fields
    spec, table = config.uniform_decoder(DEFAULTS), config.rope_table
    alpha = table.optional_number("alpha", most=1e6) if table is not None and spec.rope.kind == "dynamic" else None
    if not alpha:
        return spec
    theta = spec.rope.theta * alpha ** (spec.head_dim / (spec.head_dim - 2))
    if spec.head_dim <= 2 or theta > limits.MOST_THETA or theta <= 1:
        raise fields.wrong("alpha of the rope", alpha, f"a theta above 1 and up to {limits.MOST_THETA:g}")
    return replace(spec, rope=replace(spec.rope, kind="default", theta=theta))


def _of_one_axis(config: FolderConfig) -> FolderConfig:
    """The same without axes of pictures, on all of which a token of text has one position: `xdrope` is dynamic then."""
    for key in ("rope_parameters", "rope_scaling"):
        table = config.fields.value(key)
        if isinstance(table, dict) and "xdrope" in (table.get("rope_type"), table.get("type")):
            config = replace(config, fields=config.fields.with_value(key, {**table, "rope_type": "dynamic"}))
    return config


def project(ops: Ops, model: ForwardContext, index: int, h: Tensor, rotation: Tensor) -> Heads:
    """The `Projection` of heads that are normed behind their rotation."""
    qkv = attention.project_qkv(ops, model, index, h)
    return normed_heads(ops, model, index, attention.rotated(ops, model, index, qkv, rotation))


forward = forward_with(project)
ARCHITECTURE = Architecture(
    "hunyuan_v1_dense",
    FolderFormat(
        "HunYuanDenseV1ForCausalLM",
        read_folder,
        fields=FIELDS,
        harmless=HARMLESS,
        model_types=("hunyuan_vl_text",),
        picture_classes=("HunYuanVLForConditionalGeneration",),
    ),
    GgufFormat("hunyuan-dense", GgufConfig.uniform_decoder),
    PARAMETERS,
    forward,
)
