"""Pieces that most decoders share: lines of a parameter table, parts of a forward function on `Ops`, and conversions of
stored tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from homenode.compute.ops import Experts, FloatArray, Ops, Precision, Tensor
from homenode.model.architectures.parameters import Condition, ForwardContext, Parameter, always
from homenode.model.architectures.rope import Rope
from homenode.model.formats.reading import damaged
from homenode.model.part import IndexRange, ModelPart
from homenode.model.spec import ModelSpec, TensorEntry
from homenode.units import format_count

Layer = Mapping[str, Any]
Tensors = Mapping[str, TensorEntry]


def has_embedding(spec: ModelSpec, part: ModelPart, _layer: int | None) -> bool:
    """The part looks up tokens, or multiplies with the table of a tied model."""
    return part.first_stage or (part.last_stage and spec.tie_word_embeddings and spec.pooling is None)


def has_output(_spec: ModelSpec, part: ModelPart, _layer: int | None) -> bool:
    """The part computes logits, or the rows that vectors are made of."""
    return part.last_stage


def has_output_matrix(spec: ModelSpec, part: ModelPart, _layer: int | None) -> bool:
    """The part computes logits with a matrix of their own."""
    return part.last_stage and not spec.tie_word_embeddings and spec.pooling is None


def has_qkv_biases(spec: ModelSpec, _part: ModelPart, _layer: int | None) -> bool:
    """q, k and v have biases."""
    return spec.attention_bias


def has_output_bias(spec: ModelSpec, _part: ModelPart, _layer: int | None) -> bool:
    """o has a bias."""
    return spec.output_bias


def has_mlp_biases(spec: ModelSpec, _part: ModelPart, _layer: int | None) -> bool:
    """The matrices of the MLP have biases."""
    return spec.mlp_bias


def has_experts(spec: ModelSpec, _part: ModelPart, layer: int | None) -> bool:
    """The layer has experts."""
    return spec.moe is not None and layer not in spec.moe.dense_layers


def has_shared_expert(spec: ModelSpec, part: ModelPart, layer: int | None) -> bool:
    """The layer has experts, and one that every token uses."""
    return has_experts(spec, part, layer) and spec.moe is not None and spec.moe.shared_intermediate_size > 0


def has_mlp(spec: ModelSpec, part: ModelPart, layer: int | None) -> bool:
    """The layer has an MLP."""
    return not has_experts(spec, part, layer)


def layer_weight(key: str, name: str, gguf: str, *shape: str, when: Condition = always) -> Parameter:
    """A matrix or a norm that every layer has: its names within a layer, in Hugging Face folders and in GGUF files."""
    return Parameter(key, f"model.layers.{{layer}}.{name}.weight", shape, f"blk.{{layer}}.{gguf}.weight", when)


def layer_bias(key: str, name: str, gguf: str, length: str, when: Condition) -> Parameter:
    """The bias of a matrix that every layer has."""
    return Parameter(key, f"model.layers.{{layer}}.{name}.bias", (length,), f"blk.{{layer}}.{gguf}.bias", when)


def gated_matrices(key: str, name: str, gguf: str, inner: str, when: Condition) -> tuple[Parameter, ...]:
    """Gate, up and down of experts with so many inner columns."""
    shapes = {"gate": (inner, "hidden"), "up": (inner, "hidden"), "down": ("hidden", inner)}
    return tuple(
        layer_weight(f"{key}_{part}", f"{name}.{part}_proj", f"ffn_{part}_{gguf}", *shape, when=when)
        for part, shape in shapes.items()
    )


EMBEDDING_AND_HEAD = (
    Parameter("embed", "model.embed_tokens.weight", ("vocabulary", "hidden"), "token_embd.weight", has_embedding),
    Parameter("norm", "model.norm.weight", ("hidden",), "output_norm.weight", has_output),
    Parameter("lm_head", "lm_head.weight", ("vocabulary", "hidden"), "output.weight", has_output_matrix),
)
PROJECTIONS = (
    layer_weight("q", "self_attn.q_proj", "attn_q", "query", "hidden"),
    layer_weight("k", "self_attn.k_proj", "attn_k", "kv", "hidden"),
    layer_weight("v", "self_attn.v_proj", "attn_v", "kv", "hidden"),
    layer_weight("o", "self_attn.o_proj", "attn_output", "hidden", "query"),
)
# With a norm over all of q, and one over all of k, which every rank computes whole
PROJECTIONS_NORMED_WHOLE = (
    PROJECTIONS[0],
    layer_weight("k", "self_attn.k_proj", "attn_k", "all_kv", "hidden"),
    *PROJECTIONS[2:],
    layer_weight("q_norm", "self_attn.q_norm", "attn_q_norm", "all_query"),
    layer_weight("k_norm", "self_attn.k_norm", "attn_k_norm", "all_kv"),
)
ATTENTION = (layer_weight("input_norm", "input_layernorm", "attn_norm", "hidden"), *PROJECTIONS)
HEAD_NORMS = (
    layer_weight("q_norm", "self_attn.q_norm", "attn_q_norm", "head"),
    layer_weight("k_norm", "self_attn.k_norm", "attn_k_norm", "head"),
)
QKV_BIASES = (
    layer_bias("q_bias", "self_attn.q_proj", "attn_q", "query", when=has_qkv_biases),
    layer_bias("k_bias", "self_attn.k_proj", "attn_k", "kv", when=has_qkv_biases),
    layer_bias("v_bias", "self_attn.v_proj", "attn_v", "kv", when=has_qkv_biases),
)
OUTPUT_BIAS = (layer_bias("o_bias", "self_attn.o_proj", "attn_output", "hidden", when=has_output_bias),)
POST_NORM = (layer_weight("post_norm", "post_attention_layernorm", "ffn_norm", "hidden"),)
GATE_UP_DOWN = (
    layer_weight("gate", "mlp.gate_proj", "ffn_gate", "intermediate", "hidden", when=has_mlp),
    layer_weight("up", "mlp.up_proj", "ffn_up", "intermediate", "hidden", when=has_mlp),
    layer_weight("down", "mlp.down_proj", "ffn_down", "hidden", "intermediate", when=has_mlp),
)
GATED_MLP = (*POST_NORM, *GATE_UP_DOWN)
MLP_BIASES = (
    layer_bias("gate_bias", "mlp.gate_proj", "ffn_gate", "intermediate", when=has_mlp_biases),
    layer_bias("up_bias", "mlp.up_proj", "ffn_up", "intermediate", when=has_mlp_biases),
    layer_bias("down_bias", "mlp.down_proj", "ffn_down", "hidden", when=has_mlp_biases),
)
EXPERTS = (
    layer_weight("router", "mlp.gate", "ffn_gate_inp", "experts", "hidden", when=has_experts),
    *gated_matrices("expert", "mlp.experts.{expert}", "exps", "expert_intermediate", has_experts),
)
CHOICE_BIAS = Parameter(  # of experts, used for the choice only
    "choice_bias",
    "model.layers.{layer}.mlp.gate.e_score_correction_bias",
    ("experts",),
    "blk.{layer}.exp_probs_b.bias",
    has_experts,
)
SHARED_EXPERTS = gated_matrices(  # added as they are, for every token
    "shared", "mlp.shared_experts", "shexp", "shared_intermediate", has_shared_expert
)


def enter(ops: Ops, model: ForwardContext) -> Tensor:
    """The rows that the first of this stage's layers begins with: from the embedding table, or from the
    stage before.
    """
    return embedded(ops, model) if model.part.first_stage else ops.received(model.spec.handed_columns)


def embedded(ops: Ops, model: ForwardContext) -> Tensor:
    """The rows of the embedding table for the step's tokens, scaled as the model has it."""
    part, scale = model.part, model.spec.embedding_scale
    table = model.parameters.top["embed"]
    if part.ranks == 1:
        x = ops.embedding(table)
    else:
        x = ops.sum(ops.embedding(table, part.vocabulary.first, model.spec.vocab_size))
    return x if scale == 1.0 else ops.scale(x, scale)


def angles(ops: Ops, rope: Rope) -> Tensor:
    """cos and sin of the step's positions, used by every layer with this rope."""
    return ops.rope_angles(rope.inverse_frequencies, rope.scale)


def rotation_by_layer(ops: Ops, model: ForwardContext) -> Callable[[int], Tensor]:
    """cos and sin for a layer of this stage, by its index: layers with a window may have a rope of their own."""
    far = angles(ops, model.rope)
    near = angles(ops, model.rope.local) if model.rope.local else far
    return lambda index: far if window(model, index) is None else near


def normed(ops: Ops, model: ForwardContext, x: Tensor, weight: Tensor) -> Tensor:
    """x through an RMS norm over each run of as many columns as `weight` has: a whole row, or each head of one."""
    return ops.rms_norm(x, weight, model.spec.rms_norm_eps)


def precision_of_scores(spec: ModelSpec) -> Precision:
    """That of the products which queries and keys come from. Scores go into exponents, where what bfloat16 takes from
    an activation counts most, and in a mixture a row that differs by little may choose other experts.
    """
    return "usual" if spec.moe is None else "fine"


def project_qkv(ops: Ops, model: ForwardContext, layer: Layer, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """h through the three projections: q [tokens, query], k and v [tokens, kv] of the heads that are here, not yet
    rotated. For models whose layers have heads alike.
    """
    spec, part = model.spec, model.part
    biases = (layer.get("q_bias"), layer.get("k_bias"), layer.get("v_bias"))
    qkv = ops.linear(h, (layer["q"], layer["k"], layer["v"]), biases, precision=precision_of_scores(spec))
    kv = part.kv_heads.count * spec.head_dim
    q, k, v = ops.split(qkv, (part.heads.count * spec.head_dim, kv, kv))
    return q, k, v


def project_qkv_normed_whole(
    ops: Ops, model: ForwardContext, layer: Layer, h: Tensor, norm: Callable[[str, Tensor], Tensor] | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The same with `PROJECTIONS_NORMED_WHOLE`: all of q, brought together over the ranks, through a norm, and all of
    k, which is with every rank. `norm`: by the key of its weight; None: an RMS norm.
    """
    spec, part = model.spec, model.part
    biases = (layer.get("q_bias"), layer.get("k_bias"), layer.get("v_bias"))
    qkv = ops.linear(h, (layer["q"], layer["k"], layer["v"]), biases, precision=precision_of_scores(spec))
    heads, kv = part.heads, part.kv_heads
    q, k, v = ops.split(qkv, [count * spec.head_dim for count in (heads.count, spec.num_kv_heads, kv.count)])
    if part.ranks > 1:
        q = ops.gather(q, [count * spec.head_dim for count in part.head_counts])
    if norm is None:
        q, k = normed(ops, model, q, layer["q_norm"]), normed(ops, model, k, layer["k_norm"])
    else:
        q, k = norm("q_norm", q), norm("k_norm", k)
    of_heads = ((q, heads, spec.num_heads), (k, kv, spec.num_kv_heads))
    q, k = (columns_of(ops, x, here, count, spec.head_dim) for x, here, count in of_heads)
    return q, k, v


def columns_of(ops: Ops, x: Tensor, heads: IndexRange, count: int, head_dim: int) -> Tensor:
    """Those of some heads of x, which has `count`."""
    widths = [n * head_dim for n in (heads.first, heads.count, count - heads.end) if n]
    return ops.split(x, widths)[1 if heads.first else 0]


def attend(
    ops: Ops, model: ForwardContext, index: int, x: Tensor, qkv: tuple[Tensor, Tensor, Tensor], rotation: Tensor | None
) -> Tensor:
    """x plus the attention of layer `index` of this stage, projected; of the model's last layer the selected
    rows only.
    """
    layer = model.parameters.layers[index]
    inner = select_last(ops, model, index, attended(ops, model, index, qkv, rotation))
    if model.part.adds_residual:
        x = select_last(ops, model, index, x)
    return project_out(ops, model, inner, layer["o"], layer.get("o_bias"), x)


def select_last(ops: Ops, model: ForwardContext, index: int, x: Tensor) -> Tensor:
    """After the attention of the model's last layer the rows that the step samples, as nothing reads the others. In
    other layers all of x.
    """
    return ops.select(x) if model.part.layers.first + index == model.spec.num_layers - 1 else x


def attended(
    ops: Ops,
    model: ForwardContext,
    index: int,
    qkv: tuple[Tensor, Tensor, Tensor],
    rotation: Tensor | None,
    slopes: FloatArray | None = None,
) -> Tensor:
    """What layer `index` of this stage attends to: rotate q and k, attend over the cache, within the layer's window, if
    any. `rotation`: None where q and k are rotated already.
    """
    spec = model.spec
    q, k, v = qkv if rotation is None else rotated(ops, model, index, qkv, rotation)
    sinks = model.parameters.layers[index].get("sinks")
    scale = spec.head_dim**-0.5 if spec.attention_scale is None else spec.attention_scale
    where = model.cache_layers[model.part.layers.first + index]
    seen, cap = window(model, index), spec.attention_softcap
    kinds: Any = {"window_kind": spec.window_kind, "mask": spec.attention_mask}
    return ops.attention(q, k, v, model.cache, where, scale, seen, cap, sinks=sinks, slopes=slopes, **kinds)


def rotated(
    ops: Ops,
    model: ForwardContext,
    index: int,
    qkv: tuple[Tensor, Tensor, Tensor],
    rotation: Tensor,
    *,
    adjacent: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v, each head of q and k rotated where layer `index` of this stage has rope. `adjacent`: the elements
    that turn together are neighbours.
    """
    if not model.spec.has_rope(model.part.layers.first + index):
        return qkv
    q, k, v = qkv
    q, k = (ops.rope(x, rotation, model.spec.head_dim, adjacent) for x in (q, k))
    return q, k, v


def gated_mlp(ops: Ops, model: ForwardContext, layer: Layer, x: Tensor) -> Tensor:
    """x plus down(silu(gate(h)) * up(h)), h being normed x."""
    h = normed(ops, model, x, layer["post_norm"])
    return project_out(ops, model, gated(ops, layer, h), layer["down"], layer.get("down_bias"), x)


def gated(ops: Ops, layer: Layer, h: Tensor) -> Tensor:
    """silu(gate(h)) * up(h), the inner columns of an MLP."""
    gate_up = ops.linear(h, (layer["gate"], layer["up"]), (layer.get("gate_bias"), layer.get("up_bias")))
    return ops.silu_mul(gate_up)


def feed_forward(ops: Ops, model: ForwardContext, index: int, x: Tensor) -> Tensor:
    """x plus what follows attention in layer `index` of this stage: a mixture of experts (MoE) of normed x,
    or an MLP.
    """
    layer = model.parameters.layers[index]
    if "router" not in layer:
        return gated_mlp(ops, model, layer, x)
    return mixture(ops, model, index, normed(ops, model, x, layer["post_norm"]), x)


def mixture(ops: Ops, model: ForwardContext, index: int, h: Tensor, x: Tensor | None) -> Tensor:
    """x (or 0) plus what the experts of layer `index` of this stage make of h, the one that every token uses among
    them.
    """
    layer, moe = model.parameters.layers[index], model.spec.moe
    logits = ops.linear(h, (layer["router"],), (layer["router_bias"],) if "router_bias" in layer else ())
    rows = ops.gate_by_largest(h, logits) if moe is not None and moe.weighted == "input" else h
    if x is not None and model.part.adds_residual:
        x = add_experts(ops, model, index, rows, logits, _add_shared_expert(ops, model, layer, h, x))
    else:
        x = _add_shared_expert(ops, model, layer, h, add_experts(ops, model, index, rows, logits, None))
    return over_ranks(ops, model, x)


def add_experts(
    ops: Ops, model: ForwardContext, index: int, h: Tensor, logits: Tensor, residual: Tensor | None
) -> Tensor:
    """residual (or 0) plus what the experts of layer `index` of this stage that are here make of h, by the router's
    logits. Ranks have yet to add up their shares.

    Where each rank has a part of every expert, that which adds the residual also adds the biases of the outputs.
    """
    layer, moe, here = model.parameters.layers[index], model.spec.moe, model.part.experts[index]
    assert moe is not None  # a layer has a router only where the figures say so
    ids = None if len(here) == moe.num_experts else here
    experts = Experts(
        layer.get("expert_gate", ()),
        layer["expert_up"],
        layer["expert_down"],
        ids,
        layer.get("expert_gate_bias"),
        layer.get("expert_up_bias"),
        layer.get("expert_down_bias") if model.part.adds_residual or ids is not None else None,
        layer.get("expert_scales"),
        moe.activation,
    )
    told: dict[str, Tensor] = {}
    if "experts_of_token" in layer:
        told["chosen"] = select_last(ops, model, index, ops.embedding(layer["experts_of_token"]))
    return ops.moe(h, logits, experts, moe.routing, residual, layer.get("choice_bias"), **told)


def _add_shared_expert(ops: Ops, model: ForwardContext, layer: Layer, h: Tensor, x: Tensor) -> Tensor:
    """x plus the expert that every token uses, if there is one; of its inner columns those that are here. Where it has
    a router, it is scaled by sigmoid of that.
    """
    if "shared_down" not in layer:
        return x
    activation = model.spec.moe.activation if model.spec.moe is not None else "silu"
    gate = {"clamped": ops.clamped_mul, "limited": ops.limited_mul}.get(activation, ops.silu_mul)
    inner = gate(ops.linear(h, (layer["shared_gate"], layer["shared_up"])))
    if "shared_router" not in layer:
        return ops.linear(inner, (layer["shared_down"],), residual=x)
    return ops.add_gated(x, ops.linear(inner, (layer["shared_down"],)), ops.linear(h, (layer["shared_router"],)))


def project_out(
    ops: Ops,
    model: ForwardContext,
    inner: Tensor,
    weight: Any,
    bias: Tensor | None,
    x: Tensor | None,
    precision: Precision = "usual",
) -> Tensor:
    """The product of the inner columns, bias included, plus x where there is one; ranks add up those of the columns
    they have.
    """
    if not model.part.adds_residual:
        bias = x = None
    return over_ranks(ops, model, ops.linear(inner, (weight,), (bias,), residual=x, precision=precision))


def over_ranks(ops: Ops, model: ForwardContext, x: Tensor) -> Tensor:
    """x added up over the ranks, of which there may be only one."""
    return x if model.part.ranks == 1 else ops.sum(x)


def leave(ops: Ops, model: ForwardContext, x: Tensor) -> Tensor:
    """What the stage returns: its rows for the next one, or logits [sampled rows, vocabulary], x being those that
    `select_last` left.
    """
    if not model.part.last_stage:
        return x
    return logits_of(ops, model, normed(ops, model, x, model.parameters.top["norm"]))


def leave_scaled(ops: Ops, model: ForwardContext, x: Tensor, factor: float) -> Tensor:
    """As `leave`, logits multiplied by `factor`; vectors are not."""
    return scaled_logits(ops, model, leave(ops, model, x), factor)


def scaled_logits(ops: Ops, model: ForwardContext, x: Tensor, factor: float) -> Tensor:
    """What a stage returns, multiplied by `factor` where it is logits."""
    has_logits = model.part.last_stage and model.spec.pooling is None
    return ops.scale(x, factor) if has_logits and factor != 1.0 else x


def logits_of(ops: Ops, model: ForwardContext, h: Tensor) -> Tensor:
    """Logits [sampled rows, vocabulary] of rows that the last norm was applied to, or of a model that makes vectors
    these rows. A tied model multiplies with its embedding table.
    """
    if model.spec.pooling is not None:
        return h
    part, top = model.part, model.parameters.top
    head = top["embed"] if model.spec.tie_word_embeddings else top["lm_head"]
    logits = ops.linear(h, (head,), (top.get("head_bias"),))
    if part.ranks > 1:
        logits = ops.gather(logits, part.vocabulary_widths)
    return logits if model.spec.logits_softcap is None else ops.soft_cap(logits, model.spec.logits_softcap)


def window(model: ForwardContext, index: int) -> int | None:
    """The sliding window of a layer of this stage, None where it sees its whole context."""
    return model.spec.window_of(model.part.layers.first + index)


def interleaved_heads(tensors: Tensors, spec: ModelSpec) -> dict[str, TensorEntry]:
    """The tensors of a GGUF file whose converter reordered the rows of q and k, weights and biases alike, for a rope
    that turns neighbours.

    CheckpointError for one that has not as many rows as its heads.
    """
    heads = {"q_proj": spec.num_heads, "k_proj": spec.num_kv_heads}
    found = {}
    for name, entry in tensors.items():
        module, _, _ = name.rpartition(".")
        count = heads.get(module.rpartition(".self_attn.")[2], 0)
        if count and (not entry.shape or entry.shape[0] != count * spec.head_dim):
            wanted = f"{format_count(count, 'head')} of {format_count(spec.head_dim, 'row')}"
            raise damaged(entry.file, f"shape of {name}", seen=list(entry.shape), wanted=wanted)
        found[name] = replace(entry, permuted_heads=count)
    return found
