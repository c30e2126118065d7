"""A model ready to compute: figures, parameters in a backend, and the forward function of its architecture."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from homenode.compute.ops import (
    Backend,
    FittingBackend,
    KvCache,
    KvGeometry,
    LayerKv,
    MatrixPlacement,
    Ops,
    SharingBackend,
    StateMemory,
    Tensor,
)
from homenode.errors import UserError
from homenode.kv_types import KV_CHOICES
from homenode.model.architectures import stage
from homenode.model.architectures.architecture import Architecture
from homenode.model.architectures.parameters import ForwardContext, Parameters, RowsKept
from homenode.model.architectures.registry import architecture_for
from homenode.model.architectures.rope import Rope, rope_of
from homenode.model.files_read import recorded_files
from homenode.model.identity import ModelIdentity
from homenode.model.part import ModelPart
from homenode.model.spec import Checkpoint, ModelSpec, TensorEntry
from homenode.model.state import state_geometry_of, state_layers
from homenode.model.weights.expert_memory import SharedExperts
from homenode.model.weights.expert_share import ExpertShare
from homenode.model.weights.expert_table import expert_table, identity_of
from homenode.model.weights.layout import WeightLayout, plan_layout
from homenode.model.weights.model_files import ModelFiles
from homenode.model.weights.names import MatchedTensor, match_tensors
from homenode.model.weights.packed_cache import PackedCache, sources_of
from homenode.model.weights.pooling_head import LoadedHeadLayer, load_pooling_head
from homenode.model.weights.read import MatrixPolicyOf, PlaceOf, Progress, read_parameters, require_tables
from homenode.model.weights.weights_identity import read_identity
from homenode.numa_policy import NumaPolicy


@dataclass(frozen=True)
class LoadedModel:
    """The result of `load_model`: a model, or a part of one. `spec` is of the whole model; `layout` says how every
    matrix that is here is kept, and its `notes` are worth telling an operator. `identity`: of the whole model, as it
    was when this was read.
    """

    spec: ModelSpec
    architecture: Architecture
    parameters: Parameters
    layout: WeightLayout
    rope: Rope
    part: ModelPart
    max_model_len: int  # most positions of a sequence, prompt and output together
    identity: ModelIdentity
    notes: tuple[str, ...] = ()  # of how it was loaded, worth telling an operator
    shared_bytes: int = 0  # of matrices that other engines own, and that are read where they lie
    head: tuple[LoadedHeadLayer, ...] = ()  # what follows pooling, where it is computed here
    # What forward functions are given in place of a backend's ops, made of these: all products of the model go by it.
    wrap: Callable[[Ops], Ops] = field(default=lambda ops: ops)

    def forward(
        self, cache: KvCache, state: StateMemory = None, *, takes_rows: bool = False, keeps_rows: RowsKept = "selected"
    ) -> Callable[[Ops], Tensor]:
        """The function to compile, keys and values going to `cache`, and what layers keep besides to `state`: logits of
        a step's selected rows, or of a stage that is not the last its rows. `takes_rows`: steps may bring rows in place
        of embeddings. `keeps_rows`: see `ForwardContext`.
        """
        given = self._context(cache, state, takes_rows=takes_rows, keeps_rows=keeps_rows)
        return lambda ops: self.architecture.forward(self.wrap(ops), given)

    def head_of_rows(self, kept: RowsKept) -> Callable[[Ops], Tensor]:
        """The function to compile that makes logits of rows that `forward` has kept so, which it receives."""
        given = self._context(None)

        def head(given_ops: Ops) -> Tensor:
            ops = self.wrap(given_ops)
            rows = ops.select(ops.received(self.spec.handed_columns))
            return stage.logits_of(ops, given, rows) if kept == "normed" else stage.leave(ops, given, rows)

        return head

    def with_tables_of(self, model: LoadedModel) -> LoadedModel:
        """A block that predicts, with the tables of the model it belongs to where it has none of its own."""
        top = {**model.parameters.top, **self.parameters.top}
        return replace(self, parameters=replace(self.parameters, top=top))

    def _context(
        self, cache: KvCache, state: StateMemory = None, *, takes_rows: bool = False, keeps_rows: RowsKept = "selected"
    ) -> ForwardContext:
        pictures, rope = self.spec.pictures, self.rope
        if takes_rows and pictures is not None and pictures.sections:
            rope = rope.with_sections(pictures.sections, interleaved=pictures.interleaved)
        return ForwardContext(
            self.spec,
            self.parameters,
            rope,
            cache,
            self.part,
            self.spec.cache_layers(self.part.layers.first, self.part.layers.end),
            index_layers=self.spec.index_layers(self.part.layers.first, self.part.layers.end),
            state=state,
            state_layers=state_layers(self.spec, self.part),
            takes_rows=takes_rows,
            keeps_rows=keeps_rows,
        )

    def kv_geometry(self, block_size: int, kv_dtype: str = "auto") -> KvGeometry:
        """Shape of the KV memory of what is here: see `kv_geometry_of`."""
        return kv_geometry_of(self.spec, self.layout, block_size, kv_dtype, self.part)


def kv_geometry_of(
    spec: ModelSpec, layout: WeightLayout, block_size: int, kv_dtype: str = "auto", part: ModelPart | None = None
) -> KvGeometry:
    """Shape of the KV memory of a part (None: all) of a model laid out like this, loaded or not: its layers and its KV
    heads.

    `auto`: f32 when every matrix of the whole model is kept as float32, else bf16. UserError for another dtype than
    "auto" and those of KV_TYPES.
    """
    if kv_dtype not in KV_CHOICES:
        raise UserError(
            f"--kv-cache-dtype {kv_dtype} is unknown; choose one of {', '.join(KV_CHOICES)}",
            param="kv_cache_dtype",
        )
    if kv_dtype == "auto":
        kv_dtype = "f32" if layout.float32 else "bf16"
    part = part or ModelPart.whole(spec)
    return KvGeometry(layers_kv(spec, part), block_size, kv_dtype, state_geometry_of(spec, part))


def layers_kv(spec: ModelSpec, part: ModelPart) -> tuple[LayerKv, ...]:
    """Return what each layer of a part's KV memory keeps: those layers of the part that have keys and values of their
    own, and of them the KV heads that are here; then those of indexers, and rows of windows. A layer with one KV head
    whose keys and values are unlike has it on every rank.
    """
    found = []
    for layer in range(part.layers.first, part.layers.end):
        kv = spec.kv_of(layer)
        if kv is not None and spec.donor_of(layer) == layer:
            alike = kv.key_width == kv.value_width
            found.append(kv._replace(kv_heads=part.heads_in(layer)[1].count) if alike else kv)
    found += [spec.index_kv(layer) for layer in spec.index_layers(part.layers.first, part.layers.end)]
    found += [spec.pooled_kv(layer) for layer in spec.pooled_layers(part.layers.first, part.layers.end)]
    # Blocks are counted alike in all stages: one without attention has a layer of them that nobody reads
    return tuple(found) or (LayerKv(1, 2, 2),)


@dataclass(frozen=True)
class _Plan:
    """All that is decided before the first weight is read."""

    architecture: Architecture
    rope: Rope
    tensors: tuple[MatchedTensor, ...]
    layout: WeightLayout
    part: ModelPart


def plan_model(
    checkpoint: Checkpoint,
    backend: Backend,
    *,
    quantize: str | None = None,
    dtype: str = "auto",
    part: ModelPart | None = None,
) -> WeightLayout:
    """Return how `load_model` would keep every matrix, without reading any. Raises what `load_model` raises before its
    first read.
    """
    return _plan(checkpoint, backend, quantize, dtype, part).layout


def load_model(
    checkpoint: Checkpoint,
    backend: Backend,
    *,
    quantize: str | None = None,
    dtype: str = "auto",
    max_model_len: int | None = None,
    progress: Progress | None = None,
    packed_cache: Path | None = None,
    matrix_policy_of: MatrixPolicyOf = lambda name: NumaPolicy.SHARD,
    part: ModelPart | None = None,
    experts: ExpertShare | None = None,
) -> LoadedModel:
    """Load a checkpoint, or a part of it, into a backend.

    quantize: None, `q8_0` or `q4_0` for float matrices. dtype: `auto`, `float32`, `bfloat16` or `float16` for float
    matrices. max_model_len: None means the model's own. progress: called with (bytes done, bytes in all) after every
    tensor. packed_cache: the folder of a file the packed matrices are read from, or written to for the next time; see
    `packed_cache.PackedCache`. matrix_policy_of: where the matrix of a tensor lies when the backend's threads have
    memory on several NUMA nodes. part: None means all of the model; the checkpoint is checked as a whole all the same.
    experts: the place among those that keep the experts of this part in common; None, or a backend that cannot
    (`shares_experts`), or a part without experts: all of the part is this engine's own.

    All checks come before the first weight is read: UnsupportedError for an unknown architecture, rope scaling or
    format, CheckpointError for missing, unknown or misshapen tensors, UserError for settings. What comes after them is
    a CheckpointError for files that became other ones since the checkpoint was opened.
    """
    length = _model_length(checkpoint.spec, max_model_len)
    plan = _plan(checkpoint, backend, quantize, dtype, part)
    with ExitStack() as stack:
        stack.enter_context(recorded_files(checkpoint.files))
        files = stack.enter_context(ModelFiles())
        shared = _shared(experts, checkpoint, plan, backend)
        if shared:
            stack.enter_context(shared)
        place_of = partial(_place, shared, matrix_policy_of)
        cache = (
            stack.enter_context(_cache(packed_cache, checkpoint, plan, backend, place_of, shared))
            if packed_cache
            else None
        )
        if isinstance(backend, FittingBackend):
            backend.begin_weights(sum(m.target_bytes for m in plan.layout.matrices if not shared or m.expert is None))
        parameters = read_parameters(
            plan.tensors, plan.layout, backend, plan.part.layers, files, progress, cache, place_of, shared
        )
        head = _head(checkpoint, plan.part)
        identity = read_identity(checkpoint, files.open, checkpoint.files)
        files.check()
        if cache:
            cache.complete()
        notes = tuple(cache.notes) if cache else ()
    if isinstance(backend, FittingBackend):
        backend.end_weights()
    shared_bytes = shared.shared_bytes if shared else 0
    return LoadedModel(
        checkpoint.spec,
        plan.architecture,
        parameters,
        plan.layout,
        rope_of(checkpoint.spec, length),
        plan.part,
        length,
        identity,
        notes,
        shared_bytes,
        head,
    )


def _head(checkpoint: Checkpoint, part: ModelPart) -> tuple[LoadedHeadLayer, ...]:
    """Return what follows pooling, where this part gives the answers."""
    pooling = checkpoint.spec.pooling
    here = pooling is not None and part.last_stage and part.rank == 0
    return load_pooling_head(checkpoint, pooling) if pooling is not None and here else ()


def _place(shared: SharedExperts | None, matrix_policy_of: MatrixPolicyOf, name: str) -> MatrixPlacement:
    return (shared and shared.place(name)) or matrix_policy_of(name)


def _cache(
    folder: Path, checkpoint: Checkpoint, plan: _Plan, backend: Backend, place_of: PlaceOf, shared: SharedExperts | None
) -> PackedCache:
    entries = _entries(checkpoint, plan)
    if shared is None:
        return PackedCache(folder, entries, plan.layout, backend, place_of, plan.part)
    return PackedCache(folder, entries, plan.layout, backend, place_of, plan.part, shared.is_read, shared.is_first)


def _shared(experts: ExpertShare | None, checkpoint: Checkpoint, plan: _Plan, backend: Backend) -> SharedExperts | None:
    """The memory of experts that are kept in common; None where they are not."""
    if experts is None or not isinstance(backend, SharingBackend):
        return None
    table = expert_table(plan.layout, plan.part, experts.members, backend.packed_bytes)
    if not table.matrices:
        return None
    model = sources_of(backend, _entries(checkpoint, plan))
    return SharedExperts(
        backend, experts, table, identity_of(table, plan.part, experts.members, model, backend.packing)
    )


def _entries(checkpoint: Checkpoint, plan: _Plan) -> list[TensorEntry]:
    """All tensors of the files in which the part's matrices are: where the first of a file begins does not depend on
    the part.
    """
    matrices = {m.name for m in plan.layout.matrices}
    files = frozenset[Path]().union(*(t.entry.files for t in plan.tensors if t.entry.name in matrices))
    stored = [part for entry in checkpoint.tensors.values() for part in entry.stored]
    return [part for part in stored if part.file in files]


def _plan(checkpoint: Checkpoint, backend: Backend, quantize: str | None, dtype: str, part: ModelPart | None) -> _Plan:
    architecture = architecture_for(checkpoint.spec)
    rope = rope_of(checkpoint.spec)
    matched = match_tensors(architecture, checkpoint, part)
    require_tables(matched.tensors, backend)
    layout = plan_layout(
        matched.tensors,
        backend.weight_types(),
        quantize=quantize,
        dtype=dtype,
        ignored=matched.ignored,
        whole=matched.whole,
    )
    return _Plan(architecture, rope, matched.tensors, layout, part or ModelPart.whole(checkpoint.spec))


def _model_length(spec: ModelSpec, wanted: int | None) -> int:
    if wanted is None:
        return spec.max_position
    if not 1 <= wanted <= spec.max_position:
        raise UserError(
            f"--max-model-len {wanted} does not fit this model: its positions end at {spec.max_position}; "
            f"give a number from 1 to {spec.max_position}",
            param="max_model_len",
        )
    return wanted
