"""Trinity (AFMoE): a norm before and one after attention and MLP, what is attended to gated by a sigmoid, no rope in
the layers that see the whole context; first layers with an MLP, then experts scored by a sigmoid and chosen with a
bias, beside one that every token uses.
"""

from __future__ import annotations

import math
from dataclasses import replace

from homenode.compute.ops import Ops, Tensor
from homenode.model.architectures import attention, mlp, pre_norm, stage, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.layer_kinds import INTERVAL, all_but_each, with_gguf_windows
from homenode.model.architectures.parameters import ForwardContext
from homenode.model.architectures.tables import layer_weight
from homenode.model.config.folder_config import Defaults, ExpertDefaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats import limits
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(
    max_position=16384, heads=16, head_dim=128, vocab=200192, norm_eps=1e-5, intermediate=6144, attention_bias=False
)
EXPERTS = ExpertDefaults(experts=64, experts_per_token=6, size=1408, keys=("num_experts",))
_ROUTER = "mlp.router.gate"
PARAMETERS = (
    *tables.EMBEDDING_AND_HEAD,
    *tables.ATTENTION_AND_BIASES,
    *tables.HEAD_NORMS,
    layer_weight("attention_gate", "self_attn.gate_proj", "attn_gate", "query", "hidden"),
    layer_weight("attended_norm", "post_attention_layernorm", "post_attention_norm", "hidden"),
    layer_weight("post_norm", "pre_mlp_layernorm", "ffn_norm", "hidden"),
    layer_weight("mlp_norm", "post_mlp_layernorm", "post_ffw_norm", "hidden"),
    *tables.GATE_UP_DOWN,
    replace(tables.EXPERTS[0], name=f"model.layers.{{layer}}.{_ROUTER}.weight"),
    *tables.EXPERTS[1:],
    replace(tables.CHOICE_BIAS, name="model.layers.{layer}.mlp.expert_bias"),
    *tables.SHARED_EXPERTS,
)


def _read_folder(config: FolderConfig) -> ModelSpec:
    fields = config.fields
    fields.refuse_others({"route_norm": True, "score_func": "sigmoid"})
    spec = config.decoder(DEFAULTS)

    def patterned(layers: int) -> tuple[bool, ...]:
        return all_but_each(layers, fields.integer("global_attn_every_n_layers", INTERVAL))

    spec = config.with_window_in(spec, config.window(default=1024), patterned)
    dense = fields.integer("num_dense_layers", 1, minimum=0, maximum=limits.MOST_LAYERS)
    moe = config.moe(EXPERTS, normalise=True, dense=tuple(range(min(dense, spec.num_layers))))
    shared = fields.integer("num_shared_experts", 2, minimum=0, maximum=limits.MOST_EXPERTS)
    return replace(
        spec,
        rope_layers=spec.sliding_layers or (False,) * spec.num_layers,
        embedding_scale=math.sqrt(spec.hidden_size) if fields.boolean("mup_enabled", False) else 1.0,
        moe=replace(
            moe,
            score="sigmoid",
            epsilon=1e-20,
            scale=fields.number("route_scale", 1.0),
            shared_intermediate_size=shared * moe.intermediate_size,
        ),
    )


def _read_gguf(config: GgufConfig) -> ModelSpec:
    spec = config.decoder()
    spec = with_gguf_windows(config, spec, config.window())
    moe = config.moe(spec, f"model.layers.{{layer}}.{_ROUTER}.weight", scores=(2,), epsilon=1e-20)
    return replace(
        spec,
        rope_layers=spec.rope_layers or all_but_each(spec.num_layers),
        embedding_scale=math.sqrt(spec.hidden_size),
        moe=moe,
    )


def _forward(ops: Ops, model: ForwardContext) -> Tensor:
    x = stage.enter(ops, model)
    rotation = attention.angles(ops, model.rope)
    for index, layer in enumerate(model.parameters.layers):
        h = stage.normed(ops, model, x, layer["input_norm"])
        qkv = pre_norm.project(ops, model, index, h, rotation)
        gate = ops.linear(h, (layer["attention_gate"],))
        found = ops.sigmoid_mul(attention.attended(ops, model, index, qkv, None), gate)
        x = stage.add_mixed(ops, model, index, x, stage.select_last(ops, model, index, found), "o")
        x = mlp.feed_forward(ops, model, index, x)
    return stage.leave(ops, model, x)


ARCHITECTURE = Architecture(
    "afmoe",
    FolderFormat(
        "AfmoeForCausalLM",
        _read_folder,
        fields=frozenset(
            "sliding_window global_attn_every_n_layers num_dense_layers num_shared_experts route_scale route_norm "
            "score_func mup_enabled".split()
        )
        | DEFAULTS.fields
        | EXPERTS.fields,
        harmless=dict.fromkeys(
            ("n_group", "topk_group", "num_expert_groups", "num_limited_groups", "load_balance_coeff"),
            "transformers does not read it",
        ),
    ),
    GgufFormat("afmoe", _read_gguf),
    PARAMETERS,
    _forward,
)
