"""Mixtral: Mistral's block with a mixture of experts in every layer, the weights of a token's experts adding up to 1.
GGUF files call it llama, too.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import common
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.common import layer_weight
from homenode.model.architectures.pre_norm import forward
from homenode.model.config.folder_config import Defaults, ExpertDefaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.spec import ModelSpec

NAME = "mixtral"
DEFAULTS = Defaults(max_position=131072, bos_id=1, eos_id=2, theta=1e6, norm_eps=1e-5)
EXPERTS = ExpertDefaults(experts=8, experts_per_token=2, size=0)  # config.json never says a size
_EXPERT = "block_sparse_moe.experts.{expert}."
EXPERT_PARAMETERS = (
    layer_weight("router", "block_sparse_moe.gate", "ffn_gate_inp", "experts", "hidden"),
    layer_weight("expert_gate", _EXPERT + "w1", "ffn_gate_exps", "expert_intermediate", "hidden"),
    layer_weight("expert_up", _EXPERT + "w3", "ffn_up_exps", "expert_intermediate", "hidden"),
    layer_weight("expert_down", _EXPERT + "w2", "ffn_down_exps", "hidden", "expert_intermediate"),
)
PARAMETERS = (*common.EMBEDDING_AND_HEAD, *common.ATTENTION, *common.POST_NORM, *EXPERT_PARAMETERS)


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    config.refuse_activation("hidden_act", "silu")
    window = config.window(default=None)
    config.refuse_other_layers(window)
    spec = config.decoder(NAME, DEFAULTS)
    moe = config.moe(EXPERTS, normalise=True, size=spec.intermediate_size)
    return replace(spec, sliding_window=window, moe=moe)


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    spec = config.decoder(NAME, whole_heads=True)
    moe = config.moe(spec, "model.layers.{layer}.block_sparse_moe.gate.weight", size=spec.intermediate_size)
    return replace(spec, sliding_window=config.window(), moe=moe)


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat(
        "MixtralForCausalLM",
        read_folder,
        fields=frozenset(
            ("hidden_act", "sliding_window", "num_local_experts", "num_experts", "num_experts_per_tok", "qkv_bias")
        ),
    ),
    GgufFormat("llama", read_gguf, convert=common.interleaved_heads),
    PARAMETERS,
    forward,
)
