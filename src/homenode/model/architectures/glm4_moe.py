"""GLM-4.5 and later: Llama's block with biases of q, k and v and a rope over a part of each head; sigmoid-scored experts
and one that every token uses, behind first layers with an MLP. Some sizes have a norm over each head of q and k.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from homenode.compute.ops import Ops, Tensor
from homenode.model.architectures import common
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.common import layer_weight
from homenode.model.architectures.parameters import ForwardContext
from homenode.model.config.folder_config import Defaults, ExpertDefaults, FolderConfig
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
    spec = config.decoder(NAME)
    config.refuse_window(spec)
    norms = HeadNorms("model.layers.0.self_attn.q_norm.weight" in config.tensors)
    moe = config.moe(spec, "model.layers.{layer}.mlp.gate.weight", scores=(2,))
    return replace(spec, own=norms, moe=replace(moe, epsilon=1e-20))


def forward(ops: Ops, model: ForwardContext) -> Tensor:
    """Logits of the step's selected rows, or the rows for the next stage."""
    x = common.enter(ops, model)
    rotation = common.angles(ops, model.rope)
    for index, layer in enumerate(model.parameters.layers):
        q, k, v = common.project_qkv(ops, model, layer, common.normed(ops, model, x, layer["input_norm"]))
        if "q_norm" in layer:
            q = common.normed(ops, model, q, layer["q_norm"])
            k = common.normed(ops, model, k, layer["k_norm"])
        x = common.attend(ops, model, index, x, (q, k, v), rotation)
        x = common.feed_forward(ops, model, index, x)
    return common.leave(ops, model, x)


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat(
        "Glm4MoeForCausalLM",
        read_folder,
        fields=frozenset(
            "hidden_act attention_bias use_qk_norm n_routed_experts num_local_experts num_experts_per_tok "
            "moe_intermediate_size norm_topk_prob n_group topk_group routed_scaling_factor n_shared_experts "
            "first_k_dense_replace scoring_func topk_method".split()
        ),
        model_types=(PICTURE_TYPE,),
        picture_classes=("Glm4vMoeForConditionalGeneration",),
    ),
    GgufFormat("glm4moe", read_gguf),
    PARAMETERS,
    forward,
)
