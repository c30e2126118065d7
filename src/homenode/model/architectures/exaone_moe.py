"""EXAONE MoE (K-EXAONE): EXAONE 4's attention behind a norm, first layers with an MLP, then experts scored by a sigmoid
and chosen with a bias, beside one that every token uses.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import common, exaone4
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.deepseek_v3 import dense_layers
from homenode.model.architectures.layer_kinds import with_gguf_windows, with_windows
from homenode.model.architectures.pre_norm import forward
from homenode.model.config.folder_config import SIGMOID_MOE_FIELDS, Defaults, ExpertDefaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.spec import ModelSpec

NAME = "exaone_moe"
DEFAULTS = Defaults(max_position=2048, heads=32, kv_heads=32, vocab=102400, bos_id=1, eos_id=53, norm_eps=1e-5)
EXPERTS = ExpertDefaults(experts=64, experts_per_token=8, size=1024, keys=("num_experts", "num_local_experts"))
PARAMETERS = (
    *common.EMBEDDING_AND_HEAD,
    *common.ATTENTION,
    *common.HEAD_NORMS,
    *common.GATED_MLP,
    *common.EXPERTS,
    replace(common.CHOICE_BIAS, name="model.layers.{layer}.mlp.e_score_correction_bias"),
    *common.SHARED_EXPERTS,
)


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    config = config.respelled({"num_shared_experts": "n_shared_experts"})
    config.refuse_activation("hidden_act", "silu")
    spec = with_windows(config, config.decoder(NAME, DEFAULTS))
    moe = config.sigmoid_moe(EXPERTS, spec.num_layers, scale=2.5)
    dense = range(dense_layers(config.fields, spec.num_layers, len(moe.dense_layers)))
    return replace(spec, moe=replace(moe, dense_layers=tuple(dense)))


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    spec = config.decoder(NAME)
    spec = with_gguf_windows(config, spec, config.window(default=128))
    moe = config.moe(spec, scores=(2,), epsilon=1e-20)
    return replace(spec, moe=moe)


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat(
        "ExaoneMoeForCausalLM",
        read_folder,
        fields=exaone4.FIELDS
        | SIGMOID_MOE_FIELDS
        | {"num_experts", "num_local_experts", "num_shared_experts", "mlp_layer_types"},
        harmless=dict.fromkeys(
            ("is_moe_layer", "first_last_k_dense_replace"), "other fields say which layers these are"
        ),
    ),
    GgufFormat("exaone-moe", read_gguf),
    PARAMETERS,
    forward,
)
