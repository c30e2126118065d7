"""Trinity (AFMoE): a norm before and one after attention and MLP, what is attended to gated by a sigmoid, no rope in
the layers that see the whole context; first layers with an MLP, then experts scored by a sigmoid and chosen with a
bias, beside one that every token uses.
"""

from __future__ import annotations

import math
from dataclasses import replace

from homenode.compute.ops import Ops, Tensor
from homenode.errors import UnsupportedError
from homenode.model.architectures import common, pre_norm
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.common import layer_weight
from homenode.model.architectures.layer_kinds import INTERVAL, all_but_each, with_gguf_windows
from homenode.model.architectures.parameters import ForwardContext
from homenode.model.config.folder_config import Defaults, ExpertDefaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats import limits
from homenode.model.spec import ModelSpec

NAME = "afmoe"
DEFAULTS = Defaults(max_position=16384, heads=16, head_dim=128, vocab=200192, norm_eps=1e-5, intermediate=6144)
EXPERTS = ExpertDefaults(experts=64, experts_per_token=6, size=1408, keys=("num_experts",))
_ROUTER = "mlp.router.gate"
PARAMETERS = (
    *common.EMBEDDING_AND_HEAD,
    *common.ATTENTION,
    *common.QKV_BIASES,
    *common.OUTPUT_BIAS,
    *common.HEAD_NORMS,
    layer_weight("attention_gate", "self_attn.gate_proj", "attn_gate", "query", "hidden"),
    layer_weight("attended_norm", "post_attention_layernorm", "post_attention_norm", "hidden"),
    layer_weight("post_norm", "pre_mlp_layernorm", "ffn_norm", "hidden"),
    layer_weight("mlp_norm", "post_mlp_layernorm", "post_ffw_norm", "hidden"),
    *common.GATE_UP_DOWN,
    replace(common.EXPERTS[0], name=f"model.layers.{{layer}}.{_ROUTER}.weight"),
    *common.EXPERTS[1:],
    replace(common.CHOICE_BIAS, name="model.layers.{layer}.mlp.expert_bias"),
    *common.SHARED_EXPERTS,
)


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    fields = config.fields
    config.refuse_activation("hidden_act", "silu")
    for key, wanted in (("route_norm", True), ("score_func", "sigmoid")):
        seen = fields.boolean(key, True) if wanted is True else fields.text(key, str(wanted))
        if seen != wanted:
            raise UnsupportedError(f"{config.path}: {key} {seen} is not supported; homenode wants {wanted}")
    spec = config.decoder(NAME, DEFAULTS)

    def patterned(layers: int) -> tuple[bool, ...]:
        return all_but_each(layers, fields.integer("global_attn_every_n_layers", INTERVAL))

    spec = config.with_window_in(spec, config.window(default=1024), patterned)
    dense = fields.integer("num_dense_layers", 1, minimum=0, maximum=limits.MOST_LAYERS)
    moe = config.moe(EXPERTS, normalise=True, dense=tuple(range(min(dense, spec.num_layers))))
    shared = fields.integer("num_shared_experts", 2, minimum=0, maximum=limits.MOST_EXPERTS)
    bias = fields.boolean("attention_bias", False)
    return replace(
        spec,
        attention_bias=bias,
        output_bias=bias,
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


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    spec = config.decoder(NAME)
    spec = with_gguf_windows(config, spec, config.window())
    moe = config.moe(spec, f"model.layers.{{layer}}.{_ROUTER}.weight", scores=(2,), epsilon=1e-20)
    return replace(
        spec,
        rope_layers=spec.rope_layers or all_but_each(spec.num_layers),
        embedding_scale=math.sqrt(spec.hidden_size),
        moe=moe,
    )


def forward(ops: Ops, model: ForwardContext) -> Tensor:
    """Logits of the step's selected rows, or the rows for the next stage."""
    x = common.enter(ops, model)
    rotation = common.angles(ops, model.rope)
    for index, layer in enumerate(model.parameters.layers):
        h = common.normed(ops, model, x, layer["input_norm"])
        qkv = pre_norm.normed_heads(ops, model, index, common.project_qkv(ops, model, layer, h))
        gate = ops.linear(h, (layer["attention_gate"],))
        found = common.attended(ops, model, index, qkv, rotation)
        inner, x = (common.select_last(ops, model, index, each) for each in (ops.sigmoid_mul(found, gate), x))
        out = common.project_out(ops, model, inner, layer["o"], layer.get("o_bias"), None)
        x = ops.add(x, common.normed(ops, model, out, layer["attended_norm"]))
        h = common.normed(ops, model, x, layer["post_norm"])
        if "router" in layer:
            out = common.mixture(ops, model, index, h, None)
        else:
            out = common.project_out(ops, model, common.gated(ops, layer, h), layer["down"], None, None)
        x = ops.add(x, common.normed(ops, model, out, layer["mlp_norm"]))
    return common.leave(ops, model, x)


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat(
        "AfmoeForCausalLM",
        read_folder,
        fields=frozenset(
            "hidden_act attention_bias sliding_window global_attn_every_n_layers num_experts num_experts_per_tok "
            "moe_intermediate_size num_dense_layers num_shared_experts route_scale route_norm score_func "
            "mup_enabled".split()
        ),
        harmless=dict.fromkeys(
            ("n_group", "topk_group", "num_expert_groups", "num_limited_groups", "load_balance_coeff"),
            "transformers does not read it",
        ),
    ),
    GgufFormat("afmoe", read_gguf),
    PARAMETERS,
    forward,
)
