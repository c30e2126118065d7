"""Mellum 2: Qwen 3's block with experts, and a window in some layers, whose rope is never stretched."""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import qwen3, qwen3_moe, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.layer_kinds import layers_with_mlp
from homenode.model.architectures.pre_norm import forward
from homenode.model.config.folder_config import Defaults, ExpertDefaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.config.known_fields import NOT_READ
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(
    max_position=131072, heads=32, kv_heads=4, head_dim=128, vocab=98304, theta=5e5, local_theta=1e4, intermediate=7168,
    attention_bias=False,
)  # fmt: skip
EXPERTS = ExpertDefaults(experts=64, experts_per_token=8, size=896)


def _read_folder(config: FolderConfig) -> ModelSpec:
    fields = config.fields
    spec = config.decoder(DEFAULTS)
    spec = config.with_window_in(spec, config.window(default=1024), lambda layers: (False,) * layers)
    dense, moe = layers_with_mlp(fields, spec.num_layers, first=0), None
    if len(dense) < spec.num_layers:
        moe = config.moe(EXPERTS, normalise=fields.boolean("norm_topk_prob", True), dense=dense)
    return replace(spec, moe=moe)


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file. Without a theta of their own, layers with a window have that of the others."""
    spec = config.decoder()
    spec = config.with_window_in(spec, config.window(), lambda layers: (False,) * layers)
    if spec.sliding_layers:
        spec = replace(spec, local_rope=config.local_rope(spec.rope.theta))
    else:
        config.refuse_window(spec)
    return config.with_moe(spec)


ARCHITECTURE = Architecture(
    "mellum",
    FolderFormat(
        "MellumForCausalLM",
        _read_folder,
        fields=DEFAULTS.fields
        | EXPERTS.fields
        | {"sliding_window", "norm_topk_prob", "mlp_layer_types", "rope_local_base_freq"},
        harmless=dict.fromkeys(
            ("use_sliding_window", "max_window_layers", "decoder_sparse_step", "mlp_only_layers"), NOT_READ
        )
        | dict.fromkeys(("mtp_layer_types", "mtp_mlp_layer_types"), "of blocks that predict further tokens"),
        convert=qwen3_moe.split_experts,
    ),
    GgufFormat("mellum", read_gguf, keys=frozenset(("rope.freq_base_swa",))),
    (*qwen3.PARAMETERS, *tables.EXPERTS),
    forward,
)
