"""Latent attention (MLA; DeepSeek-AI 2024): of a token the KV memory keeps one row for all heads, its normed latent and
a key that is rotated by its position.

Attention is always absorbed: a query is multiplied with its head's key matrix, so that its product with the latent is
the score, and the weighted latents with its head's value matrix. A token that is computed again has the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from homenode.compute.ops import AttendedKeys, LayerKv, Ops, ScoreRule, Tensor
from homenode.errors import UnsupportedError
from homenode.model.architectures import attention, mlp, stage, tables, token_indexer
from homenode.model.architectures.architecture import GgufFormat, always
from homenode.model.architectures.parameters import ForwardContext, Parameter, of_model
from homenode.model.architectures.stage import Layer
from homenode.model.architectures.tables import layer_weight
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats import limits
from homenode.model.formats.bounded_files import damaged
from homenode.model.formats.fields import Fields
from homenode.model.formats.tensor_parts import columns_of, rows_of, slice_of, transposed
from homenode.model.spec import ModelSpec, TensorEntry, Tensors
from homenode.units import format_count

_BOTH = "attn_kv_b.weight"
NORM_EPSILON = 1e-6  # of the norms of latents, whatever that of others is
INDEXED = "indexed_attention"  # in layer_types: the class attends to the tokens that an indexer chooses
_IN_LAYER = "model.layers.{layer}.self_attn."


@dataclass(frozen=True)
class LatentHeads:
    """`plain` and `rotary`: elements of a head's query and key without and with a position; `value`: of its value.
    `latent`: elements that a token's keys and values are made of. `query_rank`: elements that its queries are made of;
    0: they are made of its row. `adjacent`: pairs that turn are neighbours. `growth`: queries are multiplied by 1 +
    growth * ln(1 + floor(position / growth_length)).
    """

    query_rank: int
    latent: int
    plain: int
    rotary: int
    value: int
    adjacent: bool = True
    growth: float = 0.0
    growth_length: int = 0

    @property
    def row(self) -> int:
        """Elements that the KV memory keeps of a token."""
        return self.latent + self.rotary


def heads_of(spec: ModelSpec) -> LatentHeads:
    """Return those of a model with latent attention."""
    return spec.own_as(LatentHeads)


_has_query_rank = of_model(lambda spec: heads_of(spec).query_rank > 0)
_has_no_query_rank = of_model(lambda spec: not heads_of(spec).query_rank)
PARAMETERS = (
    tables.INPUT_NORM,
    layer_weight("q", "self_attn.q_proj", "attn_q", "latent_query", "hidden", when=_has_no_query_rank),
    layer_weight("q_a", "self_attn.q_a_proj", "attn_q_a", "query_rank", "hidden", when=_has_query_rank),
    layer_weight("q_a_norm", "self_attn.q_a_layernorm", "attn_q_a_norm", "query_rank", when=_has_query_rank),
    layer_weight("q_b", "self_attn.q_b_proj", "attn_q_b", "latent_query", "query_rank", when=_has_query_rank),
    layer_weight("kv_a", "self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa", "latent_row", "hidden"),
    layer_weight("kv_a_norm", "self_attn.kv_a_layernorm", "attn_kv_a_norm", "latent"),
    Parameter("k_b", _IN_LAYER + "k_b.{head}.weight", ("latent", "plain_key"), "blk.{layer}.attn_k_b.weight"),
    Parameter("v_b", _IN_LAYER + "v_b.{head}.weight", ("head_value", "latent"), "blk.{layer}.attn_v_b.weight"),
    layer_weight("o", "self_attn.o_proj", "attn_output", "hidden", "latent_value"),
)
GGUF_NAMES: Mapping[str, str] = {
    f"blk.{{layer}}.{name}.weight": f"{_IN_LAYER}{name}.weight" for name in ("attn_k_b", "attn_v_b", "attn_kv_b")
}
FIELDS = frozenset(
    "hidden_act attention_bias q_lora_rank kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim "
    "rope_interleave".split()
)
KEYS = frozenset(
    (
        "attention.q_lora_rank",
        "attention.kv_lora_rank",
        "attention.key_length_mla",
        "attention.value_length_mla",
        "attention.temperature_scale",
        "attention.temperature_length",
    )
)


def read_folder(config: FolderConfig, defaults: Defaults, heads: LatentHeads) -> ModelSpec:
    """The figures in config.json but for the experts. `heads`: what the class takes them to be where it does not
    say.
    """
    fields = config.fields
    if set(fields.texts("layer_types")) != {INDEXED}:
        config.refuse_other_layers(window=None)
    fields.refuse_others({"attention_bias": False})

    def length(key: str, default: int) -> int:
        return fields.integer(key, default, maximum=limits.MOST_HEAD_DIM)

    has_rank = not fields.is_null("q_lora_rank") and (fields.has("q_lora_rank") or heads.query_rank)
    heads = LatentHeads(
        fields.integer("q_lora_rank", heads.query_rank or None, maximum=limits.MOST_HIDDEN) if has_rank else 0,
        length("kv_lora_rank", heads.latent),
        length("qk_nope_head_dim", heads.plain),
        length("qk_rope_head_dim", heads.rotary),
        length("v_head_dim", heads.value),
        fields.boolean("rope_interleave", True),
    )
    spec = with_heads(config.decoder(replace(defaults, head_dim=heads.rotary), rotates_part=True), heads)
    table = config.rope_table
    all_dimensions = table.optional_number("mscale_all_dim", least=0.0) if table is not None else None
    return spec if spec.rope.kind != "yarn" else _with_magnitude(spec, 0.1 * (all_dimensions or 0.0))


def read_gguf(config: GgufConfig, *, value: int | None = None, layers_differ: bool = False) -> ModelSpec:
    """The figures in a GGUF file but for the experts. `value`: elements of a head's value, where it does not say.
    `layers_differ`: some layers have no attention.
    """
    fields = config.fields
    # Files of before 2025-04 have the lengths of whole heads under the names of other architectures
    suffix = "_mla" if fields.has("attention.key_length_mla") else ""
    rotary = fields.integer("rope.dimension_count", maximum=limits.MOST_HEAD_DIM)
    key = fields.integer(f"attention.key_length{suffix}", minimum=rotary + 1, maximum=limits.MOST_HEAD_DIM)
    heads = LatentHeads(
        fields.integer("attention.q_lora_rank", 0, minimum=0, maximum=limits.MOST_HIDDEN),
        fields.integer("attention.kv_lora_rank", maximum=limits.MOST_HEAD_DIM - rotary),
        key - rotary,
        rotary,
        fields.integer(f"attention.value_length{suffix}", value, maximum=limits.MOST_HEAD_DIM),
    )
    figures = config.decoder(head_dim=heads.row, own_scale=True, own_magnitude=True, layers_differ=layers_differ)
    spec = with_heads(figures, heads)
    if growth := fields.number("attention.temperature_scale", 0.0, least=0.0):
        length = fields.optional_integer("attention.temperature_length", maximum=limits.MOST_POSITION)
        spec = with_growth(spec, growth, length or spec.rope.original_max_position)
    if spec.rope.kind != "yarn":
        return spec
    spec = replace(spec, rope=replace(spec.rope, attention_factor=1.0))  # a file keeps no other
    return _with_magnitude(spec, fields.number("rope.scaling.yarn_log_multiplier", 0.0, least=0.0))


def gguf_format(
    name: str,
    read: Callable[[GgufConfig], ModelSpec],
    accepts: Callable[[Fields], bool] = always,
    more_keys: frozenset[str] = frozenset(),
) -> GgufFormat:
    """Files with this `general.architecture` that `accepts` takes. `more_keys`: that `read` asks for besides."""
    return GgufFormat(name, read, accepts=accepts, keys=KEYS | more_keys, names=GGUF_NAMES, convert=split_gguf_heads)


def with_heads(spec: ModelSpec, heads: LatentHeads) -> ModelSpec:
    """`spec` of a model with these heads: one row of the KV memory is for all of them."""
    if heads.row > limits.MOST_HEAD_DIM:
        raise UnsupportedError(
            f"a latent of {heads.latent} with {heads.rotary} rotated elements is not supported; homenode keeps rows of "
            f"at most {limits.MOST_HEAD_DIM}"
        )
    return replace(
        spec,
        num_kv_heads=1,
        head_dim=heads.row,
        rope=replace(spec.rope, rotary_dim=heads.rotary),
        attention_scale=(heads.plain + heads.rotary) ** -0.5,
        own=heads,
        layer_kv=(LayerKv(1, heads.row, 0, heads.latent),) * spec.num_layers,
        dimensions={
            "query_rank": heads.query_rank,
            "latent": heads.latent,
            "latent_row": heads.row,
            "plain_key": heads.plain,
            "head_value": heads.value,
        },
        head_widths={"latent_query": heads.plain + heads.rotary, "latent_value": heads.value},
    )


def with_growth(spec: ModelSpec, growth: float, length: int | None) -> ModelSpec:
    """`spec` with queries that grow so; `length` None: as long as the longest context."""
    return replace(
        spec, own=replace(heads_of(spec), growth=growth, growth_length=length or spec.max_position if growth else 0)
    )


def _with_magnitude(spec: ModelSpec, log_multiplier: float) -> ModelSpec:
    """YaRN also scales scores, by the square of a magnitude that grows with the logarithm of its factor."""
    magnitude = 1.0 if spec.rope.factor <= 1 else log_multiplier * math.log(spec.rope.factor) + 1.0
    assert spec.attention_scale is not None
    return replace(spec, attention_scale=spec.attention_scale * magnitude**2)


def split_folder_heads(tensors: Tensors, spec: ModelSpec, matrix: str = "kv_b_proj.weight") -> dict[str, TensorEntry]:
    """The matrices of each head out of `matrix`, whose rows are, head after head, those of its keys and its values."""
    own, found = heads_of(spec), {}
    for name, entry in tensors.items():
        module, of_heads, _ = name.partition(matrix)
        if not of_heads:
            found[name] = entry
            continue
        both = own.plain + own.value
        if entry.shape != (spec.num_heads * both, own.latent):
            wanted = f"{format_count(spec.num_heads, 'head')} of {format_count(both, 'row')}, {own.latent} columns"
            raise damaged(entry.file, f"shape of {name}", seen=list(entry.shape), wanted=wanted)
        turned = transposed(entry, name)
        for head in range(spec.num_heads):
            keys, values = f"{module}k_b.{head}.weight", f"{module}v_b.{head}.weight"
            found[keys] = columns_of(turned, keys, head * both, own.plain)
            found[values] = rows_of(entry, values, head * both + own.plain, own.value)
    return found


def split_gguf_heads(tensors: Tensors, spec: ModelSpec) -> dict[str, TensorEntry]:
    """The matrices of each head out of the stacks of a GGUF file, whose key matrices are turned already; or, in files
    of before 2025-04, out of one matrix, which some have beside the stacks.
    """
    found = {}
    for name, entry in tensors.items():
        if name.endswith(_BOTH) and name.removesuffix(_BOTH) + "attn_k_b.weight" in tensors:
            continue
        module, stack, _ = name.partition("attn_k_b.weight" if name.endswith("attn_k_b.weight") else "attn_v_b.weight")
        if not stack:
            found[name] = entry
            continue
        if len(entry.shape) != 3 or entry.shape[0] != spec.num_heads:
            wanted = f"a matrix for each of {format_count(spec.num_heads, 'head')}"
            raise damaged(entry.file, f"shape of {name}", seen=list(entry.shape), wanted=wanted)
        for head in range(spec.num_heads):
            own = f"{module}{stack.removeprefix('attn_').removesuffix('.weight')}.{head}.weight"
            found[own] = slice_of(entry, head, own)
    return split_folder_heads(found, spec, _BOTH)


def attend(
    ops: Ops, model: ForwardContext, index: int, x: Tensor, rotation: Tensor | None, chosen: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """x plus the attention of layer `index` of this stage, projected; of the model's last layer the selected rows only.
    And the tokens it was over, None: all; where the layer has no indexer they are `chosen`, those of the layer before.
    Without `rotation` nothing turns.
    """
    layer, own, heads = model.parameters.layers[index], heads_of(model.spec), model.part.heads.count
    h = stage.normed(ops, model, x, layer["input_norm"])
    q, row, rank = _project(ops, model, layer, h)
    if "index_q" in layer:
        assert rank is not None and rotation is not None  # a model with an indexer makes its queries of one
        chosen = token_indexer.choose(ops, model, index, h, rank, rotation)
    if own.growth:
        q = ops.scale_by_position(q, own.growth, own.growth_length)
    latent, key = ops.split(row, (own.latent, own.rotary))
    latent = ops.rms_norm(latent, layer["kv_a_norm"], NORM_EPSILON)
    key = ops.join_heads(latent, _turned(ops, own, key, rotation), 1)
    plain, turned = ops.split(ops.regroup(q, (own.plain, own.rotary)), (heads * own.plain, heads * own.rotary))
    query = ops.join_heads(ops.linear_heads(plain, layer["k_b"]), _turned(ops, own, turned, rotation), heads)
    assert model.spec.attention_scale is not None
    place = model.cache_layers[model.part.layers.first + index]
    rule, attended = ScoreRule(model.spec.attention_scale), AttendedKeys(own.latent, chosen)
    latents = ops.attention(query, key, None, model.cache, place, rule, attended)
    inner = ops.linear_heads(stage.select_last(ops, model, index, latents), layer["v_b"])
    return stage.add_mixed(ops, model, index, x, inner, "o"), chosen


def _turned(ops: Ops, own: LatentHeads, x: Tensor, rotation: Tensor | None) -> Tensor:
    return x if rotation is None else ops.rope(x, rotation, own.rotary, own.adjacent)


def _project(ops: Ops, model: ForwardContext, layer: Layer, h: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Queries of the heads that are here, and the row that is kept of the token, neither rotated; and what the queries
    are made of, None where that is h.
    """
    own = heads_of(model.spec)
    if not own.query_rank:
        q, row = ops.split(
            ops.linear(h, (layer["q"], layer["kv_a"])), (model.part.heads.count * (own.plain + own.rotary), own.row)
        )
        return q, row, None
    rank, row = ops.split(ops.linear(h, (layer["q_a"], layer["kv_a"])), (own.query_rank, own.row))
    rank = ops.rms_norm(rank, layer["q_a_norm"], NORM_EPSILON)
    return ops.linear(rank, (layer["q_b"],)), row, rank


def forward(ops: Ops, model: ForwardContext) -> Tensor:
    """Logits of the step's selected rows, or the rows for the next stage."""
    x = stage.enter(ops, model)
    rotation, chosen = attention.angles(ops, model.rope), None
    for index in range(len(model.parameters.layers)):
        x, chosen = attend(ops, model, index, x, rotation, chosen)
        x = mlp.feed_forward(ops, model, index, x)
    return stage.leave(ops, model, x)
