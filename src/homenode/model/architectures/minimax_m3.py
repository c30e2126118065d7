"""MiniMax M3, its text: MiniMax M2 with norms of one plus their weight over each head, a clamped gate in all MLPs, and
an expert that every token uses. In most layers each KV head attends to blocks of tokens that a head of an indexer
chooses.

transformers and llama.cpp agree on it but for the elements of a head that turn: of `rotary_dim` and
`partial_rotary_factor` llama.cpp reads the first and transformers the second, so they have to say one thing.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from homenode.compute.ops import AttendedKeys, Ops, Precision, ScoreRule, Tensor
from homenode.errors import UnsupportedError
from homenode.model.architectures import attention, conversions, gpt_oss, mlp, stage, tables, token_indexer
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.parameters import ForwardContext
from homenode.model.architectures.stage import Layer
from homenode.model.config.folder_config import Defaults, ExpertDefaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats import limits
from homenode.model.formats.fields import Fields
from homenode.model.formats.stacked_experts import StackedExperts
from homenode.model.spec import BlockChoice, IndexerSpec, ModelSpec, MoeSpec, TensorEntry, Tensors
from homenode.units import format_count

DEFAULTS = Defaults(
    max_position=524288, heads=64, kv_heads=4, head_dim=128, vocab=200064, bos_id=200034, eos_id=200020, theta=5e6,
    activation=None,
)  # fmt: skip
EXPERTS = ExpertDefaults(experts=128, experts_per_token=4, size=0)  # config.json never says a size
DENSE, EXPERT = 12288, 3072  # inner columns
SPARSE = "minimax_m3_sparse"  # in layer_types
_SIZES = (16, 32, 64, 128, 256)  # of blocks: whole tiles of the KV memory, in whole chunks of attention
# The indexer's figures: in config.json, in the table that published folders have, in GGUF files, and by themselves.
_FIGURES = (
    ("index_n_heads", "sparse_num_index_heads", "head_count", 4),
    ("index_head_dim", "sparse_index_dim", "key_length", 128),
    ("index_block_size", "sparse_block_size", "block_size", 128),
    ("index_topk_blocks", "sparse_topk_blocks", "top_k", 16),
    ("index_local_blocks", "sparse_local_block", "local_blocks", 1),
)
_TABLE = "sparse_attention_config"
_WANTED = {
    "use_qk_norm": True,
    "qk_norm_type": "per_head",
    "use_gemma_norm": True,
    "use_routing_bias": True,
    "attention_output_gate": False,
    "n_shared_experts": 1,
}
_WANTED_OF_INDEXER = {"use_sparse_attention": True, "sparse_score_type": "max", "sparse_init_block": 0}
_STACKS = StackedExperts()
# Names of published folders -> those of transformers.
_RENAMED = (
    (re.compile(r"\.block_sparse_moe\.e_score"), ".mlp.gate.e_score"),
    (re.compile(r"\.block_sparse_moe\."), ".mlp."),
    (re.compile(r"(\.experts\.\d+)\.w1\."), r"\1.gate_proj."),
    (re.compile(r"(\.experts\.\d+)\.w2\."), r"\1.down_proj."),
    (re.compile(r"(\.experts\.\d+)\.w3\."), r"\1.up_proj."),
    (re.compile(r"\.self_attn\.index_([qk])_"), r".self_attn.indexer.\1_"),
)
PARAMETERS = (
    *tables.EMBEDDING_AND_HEAD,
    *tables.ATTENTION,
    *tables.HEAD_NORMS,
    *tables.GATED_MLP,
    *tables.CHOSEN_WITH_BIAS,
    *(
        token_indexer.parameter(f"index_{key}", f"{name}.weight", f"{name}.weight", *shape)
        for key, name, *shape in (
            ("q", "q_proj", "index_query", "hidden"),
            ("k", "k_proj", "index_key", "hidden"),
            ("q_norm", "q_norm", "index_key"),
            ("k_norm", "k_norm", "index_key"),
        )
    ),
)


def _read_folder(config: FolderConfig) -> ModelSpec:
    fields = config.fields
    fields.refuse_others(gpt_oss.GATE)
    config.refuse_other_scores()
    table = fields.table(_TABLE) or Fields(config.path, {}, f"{_TABLE}.")
    fields.refuse_others(_WANTED)
    table.refuse_others(_WANTED_OF_INDEXER)
    size = fields.integer("intermediate_size", EXPERT, maximum=limits.MOST_INTERMEDIATE)
    spec = config.decoder(replace(DEFAULTS, intermediate=EXPERT), rotates_part=True)
    turning = spec.rope.rotary_dim or spec.head_dim
    if (told := fields.optional_integer("rotary_dim", maximum=limits.MOST_HEAD_DIM)) not in (None, turning):
        raise UnsupportedError(
            f"{config.path}: rotary_dim {told} beside a partial_rotary_factor by which {turning} elements "
            "of a head turn is not supported: llama.cpp follows the first and transformers the second"
        )
    spec = replace(
        spec, intermediate_size=fields.integer("dense_intermediate_size", DENSE, maximum=limits.MOST_INTERMEDIATE)
    )
    shared = fields.integer("shared_intermediate_size", EXPERT, maximum=limits.MOST_INTERMEDIATE)
    dense = _unmarked(fields, "mlp_layer_types", ("sparse", "dense"), fields, "moe_layer_freq", spec.num_layers, True)
    moe = config.moe(EXPERTS, normalise=True, size=size, shared=shared, dense=dense)
    spec = replace(spec, moe=replace(_routed(moe), scale=fields.number("routed_scaling_factor", 2.0)))
    whole = _unmarked(
        fields, "layer_types", (SPARSE, "full_attention"), table, "sparse_attention_freq", spec.num_layers, False
    )
    sparse = tuple(layer for layer in range(spec.num_layers) if layer not in whole)
    key = "sparse_disable_index_value"
    disabled = table.marks_per_layer(key, spec.num_layers) if table.has(key) else None
    if disabled is not None and not all(disabled[layer] for layer in sparse):
        raise UnsupportedError(f"{config.path}: {_TABLE}.{key} false in a sparse layer is not supported")
    figures = tuple(
        fields.integer(name, default) if not table.has(older) else table.integer(older)
        for name, older, _, default in _FIGURES
    )
    return _with_indexer(spec, figures, sparse, config.path) if sparse else spec


def _unmarked(
    fields: Fields, key: str, kinds: tuple[str, str], older: Fields, marks: str, layers: int, default: bool
) -> tuple[int, ...]:
    """The layers that are not of the first of two `kinds`, which a list of them says, or one of `marks` in `older`, or
    none but the default.
    """
    if named := fields.texts(key):
        if len(named) != layers or not set(named) <= set(kinds):
            raise fields.wrong(key, named, f"{layers} values, each {' or '.join(kinds)}")
        marked = tuple(kind == kinds[0] for kind in named)
    else:
        marked = (older.marks_per_layer(marks, layers) if older.has(marks) else None) or (default,) * layers
    return tuple(layer for layer in range(layers) if not marked[layer])


def _routed(moe: MoeSpec) -> MoeSpec:
    return replace(moe, score="sigmoid", activation="clamped")


def _with_indexer(spec: ModelSpec, figures: tuple[int, ...], layers: tuple[int, ...], path: Path) -> ModelSpec:
    """`spec` with an indexer of these `_FIGURES` in some layers. UnsupportedError for what homenode cannot run."""
    heads, width, size, count, local = figures
    wrong = {
        f"{heads} index heads": heads != spec.num_kv_heads and f"as many as the {spec.num_kv_heads} KV heads",
        f"index heads of {width} elements": not (spec.rope.rotary_dim or spec.head_dim) <= width <= limits.MOST_HEAD_DIM
        and "as many as turn, or more",
        f"index blocks of {format_count(size, 'token')}": size not in _SIZES
        and f"one of {', '.join(map(str, _SIZES))}",
        f"{count} index blocks of a token": count * size > limits.MOST_POSITION and "fewer",
        f"{local} local blocks of {count}": local > count and "at most as many as are chosen",
    }
    for seen, wanted in wrong.items():
        if wanted:
            raise UnsupportedError(f"{path}: {seen} are not supported in {spec.architecture}; homenode wants {wanted}")
    blocks = BlockChoice(size, count, local)
    return token_indexer.with_indexer(spec, IndexerSpec(heads, width, count * size, layers, False, blocks))


def _read_gguf(config: GgufConfig) -> ModelSpec:
    spec = config.uniform_decoder()
    spec = replace(spec, moe=_routed(config.moe(spec, "model.layers.{layer}.mlp.gate.weight", scores=(2,))))
    key = "model.layers.{}.self_attn.indexer.k_proj.weight"
    sparse = tuple(layer for layer in range(spec.num_layers) if key.format(layer) in config.tensors)
    figures = tuple(config.fields.integer(f"attention.indexer.{name}") for _, _, name, _ in _FIGURES)
    return _with_indexer(spec, figures, sparse, config.path) if sparse else spec


def convert_folder(tensors: Tensors, spec: ModelSpec) -> dict[str, TensorEntry]:
    """The tensors under the names of transformers, stacks and pairs of matrices as one entry for each."""
    found = conversions.renamed_tensors(tensors, _RENAMED)
    for name in [name for name in found if name.endswith(".gate_up_proj.weight") and ".experts." not in name]:
        gate, up = (name.replace("gate_up_proj", part) for part in ("gate_proj", "up_proj"))
        found |= conversions.halves(found.pop(name), gate, up)
    return conversions.norms_plus_one(_STACKS.split(found, spec), spec)


def _forward(ops: Ops, model: ForwardContext) -> Tensor:
    x = stage.enter(ops, model)
    rotation = attention.angles(ops, model.rope)
    for index, layer in enumerate(model.parameters.layers):
        h = stage.normed(ops, model, x, layer["input_norm"])
        q, k, v = attention.project_qkv(ops, model, index, h)
        q, k = stage.normed(ops, model, q, layer["q_norm"]), stage.normed(ops, model, k, layer["k_norm"])
        if "index_q" in layer:
            q, k = (ops.rope(each, rotation, model.spec.head_dim) for each in (q, k))
            found = _attend_to_blocks(ops, model, index, (q, k, v), _choose(ops, model, index, h, rotation))
        else:
            found = attention.attended(ops, model, index, (q, k, v), rotation)
        x = stage.add_mixed(ops, model, index, x, stage.select_last(ops, model, index, found), "o")
        x = _feed_forward(ops, model, index, x)
    return stage.leave(ops, model, x)


def _gated(ops: Ops, layer: Layer, h: Tensor, precision: Precision) -> Tensor:
    return ops.clamped_mul(ops.linear(h, (layer["gate"], layer["up"]), precision=precision))


_feed_forward = mlp.feed_forward_with(_gated)


def _attend_to_blocks(
    ops: Ops, model: ForwardContext, index: int, qkv: tuple[Tensor, Tensor, Tensor], chosen: Tensor
) -> Tensor:
    """The attention of layer `index` of this stage over the chosen blocks."""
    spec, where = model.spec, model.cache_layers[model.part.layers.first + index]
    assert spec.indexer is not None and spec.indexer.blocks is not None
    attended = AttendedKeys(chosen=chosen, chosen_block=spec.indexer.blocks.size)
    return ops.attention(*qkv, model.cache, where, ScoreRule(spec.head_dim**-0.5), attended)


def _choose(ops: Ops, model: ForwardContext, index: int, h: Tensor, rotation: Tensor) -> Tensor:
    """The blocks that each KV head here of layer `index` of this stage attends to. h: its normed rows."""
    layer, spec, indexer = model.parameters.layers[index], model.spec, model.spec.indexer
    assert indexer is not None and indexer.blocks is not None
    widths, precision = (indexer.heads * indexer.width, indexer.width), attention.precision_of_scores(spec)
    q, k = ops.split(ops.linear(h, (layer["index_q"], layer["index_k"]), precision=precision), widths)
    q, k = (stage.normed(ops, model, x, layer[f"index_{name}_norm"]) for x, name in ((q, "q"), (k, "k")))
    q = stage.columns_of(ops, q, model.part.kv_heads, indexer.heads, indexer.width)
    q, k = (ops.rope(x, rotation, indexer.width) for x in (q, k))
    place, blocks = model.index_layers[model.part.layers.first + index], indexer.blocks
    return ops.choose_blocks(q, k, model.cache, place, blocks.size, blocks.count, blocks.local)


ARCHITECTURE = Architecture(
    "minimax_m3",
    FolderFormat(
        "MiniMaxM3VLForCausalLM",
        _read_folder,
        fields=frozenset(
            "rotary_dim scoring_func topk_method dense_intermediate_size shared_intermediate_size "
            "routed_scaling_factor mlp_layer_types moe_layer_freq".split()
        )
        | EXPERTS.fields
        | {name for name, *_ in _FIGURES}
        | {_TABLE}
        | _WANTED.keys()
        | gpt_oss.GATE.keys(),
        harmless={
            "hidden_act": "its MLPs have a gate of their own",
            "num_mtp_modules": "of blocks that predict further tokens, which are left unread",
        },
        model_types=("minimax_m3_vl_text",),
        older_classes=("MiniMaxM3SparseForCausalLM",),
        picture_classes=("MiniMaxM3SparseForConditionalGeneration", "MiniMaxM3VLForConditionalGeneration"),
        convert=convert_folder,
    ),
    GgufFormat("minimax-m3", _read_gguf, keys=frozenset(f"attention.indexer.{name}" for _, _, name, _ in _FIGURES)),
    PARAMETERS,
    _forward,
)
