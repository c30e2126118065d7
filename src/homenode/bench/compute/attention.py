"""Speed of attention of decoding by itself: keys and values read, against the machine's limits.

One token of each sequence attends to its context, as a step of decoding does it in every layer, or several where drafts
are verified; the new keys and values are stored on the way. The layers of a program have KV memory of their own:
together it is larger than caches are, so that keys and values come from memory as they do in a model. They are zeros,
which takes as long as any other values.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from homenode.bench.compute.passes import Passes
from homenode.bench.machine.ceilings import Operations, Work, path_of
from homenode.bench.machine.repetition import BenchListener, Meter, Runs, measure_repeatedly
from homenode.compute.ops import KvGeometry, Ops, ScoreRule, StepArrays, StepLimits, Tensor
from homenode.errors import UserError
from homenode.kv_types import KV_TYPES
from homenode.spelling import with_suggestion
from homenode.units import format_count

if TYPE_CHECKING:
    from homenode.compute.native import NativeBackend

_KV_BYTES = 128 << 20  # of all layers of a point
_MOST_LAYERS = 2048
_MOST_BYTES = 8 << 30  # of a layer: a larger one is most likely a slip
_BLOCK = 64


@dataclass(frozen=True)
class AttentionPlan:
    """The measurements to make: every combination. A shape is (query heads, KV heads, elements of a head). `rows`:
    tokens of each sequence that attend. `repeat` runs of each; the median counts.
    """

    types: tuple[str, ...] = ("bf16", "int8")
    shapes: tuple[tuple[int, int, int], ...] = ((14, 2, 64), (32, 8, 64))
    contexts: tuple[int, ...] = (512, 8192, 32768)
    batch: int = 1
    repeat: int = 2
    rows: int = 1

    @property
    def points(self) -> int:
        """Return how many results it gives."""
        return len(self.types) * len(self.shapes) * len(self.contexts)


@dataclass(frozen=True)
class AttentionResult:
    """Attention of one layer for `rows` tokens of each of `batch` sequences of `context` tokens, those that attend
    included.

    `seconds`: of the layer, the fastest pass of a run, the median over the runs. `gb_s`: bytes of keys and values a
    second, `read_share` of what reading alone reached meanwhile. `gops`: 1e9 operations a second; `fraction`: how much
    of the ceiling of reading and multiplying, overlapped, was reached; `limit`: which of them sets it. `discarded`,
    `steady`: see `repetition.Runs`.
    """

    type: str
    heads: int
    kv_heads: int
    head_dim: int
    context: int
    batch: int
    rows: int
    seconds: float
    gb_s: float
    read_share: float
    gops: float
    fraction: float
    limit: str
    ceilings: dict[str, float]
    discarded: tuple[str, ...]
    steady: bool


def check_plan(plan: AttentionPlan) -> None:
    """UserError for a type or shape that there is no attention for, or more memory than anybody can mean."""
    for name in plan.types:
        if name not in KV_TYPES:
            message = f"no KV memory of {name}; there is {', '.join(KV_TYPES)}"
            raise UserError(with_suggestion(message, name, KV_TYPES), param="--types")
        for heads, kv_heads, head_dim in plan.shapes:
            if heads % kv_heads or head_dim % 2 or not 2 <= head_dim <= 4096:
                raise UserError(
                    f"shape {heads}x{kv_heads}x{head_dim}: wanted query heads that are a multiple of the KV heads, "
                    "and an even head of 2 to 4096",
                    param="--shapes",
                )
            if plan.rows > min(plan.contexts):
                raise UserError(
                    f"{format_count(plan.rows, 'token')} of a context of {format_count(min(plan.contexts), 'token')}: "
                    "those that attend are among the tokens of the context",
                    param="--rows",
                )
            layer = plan.batch * _blocks(max(plan.contexts)) * _geometry(name, kv_heads, head_dim, 1).block_bytes
            if layer > _MOST_BYTES:
                raise UserError(
                    f"{format_count(plan.batch, 'context')} of {format_count(max(plan.contexts), 'token')}, "
                    f"{format_count(kv_heads, 'KV head')} of {head_dim}: {layer >> 30} GiB for one layer; "
                    f"at most {_MOST_BYTES >> 30} can be measured",
                    param="--contexts",
                )


def measure_attention(
    backend: NativeBackend, meter: Meter, plan: AttentionPlan, watch: BenchListener
) -> Iterator[AttentionResult]:
    """One result for each combination, as it is measured. Raises what `check_plan` raises."""
    check_plan(plan)
    for name in plan.types:
        for shape in plan.shapes:
            for context in plan.contexts:
                watch.started(f"{name} {'x'.join(map(str, shape))} at {context}")
                yield _measure(backend, meter, plan, watch, name, shape, context)


def _measure(
    backend: NativeBackend,
    meter: Meter,
    plan: AttentionPlan,
    watch: BenchListener,
    name: str,
    shape: tuple[int, int, int],
    context: int,
) -> AttentionResult:
    heads, kv_heads, head_dim = shape
    batch, one = plan.batch, _geometry(name, kv_heads, head_dim, 1)
    blocks = _blocks(context)
    layers = min(_MOST_LAYERS, max(1, -(-_KV_BYTES // (batch * blocks * one.block_bytes))))
    cache = backend.kv_cache(_geometry(name, kv_heads, head_dim, layers), batch * blocks)
    draw = np.random.default_rng(0)
    q, k, v = (
        backend.constant(draw.standard_normal((batch * plan.rows, n * head_dim)).astype(np.float32))
        for n in (heads, kv_heads, kv_heads)
    )

    rule = ScoreRule(head_dim**-0.5)

    def forward(ops: Ops) -> Tensor:
        for layer in range(layers - 1):
            ops.attention(q, k, v, cache, layer, rule)
        return ops.attention(q, k, v, cache, layers - 1, rule)

    arrays = _arrays(batch, plan.rows, context)
    program = backend.compile(forward, StepLimits(batch * plan.rows, batch, 1, blocks))
    runs = measure_repeatedly(Passes([program], arrays, layers), meter, plan.repeat, watch, short=True)
    looked_at = plan.rows * context - plan.rows * (plan.rows - 1) // 2
    operations = Operations.of(path_of(name.upper()), 4.0 * batch * heads * head_dim * looked_at)
    work = Work(batch * context * one.block_bytes / _BLOCK, operations)
    return _result(plan, name, shape, context, work, runs)


def _arrays(batch: int, rows: int, context: int) -> StepArrays:
    """The last `rows` tokens of each sequence; sequences own adjacent blocks."""
    blocks = _blocks(context)
    return StepArrays(
        _int32([0] * (batch * rows)),
        _int32([*range(context - rows, context)] * batch),
        _int32(range(0, batch * rows + 1, rows)),
        _int32([context] * batch),
        np.arange(batch * blocks, dtype=np.int32).reshape(batch, blocks),
        _int32([]),
    )


def _result(
    plan: AttentionPlan, name: str, shape: tuple[int, int, int], context: int, work: Work, runs: Runs
) -> AttentionResult:
    seconds = statistics.median(r.seconds for r in runs.counted)
    middle = runs.counted[len(runs.counted) // 2].ceilings
    return AttentionResult(
        type=name,
        heads=shape[0],
        kv_heads=shape[1],
        head_dim=shape[2],
        context=context,
        batch=plan.batch,
        rows=plan.rows,
        seconds=seconds,
        gb_s=work.bytes / seconds / 1e9,
        read_share=statistics.median(r.ceilings.read_seconds(work) / r.seconds for r in runs.counted),
        gops=work.operations.total / seconds / 1e9,
        fraction=statistics.median(r.ceilings.seconds(work) / r.seconds for r in runs.counted),
        limit=middle.limit(work),
        ceilings=middle.to_json(),
        discarded=runs.discarded,
        steady=runs.steady,
    )


def _geometry(name: str, kv_heads: int, head_dim: int, layers: int) -> KvGeometry:
    return KvGeometry.uniform(layers, kv_heads, head_dim, _BLOCK, name)


def _blocks(context: int) -> int:
    return -(-context // _BLOCK)


def _int32(values: Any) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    return np.array(values, np.int32)
