"""GLM-4.5 and later: Llama's block with biases of q, k and v and a rope over a part of each head; sigmoid-scored experts
and one that every token uses, behind first layers with an MLP. Some sizes have a norm over each head of q and k.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from homenode.model.architectures import common
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.common import layer_weight
from homenode.model.architectures.pre_norm import forward
from homenode.model.config.folder_config import SIGMOID_MOE_FIELDS, Defaults, ExpertDefaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.part import ModelPart
from homenode.model.spec import ModelSpec

NAME = "glm4_moe"
DEFAULTS = Defaults(max_position=131072, heads=96, kv_heads=8, vocab=151552, norm_eps=1e-5, rotary_share=0.5)
EXPERTS = ExpertDefaults(experts=128, experts_per_token=8, size=1408, keys=("n_routed_experts", "num_local_experts"))
PICTURE_TYPE = "glm4v_moe_text"  # the text of GLM-4.5V and 4.6V


@dataclass(frozen=True)
class HeadNorms:
    """Whether q and k have a norm over each head."""

    has: bool


def _has_head_norms(spec: ModelSpec, _part: ModelPart, _layer: int | None) -> bool:
    return spec.own == HeadNorms(True)


PARAMETERS = (
    *common.EMBEDDING_AND_HEAD,
    *common.ATTENTION,
    *common.QKV_BIASES,
    *(replace(norm, when=_has_head_norms) for norm in common.HEAD_NORMS),
    layer_weight("post_norm", "post_attention_layernorm", "post_attention_norm", "hidden"),
    *common.GATE_UP_DOWN,
    *common.EXPERTS,
    common.CHOICE_BIAS,
    *common.SHARED_EXPERTS,
)


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    config.refuse_activation("hidden_act", "silu")
    config.refuse_other_layers(window=None)
    spec = config.decoder(NAME, DEFAULTS, rotates_part=True)
    norms = HeadNorms(config.fields.boolean("use_qk_norm", False))
    bias = config.fields.boolean("attention_bias", config.fields.text("model_type") == PICTURE_TYPE)
    return replace(spec, attention_bias=bias, own=norms, moe=config.sigmoid_moe(EXPERTS, spec.num_layers))


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    spec = config.refuse_window(config.decoder(NAME))
    norms = HeadNorms("model.layers.0.self_attn.q_norm.weight" in config.tensors)
    moe = config.moe(spec, scores=(2,), epsilon=1e-20)
    return replace(spec, own=norms, moe=moe)


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat(
        "Glm4MoeForCausalLM",
        read_folder,
        fields=SIGMOID_MOE_FIELDS
        | {"hidden_act", "attention_bias", "use_qk_norm", "n_routed_experts", "num_local_experts"},
        model_types=(PICTURE_TYPE,),
        picture_classes=("Glm4vMoeForConditionalGeneration",),
    ),
    GgufFormat("glm4moe", read_gguf),
    PARAMETERS,
    forward,
)
