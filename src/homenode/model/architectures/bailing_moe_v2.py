"""Ling and Ring 2 (Bailing MoE 2): Llama's block with norms of heads and a rope over a part of each; first layers with
an MLP, then experts scored by a sigmoid and chosen with a bias, in groups, beside one that every token uses.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import qwen3, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat, renamed
from homenode.model.architectures.pre_norm import forward
from homenode.model.config.folder_config import Defaults, ExpertDefaults, FolderConfig
from homenode.model.formats import limits
from homenode.model.formats.fused_rows import split_fused_rows
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(
    max_position=32768, heads=16, kv_heads=4, vocab=157184, norm_eps=1e-6, theta=600000.0, intermediate=5120,
    rotary_share=0.5, eos_id=156892,
)  # fmt: skip
EXPERTS = ExpertDefaults(experts=256, experts_per_token=8, size=512, keys=("num_experts",))
# What the class of the makers can have, and published models have not.
_PLAIN = {
    "score_function": "sigmoid",
    "use_qk_norm": True,
    "use_rmsnorm": True,
    "moe_router_enable_expert_bias": True,
    "use_sliding_window": False,
    "norm_head": False,
    "use_bias": False,
}
PARAMETERS = (*qwen3.PARAMETERS, *tables.chosen_with_bias("mlp.gate.expert_bias"))


def _read_folder(config: FolderConfig) -> ModelSpec:
    fields = config.fields
    fields.refuse_others(_PLAIN)
    spec = config.uniform_decoder(DEFAULTS, rotates_part=True)
    moe = config.moe(
        EXPERTS,
        normalise=fields.boolean("norm_topk_prob", True),
        dense=config.front_layers("first_k_dense_replace", 1, spec.num_layers),
        shared_experts=fields.integer("num_shared_experts", 1, maximum=limits.MOST_EXPERTS),
        score="sigmoid",
        epsilon=1e-20,
        scale=fields.number("routed_scaling_factor", 2.5),
        **config.expert_groups(8, 4),
    )
    shared = fields.integer(
        "moe_shared_expert_intermediate_size", moe.shared_intermediate_size, maximum=limits.MOST_INTERMEDIATE
    )
    moe = replace(moe, shared_intermediate_size=shared)
    return replace(spec, attention_bias=fields.boolean("use_qkv_bias", False), moe=moe)


ARCHITECTURE = Architecture(
    "bailing_moe_v2",
    FolderFormat(
        "BailingMoeV2ForCausalLM",
        _read_folder,
        fields=(DEFAULTS.fields | EXPERTS.fields | _PLAIN.keys()).union(
            "first_k_dense_replace num_shared_experts moe_shared_expert_intermediate_size norm_topk_prob "
            "routed_scaling_factor n_group topk_group use_qkv_bias".split()
        ),
        harmless=dict.fromkeys(
            "router_dtype norm_softmax embedding_dropout output_dropout max_window_layers "
            "moe_router_enable_shared_expert mtp_loss_scaling_factor sliding_window".split(),
            "of training only, or its makers' class does not read it",
        ),
        modules=renamed(
            "model.layers.{layer}.",
            "attention.query_key_value=self_attn.qkv_proj attention.dense=self_attn.o_proj "
            "attention.query_layernorm=self_attn.q_norm attention.key_layernorm=self_attn.k_norm",
            "model.word_embeddings=model.embed_tokens",
        ),
        convert=split_fused_rows,
    ),
    GgufFormat("bailingmoe2", lambda config: config.uniform_mixture(scores=(2,), epsilon=1e-20)),
    PARAMETERS,
    forward,
)
