"""dots.llm1: Qwen 3's attention, first layers with an MLP, then experts scored by a sigmoid and chosen with a bias, beside
one that every token uses.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import common, qwen3
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.config.folder_config import Defaults, ExpertDefaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats import limits
from homenode.model.spec import ModelSpec

NAME = "dots1"
DEFAULTS = Defaults(max_position=2048, heads=32, kv_heads=32, vocab=152064)
EXPERTS = ExpertDefaults(experts=128, experts_per_token=6, size=1408, keys=("n_routed_experts", "num_local_experts"))
PARAMETERS = (*qwen3.PARAMETERS, *common.EXPERTS, common.CHOICE_BIAS, *common.SHARED_EXPERTS)


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    fields = config.fields
    config.refuse_activation("hidden_act", "silu")

    def upper(layers: int) -> tuple[bool, ...]:
        first = fields.integer("max_window_layers", 62, minimum=0)
        return tuple(layer >= first for layer in range(layers))

    spec = config.with_window_in(config.decoder(NAME, DEFAULTS), config.window(default=4096), upper)
    bias = fields.boolean("attention_bias", False)
    moe = config.sigmoid_moe(EXPERTS, spec.num_layers, dense=0)
    shared = fields.integer("n_shared_experts", 0, minimum=0, maximum=limits.MOST_EXPERTS)
    moe = replace(
        moe,
        normalise=fields.boolean("norm_topk_prob", False),
        shared_intermediate_size=shared * moe.intermediate_size,
    )
    return replace(spec, attention_bias=bias, output_bias=bias, moe=moe)


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    spec = config.decoder(NAME)
    config.refuse_window(spec)
    moe = config.moe(spec, "model.layers.{layer}.mlp.gate.weight", scores=(2, 1), normalise=False)
    return replace(spec, moe=replace(moe, epsilon=1e-20))


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat(
        "Dots1ForCausalLM",
        read_folder,
        fields=frozenset(
            "hidden_act attention_bias sliding_window max_window_layers n_routed_experts num_local_experts "
            "num_experts_per_tok moe_intermediate_size norm_topk_prob n_group topk_group routed_scaling_factor "
            "n_shared_experts first_k_dense_replace scoring_func topk_method".split()
        ),
    ),
    GgufFormat("dots1", read_gguf),
    PARAMETERS,
    qwen3.forward,
)
