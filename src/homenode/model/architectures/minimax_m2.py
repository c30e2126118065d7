"""MiniMax M2: Llama's block with a norm over all of q and all of k, a rope over a part of each head, and sigmoid-scored
experts in every layer.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.compute.ops import Ops, Tensor
from homenode.model.architectures import common
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.common import layer_weight
from homenode.model.architectures.parameters import ForwardContext
from homenode.model.architectures.pre_norm import Heads, forward_with
from homenode.model.config.folder_config import Defaults, ExpertDefaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.spec import ModelSpec

NAME = "minimax_m2"
DEFAULTS = Defaults(
    max_position=196608, heads=48, kv_heads=8, head_dim=128, vocab=200064, bos_id=200034, eos_id=200020, theta=5e6
)
EXPERTS = ExpertDefaults(experts=256, experts_per_token=8, size=0)  # config.json never says a size
_MOE = "block_sparse_moe."
_EXPERT = _MOE + "experts.{expert}."
PARAMETERS = (
    *common.EMBEDDING_AND_HEAD,
    layer_weight("input_norm", "input_layernorm", "attn_norm", "hidden"),
    *common.PROJECTIONS_NORMED_WHOLE,
    *common.POST_NORM,
    layer_weight("router", _MOE + "gate", "ffn_gate_inp", "experts", "hidden"),
    replace(common.CHOICE_BIAS, name="model.layers.{layer}." + _MOE + "e_score_correction_bias"),
    layer_weight("expert_gate", _EXPERT + "w1", "ffn_gate_exps", "expert_intermediate", "hidden"),
    layer_weight("expert_up", _EXPERT + "w3", "ffn_up_exps", "expert_intermediate", "hidden"),
    layer_weight("expert_down", _EXPERT + "w2", "ffn_down_exps", "hidden", "expert_intermediate"),
)


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    fields, defaults = config.fields, DEFAULTS
    config.refuse_activation("hidden_act", "silu")
    config.refuse_other_layers(window=None)
    config.refuse_other_scores()
    if (rotary := fields.optional_integer("rotary_dim")) is not None:
        defaults = replace(DEFAULTS, rotary_share=rotary / fields.integer("head_dim", DEFAULTS.head_dim))
    spec = config.decoder(NAME, defaults, rotates_part=True)
    moe = config.moe(EXPERTS, normalise=True, size=spec.intermediate_size)
    return replace(spec, moe=replace(moe, score="sigmoid"))


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    spec = config.refuse_window(config.decoder(NAME))
    router = "model.layers.{layer}.block_sparse_moe.gate.weight"
    return replace(spec, moe=config.moe(spec, router, size=spec.intermediate_size, scores=(2,)))


def project(ops: Ops, model: ForwardContext, index: int, h: Tensor, rotation: Tensor) -> Heads:
    """The `Projection` with a norm over all of q and all of k."""
    qkv = common.project_qkv_normed_whole(ops, model, model.parameters.layers[index], h)
    return common.rotated(ops, model, index, qkv, rotation)


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat(
        "MiniMaxM2ForCausalLM",
        read_folder,
        fields=frozenset(
            "hidden_act num_local_experts num_experts num_experts_per_tok rotary_dim scoring_func topk_method".split()
        ),
    ),
    GgufFormat("minimax-m2", read_gguf),
    PARAMETERS,
    forward_with(project),
)
