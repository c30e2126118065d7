"""GLM-4.5 and later: Llama's block with biases of q, k and v and a rope over a part of each head; sigmoid-scored
experts and one that every token uses, behind first layers with an MLP. Some sizes have a norm over each head of q and
k.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.pre_norm import forward
from homenode.model.architectures.tables import HeadNorms, has_head_norms
from homenode.model.config.folder_config import SIGMOID_MOE_FIELDS, Defaults, ExpertDefaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(max_position=131072, heads=96, kv_heads=8, vocab=151552, norm_eps=1e-5, rotary_share=0.5)
EXPERTS = ExpertDefaults(experts=128, experts_per_token=8, size=1408, keys=("n_routed_experts", "num_local_experts"))
PICTURE_TYPE = "glm4v_moe_text"  # the text of GLM-4.5V and 4.6V


PARAMETERS = (
    *tables.EMBEDDING_AND_HEAD,
    *tables.ATTENTION,
    *tables.QKV_BIASES,
    *(replace(norm, when=has_head_norms) for norm in tables.HEAD_NORMS),
    tables.POST_ATTENTION_NORM,
    *tables.GATE_UP_DOWN,
    *tables.CHOSEN_WITH_BIAS,
)


def _read_folder(config: FolderConfig) -> ModelSpec:
    spec = config.uniform_decoder(DEFAULTS, rotates_part=True)
    norms = HeadNorms(config.fields.boolean("use_qk_norm", False))
    bias = config.fields.boolean("attention_bias", config.fields.text("model_type") == PICTURE_TYPE)
    return replace(spec, attention_bias=bias, own=norms, moe=config.sigmoid_moe(EXPERTS, spec.num_layers))


def _read_gguf(config: GgufConfig) -> ModelSpec:
    norms = HeadNorms("model.layers.0.self_attn.q_norm.weight" in config.tensors)
    return replace(config.uniform_mixture(scores=(2,), epsilon=1e-20), own=norms)


ARCHITECTURE = Architecture(
    "glm4_moe",
    FolderFormat(
        "Glm4MoeForCausalLM",
        _read_folder,
        fields=DEFAULTS.fields | EXPERTS.fields | SIGMOID_MOE_FIELDS | {"attention_bias", "use_qk_norm"},
        model_types=(PICTURE_TYPE,),
        picture_classes=("Glm4vMoeForConditionalGeneration",),
    ),
    GgufFormat("glm4moe", _read_gguf),
    PARAMETERS,
    forward,
)
