"""Kimi Linear: three of four layers have a gated delta rule whose decays are those of each element of a key (Kimi Delta
Attention; Kimi Team 2025), the others latent attention without a rope. First layers have an MLP, others experts.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.compute.ops import DeltaHeads, Ops, Tensor
from homenode.model.architectures import delta_net, latent_attention, mlp, stage, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, always
from homenode.model.architectures.delta_net import attends, has_delta
from homenode.model.architectures.latent_attention import LatentHeads
from homenode.model.architectures.layer_kinds import layers_with_mlp
from homenode.model.architectures.parameters import Condition, ForwardContext, Parameter
from homenode.model.architectures.tables import layer_weight
from homenode.model.config.folder_config import (
    HEAD_FIELDS,
    ROPE,
    SIGMOID_MOE_FIELDS,
    Defaults,
    ExpertDefaults,
    FolderConfig,
)
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats import limits
from homenode.model.formats.fields import Fields
from homenode.model.part import ModelPart
from homenode.model.spec import DeltaSpec, ModelSpec, TensorEntry, Tensors

DEFAULTS = Defaults(
    max_position=1048576, heads=32, vocab=163840, bos_id=163584, eos_id=163586, norm_eps=1e-5, intermediate=9216
)
HEADS = LatentHeads(query_rank=0, latent=512, plain=128, rotary=64, value=128)
EXPERTS = ExpertDefaults(experts=256, experts_per_token=8, size=1024, keys=("num_experts", "num_local_experts"))
KINDS = ("linear_attention", "full_attention")
_SPELLED = {
    "model_max_length": "max_position_embeddings",
    "moe_renormalize": "norm_topk_prob",
    "num_expert_group": "n_group",
    "num_experts_per_token": "num_experts_per_tok",
    "num_shared_experts": "n_shared_experts",
}
_PLAIN = {"moe_router_activation_func": "sigmoid", "moe_layer_freq": 1, "use_grouped_topk": True, "mla_use_nope": True}
_NET = "model.layers.{layer}.self_attn."


def _only(when: Condition, other: Condition) -> Condition:
    def holds(spec: ModelSpec, part: ModelPart, layer: int | None) -> bool:
        return when(spec, part, layer) and other(spec, part, layer)

    return holds


def _matrix(key: str, name: str, gguf: str, rows: str, columns: str = "hidden") -> Parameter:
    return layer_weight(key, f"self_attn.{name}_proj", gguf, rows, columns, when=has_delta)


def _vector(key: str, name: str, gguf: str, length: str) -> Parameter:
    return Parameter(key, _NET + name, (length,), f"blk.{{layer}}.{gguf}", has_delta)


_DELTA = (
    *(
        _matrix(f"delta_{part}", part, f"attn_{part}", f"delta_{kind}")
        for part, kind in zip("qkv", ("key", "key", "value"), strict=True)
    ),
    _matrix("decay_down", "f_a", "ssm_f_a", "delta_width"),
    _matrix("decay_up", "f_b", "ssm_f_b", "delta_value", "delta_width"),
    _matrix("gate_down", "g_a", "ssm_g_a", "delta_width"),
    _matrix("gate_up", "g_b", "ssm_g_b", "delta_value", "delta_width"),
    _matrix("delta_b", "b", "ssm_beta", "delta_heads"),
    *(
        _vector(f"conv_{part}", f"{part}_conv1d.weight", f"ssm_conv1d_{part}.weight", "delta_key_taps")
        for part in "qkv"
    ),
    _vector("decay_weight", "A_log", "ssm_a", "delta_heads"),
    _vector("decay_bias", "dt_bias", "ssm_dt.bias", "delta_value"),
    _vector("delta_norm", "o_norm.weight", "ssm_norm.weight", "delta_width"),
    layer_weight("delta_o", "self_attn.o_proj", "attn_output", "hidden", "delta_value", when=has_delta),
)
PARAMETERS = (
    *tables.EMBEDDING_AND_HEAD,
    tables.INPUT_NORM,
    *(replace(each, when=_only(each.when, attends)) for each in latent_attention.PARAMETERS[1:]),
    *_DELTA,
    *tables.GATED_MLP,
    *tables.CHOSEN_WITH_BIAS,
)


def _read_folder(config: FolderConfig) -> ModelSpec:
    config = config.respelled(_SPELLED).without(*ROPE, *HEAD_FIELDS)
    fields = config.fields
    fields.refuse_others(_PLAIN)
    table = fields.table("linear_attn_config") or Fields(config.path, {})
    spec = latent_attention.read_folder(config.without("layer_types"), DEFAULTS, HEADS)
    kinds = fields.texts("layer_types")
    if not kinds and (full := table.integers("full_attn_layers")):
        kinds = tuple(KINDS[layer + 1 in full] for layer in range(spec.num_layers))
    kinds = kinds or tuple(KINDS[layer > 0 and layer % 4 == 0] for layer in range(spec.num_layers))
    if len(kinds) != spec.num_layers or set(kinds) != set(KINDS):
        raise fields.wrong(
            "layer_types", kinds, f"{spec.num_layers} values, each {' or '.join(KINDS)}, and some of both"
        )

    def figure(key: str, own: str, default: int, maximum: int, minimum: int = 1) -> int:
        default = fields.integer(key, default, minimum=minimum, maximum=maximum)
        return table.integer(own, default, minimum=minimum, maximum=maximum)

    moe = config.sigmoid_moe(EXPERTS, spec.num_layers, scale=2.446)
    dense = layers_with_mlp(fields, spec.num_layers, len(moe.dense_layers))
    return _with_delta(
        replace(spec, moe=replace(moe, dense_layers=dense)),
        tuple(layer for layer, kind in enumerate(kinds) if kind == KINDS[0]),
        figure("linear_num_heads", "num_heads", 32, limits.MOST_HEADS),
        figure("linear_head_dim", "head_dim", 128, limits.MOST_HEAD_DIM),
        figure("linear_conv_kernel_dim", "short_conv_kernel_size", 4, 64, 2),
    )


def _with_delta(spec: ModelSpec, layers: tuple[int, ...], heads: int, width: int, kernel: int) -> ModelSpec:
    delta = DeltaSpec(layers, heads, heads, width, width, kernel - 1)
    return delta_net.with_delta(replace(spec, rope_layers=(False,) * spec.num_layers), delta)


def _read_gguf(config: GgufConfig) -> ModelSpec:
    fields = config.fields
    spec = latent_attention.read_gguf(config, layers_differ=True)
    moe = config.moe(spec, scores=(2,), epsilon=1e-20)
    kept = config.per_layer("attention.head_count_kv", minimum=0)
    return _with_delta(
        replace(spec, moe=moe),
        tuple(layer for layer, heads in enumerate(kept) if not heads),
        spec.num_heads,
        fields.integer("kda.head_dim", maximum=limits.MOST_HEAD_DIM),
        fields.integer("ssm.conv_kernel", minimum=2, maximum=64),
    )


def _as_vectors(tensors: Tensors) -> dict[str, TensorEntry]:
    """Return these, those of delta rules that are meant as vectors with one dimension."""
    found = {}
    for name, entry in tensors.items():
        if name.endswith(("_conv1d.weight", "A_log")):
            size = 1
            for length in entry.shape:
                size *= length
            entry = replace(entry, shape=(size,))
        found[name] = entry
    return found


def _convert_folder(tensors: Tensors, spec: ModelSpec) -> dict[str, TensorEntry]:
    """The tensors of a folder: what is published has other names for parts of mixtures, and decays are logarithms."""
    renamed = {}
    for name, entry in tensors.items():
        name = name.replace(".block_sparse_moe.", ".mlp.")
        if ".mlp.experts." in name:
            for theirs, ours in zip(tables.W1_W3_W2, ("gate_proj", "up_proj", "down_proj"), strict=True):
                name = name.replace(f".{theirs}.", f".{ours}.")
        function = "negative_exponential" if name.endswith("A_log") else entry.function
        renamed[name] = replace(entry, name=name, function=function)
    return latent_attention.split_folder_heads(_as_vectors(renamed), spec)


def _convert_gguf(tensors: Tensors, spec: ModelSpec) -> dict[str, TensorEntry]:
    return latent_attention.split_gguf_heads(_as_vectors(tensors), spec)


def _delta(ops: Ops, model: ForwardContext, index: int, h: Tensor) -> Tensor:
    """The gated delta rule over the normed rows h, normed head by head, times sigmoid of a gate."""
    layer, delta = model.parameters.layers[index], model.spec.delta
    assert delta is not None  # a layer has these parameters only where the figures say so
    state, heads, width = (
        model.state_layers[model.part.layers.first + index],
        model.part.state_groups.count,
        delta.key_width,
    )
    keys = ("delta_q", "delta_k", "delta_v", "decay_down", "gate_down", "delta_b")
    rows = ops.linear(h, [layer[key] for key in keys])
    qkv, decay, gate, b = ops.split(rows, (3 * heads * width, width, width, heads))
    convolution = (layer["conv_q"], layer["conv_k"], layer["conv_v"])
    qkv = ops.short_convolution(qkv, convolution, (), model.state, state, True)
    decay, gate = ops.linear(decay, (layer["decay_up"],)), ops.linear(gate, (layer["gate_up"],))
    how = (layer["decay_weight"], layer["decay_bias"], model.state, state, DeltaHeads(heads))
    out = ops.delta_rule(qkv, b, decay, *how)
    out, gate = (stage.select_last(ops, model, index, each) for each in (out, gate))
    return ops.sigmoid_mul(stage.normed(ops, model, out, layer["delta_norm"]), gate)


def _forward(ops: Ops, model: ForwardContext) -> Tensor:
    x = stage.enter(ops, model)
    for index, layer in enumerate(model.parameters.layers):
        if "delta_q" in layer:
            h = stage.normed(ops, model, x, layer["input_norm"])
            x = stage.add_mixed(ops, model, index, x, _delta(ops, model, index, h), "delta_o")
        else:
            x, _ = latent_attention.attend(ops, model, index, x, None, None)
        x = mlp.feed_forward(ops, model, index, x)
    return stage.leave(ops, model, x)


ARCHITECTURE = Architecture(
    "kimi_linear",
    FolderFormat(
        "KimiLinearForCausalLM",
        _read_folder,
        fields=latent_attention.FIELDS
        | SIGMOID_MOE_FIELDS
        | EXPERTS.fields
        | frozenset(
            (
                *_SPELLED,
                *_PLAIN,
                *"linear_attn_config linear_head_dim linear_num_heads linear_conv_kernel_dim mlp_layer_types".split(),
            )
        ),
        convert=_convert_folder,
    ),
    replace(
        latent_attention.gguf_format("kimi-linear", _read_gguf, always, frozenset(("kda.head_dim", "ssm.conv_kernel"))),
        convert=_convert_gguf,
    ),
    PARAMETERS,
    _forward,
)
