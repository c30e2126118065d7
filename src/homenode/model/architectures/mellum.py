"""Mellum 2: Qwen 3's block with experts, and a window in some layers, whose rope is never stretched."""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import common, qwen3, qwen3_moe
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.layer_kinds import layers_with_mlp
from homenode.model.architectures.pre_norm import forward
from homenode.model.config.folder_config import Defaults, ExpertDefaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.config.known_fields import NOT_READ
from homenode.model.formats import limits
from homenode.model.spec import ModelSpec, RopeSpec

NAME = "mellum"
DEFAULTS = Defaults(
    max_position=131072, heads=32, kv_heads=4, head_dim=128, vocab=98304, theta=5e5, local_theta=1e4, intermediate=7168
)
EXPERTS = ExpertDefaults(experts=64, experts_per_token=8, size=896)


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    fields = config.fields
    config.refuse_activation("hidden_act", "silu")
    spec = config.decoder(NAME, DEFAULTS)
    spec = config.with_window_in(spec, config.window(default=1024), lambda layers: (False,) * layers)
    dense, moe = layers_with_mlp(fields, spec.num_layers, first=0), None
    if len(dense) < spec.num_layers:
        moe = config.moe(EXPERTS, normalise=fields.boolean("norm_topk_prob", True), dense=dense)
    bias = fields.boolean("attention_bias", False)
    return replace(spec, attention_bias=bias, output_bias=bias, moe=moe)


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file. Without a theta of their own, layers with a window have that of the others."""
    spec = config.decoder(NAME)
    theta = config.fields.number("rope.freq_base_swa", spec.rope.theta, above=1.0, most=limits.MOST_THETA)
    window, sliding = config.window(), config.marked_layers("attention.sliding_window_pattern") or ()
    if window is not None and any(sliding):
        spec = replace(spec, sliding_window=window, sliding_layers=sliding, local_rope=RopeSpec(theta=theta))
    else:
        config.refuse_window(spec)
    return replace(spec, moe=config.moe(spec))


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat(
        "MellumForCausalLM",
        read_folder,
        fields=frozenset(
            "hidden_act attention_bias sliding_window num_local_experts num_experts num_experts_per_tok "
            "moe_intermediate_size norm_topk_prob mlp_layer_types rope_local_base_freq".split()
        ),
        harmless=dict.fromkeys(
            ("use_sliding_window", "max_window_layers", "decoder_sparse_step", "mlp_only_layers"), NOT_READ
        )
        | dict.fromkeys(("mtp_layer_types", "mtp_mlp_layer_types"), "of blocks that predict further tokens"),
        convert=qwen3_moe.split_experts,
    ),
    GgufFormat("mellum", read_gguf, keys=frozenset(("rope.freq_base_swa",))),
    (*qwen3.PARAMETERS, *common.EXPERTS),
    forward,
)
