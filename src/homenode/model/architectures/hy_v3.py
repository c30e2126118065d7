"""Hy3 (Tencent): Llama's block with norms of heads; behind first layers with an MLP sigmoid-scored experts and one that
every token uses.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import qwen3, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat, renamed
from homenode.model.architectures.deepseek_v3 import dense_layers
from homenode.model.architectures.pre_norm import forward
from homenode.model.config.folder_config import Defaults, ExpertDefaults, FolderConfig
from homenode.model.config.known_fields import NOT_READ
from homenode.model.formats import limits
from homenode.model.spec import ModelSpec, TensorEntry, Tensors

DEFAULTS = Defaults(
    max_position=131072, heads=64, kv_heads=8, head_dim=128, vocab=120832, norm_eps=1e-5, theta=11158840.0,
    intermediate=13312, attention_bias=False
)  # fmt: skip
EXPERTS = ExpertDefaults(experts=192, experts_per_token=8, size=1536)
_BIAS, _BIAS_OF_CLASS = "mlp.expert_bias", "mlp.e_score_correction_bias"  # in published folders, and in the class
PARAMETERS = (
    *qwen3.PARAMETERS,
    *tables.EXPERTS,
    replace(tables.CHOICE_BIAS, name="model.layers.{layer}." + _BIAS, gguf_name="blk.{layer}.exp_probs_b"),
    *tables.SHARED_EXPERTS,
)


def _read_folder(config: FolderConfig) -> ModelSpec:
    fields = config.fields
    spec = config.uniform_decoder(DEFAULTS)
    dense = dense_layers(fields, spec.num_layers, 1)
    moe = config.moe(
        EXPERTS,
        normalise=True,
        dense=tuple(range(min(dense, spec.num_layers))),
        shared_experts=fields.integer("num_shared_experts", 1, maximum=limits.MOST_EXPERTS),
        score="sigmoid",
        epsilon=1e-20,
        scale=fields.number("router_scaling_factor", 2.826),
    )
    return replace(spec, moe=moe)


def _as_published(tensors: Tensors, _spec: ModelSpec) -> dict[str, TensorEntry]:
    return {name.replace(_BIAS_OF_CLASS, _BIAS): entry for name, entry in tensors.items()}


ARCHITECTURE = Architecture(
    "hy_v3",
    FolderFormat(
        "HYV3ForCausalLM",
        _read_folder,
        fields=DEFAULTS.fields | EXPERTS.fields | {"num_shared_experts", "router_scaling_factor", "mlp_layer_types"},
        harmless={
            "enable_moe_fp32_combine": "how, not what, transformers computes",
            **dict.fromkeys(("mlp_bias", "first_k_dense_replace", "qk_norm", "route_norm"), NOT_READ),
        },
        modules=renamed(
            "model.layers.{layer}.mlp.",
            "router.gate=mlp.gate shared_mlp.gate_proj=mlp.shared_experts.gate_proj "
            "shared_mlp.up_proj=mlp.shared_experts.up_proj shared_mlp.down_proj=mlp.shared_experts.down_proj",
        ),
        convert=_as_published,
    ),
    GgufFormat(
        "hy_v3",
        lambda config: config.with_moe(config.decoder(), scores=(2,), epsilon=1e-20),
        names={"blk.{layer}.exp_probs_b.bias": "model.layers.{layer}." + _BIAS},
    ),
    PARAMETERS,
    forward,
)
