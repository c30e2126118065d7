"""dots.llm1: Qwen 3's attention, first layers with an MLP, then experts scored by a sigmoid and chosen with a bias,
beside one that every token uses.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import common, qwen3
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.layer_kinds import with_upper_window
from homenode.model.architectures.pre_norm import forward
from homenode.model.config.folder_config import SIGMOID_MOE_FIELDS, Defaults, ExpertDefaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.spec import ModelSpec

NAME = "dots1"
DEFAULTS = Defaults(max_position=2048, heads=32, kv_heads=32, vocab=152064)
EXPERTS = ExpertDefaults(experts=128, experts_per_token=6, size=1408, keys=("n_routed_experts", "num_local_experts"))
PARAMETERS = (*qwen3.PARAMETERS, *common.EXPERTS, common.CHOICE_BIAS, *common.SHARED_EXPERTS)


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    fields = config.fields
    config.refuse_activation("hidden_act", "silu")
    spec = with_upper_window(config, config.decoder(NAME, DEFAULTS), config.window(default=4096), 62)
    bias = fields.boolean("attention_bias", False)
    moe = config.sigmoid_moe(EXPERTS, spec.num_layers, dense=0, normalise=False, shared=0)
    return replace(spec, attention_bias=bias, output_bias=bias, moe=moe)


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    spec = config.refuse_window(config.decoder(NAME))
    moe = config.moe(spec, scores=(2, 1), normalise=False, epsilon=1e-20)
    return replace(spec, moe=moe)


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat(
        "Dots1ForCausalLM",
        read_folder,
        fields=SIGMOID_MOE_FIELDS.union(
            "hidden_act attention_bias sliding_window max_window_layers n_routed_experts num_local_experts".split()
        ),
    ),
    GgufFormat("dots1", read_gguf),
    PARAMETERS,
    forward,
)
