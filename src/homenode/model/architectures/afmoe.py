"""Trinity (AFMoE): a norm before and one after attention and MLP, what is attended to gated by a sigmoid, no rope in
the layers that see the whole context; first layers with an MLP, then experts scored by a sigmoid and chosen with a
bias, beside one that every token uses.
"""

from __future__ import annotations

import math
from dataclasses import replace

from homenode.compute.ops import Ops, Tensor
from homenode.model.architectures import tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.layer_kinds import INTERVAL, all_but_each, with_gguf_windows
from homenode.model.architectures.parameters import ForwardContext
from homenode.model.architectures.pre_norm import forward_with
from homenode.model.architectures.tables import layer_weight
from homenode.model.config.folder_config import Defaults, ExpertDefaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(
    max_position=16384, heads=16, head_dim=128, vocab=200192, norm_eps=1e-5, intermediate=6144, attention_bias=False
)
EXPERTS = ExpertDefaults(experts=64, experts_per_token=6, size=1408, keys=("num_experts",))
_ROUTER = "mlp.router.gate"
PARAMETERS = (
    *tables.EMBEDDING_AND_HEAD,
    *tables.ATTENTION_AND_ALL,
    layer_weight("attention_gate", "self_attn.gate_proj", "attn_gate", "query", "hidden"),
    layer_weight("attended_norm", "post_attention_layernorm", "post_attention_norm", "hidden"),
    layer_weight("post_norm", "pre_mlp_layernorm", "ffn_norm", "hidden"),
    layer_weight("mlp_norm", "post_mlp_layernorm", "post_ffw_norm", "hidden"),
    *tables.GATE_UP_DOWN,
    *tables.chosen_with_bias("mlp.expert_bias", _ROUTER),
)


def _read_folder(config: FolderConfig) -> ModelSpec:
    fields = config.fields
    fields.refuse_others({"route_norm": True, "score_func": "sigmoid"})
    spec = config.decoder(DEFAULTS)

    def patterned(layers: int) -> tuple[bool, ...]:
        return all_but_each(layers, fields.integer("global_attn_every_n_layers", INTERVAL))

    spec = config.with_window_in(spec, config.window(default=1024), patterned)
    moe = config.moe(
        EXPERTS,
        normalise=True,
        dense=config.front_layers("num_dense_layers", 1, spec.num_layers),
        shared_experts=config.shared_experts("num_shared_experts", 2),
        score="sigmoid",
        epsilon=1e-20,
        scale=fields.number("route_scale", 1.0),
    )
    return replace(
        spec,
        rope_layers=spec.sliding_layers or (False,) * spec.num_layers,
        embedding_scale=math.sqrt(spec.hidden_size) if fields.boolean("mup_enabled", False) else 1.0,
        scales_rows=True,
        moe=moe,
    )


def _read_gguf(config: GgufConfig) -> ModelSpec:
    spec = with_gguf_windows(config, config.decoder(), config.window())
    return replace(
        spec,
        rope_layers=spec.rope_layers or all_but_each(spec.num_layers),
        embedding_scale=math.sqrt(spec.hidden_size),
        scales_rows=True,
        moe=config.moe(spec, f"model.layers.{{layer}}.{_ROUTER}.weight", scores=(2,), epsilon=1e-20),
    )


def _gated(ops: Ops, model: ForwardContext, index: int, h: Tensor, found: Tensor) -> Tensor:
    return ops.sigmoid_mul(found, ops.linear(h, (model.parameters.layers[index]["attention_gate"],)))


ARCHITECTURE = Architecture(
    "afmoe",
    FolderFormat(
        "AfmoeForCausalLM",
        _read_folder,
        fields=(DEFAULTS.fields | EXPERTS.fields).union(
            "sliding_window global_attn_every_n_layers num_dense_layers num_shared_experts route_scale route_norm "
            "score_func mup_enabled".split()
        ),
        harmless=dict.fromkeys(
            ("n_group", "topk_group", "num_expert_groups", "num_limited_groups", "load_balance_coeff"),
            "transformers does not read it",
        ),
    ),
    GgufFormat("afmoe", _read_gguf),
    PARAMETERS,
    forward_with(gate=_gated),
)
