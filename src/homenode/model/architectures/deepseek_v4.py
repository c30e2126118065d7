"""DeepSeek V4: one row of a token is key and value of all heads. A token sees the rows of a window, and besides, in
most layers, rows that are pooled from runs of tokens before it: all of those, or of short runs those that an indexer
chooses. Layers hand on several streams. The first layers have experts that go by the token's id, the others by the root
of the softplus of their logits.

transformers and llama.cpp agree on it but for figures that no published model has: runs of other lengths than 4 and
128, which transformers and homenode take; and norm_topk_prob false, other than one shared expert and other than four
streams, of which llama.cpp reads the first two and transformers the last. homenode refuses the first two by name. What
predicts further tokens is left unread.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace

from homenode.compute.ops import LayerKv, LayerState, Ops, Tensor
from homenode.errors import UnsupportedError
from homenode.model.architectures import hyper_connections, mlp, pooled_rows, stage, tables, token_indexer
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.conversions import renamed_tensors
from homenode.model.architectures.hyper_connections import StreamMixing
from homenode.model.architectures.parameters import ForwardContext, Parameter, of_layer
from homenode.model.architectures.pooled_rows import DeepseekV4Spec
from homenode.model.architectures.tables import layer_weight
from homenode.model.config.folder_config import Defaults, ExpertDefaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats import limits
from homenode.model.formats.bounded_files import damaged, quoted
from homenode.model.formats.fields import Fields
from homenode.model.formats.tensor_parts import rows_of, slice_of
from homenode.model.spec import IndexerSpec, ModelSpec, MoeSpec, PooledSpec, RopeSpec, TensorEntry, Tensors

NAME = "deepseek_v4"
DEFAULTS = Defaults(
    max_position=1048576,
    heads=64,
    kv_heads=1,
    vocab=129280,
    head_dim=512,
    bos_id=0,
    eos_id=1,
    intermediate=2048,
    activation=None,
)
EXPERTS = ExpertDefaults(experts=256, experts_per_token=6, size=2048, keys=("n_routed_experts", "num_local_experts"))
ROTARY, COMPRESS_THETA, LIMIT, HASHED = 64, 160000.0, 10.0, 3
SLIDING, SPARSE, HEAVY = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
RATIOS = {SLIDING: 0, SPARSE: 4, HEAVY: 128}
_MOST_STREAMS, _MOST_ROUNDS, _MOST_RATIO = 16, 1000, 4096
# Each with its field in config.json, what it is where that says nothing, its key in a GGUF file, and its largest value.
_SIZES: Mapping[str, tuple[str, int, str, int]] = {
    "window": ("sliding_window", 128, "attention.sliding_window", limits.MOST_POSITION),
    "query_rank": ("q_lora_rank", 1024, "attention.q_lora_rank", limits.MOST_HIDDEN),
    "output_groups": ("o_groups", 8, "attention.output_group_count", limits.MOST_HEADS),
    "output_rank": ("o_lora_rank", 1024, "attention.output_lora_rank", limits.MOST_HIDDEN),
    "index_heads": ("index_n_heads", 64, "attention.indexer.head_count", limits.MOST_HEADS),
    "index_width": ("index_head_dim", 128, "attention.indexer.key_length", limits.MOST_HEAD_DIM),
    "index_chosen": ("index_topk", 512, "attention.indexer.top_k", limits.MOST_POSITION),
    "streams": ("hc_mult", 4, "hyper_connection.count", _MOST_STREAMS),
    "rounds": ("hc_sinkhorn_iters", 20, "hyper_connection.sinkhorn_iterations", _MOST_ROUNDS),
}


_is_hashed = of_layer(lambda spec, layer: layer < spec.own_as(DeepseekV4Spec).hashed)
_is_scored = of_layer(lambda spec, layer: layer >= spec.own_as(DeepseekV4Spec).hashed)
PARAMETERS = (
    *tables.EMBEDDING_AND_HEAD,
    *hyper_connections.parameters("head", "hc_head", "output_hc", tables.has_output),
    *hyper_connections.parameters("attention", "attn_hc", "blk.{layer}.hc_attn"),
    layer_weight("input_norm", "input_layernorm", "attn_norm", "hidden"),
    *pooled_rows.PARAMETERS,
    *hyper_connections.parameters("mlp", "ffn_hc", "blk.{layer}.hc_ffn"),
    *tables.POST_NORM,
    *tables.EXPERTS,
    Parameter(
        "experts_of_token",
        "model.layers.{layer}.mlp.gate.tid2eid",
        ("table_rows", "experts_chosen"),
        "blk.{layer}.ffn_gate_tid2eid.weight",
        _is_hashed,
    ),
    replace(tables.CHOICE_BIAS, when=_is_scored),
    *tables.SHARED_EXPERTS,
)
# Names of published folders, and of those that transformers saves -> those of the table.
_RENAMED = tuple(
    (re.compile(pattern), ours)
    for pattern, ours in (
        (r"\.attn\.(?!norm\b)", ".self_attn."),
        (r"\.attn\.norm\.", ".self_attn.kv_norm."),
        (r"\.ffn\.", ".mlp."),
        (r"\.indexer\.compressor\.", ".compressor.indexer."),
        (r"\.self_attn\.indexer\.weights_proj\.", ".self_attn.compressor.indexer.scorer.weights_proj."),
        (r"\.self_attn\.indexer\.wq_b\.", ".self_attn.compressor.indexer.q_b_proj."),
        (r"\.compressor(\.indexer)?\.norm\.", r".compressor\1.kv_norm."),
        (r"\.attn_norm\.", ".input_layernorm."),
        (r"\.ffn_norm\.", ".post_attention_layernorm."),
        (r"\.hc_(attn|ffn)_(fn|base|scale)$", r".\1_hc.\2"),
        (r"^(?:model\.)?(?:hc_head\.)?hc_(?:head_)?(fn|base|scale)$", r"model.hc_head.\1"),
        (r"\.attn_sink$", ".sinks"),
        (r"\.ape$", ".position_bias"),
        (r"\.wq_([ab])\.", r".q_\1_proj."),
        (r"\.wkv\.", ".kv_proj."),
        (r"\.wgate\.", ".gate_proj."),
        (r"\.wo_([ab])\.", r".o_\1_proj."),
        (r"\.q_norm\.", ".q_a_norm."),
        (r"\.gate\.bias$", ".gate.e_score_correction_bias"),
        (r"(\.experts\.\d+|\.shared_experts)\.w1\.", r"\1.gate_proj."),
        (r"(\.experts\.\d+|\.shared_experts)\.w2\.", r"\1.down_proj."),
        (r"(\.experts\.\d+|\.shared_experts)\.w3\.", r"\1.up_proj."),
    )
)
MODULES = {"embed": "model.embed_tokens", "head": "lm_head", "norm": "model.norm", "layers.": "model.layers."}
KEYS = frozenset(key for name, (_, _, key, _) in _SIZES.items() if name != "window") | frozenset(  # a common key
    "attention.compress_ratios attention.compress_rope_freq_base hyper_connection.epsilon hash_layer_count "
    "swiglu_clamp_exp swiglu_clamp_shexp".split()
)
FIELDS = frozenset(key for key, _, _, _ in _SIZES.values()) | frozenset(
    "hidden_act attention_bias mlp_bias qk_rope_head_dim moe_intermediate_size n_routed_experts num_local_experts "
    "num_experts_per_tok n_shared_experts scoring_func norm_topk_prob routed_scaling_factor topk_method "
    "compress_ratios compress_rates compress_rate_csa compress_rate_hca compress_rope_theta hc_eps mlp_layer_types "
    "num_hash_layers swiglu_limit".split()
)
_WANTED = {
    "attention_bias": False,
    "mlp_bias": False,
    "norm_topk_prob": True,
    "n_shared_experts": 1,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "num_key_value_heads": 1,
    "swiglu_limit": LIMIT,
}


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    fields = config.fields
    for key, wanted in _WANTED.items():
        if fields.has(key) and fields.value(key) != wanted:
            seen = quoted(fields.value(key))
            raise UnsupportedError(f"{config.path}: {key} {seen} is not supported in {NAME}; homenode wants {wanted!r}")
    config.refuse_activation("hidden_act", "silu")
    spec = _with_ropes(config)
    moe = _routed(config.moe(EXPERTS, normalise=True), fields.number("routed_scaling_factor", 1.5))
    overlapping = tuple(layer for layer, kind in enumerate(_kinds(fields, spec.num_layers)) if kind == SPARSE)
    sizes = {name: fields.integer(key, default, maximum=most) for name, (key, default, _, most) in _SIZES.items()}
    hashed, eps = _hashed(fields, spec.num_layers), fields.number("hc_eps", 1e-6, most=1.0)
    return _with_figures(replace(spec, moe=moe), _ratios(fields, spec.num_layers), overlapping, hashed, eps, sizes)


def _with_ropes(config: FolderConfig) -> ModelSpec:
    """The figures that every decoder has: the rope is that of layers with pooled rows, the local one that of others."""
    fields, key = config.fields, "rope_parameters"
    head = fields.integer("head_dim", DEFAULTS.head_dim, maximum=limits.MOST_HEAD_DIM)
    turning = fields.integer("qk_rope_head_dim", ROTARY, maximum=head)
    theta = fields.number("rope_theta", DEFAULTS.theta, above=1.0, most=limits.MOST_THETA)
    far_theta = fields.number("compress_rope_theta", COMPRESS_THETA, above=1.0, most=limits.MOST_THETA)
    table = fields.optional_table(key)
    if table is not None and table.holds_tables():
        near, far = table.optional_table("main"), table.optional_table("compress")
        if near is None or far is None or near.text("rope_type", "default") != "default":
            raise fields.wrong(key, fields.value(key), "main, of the type default, and compress")
        theta = near.number("rope_theta", theta, above=1.0, most=limits.MOST_THETA)
        far_theta = far.number("rope_theta", above=1.0, most=limits.MOST_THETA)
        part = "partial_rotary_factor"
        if near.optional_number(part, most=1.0) != far.optional_number(part, most=1.0):
            raise UnsupportedError(f"{config.path}: {key} with two values of {part} is not supported in {NAME}")
        fields = fields.with_value(key, {name: far.value(name) for name in far.names()})
    defaults = replace(DEFAULTS, rotary_share=turning / head)
    spec = replace(config, fields=fields).decoder(defaults, rotates_part=True)
    rope = replace(spec.rope, theta=far_theta)
    # 1 where it is not said, but in tables of both ropes: there YaRN's own
    both = table is not None and table.holds_tables() and not fields.has("rope_scaling")
    if rope.kind == "yarn" and rope.attention_factor is None and not both:
        rope = replace(rope, attention_factor=1.0)
    return replace(spec, rope=rope, local_rope=RopeSpec(theta=theta, rotary_dim=spec.rope.rotary_dim))


def _kinds(fields: Fields, layers: int) -> tuple[str, ...]:
    """Return of each layer what it keeps beside tokens."""
    kinds = fields.texts("layer_types")[:layers]
    if not kinds and (told := fields.integers("compress_ratios")[:layers]):
        of_ratio = {ratio: kind for kind, ratio in RATIOS.items()}
        kinds = tuple(of_ratio.get(ratio, "") for ratio in told)
    if not kinds:
        kinds = tuple(HEAVY if layer < 2 or layer % 2 == 0 else SPARSE for layer in range(layers))
    if len(kinds) != layers or not set(kinds) <= RATIOS.keys():
        key = "layer_types" if fields.has("layer_types") else "compress_ratios"
        raise fields.wrong(key, fields.value(key), f"{layers} values, each of {', '.join(RATIOS)} (0, 4, 128)")
    return kinds


def _ratios(fields: Fields, layers: int) -> tuple[int, ...]:
    table, found = fields.table("compress_rates") or Fields(fields.path, {}, "compress_rates."), dict(RATIOS)
    for kind, key in ((SPARSE, "compress_rate_csa"), (HEAVY, "compress_rate_hca")):
        told = table.integer(kind, RATIOS[kind], minimum=2, maximum=_MOST_RATIO)
        found[kind] = fields.integer(key, told, minimum=2, maximum=_MOST_RATIO)
    return tuple(found[kind] for kind in _kinds(fields, layers))


def _hashed(fields: Fields, layers: int) -> int:
    """Return how many layers in front have experts that go by the token's id."""
    kinds = fields.texts("mlp_layer_types")[:layers]
    if not kinds:
        return min(fields.integer("num_hash_layers", HASHED, minimum=0, maximum=limits.MOST_LAYERS), layers)
    count = kinds.count("hash_moe")
    if kinds != (*["hash_moe"] * count, *["moe"] * (layers - count)):
        raise fields.wrong("mlp_layer_types", kinds, f"{layers} values, first hash_moe, then moe")
    return count


def _routed(moe: MoeSpec, scale: float) -> MoeSpec:
    shared = moe.intermediate_size
    return replace(
        moe,
        score="sqrt_softplus",
        normalise=True,
        epsilon=1e-20,
        scale=scale,
        activation="limited",
        shared_intermediate_size=shared,
    )


def _with_figures(
    spec: ModelSpec,
    ratios: tuple[int, ...],
    overlapping: tuple[int, ...],
    hashed: int,
    eps: float,
    sizes: Mapping[str, int],
) -> ModelSpec:
    """`spec` with what `_SIZES` names, and the figures that folders and GGUF files tell otherwise."""
    mixing = StreamMixing(sizes["rounds"], eps)
    figures = DeepseekV4Spec(sizes["window"], overlapping, hashed, mixing)
    indexer = IndexerSpec(sizes["index_heads"], sizes["index_width"], sizes["index_chosen"], overlapping, True)
    output = sizes["output_groups"], sizes["output_rank"]
    return with_layers(spec, ratios, figures, indexer, sizes["query_rank"], output, sizes["streams"])


def with_layers(
    spec: ModelSpec,
    ratios: tuple[int, ...],
    figures: DeepseekV4Spec,
    indexer: IndexerSpec,
    query_rank: int,
    output: tuple[int, int],
    streams: int,
) -> ModelSpec:
    """`spec` with what it keeps and the lengths of its matrices. `output`: groups of heads, and rows of each.
    UnsupportedError for figures that homenode cannot run.
    """
    assert spec.moe is not None
    head, (groups, rank) = spec.head_dim, output
    if spec.num_heads % groups:
        raise UnsupportedError(f"{spec.num_heads} heads in {groups} groups of the output are not supported in {NAME}")
    if not any(ratios):
        raise UnsupportedError(f"a {NAME} model whose layers all see a window alone is not supported")
    if figures.overlapping and (turning := spec.rope.rotary_dim or head) > indexer.width:
        raise UnsupportedError(f"index heads of {indexer.width} elements, of which {turning} turn, are not supported")
    # Of runs that overlap, and of others
    sparse, heavy = (
        max((ratio for layer, ratio in enumerate(ratios) if (layer in figures.overlapping) is overlaps), default=0)
        for overlaps in (True, False)
    )
    row, states = LayerKv(1, head, 0, head), {0: None, heavy: LayerState(2 * head, heavy) if heavy else None}
    overlapping = LayerState(4 * head + 4 * indexer.width, 2 * sparse)
    spec = replace(
        spec,
        own=figures,
        streams=streams,
        group_heads=spec.num_heads // groups,
        group_widths={"groups": 1, "output_ranks": rank},
        num_kv_heads=1,
        layer_kv=(row,) * spec.num_layers,
        pooled=PooledSpec(ratios, head),
        layer_states=tuple(
            overlapping if layer in figures.overlapping else states[ratio] for layer, ratio in enumerate(ratios)
        ),
        dimensions={
            "query_rank": query_rank,
            "group_query": spec.num_heads // groups * head,
            "output_rank": rank,
            "two_heads": 2 * head,
            "heavy_biases": heavy * head,
            "sparse_biases": sparse * 2 * head,
            "two_index_keys": 2 * indexer.width,
            "index_biases": sparse * 2 * indexer.width,
            **hyper_connections.dimensions(streams, spec.hidden_size),
            "table_rows": spec.vocab_size,
            "experts_chosen": spec.moe.experts_per_token,
        },
    )
    return token_indexer.with_indexer(spec, indexer) if figures.overlapping else spec


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    fields = config.fields
    spec = config.decoder(intermediate=DEFAULTS.intermediate)
    layers = spec.num_layers
    if spec.num_kv_heads != 1:
        raise UnsupportedError(f"{config.path}: {spec.num_kv_heads} KV heads are not supported in {NAME}")
    for key in ("swiglu_clamp_exp", "swiglu_clamp_shexp"):
        told = fields.value(key)
        if told is not None and set(told if isinstance(told, list) else [told]) != {LIMIT}:
            raise UnsupportedError(f"{config.path}: {key} {quoted(told)} is not supported; homenode wants {LIMIT:g}")
    ratios = fields.integers("attention.compress_ratios")[:layers]
    if len(ratios) != layers or not set(ratios) <= set(RATIOS.values()):
        wanted = f"at least {layers} values, each 0, 4 or 128"
        raise fields.wrong("attention.compress_ratios", fields.value("attention.compress_ratios"), wanted)
    theta = fields.number("attention.compress_rope_freq_base", above=1.0, most=limits.MOST_THETA)
    local = RopeSpec(theta=spec.rope.theta, rotary_dim=spec.rope.rotary_dim)
    rope = replace(spec.rope, theta=theta)
    if rope.kind == "yarn":
        rope = replace(rope, attention_factor=1.0)
    moe = config.moe(spec, scores=(4,), size=DEFAULTS.intermediate)
    if not moe.normalise or moe.shared_intermediate_size not in (0, moe.intermediate_size):
        raise UnsupportedError(
            f"{config.path}: weights of experts that do not add up to their scale, or a shared expert of another size, "
            f"are not supported in {NAME}"
        )

    spec = replace(spec, rope=rope, local_rope=local, moe=_routed(moe, moe.scale))
    overlapping = tuple(layer for layer, ratio in enumerate(ratios) if ratio == RATIOS[SPARSE])
    sizes = {name: fields.integer(key, maximum=most) for name, (_, _, key, most) in _SIZES.items()}
    hashed = min(fields.integer("hash_layer_count", minimum=0, maximum=limits.MOST_LAYERS), layers)
    eps = fields.number("hyper_connection.epsilon", most=1.0)
    return _with_figures(spec, ratios, overlapping, hashed, eps, sizes)


def convert_folder(tensors: Tensors, spec: ModelSpec) -> dict[str, TensorEntry]:
    """The tensors under the names of the table: see `convert`."""
    return convert(renamed_tensors(tensors, _RENAMED), spec)


def convert(tensors: Tensors, spec: ModelSpec) -> dict[str, TensorEntry]:
    """The tensors with a matrix for each group of the output, and biases as vectors. CheckpointError for others."""
    groups, rank, found = spec.num_heads // spec.group_heads, spec.dimensions["output_rank"], {}
    for name, entry in tensors.items():
        if name.endswith(".position_bias"):
            found[name] = replace(entry, shape=(math.prod(entry.shape),))
        elif name.endswith(".self_attn.o_a_proj.weight"):
            stacked = len(entry.shape) == 3
            if not entry.shape or entry.shape[0] != (groups if stacked else groups * rank):
                wanted = f"{groups} groups of {rank} rows"
                raise damaged(entry.file, f"shape of {name}", seen=list(entry.shape), wanted=wanted)
            for group in range(groups):
                own = name.replace(".o_a_proj.", f".o_a.{group}.")
                found[own] = slice_of(entry, group, own) if stacked else rows_of(entry, own, group * rank, rank)
        else:
            found[name] = entry
    return found


def forward(ops: Ops, model: ForwardContext) -> Tensor:
    """Logits of the step's selected rows, or the rows for the next stage: all streams."""
    how, streams = model.spec.own_as(DeepseekV4Spec).mixing, stage.enter(ops, model)
    if model.part.first_stage:
        streams = hyper_connections.begun(ops, model, streams)
    turns = pooled_rows.angles_of_layers(ops, model)
    for index, layer in enumerate(model.parameters.layers):
        x, (parts, kept) = hyper_connections.joined(ops, model, layer, "attention", streams, how)
        x = pooled_rows.attended(ops, model, index, stage.normed(ops, model, x, layer["input_norm"]), turns)
        streams, parts, kept = (stage.select_last(ops, model, index, each) for each in (streams, parts, kept))
        streams = hyper_connections.parted(ops, model, streams, x, (parts, kept))
        x, by = hyper_connections.joined(ops, model, layer, "mlp", streams, how)
        x = mlp.mixture(ops, model, index, stage.normed(ops, model, x, layer["post_norm"]), None)
        streams = hyper_connections.parted(ops, model, streams, x, by)
    if model.part.last_stage:
        streams = hyper_connections.ended(ops, model, streams, how)
    return stage.leave(ops, model, streams)


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat(
        "DeepseekV4ForCausalLM",
        read_folder,
        fields=FIELDS,
        harmless={"expert_dtype": "the tensors tell it"},
        modules=MODULES,
        convert=convert_folder,
    ),
    GgufFormat(
        "deepseek4",
        read_gguf,
        keys=KEYS,
        names={"blk.{layer}.attn_output_a.weight": "model.layers.{layer}.self_attn.o_a_proj.weight"},
        convert=convert,
    ),
    PARAMETERS,
    forward,
)
