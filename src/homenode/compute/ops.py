"""The requests that a model may make of a machine: the protocol between model code and its backends.

Model code is written once, on `Ops`, in functional style: every op takes handles and returns a new handle. A backend is
free to run at once (the NumPy reference) or to record the calls and replay them in one native call a step (the native
core): a forward function therefore never looks at values, only at handles, and its Python runs once, not once a step.

Rows are tokens. A handle has either one row for each token of the step or one for each sampled row (after `select`).
All activations are float32, row-major; weights keep their storage format.

Batch invariance is part of the contract: the value of a row depends only on that row's own sequence, never on what
shares the batch, how a prompt was cut, or how many threads run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from homenode.compute import activations
from homenode.compute.ranks import RankGroup
from homenode.compute.row_ops import RowOps
from homenode.compute.stored_matrix import StoredMatrix
from homenode.dtypes import DType
from homenode.host.bind.memory.residency import PlannedRange
from homenode.kv_types import KV_TYPES
from homenode.numa_policy import NumaPolicy
from homenode.sampling import NO_TOKEN as NO_TOKEN
from homenode.sampling import SETTINGS, setting_type

Tensor = Any  # a backend's activation or parameter handle, float32 [rows, columns] (parameters: [columns])
Weight = Any  # a backend's packed matrix handle, [rows = output features, columns = input features]
KvCache = Any  # a backend's paged KV memory handle
StateMemory = Any  # a backend's handle of what layers keep of sequences besides keys and values
StoredTable = Any  # a backend's handle of a table that stays in its file, [rows, columns]: see `Ops.stored_rows`
Logits = (
    Any  # a backend's [sampled rows, vocabulary] handle, float32, valid until the next run of the program that made it
)


class SharedWords(Protocol):
    """Words of 64 bits in memory that several processes write. ValueError for a word that is not there."""

    def load(self, word: int) -> int:
        """Return what it is; whatever was written before it was stored is seen from now on."""

    def store(self, word: int, value: int) -> None:
        """Let it be seen after all that was written before."""

    def exchange(self, word: int, expected: int, value: int) -> int:
        """Write `value` where the word is `expected`, at once. The result is what it was."""


class SharedWeights(Protocol):
    """Memory of weights that several processes map. Bytes are counted from its beginning; ranges are whole pages."""

    def own(self, runs: Sequence[tuple[int, int]]) -> None:
        """Take these ranges, one behind the other, as this process's: pages are to come from its nodes, those of a
        range from one, and count as its weights.
        """

    def open(self, begin: int, end: int) -> None:
        """Open this range, which is zeros, for matrices: from now on they go there and nowhere else."""

    def clear(self, begin: int, end: int) -> None:
        """Make pages of the range that is open zeros again."""

    def take_huge(self) -> None:
        """Have all of that range on huge pages, if there are any."""

    def close(self) -> None:
        """Nothing is put anywhere any more."""

    def enter(self, begin: int, end: int) -> None:
        """A range that others have filled will be read: whatever the first reads would have to do for that
        is done now.
        """


class SharedPlacement(NamedTuple):
    """The place of a matrix, or for it, in memory that several processes share: all of it from byte `offset` on."""

    memory: SharedWeights
    offset: int


# Where a matrix lies: by one of MATRIX_POLICIES, or in shared memory.
MatrixPlacement = NumaPolicy | SharedPlacement

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]
ARRAY_TYPES = {int: np.int32, float: np.float32}  # of the arrays of a sampling parameter


ROW_TOKENS = 16  # tokens beside each other in KV memory among which rows of windows lie


class LayerKv(NamedTuple):
    """The elements that one layer keeps of a token in KV memory: for each of `kv_heads` heads a key of `key_width` and
    a value of `value_width` elements; or keys alone (0), whose first `value_columns` elements are read as values.
    """

    kv_heads: int
    key_width: int
    value_width: int
    value_columns: int = 0

    @classmethod
    def of_windows(cls, width: int, ratio: int) -> LayerKv:
        """Return where a layer keeps a row of `width` elements of every window of `ratio` tokens, and none of tokens: a
        row lies whole in what is kept of those 16 tokens among which the last of its window is, as row (position of
        that token % 16) // ratio of them.
        """
        elements = -(-(-(-ROW_TOKENS // ratio) * width) // ROW_TOKENS)
        return cls(1, elements + elements % 2, 0)

    @property
    def sides(self) -> int:
        """2 of keys and values, 1 of keys alone."""
        return 2 if self.value_width else 1

    @property
    def value_size(self) -> int:
        """Elements of a head's value, wherever it is kept."""
        return self.value_width or self.value_columns

    def token_bytes(self, dtype: str) -> int:
        """Bytes of what is kept of one token, scales among them. `dtype`: one of KV_TYPES."""
        widths = (self.key_width, self.value_width)[: self.sides]
        return self.kv_heads * sum(map(KV_TYPES[dtype].vector_bytes, widths))


@dataclass(frozen=True)
class KvGeometry:
    """Shape of the paged KV memory, layer by layer. A block holds `block_size` tokens of every layer; its id is the
    same in all layers. Layers are those that keep keys and values of their own, which may be fewer than a model has.
    `state`: what layers keep of a sequence besides, in slots beside the blocks; None: nothing. `drafting`: of what
    drafts tokens beside the model, which keeps keys and values of the same blocks in memory of its own; None: nothing
    does.
    """

    layers: tuple[LayerKv, ...]
    block_size: int
    dtype: str  # one of KV_TYPES
    state: StateGeometry | None = None
    drafting: KvGeometry | None = None

    @classmethod
    def uniform(cls, layers: int, kv_heads: int, head_dim: int, block_size: int, dtype: str) -> KvGeometry:
        """Return the geometry of `layers` layers of one shape, whose keys and values are `head_dim` wide."""
        return cls((LayerKv(kv_heads, head_dim, head_dim),) * layers, block_size, dtype)

    @property
    def is_even(self) -> bool:
        """Return whether layers of several shapes are one memory of cells alike (`model.kv_cells`)."""
        alike = all(shape.value_width in (0, shape.key_width) for shape in self.shapes)
        return alike and not KV_TYPES[self.dtype].has_scales

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers, keys and values, scales among them, and of what drafts."""
        own = self.block_size * sum(layer.token_bytes(self.dtype) for layer in self.layers)
        return own if self.drafting is None else own + self.drafting.block_bytes

    @property
    def shapes(self) -> dict[LayerKv, list[int]]:
        """The layers of each shape, shapes in the order of their first layers."""
        found: dict[LayerKv, list[int]] = {}
        for layer, shape in enumerate(self.layers):
            found.setdefault(shape, []).append(layer)
        return found

    @property
    def only_shape(self) -> LayerKv:
        """The shape of all layers. ValueError where there is none or several."""
        if len(self.shapes) != 1:
            raise ValueError(f"KV memory of {len(self.shapes)} shapes of layers; wanted one")
        return self.layers[0]


@dataclass(frozen=True)
class LayerState:
    """The elements that a layer keeps of a sequence besides keys and values, float32: of a convolution the last `taps`
    inputs of each of `channels`, and for each of `heads` heads a matrix [key_width, value_width]. 0: it has none of
    that kind.
    """

    channels: int = 0
    taps: int = 0
    heads: int = 0
    key_width: int = 0
    value_width: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of a sequence's state."""
        return 4 * (self.channels * self.taps + self.heads * self.key_width * self.value_width)


@dataclass(frozen=True)
class StateGeometry:
    """Shape of the state memory: of each layer that has one. A slot holds what all of them keep of one sequence."""

    layers: tuple[LayerState, ...]

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot."""
        return sum(layer.nbytes for layer in self.layers)


@dataclass(frozen=True)
class DeltaHeads:
    """The rule by which the value heads of a gated delta rule find their key head among `key_heads`: value head h reads
    key head h % key_heads where they are `interleaved`, else h // (value heads / key heads). `gain`: of sigmoid(beta).
    """

    key_heads: int
    interleaved: bool = False
    gain: float = 1.0


@dataclass(frozen=True)
class ScanHeads:
    """The rule by which the heads of a recurrence of Mamba 2 find the group that they read: head h of those that are
    here reads group (first + h) // per_group, `first` being how many heads of the first group are elsewhere.
    """

    per_group: int
    first: int = 0


@dataclass(frozen=True)
class PooledKeys:
    """Keys alone of one head that a layer keeps beside those of each token: `rows` [tokens, key width], of which every
    `ratio`-th counts, from position `ratio` - 1 on: one that `Ops.pool_windows` has made of the window that ends there.
    `layer`: of the cache, where they are stored as `LayerKv.of_windows` says. `chosen`: to which of these positions
    each token attends (see `Ops.choose_tokens`); None: to all up to its own.
    """

    rows: Tensor
    layer: int
    ratio: int
    chosen: Tensor | None = None


@dataclass(frozen=True)
class RelativeBias:
    """The bias that is added to scores by the position of the key less that of the query (as in T5; Raffel et al.
    2020), of the query heads from `first` on of a model with `heads`. `values` [buckets * heads]: a bucket's numbers of
    all heads beside each other; `buckets`: which of them counts for distances -reach .. reach; those beyond have that
    of the ends.
    """

    values: Tensor
    buckets: tuple[int, ...]
    heads: int
    first: int = 0

    @property
    def reach(self) -> int:
        """The largest distance with a bucket of its own."""
        return len(self.buckets) // 2


@dataclass(frozen=True)
class ScoreRule:
    """How a layer's attention makes weights of scores, and which positions a token sees.

    A token sees the positions up to its own, or with the mask "all" every one, for which the step has to hold all of
    the sequence; with "spans" besides those up to its own the step's `seen_spans` of it, whatever the window is. With
    `window`, position p sees of these the ones above p - window and below p + window only, or where
    it is "chunked" positions from p // window * window on only.

    A score is q . k * scale. With `softcap` (above 0), a score s becomes softcap * tanh(s / softcap) before the
    softmax, as in Gemma 2. `sinks` [query heads]: a further score of each head, not capped, whose weight has no value
    (as in gpt-oss). With `slopes` [query heads], which go with neither softcap nor chosen keys, a score of a key n
    positions away from the query is less by n times the head's slope (ALiBi; Press et al. 2021). `bias`, which goes
    with neither softcap nor chosen nor pooled keys, is added to scores.
    """

    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    slopes: FloatArray | None = None
    bias: RelativeBias | None = None
    window_kind: WindowKind = "sliding"
    mask: AttentionMask = "causal"


@dataclass(frozen=True)
class AttendedKeys:
    """Which of the keys that a token sees it attends to, and what their values are.

    With `value_columns` there is no v: the values are the first so many elements of each head's keys, which are all
    that the layer keeps (see LayerKv), and the result has so many columns for each query head. With `chosen` (see
    `Ops.choose_tokens`; of layers of one KV head with value columns) each token attends to those positions only; with a
    `chosen_block` above 1 (see `Ops.choose_blocks`; of layers with values beside the keys) the query heads of each KV
    head attend to those blocks of so many positions. With `pooled`, of layers of one KV head with value columns, a
    token sees those keys besides, whatever the window is, in one softmax with the others.
    """

    value_columns: int = 0
    chosen: Tensor | None = None
    chosen_block: int = 1
    pooled: PooledKeys | None = None


ALL_KEYS = AttendedKeys()


@dataclass(frozen=True)
class StepLimits:
    """Upper bounds of a step; buffers are made for them once."""

    max_tokens: int
    max_sequences: int
    max_sampled_rows: int
    max_blocks_per_sequence: int


@dataclass
class StepArrays:
    """The data of one step, as int32 arrays. n tokens, s sequences, r sampled rows.

    Tokens of a sequence are adjacent and ascending in position. `query_start[i]:query_start[i+1]` are sequence i's
    tokens; `context_len[i]` is its length including them; its blocks are `block_table[i, :ceil(context_len[i] /
    block_size)]`. The key and value of position p live in block `block_table[i, p // block_size]`, slot `p %
    block_size`.
    """

    ids: IntArray  # [n]
    positions: IntArray  # [n]
    query_start: IntArray  # [s + 1]
    context_len: IntArray  # [s]
    block_table: IntArray  # [s, widest], C-contiguous
    sample_rows: IntArray  # [r] rows of the step whose logits are wanted, ascending
    hidden: FloatArray | None = (
        None  # [n, hidden] the stage before this one's rows, C-contiguous; for programs that use `Ops.received`
    )
    # Of programs with state memory: [s] the slot of the sequence; [s] whether its state is zeros, whatever the slot
    # holds; and [c, 3] copies of states: a sequence's number in the step, the slot that gets the copy, and the position
    # after which the state is copied; in the order of sequences and positions. None: there are no copies.
    state_slot: IntArray | None = None
    state_fresh: IntArray | None = None
    state_copies: IntArray | None = None
    # Rows that take the place of embeddings: [k, columns], C-contiguous, and the tokens of the step that they stand
    # for, ascending. None: there are none. For programs that use `Ops.place_rows`.
    input_rows: FloatArray | None = None
    row_places: IntArray | None = None
    # [3, n], C-contiguous: the positions in time, rows and columns of pictures by which rope with axes turns. None: all
    # three are the positions.
    rope_positions: IntArray | None = None
    # [n, 2], C-contiguous: the first and the past position that a token sees besides those up to its own, whatever the
    # window is; 0, 0: none. None: no token has any. For attention with the mask "spans".
    seen_spans: IntArray | None = None
    token_types: IntArray | None = None  # [n] which of the texts that are read together each is of; None: the first
    # [s] the adapter of each sequence (see `Ops.adapter_index`), -1: none. None: no sequence of the step has one.
    adapters: IntArray | None = None


@dataclass
class SamplingArrays:
    """Arrays that say how to draw a token from each of r rows of logits. Lists are in CSR form: row i owns
    start[i]:start[i+1].

    `settings`: by name, the arrays [r] of the table `homenode.sampling.SETTINGS`. To each row are applied, in this
    order: logit bias, penalties, the mask, then the other settings in the order told there, then the draw. The only
    token that a mask leaves is taken whatever its logit is. temperature 0 is greedy (lowest id among equals). The draw
    depends only on (seed, counter) of its row and its logits.
    """

    settings: dict[str, npt.NDArray[Any]]
    seed: npt.NDArray[np.uint64]  # [r]
    counter: npt.NDArray[np.uint64]  # [r] index of the token being drawn in its sequence
    bias_start: IntArray  # [r + 1]
    bias_token: IntArray
    bias_value: FloatArray  # added to the logit; -inf forbids the token
    seen_start: IntArray  # [r + 1]
    seen_token: IntArray  # distinct tokens of prompt and output (only for rows with a penalty)
    seen_count: IntArray  # how often in the output; 0: only in the prompt
    mask_row: IntArray  # [r] the mask that says which tokens may be drawn; -1: all may
    masks: npt.NDArray[np.uint32]  # [masks, words >= vocabulary / 32] a bit for each token, the lowest first
    native: Any = field(
        default=None, repr=False, compare=False
    )  # what a backend has made of these arrays, kept with them

    @classmethod
    def of(cls, rows: int, **given: Any) -> SamplingArrays:
        """Plain draws from `rows` rows, but for the fields and settings given; numbers stand for every row."""
        starts, nothing = np.zeros(rows + 1, np.int32), np.zeros(0, np.int32)
        lists = {"bias_start": starts, "bias_token": nothing, "bias_value": np.zeros(0, np.float32)}
        lists |= {"seen_start": starts, "seen_token": nothing, "seen_count": nothing}
        lists |= {"mask_row": np.full(rows, -1, np.int32), "masks": np.zeros((0, 0), np.uint32)}
        settings = {
            name: np.full(rows, given.pop(name, setting.off), ARRAY_TYPES[setting_type(name)])
            for name, setting in SETTINGS.items()
        }
        numbers = {name: np.full(rows, given.pop(name, 0), np.uint64) for name in ("seed", "counter")}
        return cls(settings, **{**lists, **numbers, **given})

    def named(self) -> dict[str, npt.NDArray[Any]]:
        """All arrays, the settings among them, by name."""
        return {
            **self.settings,
            "seed": self.seed,
            "counter": self.counter,
            "bias_start": self.bias_start,
            "bias_token": self.bias_token,
            "bias_value": self.bias_value,
            "seen_start": self.seen_start,
            "seen_token": self.seen_token,
            "seen_count": self.seen_count,
            "mask_row": self.mask_row,
            "masks": self.masks,
        }


@dataclass
class SampledRows:
    """The drawn tokens and, if asked for, log-probabilities under the unmodified logits (log-softmax, natural
    logarithm).

    A row that holds a NaN, or nothing finite that could be drawn, has the token `NO_TOKEN`. Where a row holds a NaN or
    has no finite largest value its log-probability is NaN, and its most likely tokens mean nothing. Other rows do not
    suffer from it.
    """

    tokens: IntArray  # [r]
    logprobs: FloatArray  # [r]
    top_tokens: IntArray  # [r, n] most likely first
    top_logprobs: FloatArray  # [r, n]


# Which of the positions up to its own a token sees with a window: the nearest, or those of its own run of as many.
WindowKind = Literal["sliding", "chunked"]
# Which tokens of its sequence one sees: those up to its own, or all, or those up to its own and the step's span of it.
AttentionMask = Literal["causal", "all", "spans"]
# Of a product's activations: "fine" is never as coarse as bfloat16.
Precision = Literal["usual", "fine"]
ExpertScore = Literal["softmax", "sigmoid", "chosen_softmax", "sparsemixer", "sqrt_softplus"]
GroupScore = Literal["max", "top2"]
PlainActivation = activations.PlainActivation
Activation = activations.PlainActivation | activations.PairActivation


@dataclass(frozen=True)
class Routing:
    """The rule by which the experts of a row are chosen by its router's logits, and what their results are multiplied
    with.

    The score of an expert is the softmax of the row's logits, or of its own logit the sigmoid, or sqrt(ln(1 + e^logit))
    of "sqrt_softplus"; of "chosen_softmax" it is the logit, and weights are the softmax over the chosen ones. Experts
    are chosen by score plus choice bias, where there is one; the bias counts for the choice only. With `groups` above 1
    the experts are divided into so many runs of equal length, and those in the `groups_chosen` best runs only can be
    chosen: a run is as good as its best expert ("max") or the sum of its best two ("top2"). Of equals the lowest index
    comes first. The weight of a chosen expert is its score, with `normalise` divided by (the sum over the chosen ones +
    `epsilon`), then times `scale`. Scores and weights are float32.

    "sparsemixer" (Liu et al. 2024, as in Phi-3.5-MoE), without choice bias: the score is the logit. Of the chosen ones
    in descending order each gets a softmax of its own, over those experts that were not chosen before it and whose
    logit is near its own: best - logit <= 2 * jitter * max(|logit|, best).
    """

    chosen: int
    score: ExpertScore = "softmax"
    normalise: bool = True
    epsilon: float = 0.0
    scale: float = 1.0
    groups: int = 1
    groups_chosen: int = 1
    group_score: GroupScore = "top2"
    jitter: float = 0.0  # of sparsemixer

    @property
    def by_logits(self) -> bool:
        """Return whether a choice without bias can be made by logits, whose order is that of the scores."""
        return self.score not in ("sigmoid", "sqrt_softplus") and (self.groups == 1 or self.group_score == "max")


@dataclass(frozen=True)
class Experts:
    """The MLPs of an MoE layer, one for each expert: gate and up [intermediate, columns], down [columns,
    intermediate], and biases of each [intermediate] and [columns] where there are any. Experts without a gate have
    none in `gate`: what goes into down is the activation of up(x) alone, a `PlainActivation`.

    All experts have the same shapes; the matrices of each of the three lists are kept in one format, gate and up in the
    same. `ids`: which of the layer's experts these are, ascending; None: all of them. A row whose chosen experts are
    elsewhere gets nothing from these. `scales`: a factor of the weight of each expert of the layer, also of those
    that are elsewhere. `activation` of g = gate(x) and u = up(x): a plain one of g, times u;
    "clamped" g * sigmoid(1.702 g) * (u + 1), g being at most 7 and u from -7 to 7; "limited" g * sigmoid(g) * u, g
    being at most 10 and u from -10 to 10.
    """

    gate: Sequence[Weight]
    up: Sequence[Weight]
    down: Sequence[Weight]
    ids: tuple[int, ...] | None = None
    gate_bias: Sequence[Tensor] | None = None
    up_bias: Sequence[Tensor] | None = None
    down_bias: Sequence[Tensor] | None = None
    scales: Tensor | None = None
    activation: Activation = "silu"


class Ops(RowOps, Protocol):
    """The calls a forward function is written in, with those of `RowOps`."""

    def embedding(self, table: Weight, first: int = 0, vocabulary: int | None = None) -> Tensor:
        """Rows of `table` for the step's token ids: [tokens, table.columns].

        With `vocabulary` the table holds its rows `first` on, of that many in all; ids whose row is not here give
        zeros.
        """

    def place_rows(self, x: Tensor, first: int = 0, of_columns: int = 0, adds: bool = False) -> Tensor:
        """x [tokens, columns] with the rows that the step brings in their places, `StepArrays.input_rows`; may reuse
        x's storage, which nothing else may read. `of_columns`: how wide those rows are, of which so many as x has are
        taken from column `first` on; 0: as wide as x. `adds`: they are added to x.
        """

    def position_rows(self, table: Weight, first: int = 0) -> Tensor:
        """Rows `first` + position of `table` for the step's positions: [tokens, table.columns]. The table has such a
        row for every position of a step.
        """

    def type_rows(self, table: Weight) -> Tensor:
        """Rows of `table` for the step's token types: [tokens, table.columns]."""

    def stored_rows(self, table: StoredTable, otherwise: int | None = None) -> Tensor:
        """Rows of a table that stays in its file for the step's token ids: [tokens, columns of the table]. `otherwise`:
        the row of ids past the table; None: there are none.
        """

    def received(self, columns: int) -> Tensor:
        """The rows that the stage before this one computed, `StepArrays.hidden`: [tokens, columns]."""

    def sum(self, x: Tensor) -> Tensor:
        """The element-wise sum of x over the ranks of the program's group, added in the order of the ranks; may reuse
        x's storage.
        """

    def gather(self, x: Tensor, widths: Sequence[int]) -> Tensor:
        """The x of all ranks of the program's group beside each other: [rows, sum of widths], this rank's x having
        widths[rank] columns.
        """

    def rms_norm(self, x: Tensor, weight: Tensor | int, eps: float) -> Tensor:
        """x / sqrt(mean(x^2) + eps) * weight over each group of len(weight) columns of x (per head when it is a head
        wide). An int in place of a weight: over groups of so many columns, multiplied with nothing.
        """

    def layer_norm(
        self, x: Tensor, weight: Tensor | int, bias: Tensor | None, eps: float, group: int | None = None
    ) -> Tensor:
        """(x - mean) / sqrt(variance + eps) * weight (+ bias) over each group of len(weight) columns of x. With
        `group`, which divides len(weight), mean and variance are those of so many columns. An int in place of a
        weight: over groups of so many columns, multiplied with nothing.
        """

    def linear(
        self,
        x: Tensor,
        weights: Sequence[Weight],
        biases: Sequence[Tensor | None] = (),
        residual: Tensor | None = None,
        precision: Precision = "usual",
    ) -> Tensor:
        """x @ W.T (+ bias) (+ residual), the outputs of several weights beside each other: [rows, sum of
        weight rows]. `precision`: a backend may round x to bfloat16 for a BF16 weight, but where it is to be fine.
        """

    def linear_heads(self, x: Tensor, weights: Sequence[Weight]) -> Tensor:
        """x cut into as many heads of equal width as there are weights, each head times its own weight: [rows, sum of
        weight rows]. All weights have one shape and format.
        """

    def adapter_index(self) -> Tensor:
        """Return the number of the adapter that each token's sequence has, an index for `linear_indexed`: [tokens, 1],
        -1 where it has none.
        """

    def linear_indexed(
        self,
        x: Tensor,
        weights: Sequence[Weight | None],
        index: Tensor,
        residual: Tensor | None = None,
        first: int = 0,
    ) -> Tensor:
        """Each row of x times the weight that `index` [rows, 1] names, a whole number: x @ weights[index].T, [rows,
        weight rows], and zeros where it names none. An index of all tokens does for selected rows, too. All weights
        have one shape and format; with None in place of one, rows that name it have none.

        With `residual` that is added to its columns from `first` on, which may be more than a weight has rows; may
        reuse its storage, which nothing else may read.
        """

    def rope_angles(
        self, inverse_frequencies: FloatArray, scale: float, behind: int = 0, axes: Sequence[int] = ()
    ) -> Tensor:
        """cos and sin of (position - behind) * frequency for the step's positions, times `scale`: [tokens, 2 *
        len(inverse_frequencies)]. `axes`: of each frequency, which of the step's `rope_positions` it turns by; none:
        all turn by the positions.
        """

    def rope(self, x: Tensor, angles: Tensor, head_dim: int, adjacent: bool = False) -> Tensor:
        """Rotate each head of x, pairing element i with i + rotary/2 (the "neox" order), rotary = angles.columns; may
        reuse x's storage.

        Elements of a head beyond `rotary` pass unchanged. `adjacent`: pairs are elements 2i and 2i + 1 of x, and
        elements i and i + rotary/2 of the result, which is the same for scores as long as queries and keys are alike.
        """

    def attention(
        self,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        cache: KvCache,
        layer: int,
        rule: ScoreRule,
        attended: AttendedKeys = ALL_KEYS,
    ) -> Tensor:
        """Store k and v of the step's tokens in layer `layer` of the cache, then attend over each sequence's context.
        `layer` counts the layers of the cache, not those of the model. Without k and v nothing is stored: an earlier
        call has stored the keys and values of this layer for the same tokens.

        Query head h reads KV head h // (q heads / KV heads).
        """

    def choose_tokens(
        self, q: Tensor, weights: Tensor, k: Tensor, cache: KvCache, layer: int, count: int, ratio: int = 1
    ) -> Tensor:
        """Return what `attention` takes as `chosen`: of each token the `count` positions up to its own whose scores are
        highest, of equals the earliest; all where there are no more.

        The score of a position is the sum over heads of weights[head] * max(q[head] . k, 0) with the k stored there.
        First k of the step's tokens is stored in layer `layer` of the cache, which keeps keys alone, of one head. q:
        [tokens, heads * width of k], weights: [tokens, heads]. With a `ratio` above 1 the last position of each window
        of so many tokens can be chosen: of k only their rows count, and are stored as `LayerKv.of_windows` says.
        """

    def choose_blocks(
        self, q: Tensor, k: Tensor, cache: KvCache, layer: int, block: int, count: int, local: int
    ) -> Tensor:
        """Return what `attention` takes as `chosen` with a `chosen_block` of `block` positions: of each token and each
        head of q the `count` blocks with positions up to its own whose scores are highest, of equals the earliest; all
        where there are no more. The last `local` of them, from 1 to `count`, are chosen whatever their scores are.

        Block i has the positions from i * block on; `block` is a multiple of 16 that divides 256. Its score is the
        highest q[head] . k with the k stored there of positions up to the token's. First k of the step's tokens is
        stored as in `choose_tokens`. q: [tokens, KV heads of the attention * width of k].
        """

    def scale_by_position(self, x: Tensor, growth: float, length: int, ahead: int = 0) -> Tensor:
        """x * (1 + growth * ln(1 + floor((position + ahead) / length))), of the step's positions (as in Llama 4), ahead
        being from 0 to length.
        """

    def stream_weights(
        self, mixes: Tensor, scales: Tensor, base: Tensor, streams: int, rounds: int, eps: float
    ) -> Tensor:
        """Weights by which a layer joins and parts n = `streams` streams (hyper-connections; Xie et al. 2026). mixes:
        [rows, n] or [rows, (2 + n) * n], and `base` as many; `scales`: 1, or 3. The first n of the result are
        sigmoid(mix * scale + base) + eps, by which streams are joined. The others, where there are any: n times 2 *
        sigmoid(mix * scale + base), by which what a layer makes goes to each stream; and [n, n] how much of stream j
        (column) goes to stream i (row): M[j, i], M being softmax(mix * scale + base) of each row plus eps, whose
        columns, then so often as `rounds` less one rows and columns, are divided by (their sum + eps).
        """

    def moe(
        self,
        x: Tensor,
        logits: Tensor,
        experts: Experts,
        routing: Routing,
        residual: Tensor | None,
        choice_bias: Tensor | None = None,
        chosen: Tensor | None = None,
    ) -> Tensor:
        """residual (or 0) + the sum of weight * down(activation(gate(x), up(x))) over the experts that `routing`
        chooses for each row.

        logits: [rows, experts]; choice_bias: [experts]. Biases of `experts` belong to the products: that of down is
        weighted like the rest. A row's experts are added in ascending order of their index. `chosen` [tokens, so many]:
        which experts are chosen, whatever the scores are, as whole numbers; one that is there twice counts twice. Where
        `experts` are not all, the choice and the weights are the same, and only those here are added.
        """

    def short_convolution(
        self,
        x: Tensor,
        weights: Sequence[Tensor],
        biases: Sequence[Tensor],
        memory: StateMemory,
        layer: int,
        silu: bool,
    ) -> Tensor:
        """Each column of x convolved by itself over the sequence: bias + the sum of weight[j] * the column j - taps
        tokens before, j from 0 to taps, zeros before the first token; then silu, if so.

        Layer `layer` of the state memory has a convolution of x's columns; it keeps the last inputs. `weights`: vectors
        [columns * (taps + 1)], a column's beside each other, of the columns in order; `biases` likewise, or none.
        """

    def delta_rule(
        self,
        qkv: Tensor,
        beta: Tensor,
        decay: Tensor,
        decay_weight: Tensor,
        decay_bias: Tensor,
        memory: StateMemory,
        layer: int,
        heads: DeltaHeads,
    ) -> Tensor:
        """The gated delta rule (Yang et al. 2024) with the matrices of layer `layer` of the state memory: [tokens,
        value heads * value width].

        qkv: the queries of all key heads, their keys, the values of all value heads. beta and decay: [tokens, value
        heads]. A head's q and k are divided by sqrt(sum of squares + 1e-6), q by sqrt(key width) as well. Of each
        token in turn, S being the head's matrix: S = exp(decay_weight * softplus(decay + decay_bias)) * S;
        r = (v - S^T k) * gain * sigmoid(beta); S = S + k r^T; the output is S^T q. Where decay and decay_bias have a
        number for each element of each value head's key, every row of S has a decay of its own (Kimi Delta Attention;
        Kimi Team 2025).
        """

    def selective_scan(
        self,
        xbc: Tensor,
        dt: Tensor,
        decay_weight: Tensor,
        decay_bias: Tensor,
        skip: Tensor,
        memory: StateMemory,
        layer: int,
        heads: ScanHeads,
    ) -> Tensor:
        """The recurrence of Mamba 2 (Dao and Gu 2024) with the matrices of layer `layer` of the state memory: [tokens,
        heads * value width].

        xbc: the values x of all heads, the inputs B of all groups, their outputs C. dt: [tokens, heads]; the other
        parameters have a number for each head. Of each token in turn, S being the head's matrix and d = softplus(dt +
        decay_bias): S = exp(decay_weight * d) * S + d * B x^T; the output is S^T C + skip * x.
        """

    def pool_windows(
        self,
        x: Tensor,
        biases: Sequence[Tensor],
        memory: StateMemory,
        layer: int,
        ratio: int,
        widths: Sequence[int],
        overlap: bool,
    ) -> Tensor:
        """One row of each window of `ratio` tokens, in the row of the last of them; in other rows zeros: [tokens, sum
        of widths].

        x has for each of `widths` the values of a token and its gates, both [width], or with `overlap` [2 * width]. The
        result's column is the sum over the window of softmax(gate + bias) * value, the softmax being over the window's
        tokens; with `overlap` those are the first halves of the window before, if there is one, and the second halves
        of this one. `biases`: for each width a vector [ratio * (gates of a token)], a token's gates beside each other.
        Layer `layer` of the state memory has a convolution of x's columns with `ratio` taps, with `overlap` twice as
        many; it keeps the last x.
        """

    def rms_norm_grouped(self, x: Tensor, weight: Tensor, groups: int, eps: float) -> Tensor:
        """x / sqrt(mean(x^2) + eps) over each of so many equal groups of columns, times weight, which is as long as a
        row.
        """

    def norm_gated(self, x: Tensor, weight: Tensor, gate: Tensor, eps: float) -> Tensor:
        """rms_norm(x, weight, eps) * silu(gate), gate being as wide as x."""

    def select(self, x: Tensor) -> Tensor:
        """The rows named by the step's `sample_rows`."""


class Program(Protocol):
    """A compiled forward function."""

    def run(self, arrays: StepArrays) -> Logits:
        """Run one step. Blocks; the native backend releases the interpreter while it computes.

        The result of a stage that is not the last is [tokens, hidden]; `numpy.asarray` of any result gives its rows.
        PeerError when another rank of the group did not come.
        """

    def expert_usage(self) -> npt.NDArray[np.uint64]:
        """Return for each `Ops.moe`, in the order of the calls, how many tokens each of its experts was computed for so
        far: [MoE layers, experts].

        Experts that are elsewhere have 0. Any thread may ask while a step is computed; a program that learns its calls
        by making them has no rows for those that its first step has not come to yet.
        """


class Backend(Protocol):
    """A place that computes: makes parameters and memory, compiles forward functions, samples."""

    name: str
    tile_tokens: int  # tokens of a step that its products compute together: see `WorkerReport`

    def weight_types(self) -> frozenset[str]:
        """Names of the storage formats (dtypes.DType.name) with a kernel of their own."""

    def weight_from_file(
        self, stored: StoredMatrix, target: str, placement: MatrixPlacement = NumaPolicy.SHARD
    ) -> Weight:
        """Read a matrix of an open file and keep it as `target` (see weight_types). Rows that are stored in GGUF's
        llama order are put back in Hugging Face order.
        """

    def weight_from_array(
        self, array: npt.NDArray[Any], target: str, placement: MatrixPlacement = NumaPolicy.SHARD
    ) -> Weight:
        """The same from a float32 [rows, columns] array."""

    def vector(self, array: npt.NDArray[Any]) -> Tensor:
        """A float32 parameter vector (norm weight, bias)."""

    def kv_cache(self, geometry: KvGeometry, blocks: int) -> KvCache:
        """Paged KV memory of `blocks` blocks, zeroed, touched by the threads that will use it."""

    def state_memory(self, geometry: StateGeometry, slots: int) -> StateMemory:
        """State memory of `slots` slots, zeroed. UnsupportedError where the backend has none."""

    def compile(self, forward: Callable[[Ops], Tensor], limits: StepLimits, group: RankGroup | None = None) -> Program:
        """Prepare `forward` for steps within `limits`. It returns the logits handle, or of a stage that is not the last
        its rows [tokens, hidden].

        `group`: the ranks that `Ops.sum` and `Ops.gather` are over, all of which compile the same calls; None: this one
        alone.
        """

    def sample(self, logits: Logits, how: SamplingArrays, num_logprobs: int = -1) -> SampledRows:
        """Draw one token for every row of the logits. num_logprobs -1: log-probabilities are not computed; 0: of the
        drawn token only.
        """

    def score(self, logits: Logits, rows: IntArray, targets: IntArray, num_logprobs: int) -> SampledRows:
        """Log-probabilities of `targets[i]` and the most likely tokens in rows `rows[i]` of the logits (prompt
        log-probabilities).
        """

    def statistics(self) -> dict[str, Any]:
        """Frozen figures of the backend: ISA level, threads and their CPUs, bytes of weights and KV,
        huge-page share.
        """


@runtime_checkable
class TableBackend(Protocol):
    """A backend that has `Ops.stored_rows`."""

    def stored_table(self, fd: int, offset: int, dtype: DType, rows: int, columns: int) -> StoredTable:
        """A [rows, columns] table stored as `dtype` at `offset` of an open file, where it stays: it is no weight, takes
        no memory, and its rows are read and decoded when a step asks for them. The descriptor may be closed.
        UnsupportedError for a format that it cannot decode.
        """


@runtime_checkable
class FittingBackend(Protocol):
    """A backend whose memory fits weights better when it is told how much of them is coming, and that no more is."""

    def begin_weights(self, size: int) -> None:
        """About `size` bytes of matrices, counted once each, are about to be made."""

    def end_weights(self) -> None:
        """The last one was made: memory that none of them needs may be given back."""


class PackedLocation(NamedTuple):
    """The place of a [rows, columns] matrix kept as `target` in a file: its first byte; and how it is to lie
    in memory.
    """

    offset: int
    target: str
    rows: int
    columns: int
    placement: MatrixPlacement = NumaPolicy.SHARD


@runtime_checkable
class PackedBackend(Protocol):
    """A backend that packs weights and can keep them in files as they are in memory, for any number of threads."""

    @property
    def packing(self) -> str:
        """A word that changes when weights are packed in another way."""

    def packed_bytes(self, target: str, rows: int, columns: int) -> int:
        """Bytes of a [rows, columns] matrix kept as `target` in a file."""

    def head_checksum(self, fd: int, size: int) -> str:
        """Return the checksum of the first `size` bytes of an open file, or of all where it ends before; 16 hexadecimal
        digits. HostError when reading fails.
        """

    def write_packed(self, weight: Weight, fd: int, offset: int) -> str:
        """Write a weight at `offset` of an open file. The result is its checksum, 16 hexadecimal digits. HostError when
        writing fails.
        """

    def weights_from_packed(self, fd: int, locations: Sequence[PackedLocation]) -> list[tuple[Weight, str]]:
        """Return what `write_packed` wrote at each location, and the checksum of what was read. ValueError when the
        file ends early, HostError when reading fails. Many at once are read faster than one after the other: threads
        need not wait for each other in between.
        """


@runtime_checkable
class SharingBackend(PackedBackend, Protocol):
    """A backend that can use weights that another process has packed, where they lie."""

    def shared_words(self, fd: int, count: int) -> SharedWords:
        """The first words of a memfd that is sealed against shrinking and as large. The descriptor is not kept.
        UserError when it is not like that, HostError when the machine refuses.
        """

    def shared_weights(self, fd: int, size: int) -> SharedWeights:
        """The first `size` bytes of such a memfd, nothing of it open. Its weights keep it mapped."""

    def attached_weight(self, placement: SharedPlacement, target: str, rows: int, columns: int, *, own: bool) -> Weight:
        """A matrix that is there already, kept as `target`. `own`: this process's, though it did not read
        it this time.
        """


@runtime_checkable
class GrowingBackend(Protocol):
    """A backend whose KV memory can be reserved only, its pages taken when they are used and given back afterwards."""

    def kv_cache(self, geometry: KvGeometry, blocks: int, *, touched: bool = True, beside: bool = False) -> Any:
        """See `Backend.kv_cache`. Without `touched` it is reserved: what was never written reads as zeros. `beside`: it
        belongs to the last one made, whose pages come and go with its own.
        """

    def change_kv_pages(self, changes: Sequence[tuple[int, int, bool]]) -> None:
        """Take (True) or give back (False) the pages of blocks first .. past - 1 of the last KV memory that was made
        so. Between two steps; what was in blocks that are given back is lost.
        """


@runtime_checkable
class MovableBackend(Protocol):
    """A backend whose threads can go on elsewhere."""

    def move(self, places: Sequence[Sequence[int]]) -> None:
        """Bind each thread to the CPUs of its place, between two steps; an empty one leaves it where it is. Memory
        stays. HostError when the machine refuses: some threads may have moved.
        """


@runtime_checkable
class PlacedBackend(Protocol):
    """A backend that can prove where its memory lies."""

    def planned(self) -> dict[str, tuple[PlannedRange, ...]]:
        """The ranges of `weights`, `kv` and `scratch` (what threads compute in), with the nodes they are planned for;
        none where none were planned.
        """

    def residency(self, most_pages: int | None = None) -> dict[str, list[dict[str, int]] | None]:
        """Return for `weights`, `kv` and `scratch` a line for each planned node: `node` (-1: several in turn), bytes
        `present`, bytes of them `local`, where planned.

        None where no nodes were planned or the kernel does not tell. `most_pages`: how many pages to ask for, at even
        distances; None: all.
        """
