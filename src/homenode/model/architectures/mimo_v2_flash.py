"""MiMo-V2-Flash: layers with a window, sinks and twice the KV heads beside layers that see their whole context; keys
wider than values, which are multiplied by a number; a first layer with an MLP, then experts scored by a sigmoid.

The KV memory keeps values as wide as keys, zeros behind their own elements.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from homenode.compute.ops import LayerKv, Ops, Tensor
from homenode.errors import UnsupportedError
from homenode.model.architectures import attention, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.layer_kinds import layers_with_mlp
from homenode.model.architectures.parameters import ForwardContext, of_layer
from homenode.model.architectures.pre_norm import Heads, forward_with
from homenode.model.architectures.tables import layer_bias, layer_weight
from homenode.model.config.folder_config import SIGMOID_MOE_FIELDS, Defaults, ExpertDefaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.config.known_fields import NOT_READ
from homenode.model.formats import limits
from homenode.model.spec import ModelSpec, RopeSpec, TensorEntry, Tensors

DEFAULTS = Defaults(
    max_position=131072, heads=64, kv_heads=4, head_dim=192, vocab=152576, norm_eps=1e-5, theta=5e6, local_theta=1e4,
    intermediate=16384, rotary_share=0.334, bos_id=1,
)  # fmt: skip
EXPERTS = ExpertDefaults(experts=256, experts_per_token=8, size=2048, keys=("n_routed_experts", "num_local_experts"))
VALUE_WIDTH, VALUE_SCALE, WINDOW, PATTERN = 128, 0.707, 129, 6
_SINKS = "self_attn.attention_sink_bias"
_UNREAD = frozenset(("first_k_dense_replace", "n_shared_experts"))


@dataclass(frozen=True)
class NarrowValues:
    """Values have `width` elements, fewer than keys, and what is attended to is multiplied by `scale`."""

    width: int
    scale: float


_slides = of_layer(lambda spec, layer: spec.window_of(layer) is not None)
_Q, _K, _, _ = tables.PROJECTIONS
PARAMETERS = (
    *tables.EMBEDDING_AND_HEAD,
    tables.INPUT_NORM,
    replace(_Q, shape=("query_key", "hidden")),
    _K,
    layer_weight("v", "self_attn.v_proj", "attn_v", "kv_value", "hidden"),
    layer_weight("o", "self_attn.o_proj", "attn_output", "hidden", "query_value"),
    replace(tables.QKV_BIASES[0], shape=("query_key",)),
    tables.QKV_BIASES[1],
    layer_bias("v_bias", "self_attn.v_proj", "attn_v", "kv_value", when=tables.has_qkv_biases),
    replace(tables.SINKS, name=f"model.layers.{{layer}}.{_SINKS}", when=_slides),
    *tables.GATED_MLP,
    *tables.EXPERTS,
    tables.CHOICE_BIAS,
)


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json. Published ones spell some of them otherwise than the class."""
    config = config.respelled({"layernorm_epsilon": "rms_norm_eps", "swa_rope_theta": "rope_local_base_freq"})
    fields = config.fields
    fields.refuse_others({"add_swa_attention_sink_bias": True, "add_full_attention_sink_bias": False})
    spec = config.decoder(DEFAULTS, rotates_part=True)
    near = spec.local_rope or RopeSpec(theta=1e4)
    if not (fields.table("rope_parameters") or fields.table("rope_scaling")):
        near = replace(near, rotary_dim=spec.rope.rotary_dim)
    window = fields.optional_integer("sliding_window_size", maximum=limits.MOST_POSITION - 1)  # tokens before its own
    window = config.window(default=WINDOW) if window is None else window + 1
    marked = fields.marks_per_layer("hybrid_layer_pattern", spec.num_layers)

    def usual(layers: int) -> tuple[bool, ...]:
        return marked or tuple(layer > 0 and (layer + 1) % PATTERN != 0 for layer in range(layers))

    spec = config.with_window_in(spec, window, usual)
    twice = fields.integer("swa_num_key_value_heads", 2 * spec.num_kv_heads, maximum=limits.MOST_HEADS)
    own = NarrowValues(
        fields.integer("v_head_dim", VALUE_WIDTH, maximum=limits.MOST_HEAD_DIM),
        1.0 if fields.is_null("attention_value_scale") else fields.number("attention_value_scale", VALUE_SCALE),
    )
    of_file = config.without(*_UNREAD)
    moe = of_file.sigmoid_moe(EXPERTS, spec.num_layers, dense=0, shared=0)
    dense = layers_with_mlp(fields, spec.num_layers, first=1)
    if (marks := fields.marks_per_layer("moe_layer_freq", spec.num_layers)) and not fields.has("mlp_layer_types"):
        dense = tuple(layer for layer in range(spec.num_layers) if not marks[layer])
    bias = fields.boolean("attention_bias", False)
    return replace(
        with_narrow_values(spec, own, [twice if s else spec.num_kv_heads for s in _sliding(spec)]),
        attention_bias=bias,
        local_rope=near if spec.sliding_layers else None,
        moe=replace(moe, dense_layers=dense) if len(dense) < spec.num_layers else None,
    )


def _sliding(spec: ModelSpec) -> tuple[bool, ...]:
    return spec.sliding_layers or (False,) * spec.num_layers


def _read_gguf(config: GgufConfig) -> ModelSpec:
    fields = config.fields
    width = fields.integer("attention.key_length", maximum=limits.MOST_HEAD_DIM)
    spec = config.decoder(theta=5e6, head_dim=width, layers_differ=True)
    window, sliding = config.window(), config.marked_layers("attention.sliding_window_pattern")
    if sliding is None or (any(sliding) and window is None):
        raise fields.wrong("attention.sliding_window_pattern", None, "a truth value for each layer, and a window")
    own = NarrowValues(
        fields.integer("attention.value_length", width, maximum=limits.MOST_HEAD_DIM),
        fields.number("attention.value_scale", 1.0, least=0.0) or 1.0,
    )
    if any(sliding):
        near = replace(spec.rope, theta=config.local_rope(spec.rope.theta).theta)
        spec = replace(spec, sliding_window=window, sliding_layers=sliding, local_rope=near)
    heads = config.per_layer("attention.head_count_kv")
    moe = config.moe(spec, scores=(2,), epsilon=1e-20)
    return replace(with_narrow_values(spec, own, list(heads)), moe=moe)


def with_narrow_values(spec: ModelSpec, own: NarrowValues, kv_heads: list[int]) -> ModelSpec:
    """`spec` with such values, and so many KV heads in each layer."""
    if own.width > spec.head_dim:
        raise UnsupportedError(
            f"values of {own.width} elements beside keys of {spec.head_dim} are not supported in {spec.architecture}; "
            "homenode wants no more than keys have"
        )
    return replace(
        spec,
        num_kv_heads=max(kv_heads),
        own=own,
        layer_kv=tuple(LayerKv(count, spec.head_dim, spec.head_dim) for count in kv_heads),
        head_widths={"query_key": spec.head_dim, "query_value": own.width},
        kv_head_widths={"kv_value": own.width},
    )


def _with_published_names(tensors: Tensors, _spec: ModelSpec) -> dict[str, TensorEntry]:
    return {name.replace("self_attn.sinks", _SINKS): entry for name, entry in tensors.items()}


def _project(ops: Ops, model: ForwardContext, index: int, h: Tensor, rotation: Tensor) -> Heads:
    """q and k, rotated, and v as wide as k. h: the normed rows of layer `index` of this stage."""
    layer, width, value = model.parameters.layers[index], model.spec.head_dim, model.spec.own_as(NarrowValues).width
    heads, kv_heads = (each.count for each in model.part.heads_in(model.part.layers.first + index))
    biases = (layer.get("q_bias"), layer.get("k_bias"), layer.get("v_bias"))
    rows = ops.linear(
        h, (layer["q"], layer["k"], layer["v"]), biases, precision=attention.precision_of_scores(model.spec)
    )
    q, k, v = ops.split(rows, (heads * width, kv_heads * width, kv_heads * value))
    q, k = ops.rope(q, rotation, width), ops.rope(k, rotation, width)
    if rest := width - value:
        behind, _ = ops.split(ops.regroup(k, (rest, value)), (kv_heads * rest, kv_heads * value))
        v = ops.join_heads(v, ops.scale(behind, 0.0), kv_heads)
    return q, k, v


def _narrowed(ops: Ops, model: ForwardContext, index: int, _h: Tensor, found: Tensor) -> Tensor:
    """Return what layer `index` of this stage attends to, of each head as many elements as values have, multiplied."""
    own, heads = model.spec.own_as(NarrowValues), model.part.heads_in(model.part.layers.first + index)[0].count
    if rest := model.spec.head_dim - own.width:
        found, _ = ops.split(ops.regroup(found, (own.width, rest)), (heads * own.width, heads * rest))
    return ops.scale(found, own.scale)


ARCHITECTURE = Architecture(
    "mimo_v2_flash",
    FolderFormat(
        "MiMoV2FlashForCausalLM",
        read_folder,
        fields=SIGMOID_MOE_FIELDS - _UNREAD
        | frozenset(
            "attention_bias v_head_dim sliding_window "
            "sliding_window_size attention_value_scale mlp_layer_types rope_local_base_freq hybrid_layer_pattern "
            "swa_num_key_value_heads layernorm_epsilon swa_rope_theta moe_layer_freq add_swa_attention_sink_bias "
            "add_full_attention_sink_bias".split()
        )
        | DEFAULTS.fields
        | EXPERTS.fields,
        harmless=dict.fromkeys(
            "swa_head_dim swa_v_head_dim swa_num_attention_heads hybrid_block_size attention_chunk_size "
            "attention_projection_layout".split(),
            NOT_READ,
        )
        | dict.fromkeys(_UNREAD, NOT_READ),
        convert=_with_published_names,
    ),
    GgufFormat("mimo2", _read_gguf, keys=frozenset(("attention.value_scale", "rope.freq_base_swa"))),
    PARAMETERS,
    forward_with(_project, gate=_narrowed),
)
