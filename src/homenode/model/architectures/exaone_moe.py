"""EXAONE MoE (K-EXAONE): EXAONE 4's attention behind a norm, first layers with an MLP, then experts scored by a sigmoid
and chosen with a bias, beside one that every token uses.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import exaone4, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.deepseek_v3 import dense_layers
from homenode.model.architectures.layer_kinds import with_gguf_windows, with_windows
from homenode.model.architectures.pre_norm import forward
from homenode.model.config.folder_config import SIGMOID_MOE_FIELDS, Defaults, ExpertDefaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(max_position=2048, heads=32, kv_heads=32, vocab=102400, bos_id=1, eos_id=53, norm_eps=1e-5)
EXPERTS = ExpertDefaults(experts=64, experts_per_token=8, size=1024, keys=("num_experts", "num_local_experts"))
PARAMETERS = (
    *tables.EMBEDDING_AND_HEAD,
    *tables.ATTENTION,
    *tables.HEAD_NORMS,
    *tables.GATED_MLP,
    *tables.chosen_with_bias("mlp.e_score_correction_bias"),
)


def _read_folder(config: FolderConfig) -> ModelSpec:
    config = config.respelled({"num_shared_experts": "n_shared_experts"})
    spec = with_windows(config, config.decoder(DEFAULTS))
    moe = config.sigmoid_moe(EXPERTS, spec.num_layers, scale=2.5)
    dense = range(dense_layers(config.fields, spec.num_layers, len(moe.dense_layers)))
    return replace(spec, moe=replace(moe, dense_layers=tuple(dense)))


def _read_gguf(config: GgufConfig) -> ModelSpec:
    spec = with_gguf_windows(config, config.decoder(), config.window(default=128))
    return config.with_moe(spec, scores=(2,), epsilon=1e-20)


ARCHITECTURE = Architecture(
    "exaone_moe",
    FolderFormat(
        "ExaoneMoeForCausalLM",
        _read_folder,
        fields=exaone4.FIELDS | SIGMOID_MOE_FIELDS | EXPERTS.fields | {"num_shared_experts", "mlp_layer_types"},
        harmless=dict.fromkeys(
            ("is_moe_layer", "first_last_k_dense_replace"), "other fields say which layers these are"
        ),
    ),
    GgufFormat("exaone-moe", _read_gguf),
    PARAMETERS,
    forward,
)
