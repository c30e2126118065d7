"""The parts that models with gated delta nets share: some layers have a gated delta rule (Yang et al. 2024) behind a
short convolution, the others attention with a gate on its output.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from homenode.compute.ops import DeltaHeads, LayerKv, LayerState, Ops, Tensor
from homenode.model.architectures import attention, mlp, stage, tables
from homenode.model.architectures.layer_kinds import all_but_each
from homenode.model.architectures.parameters import Condition, ForwardContext, Parameter
from homenode.model.architectures.stage import Layer
from homenode.model.architectures.tables import layer_weight
from homenode.model.config.folder_config import FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats import limits
from homenode.model.formats.bounded_files import damaged
from homenode.model.formats.tensor_parts import rows_of
from homenode.model.part import ModelPart
from homenode.model.spec import DeltaSpec, ModelSpec, TensorEntry, Tensors

FIELDS = frozenset(
    "hidden_act attention_bias attn_output_gate full_attention_interval linear_num_key_heads linear_num_value_heads "
    "linear_key_head_dim linear_value_head_dim linear_conv_kernel_dim".split()
)
HARMLESS = {"mamba_ssm_dtype": "states are float32", "mlp_only_layers": "its class does not read it"}
KEYS = frozenset(
    "ssm.conv_kernel ssm.state_size ssm.group_count ssm.time_step_rank ssm.inner_size full_attention_interval "
    "attention.recurrent_layers".split()
)
_MIXER = "model.layers.{layer}.linear_attn"
_QKV, _CONVOLUTION = "linear_attn.in_proj_qkv.weight", "linear_attn.conv1d.weight"
# Tensors of GGUF files that are no parameter by themselves.
NAMES = {
    "blk.{layer}.attn_qkv.weight": f"{_MIXER}.in_proj_qkv.weight",
    "blk.{layer}.ssm_conv1d.weight": f"{_MIXER}.conv1d.weight",
}


def attends(spec: ModelSpec, _part: ModelPart, layer: int | None) -> bool:
    """The layer has attention."""
    return spec.delta is None or layer not in spec.delta.layers


def _of_delta(fused: bool | None = None, fused_gates: bool | None = None) -> Condition:
    """Return whether a layer has a gated delta rule, of a model that projects to its inputs so."""

    def has(spec: ModelSpec, _part: ModelPart, layer: int | None) -> bool:
        delta = spec.delta
        if delta is None or layer not in delta.layers:
            return False
        return fused in (None, delta.fused) and fused_gates in (None, delta.fused_gates)

    return has


has_delta = _of_delta()


def _matrix(key: str, name: str, gguf: str, rows: str, when: Condition) -> Parameter:
    return layer_weight(key, f"linear_attn.{name}", gguf, rows, "hidden", when=when)


def _vector(key: str, name: str, gguf: str, length: str) -> Parameter:
    return Parameter(key, f"{_MIXER}.{name}", (length,), f"blk.{{layer}}.{gguf}", _of_delta())


ATTENTION = (
    layer_weight("q", "self_attn.q_proj", "attn_q", "query_and_gate", "hidden", when=attends),
    *(replace(each, when=attends) for each in (*tables.PROJECTIONS[1:], *tables.HEAD_NORMS)),
)
DELTA = (
    _matrix("delta_fused", "in_proj_qkvz", "ssm_in", "delta_fused", _of_delta(fused=True)),
    _matrix("delta_q", "q", "attn_qkv.q", "delta_key", _of_delta(fused=False)),
    _matrix("delta_k", "k", "attn_qkv.k", "delta_key", _of_delta(fused=False)),
    _matrix("delta_v", "v", "attn_qkv.v", "delta_value", _of_delta(fused=False)),
    _matrix("delta_z", "in_proj_z", "attn_gate", "delta_value", _of_delta(fused=False)),
    _matrix("delta_gates", "in_proj_ba", "ssm_ba", "delta_gates", _of_delta(fused_gates=True)),
    _matrix("delta_b", "in_proj_b", "ssm_beta", "delta_heads", _of_delta(fused_gates=False)),
    _matrix("delta_a", "in_proj_a", "ssm_alpha", "delta_heads", _of_delta(fused_gates=False)),
    _vector("conv_q", "conv_q.weight", "ssm_conv1d.q", "delta_key_taps"),
    _vector("conv_k", "conv_k.weight", "ssm_conv1d.k", "delta_key_taps"),
    _vector("conv_v", "conv_v.weight", "ssm_conv1d.v", "delta_value_taps"),
    _vector("decay_weight", "A_log", "ssm_a", "delta_heads"),
    _vector("decay_bias", "dt_bias", "ssm_dt.bias", "delta_heads"),
    _vector("delta_norm", "norm.weight", "ssm_norm.weight", "delta_width"),
    layer_weight("delta_o", "linear_attn.out_proj", "ssm_out", "hidden", "delta_value", when=_of_delta()),
)
PARAMETERS = (*tables.EMBEDDING_AND_HEAD, tables.INPUT_NORM, tables.POST_ATTENTION_NORM, *ATTENTION, *DELTA)


def read_folder(config: FolderConfig, spec: ModelSpec, *, fused: bool = False) -> ModelSpec:
    """The figures, those of layers with a gated delta rule among them. `fused`: how they project."""
    fields = config.fields
    fields.refuse_others({"attention_bias": False, "attn_output_gate": True})
    kinds = fields.texts("layer_types")
    if not kinds:
        period = fields.integer("full_attention_interval", 4)
        kinds = tuple("linear_attention" if (i + 1) % period else "full_attention" for i in range(spec.num_layers))
    if len(kinds) != spec.num_layers or not set(kinds) <= {"linear_attention", "full_attention"}:
        raise fields.wrong("layer_types", kinds, f"{spec.num_layers} values, each linear_attention or full_attention")
    heads, width = limits.MOST_HEADS, limits.MOST_HEAD_DIM
    delta = DeltaSpec(
        layers=tuple(layer for layer, kind in enumerate(kinds) if kind == "linear_attention"),
        key_heads=fields.integer("linear_num_key_heads", 16, maximum=heads),
        value_heads=fields.integer("linear_num_value_heads", 32, maximum=heads),
        key_width=fields.integer("linear_key_head_dim", 128, maximum=width),
        value_width=fields.integer("linear_value_head_dim", 128, maximum=width),
        taps=fields.integer("linear_conv_kernel_dim", 4, minimum=2, maximum=64) - 1,
        fused=fused,
        fused_gates=fused,
    )
    if delta.value_heads % delta.key_heads:
        raise fields.wrong("linear_num_value_heads", delta.value_heads, f"a multiple of {delta.key_heads} key heads")
    return with_delta(spec, delta)


def read_gguf(config: GgufConfig, spec: ModelSpec, *, reordered: bool, fused_gates: bool = False) -> ModelSpec:
    """The same of a GGUF file. `reordered`: its converter puts the value heads of a key head apart; `fused_gates`: it
    leaves b and a in one matrix.
    """
    fields, most = config.fields, limits.MOST_HEADS
    marked = config.marked_layers("attention.recurrent_layers")
    if marked is None:
        period = fields.integer("full_attention_interval", 4)
        marked = all_but_each(spec.num_layers, period)
    layers = tuple(layer for layer, recurrent in enumerate(marked) if recurrent)
    keys, values = fields.integer("ssm.group_count", maximum=most), fields.integer("ssm.time_step_rank", maximum=most)
    inner = fields.integer("ssm.inner_size", maximum=limits.MOST_INTERMEDIATE)
    if values % keys or inner % values or inner // values > limits.MOST_HEAD_DIM:
        wanted = f"a multiple of {values} value heads, which are a multiple of {keys} key heads"
        raise fields.wrong("ssm.inner_size", inner, wanted)
    delta = DeltaSpec(
        layers=layers,
        key_heads=keys,
        value_heads=values,
        key_width=fields.integer("ssm.state_size", maximum=limits.MOST_HEAD_DIM),
        value_width=inner // values,
        taps=fields.integer("ssm.conv_kernel", minimum=2, maximum=64) - 1,
        interleaved=reordered and values != keys,
        fused=any(f"{_MIXER}.in_proj_qkvz.weight".format(layer=layer) in config.tensors for layer in layers),
        fused_gates=fused_gates,
    )
    return with_delta(spec, delta)


def with_delta(spec: ModelSpec, delta: DeltaSpec) -> ModelSpec:
    """The figures of a model, some of whose layers keep a state in place of keys and values."""
    if not delta.layers:
        return spec
    channels = 2 * delta.key_size + delta.value_size
    state = LayerState(channels, delta.taps, delta.value_heads, delta.key_width, delta.value_width)
    kept = LayerKv(spec.num_kv_heads, spec.head_dim, spec.head_dim)
    layers = range(spec.num_layers)
    return replace(
        spec,
        delta=delta,
        layer_kv=tuple(None if n in delta.layers else spec.layer_kv[n] if spec.layer_kv else kept for n in layers),
        layer_states=tuple(state if layer in delta.layers else None for layer in layers),
        state_groups=delta.key_heads,
        dimensions={**spec.dimensions, "delta_width": delta.value_width},
    )


def split_tensors(tensors: Tensors, spec: ModelSpec) -> dict[str, TensorEntry]:
    """The tensors of a model, those for q, k and v of a delta net as an entry for each. CheckpointError for one of
    another shape.
    """
    delta = spec.delta
    if delta is None:
        return dict(tensors)
    channels = {"q": delta.key_size, "k": delta.key_size, "v": delta.value_size}
    found: dict[str, TensorEntry] = {}
    for name, entry in tensors.items():
        front = next((name.removesuffix(each) for each in (_QKV, _CONVOLUTION) if name.endswith(each)), None)
        if front is None:
            found[name] = entry
            continue
        total, width = sum(channels.values()), delta.taps + 1
        if name.endswith(_QKV):
            good, stem, each = len(entry.shape) == 2 and entry.shape[0] == total, "linear_attn.", 1
        else:
            good, stem, each = entry.shape in ((total, 1, width), (total, width)), "linear_attn.conv_", width
            entry = replace(entry, shape=(total * width,))
        if not good:
            wanted = f"{total} rows, of q, k and v" + (f", with {width} weights each" if each > 1 else "")
            raise damaged(entry.file, f"shape of {name}", seen=list(tensors[name].shape), wanted=wanted)
        ends = [0, channels["q"], channels["q"] + channels["k"], total]
        for part, (first, past) in zip(channels, pairwise(ends), strict=True):
            own = f"{front}{stem}{part}.weight"
            found[own] = rows_of(entry, own, first * each, (past - first) * each)
    return found


def convert_folder(tensors: Tensors, spec: ModelSpec) -> dict[str, TensorEntry]:
    """The tensors of a folder: norms of the trunk hold their weights less one, and decays are logarithms."""
    found = split_tensors(tensors, spec)
    for name, entry in found.items():
        if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
            found[name] = replace(entry, plus=1.0)
        elif name.endswith("linear_attn.A_log"):
            found[name] = replace(entry, function="negative_exponential")
    return found


def forward(ops: Ops, model: ForwardContext) -> Tensor:
    """Logits of the step's selected rows, or the rows for the next stage."""
    x = stage.enter(ops, model)
    rotation = attention.angles(ops, model.rope)
    for index, layer in enumerate(model.parameters.layers):
        h = stage.normed(ops, model, x, layer["input_norm"])
        if "q" in layer:
            inner, key = _gated_attention(ops, model, index, h, rotation), "o"
        else:
            inner, key = delta_net(ops, model, index, h), "delta_o"
        x = stage.add_mixed(ops, model, index, x, inner, key)
        x = mlp.feed_forward(ops, model, index, x)
    return stage.leave(ops, model, x)


def _gated_attention(ops: Ops, model: ForwardContext, index: int, h: Tensor, rotation: Tensor) -> Tensor:
    """Attention over the normed rows h, times sigmoid of a gate for each of its outputs. Of q's matrix each head's rows
    are followed by those of its gate.
    """
    layer, width = model.parameters.layers[index], model.spec.head_dim
    query, kv = (heads.count * width for heads in (model.part.heads, model.part.kv_heads))
    qkv = ops.linear(h, (layer["q"], layer["k"], layer["v"]), precision=attention.precision_of_scores(model.spec))
    both, k, v = ops.split(qkv, (2 * query, kv, kv))
    q, gate = ops.split(ops.regroup(both, (width, width)), (query, query))
    q = stage.normed(ops, model, q, layer["q_norm"])
    k = stage.normed(ops, model, k, layer["k_norm"])
    found = stage.select_last(ops, model, index, attention.attended(ops, model, index, (q, k, v), rotation))
    return ops.sigmoid_mul(found, stage.select_last(ops, model, index, gate))


def delta_net(ops: Ops, model: ForwardContext, index: int, h: Tensor) -> Tensor:
    """The gated delta rule over the normed rows h, normed head by head and gated by silu of z."""
    layer, delta, state = (
        model.parameters.layers[index],
        model.spec.delta,
        model.state_layers[model.part.layers.first + index],
    )
    assert delta is not None  # a layer has these parameters only where the figures say so
    heads = DeltaHeads(model.part.state_groups.count, delta.interleaved, delta.gain)
    qkv, z, b, a = _project(ops, delta, heads.key_heads, layer, h)
    convolution = (layer["conv_q"], layer["conv_k"], layer["conv_v"])
    qkv = ops.short_convolution(qkv, convolution, (), model.state, state, True)
    out = ops.delta_rule(qkv, b, a, layer["decay_weight"], layer["decay_bias"], model.state, state, heads)
    out, z = (stage.select_last(ops, model, index, x) for x in (out, z))
    return ops.norm_gated(out, layer["delta_norm"], z, delta.norm_epsilon or model.spec.norm_eps)


def _project(
    ops: Ops, delta: DeltaSpec, key_heads: int, layer: Layer, h: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k and v beside each other, z, b and a of the heads that are here."""
    each = delta.value_heads // delta.key_heads
    heads = key_heads * each
    value = heads * delta.value_width
    qkv = 2 * key_heads * delta.key_width + value
    keys = ("delta_fused",) if delta.fused else ("delta_q", "delta_k", "delta_v", "delta_z")
    gates = ("delta_gates",) if delta.fused_gates else ("delta_b", "delta_a")
    rows, ba = ops.split(ops.linear(h, [layer[key] for key in (*keys, *gates)]), (qkv + value, 2 * heads))
    if delta.fused:
        width = each * delta.value_width
        rows = ops.regroup(rows, (delta.key_width, delta.key_width, width, width))
    if delta.fused_gates:
        ba = ops.regroup(ba, (each, each))
    return (*ops.split(rows, (qkv, value)), *ops.split(ba, (heads, heads)))
