"""DeepSeek MoE 16B, and the text of the smallest DeepSeek-VL2: Llama's block, first layers with an MLP, then experts
scored by a softmax beside experts that every token uses.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import conversions, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.deepseek_v3 import EVERY_LAYER, dense_layers
from homenode.model.architectures.pre_norm import forward
from homenode.model.config.folder_config import Defaults, ExpertDefaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats import limits
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(max_position=2048, heads=32, vocab=102400, bos_id=1, eos_id=2, attention_bias=False)
EXPERTS = ExpertDefaults(experts=64, experts_per_token=6, size=1407, keys=("n_routed_experts",))
PARAMETERS = (
    *tables.EMBEDDING_AND_HEAD,
    *tables.ATTENTION_AND_BIASES,
    *tables.GATED_MLP,
    *tables.EXPERTS,
    *tables.SHARED_EXPERTS,
)
ONLY = {"mlp_bias": False, "scoring_func": "softmax", "topk_method": "greedy", "use_mla": False, **EVERY_LAYER}


def _read_folder(config: FolderConfig) -> ModelSpec:
    fields = config.fields
    fields.refuse_others(ONLY)
    spec = config.uniform_decoder(DEFAULTS)
    dense = fields.integer("first_k_dense_replace", 0, minimum=0, maximum=limits.MOST_LAYERS)
    dense = dense_layers(fields, spec.num_layers, min(dense, spec.num_layers))
    moe = config.moe(EXPERTS, normalise=fields.boolean("norm_topk_prob", False), dense=tuple(range(dense)))
    shared = fields.integer("n_shared_experts", 2, minimum=0, maximum=limits.MOST_EXPERTS)
    scale = fields.number("routed_scaling_factor", 1.0)
    return replace(spec, moe=replace(moe, scale=scale, shared_intermediate_size=shared * moe.intermediate_size))


def _read_gguf(config: GgufConfig) -> ModelSpec:
    spec = config.refuse_window(config.decoder(whole_heads=True))
    return replace(spec, moe=config.moe(spec, normalise=False))


ARCHITECTURE = Architecture(
    "deepseek",
    FolderFormat(
        "DeepseekForCausalLM",
        _read_folder,
        fields=DEFAULTS.fields
        | EXPERTS.fields
        | ONLY.keys()
        | frozenset(
            "first_k_dense_replace mlp_layer_types n_shared_experts norm_topk_prob routed_scaling_factor".split()
        ),
        harmless=dict.fromkeys(
            "kv_lora_rank q_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim n_group topk_group".split(),
            "of latent attention and of groups of experts, which it does not have",
        )
        | dict.fromkeys(("aux_loss_alpha", "seq_aux"), "of training only"),
    ),
    GgufFormat("deepseek", _read_gguf, convert=conversions.interleaved_heads),
    PARAMETERS,
    forward,
)
