"""Layers that keep keys alone: values that are columns of them, and tokens chosen by an indexer; against the reference,
and bit by bit against themselves however the work is cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest

from homenode.compute.native import NativeBackend
from homenode.compute.ops import AttendedKeys, FloatArray, KvGeometry, LayerKv, Ops, ScoreRule, StepLimits, Tensor
from homenode.compute.reference import ReferenceBackend
from homenode.compute.thread_memory import ThreadMemory
from homenode.errors import UnsupportedError
from tests.examples import MANY
from tests.native.cached_steps import BLOCKS, SIZE, run, table
from tests.native.steps import PAIR_LEVELS, Part, same_bits, step_of
from tests.native.test_homes import NODE

CHUNK = 256  # keys, as csrc/attention has it


@dataclass(frozen=True)
class Latents:
    """Query heads of `width` elements over one head of keys, whose first `columns` are values. `chosen`: how many
    tokens an indexer of `index_heads` heads of `index_width` chooses; 0: there is none.
    """

    heads: int
    width: int
    columns: int
    length: int
    dtype: str = "f32"
    chosen: int = 0
    index_heads: int = 5
    index_width: int = 12

    @property
    def geometry(self) -> KvGeometry:
        index = (LayerKv(1, self.index_width, 0),) if self.chosen else ()
        return KvGeometry((LayerKv(1, self.width, 0, self.columns),) * 2 + index, SIZE, self.dtype)

    def inputs(self) -> list[FloatArray]:
        """Queries, keys; and those of the indexer, weights between them."""
        rng = np.random.default_rng(5)
        widths = [self.heads * self.width, self.width]
        widths += [self.index_heads * self.index_width, self.index_heads, self.index_width] if self.chosen else []
        return [rng.standard_normal((self.length, width)).astype(np.float32) for width in widths]

    def forward(self, ops: Ops, given: Sequence[Tensor], cache: object) -> Tensor:
        q, k, *index = given
        chosen = ops.choose_tokens(*index, cache, 2, self.chosen) if index else None
        return ops.attention(q, k, None, cache, 1, ScoreRule(self.width**-0.5), AttendedKeys(self.columns, chosen))


CASES = [
    Latents(16, 40, 32, 300),
    Latents(3, 24, 24, 50),
    Latents(40, 72, 64, 90),
    Latents(1, 130, 114, 270),
    Latents(16, 40, 32, 300, "bf16"),
    Latents(40, 72, 66, 90, "bf16"),
    Latents(5, 576, 512, 33, "bf16"),
    Latents(16, 40, 32, 300, "int8"),
    Latents(7, 130, 114, 270, "int8"),
]


def close(case: Latents, found: FloatArray, wanted: FloatArray, level: str) -> None:
    """As attention.check in test_attention.py has it; the reference rounds what is kept likewise."""
    error = np.abs(found - wanted).max()
    assert error < (3e-2 if case.dtype == "bf16" and level in PAIR_LEVELS else 5e-4 if case.dtype == "int8" else 2e-5)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_are_columns_of_keys(backend: NativeBackend, level: str, case: Latents) -> None:
    steps = [[Part(0, case.length, table(case))]]
    found = run(backend, case, steps)
    assert found.shape == (case.length, case.heads * case.columns)
    close(case, found, run(ReferenceBackend(), case, steps), level)


@pytest.mark.parametrize("case", [CASES[0], CASES[2], CASES[4], CASES[7]], ids=str)
@pytest.mark.parametrize("chosen", [0, 37])
def test_chunks_batches_and_threads_change_no_bit(level: str, case: Latents, chosen: int) -> None:
    case = Latents(case.heads, case.width, case.columns, case.length, case.dtype, chosen)
    whole = run(NativeBackend([-1], 10, level), case, [[Part(0, case.length, table(case))]])
    for threads in (1, 2, 3):
        mine, other = table(case), table(case, 3)[:2]
        cuts = [0, 1, 30, 31, 47, case.length - 2, case.length - 1, case.length]
        steps = [[Part(first, end - first, mine)] for first, end in pairwise(cuts)]
        steps[2].append(Part(0, 1, other))  # another sequence beside it
        found = run(NativeBackend([-1] * threads, 10, level), case, steps)
        found = np.delete(found, cuts[3], axis=0)
        assert same_bits(found, whole)


@pytest.mark.parametrize("chosen", [0, 300])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "int8"])
def test_blocks_at_several_homes_change_no_bit(level: str, dtype: str, chosen: int) -> None:
    """Each home attends to the blocks that lie there; of 40 heads, which are two tiles, and of few, which differ only
    in how they are dealt out.
    """
    few = [(5, (0, 1))] if MANY or dtype == "f32" else []
    for heads, homes in [(40, (0, 0, 1, 1, 2)), *few]:
        case = Latents(heads, 72, 64, 560, dtype, chosen)
        cuts = [0, 310, 311, 558, 559, 560]
        mine, other = table(case, 0, 11), table(case, 3, 11)
        steps = [[Part(first, end - first, mine)] for first, end in pairwise(cuts)]
        memory = ThreadMemory(homes, (NODE,) * (max(homes) + 1), bound=True)
        groups = [(home,) for home in homes]
        apart = NativeBackend([-1] * len(homes), 10, level, groups=groups, memory=memory)
        cache = apart.caches_of(apart.kv_cache(case.geometry, BLOCKS))[0]
        for blocks in (mine, other):  # each home has a chunk, which is where its first block is
            assert {cache.home_of(block) for block in blocks[:: CHUNK // SIZE]} == set(homes)
        found = run(apart, case, steps)
        assert same_bits(found, run(NativeBackend([-1], 10, level), case, steps))
        assert same_bits(found, run(apart, case, [[Part(first, end - first, other)] for first, end in pairwise(cuts)]))


@pytest.mark.parametrize("dtype", ["f32", "bf16", "int8"])
def test_what_lies_beyond_the_context_is_never_read(backend: NativeBackend, level: str, dtype: str) -> None:
    case = Latents(4, 24, 20, 45, dtype)
    cache = backend.kv_cache(case.geometry, BLOCKS)

    def step(first: int, count: int, rows: list[FloatArray]) -> FloatArray:
        given = [backend.constant(x) for x in rows]
        program = backend.compile(lambda ops: case.forward(ops, given, cache), StepLimits(count, 1, 1, BLOCKS))
        return program.run(step_of([Part(first, count, [5, 9])])).numpy()

    step(0, 64, [np.full((64, x.shape[1]), np.nan, np.float32) for x in case.inputs()])
    found = [step(0, 20, [x[:20] for x in case.inputs()]), step(20, 25, [x[20:] for x in case.inputs()])]
    wanted = run(ReferenceBackend(), case, [[Part(0, 45, [5, 9])]])
    close(case, np.concatenate(found), wanted, level)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "int8"])
def test_attention_is_over_chosen_tokens(backend: NativeBackend, level: str, dtype: str) -> None:
    """Rounded scores may choose another token where two are nearly equal: then few rows differ."""
    case = Latents(20, 40, 32, 330, dtype, chosen=29)
    steps = [[Part(0, 200, table(case))], [Part(200, 130, table(case))]]
    found, wanted = run(backend, case, steps), run(ReferenceBackend(), case, steps)
    rows = np.abs(found - wanted).max(axis=1)
    exact = dtype == "f32"
    same = rows < (2e-5 if exact else 3e-2)
    assert same.all() if exact else same.mean() > 0.8
    dense = Latents(20, 40, 32, 330, dtype)
    assert not np.allclose(found[100:], run(backend, dense, steps)[100:], atol=1e-2)  # it is not what all tokens give


@pytest.mark.parametrize("dtype", ["f32", "bf16", "int8"])
def test_a_context_no_longer_than_the_choice_is_attended_to_as_a_whole(backend: NativeBackend, dtype: str) -> None:
    """The same bits, also beside a sequence that has to choose."""
    some, all_ = (Latents(20, 40, 32, 300, dtype, chosen) for chosen in (280, 0))
    steps = [[Part(0, 280, table(some))], [Part(280, 20, table(some))]]
    sparse, dense = run(backend, some, steps), run(backend, all_, steps)
    assert same_bits(sparse[:280], dense[:280])
    assert not same_bits(sparse[280:], dense[280:])
    whole = [[Part(0, 300, table(some))]]
    assert same_bits(run(backend, some, whole)[:280], dense[:280])


def test_of_equal_scores_the_earliest_are_chosen(backend: NativeBackend) -> None:
    """All scores are 0: a weight of zero makes them so."""
    case = Latents(2, 16, 16, 60, chosen=7, index_heads=1)
    q, k, index_q, weights, index_k = case.inputs()
    weights = np.zeros_like(weights)
    cache = backend.kv_cache(case.geometry, BLOCKS)
    given = [backend.constant(x) for x in (q, k, index_q, weights, index_k)]
    program = backend.compile(lambda ops: case.forward(ops, given, cache), StepLimits(60, 1, 1, BLOCKS))
    found = program.run(step_of([Part(0, 60, [0, 1])])).numpy()
    keys = k[:7]
    for row in (20, 59):
        scores = q[row].reshape(2, 16) @ keys.T / 4
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        wanted = shares / shares.sum(axis=1, keepdims=True) @ keys
        np.testing.assert_allclose(found[row], wanted.reshape(-1), rtol=1e-4, atol=1e-5)


def test_memory_is_of_keys_alone() -> None:
    for kept, bytes_of_row in {"f32": 4 * 40, "bf16": 2 * 40, "int8": 40 + 4}.items():
        geometry = KvGeometry((LayerKv(1, 40, 0, 32),) * 3, SIZE, kept)
        assert geometry.block_bytes == 3 * SIZE * bytes_of_row
        assert NativeBackend([-1]).kv_cache(geometry, 4).nbytes == 4 * geometry.block_bytes


def test_what_does_not_fit_is_refused() -> None:
    backend = NativeBackend([-1])
    alone = backend.kv_cache(KvGeometry((LayerKv(1, 16, 0, 8),), SIZE, "f32"), 2)
    both = backend.kv_cache(KvGeometry.uniform(1, 1, 16, SIZE, "f32"), 2)
    q, k = (backend.constant(np.ones((1, width), np.float32)) for width in (32, 16))
    room = StepLimits(1, 1, 1, 2)
    for cache, columns in ((alone, 0), (alone, 17), (both, 8)):
        with pytest.raises(ValueError, match="sides"):
            backend.compile(
                lambda ops, cache=cache, columns=columns: ops.attention(
                    q, k, None, cache, 0, ScoreRule(1.0), AttendedKeys(columns)
                ),
                room,
            )
    with pytest.raises(ValueError, match="choose_tokens"):
        backend.compile(lambda ops: ops.choose_tokens(q, q, k, alone, 0, 4), room)
    with pytest.raises(UnsupportedError, match="values of 8 elements"):
        backend.kv_cache(KvGeometry((LayerKv(1, 16, 8),), SIZE, "f32"), 2)


def test_a_norm_with_a_mean_and_rows_that_grow_with_their_position(backend: NativeBackend) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((70, 3 * 20)).astype(np.float32) + np.float32(4)
    weight, bias = rng.standard_normal((2, 20)).astype(np.float32)

    def forward(ops: Ops, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        normed = ops.add(ops.layer_norm(x, weight, bias, 1e-6), ops.layer_norm(x, weight, None, 1e-6))
        return ops.add(ops.scale_by_position(normed, 0.3, 16), ops.scale_by_position(normed, 0.2, 8, 1))

    room, step = StepLimits(70, 1, 1, 1), step_of([Part(0, 70)])
    given = backend.constant(x), backend.vector(weight), backend.vector(bias)
    found = backend.compile(lambda ops: forward(ops, *given), room).run(step).numpy()
    wanted = ReferenceBackend().compile(lambda ops: forward(ops, x, weight, bias), room).run(step)
    np.testing.assert_allclose(found, np.asarray(wanted), rtol=2e-5, atol=2e-5)
    assert np.abs(found[40:]).mean() > 1.1 * np.abs(found[:16]).mean()
