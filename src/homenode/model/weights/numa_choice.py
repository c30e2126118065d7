"""A model as the cost model of the NUMA policies sees it, and what that chooses. Nothing is read but the file of
measured speeds.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from homenode.compute.ops import KvGeometry
from homenode.host.plan.numa.policy import Chosen, Teams
from homenode.host.plan.numa.weight_cost import ModelWork, choose_policy, machine_speed
from homenode.host.topology.host import Host
from homenode.host.topology.measured import Measured, load_measured
from homenode.model.part import ModelPart
from homenode.model.spec import ModelSpec
from homenode.model.weights.layout import MatrixLayout, WeightLayout

_EXPERT = re.compile(r"\.experts\.\d+\.")
_TABLE = "model.embed_tokens.weight"  # of which a token reads one row, unless it is the output matrix as well


def model_work(spec: ModelSpec, layout: WeightLayout, geometry: KvGeometry, part: ModelPart | None = None) -> ModelWork:
    """The ModelWork of a model, or of a part of it, kept like this: bytes, and the operations and bytes of one token,
    of its chosen experts only.

    activation_bytes: float32 values that threads of other nodes make, of one token and layer: the outputs of q, k and
    v, of attention, of gate and up, and twice the hidden state.
    """
    part = part or ModelPart.whole(spec)
    elements = sum(m.rows * m.columns * _used(m, spec, part) for m in layout.matrices)
    active = sum(m.target_bytes * _used(m, spec, part) for m in layout.matrices) + layout.vector_bytes
    moe = spec.moe
    queries, keys = part.heads.count * spec.head_dim, part.kv_heads.count * spec.head_dim
    return ModelWork(
        weight_bytes=layout.target_bytes,
        flops_per_token=2.0 * elements,
        kv_bytes_per_token=geometry.block_bytes // geometry.block_size,
        layers=part.layers.count,
        activation_bytes=4 * (2 * spec.hidden_size + 2 * queries + 2 * keys + _inner(spec, part)),
        active_bytes=round(active),
        expert_share=None if moe is None else moe.experts_per_token / moe.num_experts,
        chosen=None if spec.indexer is None else spec.indexer.chosen,
        scanned_bytes=_scanned_bytes(spec, geometry, part),
    )


def cost_choice(
    host: Host,
    spec: ModelSpec,
    layout: WeightLayout,
    geometry: KvGeometry,
    batch: int,
    context: int,
    measured: Measured | None = None,
    part: ModelPart | None = None,
) -> Callable[[Teams], Chosen]:
    """Return what settles `--numa auto` for this model, or the part of it that `layout` and `geometry` are of: the cost
    model, asked for `batch` sequences of `context` tokens.

    measured: the speeds of this machine (`measured_speeds`), None for typical ones. geometry: of the KV memory.
    """

    def choose(teams: Teams) -> Chosen:
        machine = machine_speed(teams, host, measured)
        room = {team.memory_node: team.memory for team in teams}
        return choose_policy(machine, model_work(spec, layout, geometry, part), room, batch, context)

    return choose


def measured_speeds(path: str | None) -> Measured | None:
    """Return what `homenode bench nodes --out` kept in a file; None for no file. UserError when it holds no
    such thing.
    """
    return None if path is None else load_measured(path)


def _scanned_bytes(spec: ModelSpec, geometry: KvGeometry, part: ModelPart) -> int:
    """Return, of what KV memory keeps of a token, what a step reads also of tokens that no indexer chose: keys of
    indexers, and layers that attend to all.
    """
    here = range(part.layers.first, part.layers.end)
    own = [layer for layer in here if spec.kv_of(layer) is not None and spec.donor_of(layer) == layer]
    choosing = [kv for layer, kv in zip(own, geometry.layers, strict=False) if spec.chooses(layer)]
    choosing += [spec.pooled_kv(layer) for layer in spec.pooled_layers(here.start, here.stop) if spec.chooses(layer)]
    return geometry.block_bytes // geometry.block_size - sum(kv.token_bytes(geometry.dtype) for kv in choosing)


def _used(matrix: MatrixLayout, spec: ModelSpec, part: ModelPart) -> float:
    """Return how much of a matrix one token multiplies with."""
    if matrix.name == _TABLE and not (spec.tie_word_embeddings and part.last_stage):
        return 1 / matrix.rows
    if spec.moe is not None and _EXPERT.search(matrix.name):
        return spec.moe.experts_per_token / spec.moe.num_experts
    return 1.0


def _inner(spec: ModelSpec, part: ModelPart) -> int:
    moe = spec.moe
    if moe is None:
        return 2 * part.intermediate.count
    here = [len(experts) / moe.num_experts for experts in part.experts if experts]
    chosen = moe.experts_per_token * sum(here) / max(len(here), 1)
    return 2 * round(chosen * part.expert_intermediate.count + part.shared_intermediate.count)
