"""The indexer of sparse attention (DSA; DeepSeek-AI 2025): small heads of its own score the tokens of a context against
one key of each, and the layer's attention is over the best of them. Up to as many tokens as it chooses all are chosen.

The factors of its scores that are the same for all tokens change no order and are left out, and so is the rotation that
the published code multiplies queries and keys with, which is orthogonal.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.compute.ops import Ops, Tensor
from homenode.errors import UnsupportedError
from homenode.model.architectures.parameters import ForwardContext, Parameter, of_layer
from homenode.model.config.folder_config import FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats import limits
from homenode.model.formats.bounded_files import damaged
from homenode.model.spec import IndexerSpec, ModelSpec

NORM_EPS = 1e-6  # of its keys, whatever that of the model
FIELDS = frozenset("index_topk index_head_dim index_n_heads".split())
SHARING_FIELDS = frozenset("indexer_types index_topk_pattern index_topk_freq index_skip_topk_offset".split())
KEYS = frozenset(f"attention.indexer.{name}" for name in ("top_k", "head_count", "key_length"))
_KINDS = {"full": True, "shared": False, "F": True, "S": False}


_has_indexer = of_layer(lambda spec, layer: spec.indexer is not None and layer in spec.indexer.layers)


def parameter(key: str, name: str, gguf: str, *shape: str) -> Parameter:
    """A parameter of the layers that have an indexer: its names within that, in folders and in GGUF files."""
    folder, file = f"model.layers.{{layer}}.self_attn.indexer.{name}", f"blk.{{layer}}.indexer.{gguf}"
    return Parameter(key, folder, shape, file, _has_indexer)


PARAMETERS = (
    parameter("index_q", "wq_b.weight", "attn_q_b.weight", "index_query", "query_rank"),
    parameter("index_k", "wk.weight", "attn_k.weight", "index_key", "hidden"),
    parameter("index_norm", "k_norm.weight", "k_norm.weight", "index_key"),
    parameter("index_norm_bias", "k_norm.bias", "k_norm.bias", "index_key"),
    parameter("index_weights", "weights_proj.weight", "proj.weight", "index_heads", "hidden"),
)


def read_folder(config: FolderConfig, spec: ModelSpec, heads: int, *, adjacent: bool, shares: bool) -> ModelSpec:
    """`spec` with the indexer of config.json. `heads`: where it does not say how many; `shares`: layers may take the
    choice of the one before them.
    """
    fields = config.fields
    indexer = IndexerSpec(
        fields.integer("index_n_heads", heads, maximum=limits.MOST_HEADS),
        fields.integer("index_head_dim", 128, maximum=limits.MOST_HEAD_DIM),
        fields.integer("index_topk", 2048, maximum=limits.MOST_POSITION),
        _full_layers(config, spec.num_layers) if shares else tuple(range(spec.num_layers)),
        adjacent,
    )
    return with_indexer(spec, indexer)


def _full_layers(config: FolderConfig, layers: int) -> tuple[int, ...]:
    """The layers that have an indexer of their own."""
    fields = config.fields
    pattern = "" if fields.is_null("index_topk_pattern") else fields.text("index_topk_pattern")
    kinds = fields.texts("indexer_types") or tuple(pattern)
    if not kinds:
        every = fields.integer("index_topk_freq", 1, minimum=0, maximum=limits.MOST_LAYERS) or 1
        first = fields.integer("index_skip_topk_offset", 2, minimum=0, maximum=limits.MOST_LAYERS)
        return tuple(layer for layer in range(layers) if max(layer - first + 1, 0) % every == 0)
    if len(kinds) != layers or not set(kinds) <= set(_KINDS) or not _KINDS[kinds[0]]:
        raise fields.wrong("indexer_types", kinds, f"{layers} values, full or shared, of which the first is full")
    return tuple(layer for layer, kind in enumerate(kinds) if _KINDS[kind])


def read_gguf(config: GgufConfig, spec: ModelSpec, *, adjacent: bool) -> ModelSpec:
    """`spec` with the indexer of a GGUF file."""
    fields, key = config.fields, "model.layers.{}.self_attn.indexer.wk.weight"
    full = tuple(layer for layer in range(spec.num_layers) if key.format(layer) in config.tensors)
    if not full or full[0]:
        raise damaged(config.path, "layers with an indexer", seen=list(full), wanted="the first of all among them")
    indexer = IndexerSpec(
        fields.integer("attention.indexer.head_count", maximum=limits.MOST_HEADS),
        fields.integer("attention.indexer.key_length", maximum=limits.MOST_HEAD_DIM),
        fields.integer("attention.indexer.top_k", maximum=limits.MOST_POSITION),
        full,
        adjacent,
    )
    return with_indexer(spec, indexer)


def with_indexer(spec: ModelSpec, indexer: IndexerSpec) -> ModelSpec:
    """`spec` with the lengths of its matrices. UnsupportedError for heads that homenode cannot keep."""
    rotary = spec.rope.rotary_dim or 0
    if indexer.width % 2 or indexer.width < rotary:
        raise UnsupportedError(
            f"an indexer with heads of {indexer.width} elements is not supported; homenode wants an even number of at "
            f"least {rotary}, which are rotated"
        )
    lengths = {"index_query": indexer.heads * indexer.width, "index_key": indexer.width, "index_heads": indexer.heads}
    return replace(spec, indexer=indexer, dimensions={**spec.dimensions, **lengths})


def choose(ops: Ops, model: ForwardContext, index: int, h: Tensor, rank: Tensor, rotation: Tensor) -> Tensor:
    """The tokens that layer `index` of this stage, which has an indexer, attends to. h: its normed rows, `rank`: what
    its queries are made of.
    """
    layer, indexer = model.parameters.layers[index], model.spec.indexer
    assert indexer is not None
    q = ops.linear(rank, (layer["index_q"],))
    k, weights = ops.split(ops.linear(h, (layer["index_k"], layer["index_weights"])), (indexer.width, indexer.heads))
    k = ops.layer_norm(k, layer["index_norm"], layer["index_norm_bias"], NORM_EPS)
    q, k = (ops.rope(x, rotation, indexer.width, indexer.adjacent) for x in (q, k))
    place = model.index_layers[model.part.layers.first + index]
    return ops.choose_tokens(q, weights, k, model.cache, place, indexer.chosen)
