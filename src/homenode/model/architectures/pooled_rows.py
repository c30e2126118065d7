"""Attention to rows that are pooled from runs of tokens, beside those of a window of tokens (DeepSeek V4). One row is
key and value of all heads; it turns with its position, and what attention makes is turned back by the query's.

Pooled rows are kept in the KV memory with the tokens that the last one of their run is among, one of each run (see
`LayerKv.of_windows`), and what is still to be pooled as a state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from homenode.compute.ops import AttendedKeys, Ops, PooledKeys, ScoreRule, Tensor
from homenode.model.architectures import stage, tables
from homenode.model.architectures.hyper_connections import StreamMixing
from homenode.model.architectures.parameters import Condition, ForwardContext, Parameter, of_layer
from homenode.model.architectures.tables import layer_weight
from homenode.model.part import ModelPart
from homenode.model.spec import ModelSpec


@dataclass(frozen=True)
class DeepseekV4Spec:
    """`window`: tokens that every layer sees; `overlapping`: the layers whose windows overlap, which have an indexer;
    `hashed`: how many layers in front have experts that go by the token's id.
    """

    window: int
    overlapping: tuple[int, ...]
    hashed: int
    mixing: StreamMixing


_overlaps = of_layer(lambda spec, layer: layer in spec.own_as(DeepseekV4Spec).overlapping)


def _is_heavy(spec: ModelSpec, part: ModelPart, layer: int | None) -> bool:
    is_pooled = spec.pooled is not None and layer is not None and spec.pooled.ratios[layer] > 0
    return is_pooled and not _overlaps(spec, part, layer)


def _pooling(
    key: str, name: str, gguf: str, width: str, row: str, biases: str, when: Condition
) -> tuple[Parameter, ...]:
    """Return what windows are pooled by."""
    at = f"self_attn.{name}"
    return (
        layer_weight(f"{key}_values", f"{at}.kv_proj", f"{gguf}_kv", width, "hidden", when=when),
        layer_weight(f"{key}_gates", f"{at}.gate_proj", f"{gguf}_gate", width, "hidden", when=when),
        Parameter(
            f"{key}_biases",
            f"model.layers.{{layer}}.{at}.position_bias",
            (biases,),
            f"blk.{{layer}}.{gguf}_ape.weight",
            when,
        ),
        layer_weight(f"{key}_norm", f"{at}.kv_norm", f"{gguf}_norm", row, when=when),
    )


_AT, _INDEX = "model.layers.{layer}.self_attn.", "compressor.indexer"
PARAMETERS = (
    layer_weight("q_a", "self_attn.q_a_proj", "attn_q_a", "query_rank", "hidden"),
    layer_weight("q_a_norm", "self_attn.q_a_norm", "attn_q_a_norm", "query_rank"),
    layer_weight("q_b", "self_attn.q_b_proj", "attn_q_b", "query", "query_rank"),
    layer_weight("kv", "self_attn.kv_proj", "attn_kv", "head", "hidden"),
    layer_weight("kv_norm", "self_attn.kv_norm", "attn_kv_a_norm", "head"),
    tables.SINKS,
    *_pooling("heavy", "compressor", "attn_compressor", "head", "head", "heavy_biases", _is_heavy),
    *_pooling("sparse", "compressor", "attn_compressor", "two_heads", "head", "sparse_biases", _overlaps),
    *_pooling("index", _INDEX, "indexer_compressor", "two_index_keys", "index_key", "index_biases", _overlaps),
    layer_weight(
        "index_q", f"self_attn.{_INDEX}.q_b_proj", "indexer.attn_q_b", "index_query", "query_rank", when=_overlaps
    ),
    layer_weight(
        "index_weights",
        f"self_attn.{_INDEX}.scorer.weights_proj",
        "indexer.proj",
        "index_heads",
        "hidden",
        when=_overlaps,
    ),
    Parameter("o_a", _AT + "o_a.{group}.weight", ("output_rank", "group_query"), "blk.{layer}.attn_output_a.weight"),
    layer_weight("o_b", "self_attn.o_b_proj", "attn_output_b", "hidden", "output_ranks"),
)


@dataclass(frozen=True)
class PooledAngles:
    """cos and sin of a step in a layer: of a token, back again, and of the first token of a run that ends with it."""

    to: Tensor
    back: Tensor
    first: Tensor


def angles_of_layers(ops: Ops, model: ForwardContext) -> dict[int, PooledAngles]:
    """Return of each layer of this stage by its index: those with pooled rows have a rope of their own."""
    pooled, made = model.spec.pooled, dict[int, PooledAngles]()
    assert pooled is not None
    of_layers = [pooled.ratios[layer] for layer in range(model.part.layers.first, model.part.layers.end)]
    for ratio in sorted(set(of_layers)):
        rope = model.rope if ratio else model.rope.local
        assert rope is not None
        turn, scale = rope.inverse_frequencies, rope.scale
        to, back = ops.rope_angles(turn, scale), ops.rope_angles(-turn, scale)
        made[ratio] = PooledAngles(to, back, ops.rope_angles(turn, scale, ratio - 1) if ratio else to)
    return {index: made[ratio] for index, ratio in enumerate(of_layers)}


def _turned(ops: Ops, x: Tensor, angles: Tensor, heads: int, head_dim: int, rotary: int) -> Tensor:
    """x with the last `rotary` elements of each head rotated, neighbours together, every element where it was."""
    if rotary < head_dim:
        plain, turning = ops.split(
            ops.regroup(x, (head_dim - rotary, rotary)), (heads * (head_dim - rotary), heads * rotary)
        )
    else:
        plain, turning = None, x
    halves = ops.rope(turning, angles, rotary, True)
    pairs = ops.regroup(ops.regroup(halves, (1,) * (rotary // 2)), (2,) * heads)
    return pairs if plain is None else ops.join_heads(plain, pairs, heads)


def _pooled(
    ops: Ops, model: ForwardContext, index: int, h: Tensor, rank: Tensor, how: PooledAngles, rotary: int
) -> PooledKeys | None:
    """Return what layer `index` of this stage attends to beside tokens. h: its normed rows; `rank`: what queries are
    of.
    """
    layer, spec, number = model.parameters.layers[index], model.spec, model.part.layers.first + index
    if spec.pooled is None or not (ratio := spec.pooled.ratios[number]):
        return None
    overlaps = number in spec.own_as(DeepseekV4Spec).overlapping
    keys, widths = (("sparse", "index") if overlaps else ("heavy",)), [spec.head_dim]
    if overlaps:
        assert spec.indexer is not None
        widths.append(spec.indexer.width)
    made = ops.linear(h, [layer[f"{key}_{part}"] for key in keys for part in ("values", "gates")], precision="fine")
    biases, state = [layer[f"{key}_biases"] for key in keys], model.state_layers[number]
    rows = ops.pool_windows(made, biases, model.state, state, ratio, widths, overlaps)
    place, chosen = spec.pooled_layers(model.part.layers.first, model.part.layers.end)[number], None
    if overlaps:
        assert spec.indexer is not None
        rows, key = ops.split(rows, widths)
        heads, width = spec.indexer.heads, spec.indexer.width
        key = _turned(ops, stage.normed(ops, model, key, layer["index_norm"]), how.first, 1, width, rotary)
        query = _turned(ops, ops.linear(rank, (layer["index_q"],)), how.to, heads, width, rotary)
        weights = ops.linear(h, (layer["index_weights"],))
        chosen = ops.choose_tokens(
            query, weights, key, model.cache, model.index_layers[number], spec.indexer.chosen, ratio
        )
    norm = layer["sparse_norm" if overlaps else "heavy_norm"]
    rows = _turned(ops, stage.normed(ops, model, rows, norm), how.first, 1, spec.head_dim, rotary)
    return PooledKeys(rows, place, ratio, chosen)


def attended(ops: Ops, model: ForwardContext, index: int, h: Tensor, of_layers: Mapping[int, PooledAngles]) -> Tensor:
    """Return what the attention of layer `index` of this stage makes of its normed rows h; of the model's last layer
    the selected rows only. Ranks divide the query heads; rows, and what of them is chosen, are with each. `of_layers`:
    see `angles_of_layers`.
    """
    how = of_layers[index]
    layer, spec, heads, head = model.parameters.layers[index], model.spec, model.part.heads.count, model.spec.head_dim
    rotary = 2 * len(model.rope.inverse_frequencies)
    made = ops.linear(h, (layer["q_a"], layer["kv"]), precision="fine")
    rank, row = ops.split(made, (spec.dimensions["query_rank"], head))
    rank = stage.normed(ops, model, rank, layer["q_a_norm"])
    q = ops.rms_norm(ops.linear(rank, (layer["q_b"],), precision="fine"), head, spec.norm_eps)
    q = _turned(ops, q, how.to, heads, head, rotary)
    row = _turned(ops, stage.normed(ops, model, row, layer["kv_norm"]), how.to, 1, head, rotary)
    pooled = _pooled(ops, model, index, h, rank, how, rotary)
    place = model.cache_layers[model.part.layers.first + index]
    rule = ScoreRule(head**-0.5, spec.own_as(DeepseekV4Spec).window, sinks=layer["sinks"])
    found = ops.attention(q, row, None, model.cache, place, rule, AttendedKeys(head, pooled=pooled))
    found = stage.select_last(ops, model, index, _turned(ops, found, how.back, heads, head, rotary))
    return stage.over_ranks(ops, model, ops.linear(ops.linear_heads(found, layer["o_a"]), (layer["o_b"],)))
