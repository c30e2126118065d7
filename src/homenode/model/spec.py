"""The facts that a checkpoint tells of its model, the same for Hugging Face folders and GGUF files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from homenode.compute.ops import (
    Activation,
    AttentionMask,
    ExpertScore,
    GroupScore,
    IntArray,
    LayerKv,
    LayerState,
    Routing,
    WindowKind,
)
from homenode.dtypes import DType
from homenode.model.files_read import FilesRead
from homenode.model.pooling import PoolingSpec

_Own = TypeVar("_Own")


@dataclass(frozen=True)
class RopeSpec:
    """Rotary embedding. `kind`: default, linear, llama3, yarn, dynamic, longrope. `factors`: GGUF's per-pair divisors
    (`rope_freqs.weight`), if any.

    `short_factors`, `long_factors`: of longrope, divisors for contexts up to the original length and above it.
    """

    theta: float = 10000.0
    kind: str = "default"
    rotary_dim: int | None = None  # None: the whole head
    factor: float = 1.0
    original_max_position: int | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    factors: tuple[float, ...] = ()
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    truncate: bool = True  # of yarn: the range of pairs that it blends is rounded to whole ones


@dataclass(frozen=True)
class PictureSpec:
    """The way rows of pictures enter a text model. `family`: of `homenode.model.pictures.registry`. `deep_layers`: to
    the rows of so many first layers further columns of a picture's rows are added, after each as many as the model is
    wide. `sections`: how many frequencies of the rope turn by time, row and column; none: all turn by the position.
    `interleaved`: they take turns. `sees_both_ways`: the layers in which a picture's rows see each other, also those
    behind them. `neutral_token`: the id by which layers that look up token ids look for a picture's; None: its
    placeholder's.
    `unscaled_logits`: the class of the whole makes logits itself, without the scale that its text has by itself.
    """

    family: str
    deep_layers: int = 0
    sections: tuple[int, ...] = ()
    interleaved: bool = False
    sees_both_ways: Literal["none", "windows", "all"] = "none"
    neutral_token: int | None = None
    unscaled_logits: bool = False

    def columns(self, hidden_size: int) -> int:
        """Return how wide a picture's rows are."""
        return hidden_size * (1 + self.deep_layers)


@dataclass(frozen=True)
class MoeSpec:
    """Experts in place of a layer's MLP."""

    num_experts: int
    experts_per_token: int
    intermediate_size: int  # of one expert
    normalise: bool  # the weights of a token's experts add up to 1
    shared_intermediate_size: int = 0  # of the expert that every token uses; 0: there is none
    dense_layers: tuple[int, ...] = ()  # layers that have an ordinary MLP instead, ascending
    # How experts are chosen and weighted: see compute.ops.Routing
    score: ExpertScore = "softmax"
    epsilon: float = 0.0
    scale: float = 1.0
    groups: int = 1
    groups_chosen: int = 1
    group_score: GroupScore = "top2"
    activation: Activation = "silu"  # of an expert: see compute.ops.Experts
    jitter: float = 0.0
    weighted: Literal["output", "input"] = "output"  # "input": of a token's one expert, by sigmoid of its logit
    identities: int = 0  # further experts behind the others, which return a row as it is

    @property
    def routing(self) -> Routing:
        """The same as an argument of `Ops.moe`."""
        names = ("score", "normalise", "epsilon", "scale", "groups", "groups_chosen", "group_score", "jitter")
        return Routing(self.experts_per_token, **{name: getattr(self, name) for name in names})


@dataclass(frozen=True)
class DeltaSpec:
    """Layers with a gated delta rule in place of attention. Of their heads, `value_heads` of `value_width` have
    a matrix each, and share `key_heads` of `key_width`: see compute.ops.DeltaHeads.
    """

    layers: tuple[int, ...]  # that have it, ascending
    key_heads: int
    value_heads: int
    key_width: int
    value_width: int
    taps: int  # tokens before its own that the convolution of a channel reads
    interleaved: bool = False
    fused: bool = False  # one matrix projects to q, k, v and z, key head after key head
    fused_gates: bool = False  # and one to b and a
    gain: float = 1.0  # of the share of a token's value that enters the state
    norm_epsilon: float | None = None  # of the norm behind the rule; None: that of all norms

    @property
    def key_size(self) -> int:
        """Columns of the keys of all key heads."""
        return self.key_heads * self.key_width

    @property
    def value_size(self) -> int:
        """Columns of the values of all value heads."""
        return self.value_heads * self.value_width


class StateMixer(Protocol):
    """The part of layers that keeps a state, in place of attention or beside it; divided among ranks in equal parts:
    see model.state_mixers. Gated delta nets are apart (`DeltaSpec`).
    """

    @property
    def layers(self) -> tuple[int, ...]:
        """Return the layers that have it, ascending."""

    @property
    def parts(self) -> int:
        """Equal parts into which it may be divided."""

    @property
    def together(self) -> int:
        """Parts of which ranks better have all or none."""

    @property
    def columns(self) -> tuple[str, int]:
        """The dimension of a matrix whose columns are divided with it, and its columns of a part."""

    def dimensions(self) -> dict[str, int]:
        """Lengths of its tensors, by the names that parameter tables have for them."""

    def ranges(self, part: Any) -> Mapping[str, Any]:
        """Return what a `ModelPart` has of each, as `IndexRange`."""

    def state(self, part: Any) -> LayerState:
        """Return what a layer keeps of a sequence in a `ModelPart`."""

    def by_kv_head(self, part: Any) -> tuple[IntArray, IntArray]:
        """Return which channels of the convolution and which matrices of a layer in a `ModelPart` go with each of its
        KV heads, both [KV heads, so many]. A channel may go with several, each KV head of the model with equally many
        matrices.
        """


@dataclass(frozen=True)
class BlockChoice:
    """The rule by which tokens are chosen in blocks: each head of an indexer chooses `count` blocks of `size` tokens
    for its KV head, the last `local` in any case.
    """

    size: int
    count: int
    local: int


@dataclass(frozen=True)
class IndexerSpec:
    """Heads that choose the `chosen` tokens which a layer attends to: `heads` queries of `width` elements, against one
    key of each token. `layers`: that have it, ascending; another layer takes the choice of the one before it, or with
    `blocks` attends to all. `adjacent`: pairs that turn are neighbours.
    """

    heads: int
    width: int
    chosen: int
    layers: tuple[int, ...]
    adjacent: bool
    blocks: BlockChoice | None = None  # None: tokens are chosen one by one, for all heads together


@dataclass(frozen=True)
class PooledSpec:
    """Layers that keep a row of each window of tokens beside one of each token: see compute.ops.PooledKeys. `ratios`:
    of each layer the tokens of a window, 0 where it keeps none. `width`: elements of a row.
    """

    ratios: tuple[int, ...]
    width: int


@dataclass(frozen=True)
class PredictionSpec:
    """A block that predicts further tokens (multi-token prediction), as a model of one layer: it computes the row of a
    token from the row that the model, or the block itself, has of the token before. `own`: the tables of its own
    ("embed", "lm_head") where others read those of the model. `row_first`: that row comes before the token's embedding
    where both are joined. `reads_normed`: of the model it reads what is behind the last norm; `hands_normed`: of its
    own row, too.
    """

    own: frozenset[str] = frozenset()
    row_first: bool = False
    reads_normed: bool = True
    hands_normed: bool = False


@dataclass(frozen=True)
class ModelSpec:
    """The figures of a model. Token ids are those of the model's own generation defaults."""

    architecture: str  # key of model.architectures.registry
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position: int
    norm_eps: float  # of RMS norms and LayerNorms alike
    rope: RopeSpec
    tie_word_embeddings: bool
    attention_bias: bool = False  # q, k and v
    output_bias: bool = False  # o
    mlp_bias: bool = False
    moe: MoeSpec | None = None  # None: every layer has an ordinary MLP
    delta: DeltaSpec | None = None  # None: every layer has attention
    mixer: StateMixer | None = None  # what layers that keep a state have where they are no gated delta nets
    indexer: IndexerSpec | None = None  # None: attention is over all tokens, or those of a window
    pooled: PooledSpec | None = None  # None: every layer keeps a row of each token alone
    sliding_window: int | None = None
    sliding_layers: tuple[bool, ...] = ()  # which layers use it; empty: all
    window_kind: WindowKind = "sliding"
    local_rope: RopeSpec | None = None  # of the layers that use it; None: that of all others
    rope_layers: tuple[bool, ...] = ()  # which layers rotate queries and keys; empty: all
    embedding_scale: float = 1.0
    scales_rows: bool = False  # also of rows that take the place of embeddings, as they come before it
    residual_scale: float = 1.0  # of what each half of a layer adds to its rows
    logits_scale: float = 1.0
    attention_scale: float | None = None  # of scores; None: 1 / sqrt(head_dim)
    attention_softcap: float | None = None  # of scores; None: no cap
    logits_softcap: float | None = None
    bos_token_id: int | None = None
    eos_token_ids: tuple[
        int, ...
    ] = ()  # by number; model.tokenizer.vocabularies.stop_tokens has what ends an answer besides
    storage: str = "F32"  # the DType most weight bytes are in
    generation: dict[str, float | int] = field(default_factory=dict)  # temperature, top_p... that its files name
    own: object = None  # figures that no other architecture has, of a class in its file
    # Of each layer what it keeps of a sequence besides keys and values, None: nothing; empty: no layer does.
    layer_states: tuple[LayerState | None, ...] = ()
    state_groups: int = 1  # equal parts of heads and channels into which every state may be divided among ranks

    # Of each layer what it keeps in KV memory; the number of an earlier layer whose keys and values it reads instead;
    # or None where it attends to nothing. Empty: num_kv_heads heads of head_dim in every layer.
    layer_kv: tuple[LayerKv | int | None, ...] = ()
    layer_query_heads: tuple[int, ...] = ()  # of each layer, where they differ; with layer_kv; empty: num_heads in all
    layer_intermediate: tuple[int, ...] = ()  # of each layer, where they differ; empty: intermediate_size in all
    dimensions: Mapping[str, int] = field(default_factory=dict)  # further lengths of tensors, which are never divided
    head_widths: Mapping[str, int] = field(default_factory=dict)  # and those that are so many for each query head
    kv_head_widths: Mapping[str, int] = field(default_factory=dict)  # or for each KV head
    group_heads: int = 1  # query heads that a rank has all or none of, as their outputs have a matrix in common
    group_widths: Mapping[str, int] = field(default_factory=dict)  # lengths that are so many for each group of them
    streams: int = 1  # of hidden_size columns each, which layers hand on beside each other
    pooling: PoolingSpec | None = None  # how texts become vectors or scores; None: the model generates text
    pictures: PictureSpec | None = None  # how rows of pictures enter; None: it sees none
    attention_mask: AttentionMask = "causal"
    prediction: PredictionSpec | None = None  # of a block that predicts; None: it is a model by itself

    def own_as(self, kind: type[_Own]) -> _Own:
        """Return what no other architecture has, of the class that this one's file has for it."""
        assert isinstance(self.own, kind)
        return self.own

    @property
    def encodes(self) -> bool:
        """Return whether its tokens see what comes behind them, so that it makes vectors or scores of whole
        texts only.
        """
        return self.attention_mask != "causal"

    @property
    def handed_columns(self) -> int:
        """Columns of a row that a stage hands on to the next."""
        return self.streams * self.hidden_size

    @property
    def media_columns(self) -> int:
        """Columns of rows of media, which stand in places of embeddings; 0: the model takes none."""
        return 0 if self.pictures is None else self.pictures.columns(self.hidden_size)

    def state_of(self, layer: int) -> LayerState | None:
        """Return what a layer of the model keeps of a sequence besides keys and values, None where it keeps nothing."""
        return self.layer_states[layer] if self.layer_states else None

    def donor_of(self, layer: int) -> int:
        """The layer whose keys and values a layer's attention reads: itself, or an earlier one."""
        kept = self.layer_kv[layer] if self.layer_kv else None
        return kept if isinstance(kept, int) else layer

    def kv_of(self, layer: int) -> LayerKv | None:
        """The keys and values that a layer's attention reads, its own or its donor's; None where it has none."""
        if not self.layer_kv:
            return LayerKv(self.num_kv_heads, self.head_dim, self.head_dim)
        kept = self.layer_kv[self.donor_of(layer)]
        assert not isinstance(kept, int)  # a donor has its own
        return kept

    def attended_columns(self, layer: int) -> int:
        """Columns of a key and its value that a query head of a layer multiplies with, as the model defines them; 0
        where it has no attention. Latent attention may multiply with more, to read less.
        """
        kv = self.kv_of(layer)
        if kv is None:
            return 0
        return sum(self.head_widths.values()) if self.head_widths else kv.key_width + kv.value_size

    def heads_of(self, layer: int) -> tuple[int, int]:
        """KV heads of a layer, and the elements of a head of its q, k and v rows. Where its keys and values are not as
        wide as each other, those of the figures.
        """
        kv = self.kv_of(layer)
        alike = kv is not None and kv.key_width == kv.value_width
        return (kv.kv_heads, kv.key_width) if kv is not None and alike else (self.num_kv_heads, self.head_dim)

    def query_heads_of(self, layer: int) -> int:
        """Query heads of a layer."""
        return self.layer_query_heads[layer] if self.layer_query_heads else self.num_heads

    def intermediate_of(self, layer: int) -> int:
        """Inner columns of a layer's MLP."""
        return self.layer_intermediate[layer] if self.layer_intermediate else self.intermediate_size

    def cache_layers(self, first: int, past: int) -> dict[int, int]:
        """Return for each of layers first .. past - 1 that attends, the layer of a KV memory of those that holds what
        it reads. KeyError where a layer's donor is not among them.
        """
        places: dict[int, int] = {}
        for layer in range(first, past):
            if self.kv_of(layer) is not None:
                donor = self.donor_of(layer)
                places[layer] = len(set(places.values())) if donor == layer else places[donor]
        return places

    def chooser_of(self, layer: int) -> int:
        """The layer that chooses the tokens which a layer attends to: itself, or an earlier one."""
        if self.indexer is None or self.indexer.blocks is not None or self.pooled is not None:
            return layer
        return max(chooser for chooser in self.indexer.layers if chooser <= layer)

    def chooses(self, layer: int) -> bool:
        """Return whether a layer attends to tokens that an indexer chooses, its own or an earlier layer's."""
        return self.indexer is not None and self.chooser_of(layer) in self.indexer.layers

    def index_layers(self, first: int, past: int) -> dict[int, int]:
        """Return for each of layers first .. past - 1 with an indexer, the layer of a KV memory of those that holds its
        keys: they are behind all that hold keys and values.
        """
        own = len(set(self.cache_layers(first, past).values()))
        having = [layer for layer in (self.indexer.layers if self.indexer else ()) if first <= layer < past]
        return {layer: own + number for number, layer in enumerate(having)}

    def window_tokens(self, layer: int) -> int:
        """Return of how many tokens a layer's indexer has a key, and the layer a row beside those of tokens: 1, or
        those of a window that is pooled.
        """
        return (self.pooled.ratios[layer] or 1) if self.pooled is not None else 1

    def index_kv(self, layer: int) -> LayerKv:
        """Return what a layer that has an indexer keeps of a token for it."""
        assert self.indexer is not None
        return LayerKv.of_windows(self.indexer.width, self.window_tokens(layer))

    def pooled_kv(self, layer: int) -> LayerKv:
        """Return what a layer that keeps rows of windows keeps of a token for them."""
        assert self.pooled is not None
        return LayerKv.of_windows(self.pooled.width, self.window_tokens(layer))

    def pooled_layers(self, first: int, past: int) -> dict[int, int]:
        """Return for each of layers first .. past - 1 that keeps rows of windows, the layer of a KV memory of those
        that holds them: they are behind all others.
        """
        before = len(set(self.cache_layers(first, past).values())) + len(self.index_layers(first, past))
        having = [layer for layer in range(first, past) if self.pooled is not None and self.pooled.ratios[layer]]
        return {layer: before + number for number, layer in enumerate(having)}

    def has_rope(self, layer: int) -> bool:
        """Return whether a layer of the model rotates its queries and keys."""
        return not self.rope_layers or self.rope_layers[layer]

    def window_of(self, layer: int) -> int | None:
        """Tokens of the sliding window of a layer of the model, None where it sees its whole context."""
        return self.sliding_window if not self.sliding_layers or self.sliding_layers[layer] else None


VectorFunction = Literal["identity", "negative_exponential", "softplus"]  # value; -e^value; ln(1 + e^value)


@dataclass(frozen=True)
class TensorEntry:
    """The place of a tensor's bytes. Name and shape are in Hugging Face terms ([rows, columns], row-major), whatever
    the file calls it.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    file: Path
    offset: int  # from the start of the file
    nbytes: int
    permuted_heads: int = (
        0  # GGUF llama q and k: rows of this many heads are interleaved (see compute/stored_matrix.py)
    )
    times: float = 1.0  # multiplies every value: GGUF files have it beside some matrices (matrix_scales.py)
    function: VectorFunction = "identity"  # of a vector these are meant: folders hold what was trained
    plus: float = 0.0  # added to every value of a vector: Gemma's folders hold norm weights less one
    coded: CodedMatrix | None = (
        None  # it lies there as several tensors; `dtype` and `nbytes` are those of what they are put together to
    )

    @property
    def stored(self) -> tuple[TensorEntry, ...]:
        """Return what of it lies in files."""
        return (self,) if self.coded is None else self.coded.parts

    @property
    def stored_bytes(self) -> int:
        """Bytes it takes there; of tensors that hold other matrices, too, its share."""
        size = sum(part.nbytes for part in self.stored)
        if self.coded is None:
            return size
        if self.coded.transposed:
            return size * math.prod(self.shape) // math.prod(self.coded.codes.shape)
        return size * self.shape[0] // self.coded.rows

    @property
    def files(self) -> frozenset[Path]:
        """The files it is in."""
        return frozenset(part.file for part in self.stored)


Tensors = Mapping[str, TensorEntry]  # by name


@dataclass(frozen=True)
class CodedMatrix:
    """A matrix that lies in a folder as codes, scales and perhaps zero points: weight = (code - zero) * scale; or as
    floats that are not its rows one after the other. coded_rows.py puts it together.

    `packing`: "gptq" (words of one row's next columns, all rows of those columns after each other), "awq" (words of
    eight rows of a column), "rows" (words of one row's next columns, row after row), "int8" (a signed byte each),
    "float8" (F8_E4M3), "float4" (E2M1, two to a byte, the first in the lower half) or "floats" (no codes).

    A matrix may be a part of what lies in these tensors: its row i is their row `first_row` + i * `row_step`; of runs
    of `row_run` rows each, of floats alone, row i / `row_run` * `row_step` + i % `row_run` behind the first. With
    `transposed` it is that of what lies there, turned: their columns are its rows, counted likewise, and their rows
    from `first_column` on are its columns.
    """

    label: str  # for people, such as "AWQ 4-bit"
    packing: str
    bits: int  # of a code
    block: tuple[int, int]  # stored rows and columns that share a scale
    codes: TensorEntry
    scales: TensorEntry | None = None  # None: of floats, which have none
    zeros: TensorEntry | None = None  # None: the middle of the codes, or 0 where they are signed
    zero_offset: int = 0  # added to stored zero points
    order: TensorEntry | None = (
        None  # of each column the group whose scale it has; None: columns are in the groups' order
    )
    scale_of_all: TensorEntry | None = None  # one number
    divides: bool = False  # scales are divided by it, not multiplied with it
    first_row: int = 0
    row_step: int = 1
    row_run: int = 1
    transposed: bool = False
    first_column: int = 0
    columns: int = 0  # of all that lies in these tensors, where that is turned

    @property
    def rows(self) -> int:
        """Return the rows of all that lies in these tensors."""
        if self.packing in ("gptq", "awq"):
            return self.codes.shape[1] * (8 if self.packing == "awq" else 1)
        return self.codes.shape[0]

    @property
    def parts(self) -> tuple[TensorEntry, ...]:
        """The tensors in the file."""
        return tuple(
            part for part in (self.codes, self.scales, self.zeros, self.order, self.scale_of_all) if part is not None
        )


class Checkpoint(Protocol):
    """An opened, validated model on disk. Opening reads headers only."""

    path: Path
    spec: ModelSpec

    @property
    def files(self) -> FilesRead:
        """Return what opening it has read, and of which files."""

    @property
    def tensors(self) -> dict[str, TensorEntry]:
        """Every tensor, by its Hugging Face name (`model.layers.0.self_attn.q_proj.weight`)."""

    @property
    def metadata(self) -> dict[str, object]:
        """GGUF key-value pairs, or the merged JSON of the folder under file names (`tokenizer_config.json`: {...})."""
