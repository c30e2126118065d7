"""Random steps of one attention layer, on any backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from homenode.compute.ops import (
    Backend,
    FloatArray,
    KvGeometry,
    Ops,
    ScoreRule,
    StepArrays,
    StepLimits,
    Tensor,
    WindowKind,
)

BLOCK, BLOCKS, WIDEST = 32, 40, 10  # at most four sequences
KV_HEADS, GROUP, HEAD = 2, 3, 16
COLUMNS = (KV_HEADS * GROUP + 2 * KV_HEADS) * HEAD


def geometry(dtype: str, block_size: int = BLOCK) -> KvGeometry:
    return KvGeometry.uniform(layers=1, kv_heads=KV_HEADS, head_dim=HEAD, block_size=block_size, dtype=dtype)


def step(counts: Sequence[int], contexts: Sequence[int], seed: int = 0) -> StepArrays:
    """`counts[i]` new tokens of sequences that then have `contexts[i]`; each has blocks of its own in disorder, the
    rest of its row is nonsense.
    """
    random = np.random.default_rng(seed)
    free = np.random.default_rng(99).permutation(BLOCKS)
    table = np.full((len(counts), WIDEST), -7, np.int32)
    for i, context in enumerate(contexts):
        needed = -(-context // BLOCK)
        table[i, :needed] = free[i * WIDEST : i * WIDEST + needed]
    positions = np.concatenate(
        [np.arange(context - count, context) for count, context in zip(counts, contexts, strict=True)]
    )
    starts = np.concatenate([[0], np.cumsum(counts)])
    arrays = (
        a.astype(np.int32) for a in (random.integers(0, 9, len(positions)), positions, starts, np.array(contexts))
    )
    ids, at, begin, context_len = arrays
    rows = np.arange(len(positions), dtype=np.int32)
    hidden = random.standard_normal((len(positions), COLUMNS)).astype(np.float32)
    return StepArrays(ids, at, begin, context_len, table, rows, hidden)


def attending(
    cache: Any, window: int | None, softcap: float | None, kind: WindowKind = "sliding"
) -> Callable[[Ops], Tensor]:
    """A forward function: the received rows are q, k and v."""

    def forward(ops: Ops) -> Tensor:
        q, k, v = ops.split(ops.received(COLUMNS), (KV_HEADS * GROUP * HEAD, KV_HEADS * HEAD, KV_HEADS * HEAD))
        return ops.select(ops.attention(q, k, v, cache, 0, ScoreRule(HEAD**-0.5, window, softcap, window_kind=kind)))

    return forward


def run(
    backend: Backend,
    steps: Sequence[StepArrays],
    dtype: str,
    window: int | None = None,
    softcap: float | None = None,
    kind: WindowKind = "sliding",
) -> list[FloatArray]:
    """The rows of successive steps over one KV memory."""
    cache = backend.kv_cache(geometry(dtype), BLOCKS)
    program = backend.compile(attending(cache, window, softcap, kind), StepLimits(512, 16, 512, WIDEST))
    return [np.array(program.run(each)) for each in steps]


def history() -> list[StepArrays]:
    """Prompts in two chunks, then decoding at contexts of very different lengths, then a step of both kinds."""
    return [
        step((40, 150, 3, 64), (40, 150, 3, 64), seed=1),
        step((7, 129, 1, 1), (47, 279, 4, 65), seed=2),
        step((1, 1, 1, 1), (48, 280, 5, 66), seed=3),
        step((1, 20, 1, 30), (49, 300, 6, 96), seed=4),
    ]
