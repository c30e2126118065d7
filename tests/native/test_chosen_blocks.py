"""Blocks of tokens that heads of an indexer choose, each for its KV head: against the reference, and bit by bit against
themselves however the work is cut.
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
from tests.native.cached_steps import BLOCKS, SIZE, run, table
from tests.native.steps import Part, same_bits, step_of
from tests.native.test_homes import NODE


@dataclass(frozen=True)
class Chosen:
    """`group` query heads for each of `kv_heads`; of blocks of `block` tokens `count` are chosen, the last `local` in
    any case.
    """

    kv_heads: int
    group: int
    length: int
    block: int
    count: int
    local: int = 1
    dtype: str = "f32"
    width: int = 20
    index_width: int = 12

    @property
    def geometry(self) -> KvGeometry:
        both = LayerKv(self.kv_heads, self.width, self.width)
        return KvGeometry((both, both, LayerKv(1, self.index_width, 0)), SIZE, self.dtype)

    def inputs(self) -> list[FloatArray]:
        """Queries, keys and values; and queries and keys of the indexer."""
        rng = np.random.default_rng(7)
        kv = self.kv_heads * self.width
        widths = (self.group * kv, kv, kv, self.kv_heads * self.index_width, self.index_width)
        return [rng.standard_normal((self.length, width)).astype(np.float32) for width in widths]

    def forward(self, ops: Ops, given: Sequence[Tensor], cache: object) -> Tensor:
        q, k, v, index_q, index_k = given
        chosen = ops.choose_blocks(index_q, index_k, cache, 2, self.block, self.count, self.local)
        return ops.attention(
            q, k, v, cache, 1, ScoreRule(self.width**-0.5), AttendedKeys(chosen=chosen, chosen_block=self.block)
        )


CASES = [
    Chosen(2, 3, 150, 16, 3),
    Chosen(3, 16, 300, 32, 2, local=2),
    Chosen(1, 40, 700, 128, 3),
    Chosen(4, 1, 700, 256, 2),
    Chosen(2, 3, 150, 16, 1),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_kv_head_attends_to_the_blocks_of_the_reference(backend: NativeBackend, level: str, case: Chosen) -> None:
    steps = [[Part(0, case.length - 20, table(case))], [Part(case.length - 20, 20, table(case))]]
    found, wanted = run(backend, case, steps), run(ReferenceBackend(), case, steps)
    np.testing.assert_allclose(found, wanted, atol=2e-5)
    dense = Chosen(case.kv_heads, case.group, case.length, case.block, 64)
    assert not np.allclose(found, run(backend, dense, steps), atol=1e-2)  # it is not what all tokens give


@pytest.mark.parametrize("dtype", ["f32", "bf16", "int8"])
def test_chunks_batches_threads_and_homes_change_no_bit(level: str, dtype: str) -> None:
    case = Chosen(3, 5, 330, 32, 4, dtype=dtype)
    whole = run(NativeBackend([-1], 10, level), case, [[Part(0, case.length, table(case))]])
    cuts = [0, 1, 30, 31, 47, 200, case.length - 1, case.length]
    memory = ThreadMemory((0, 0, 1), (NODE,) * 2, bound=True)
    apart = NativeBackend([-1] * 3, 10, level, groups=[(0,), (0,), (1,)], memory=memory)
    for backend in (*(NativeBackend([-1] * threads, 10, level) for threads in (1, 2, 3)), apart):
        steps = [[Part(first, end - first, table(case))] for first, end in pairwise(cuts)]
        steps[2].append(Part(0, 1, table(case, 3)[:2]))  # another sequence beside it
        assert same_bits(np.delete(run(backend, case, steps), cuts[3], axis=0), whole)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "int8"])
def test_a_context_no_longer_than_the_choice_is_attended_to_as_a_whole(backend: NativeBackend, dtype: str) -> None:
    some, all_ = (Chosen(2, 4, 300, 32, count, dtype=dtype) for count in (8, 64))
    whole = [[Part(0, 300, table(some))]]
    sparse, dense = run(backend, some, whole), run(backend, all_, whole)
    assert same_bits(sparse[:256], dense[:256])
    assert not same_bits(sparse[256:], dense[256:])


def test_what_does_not_fit_is_refused(backend: NativeBackend) -> None:
    case = Chosen(2, 3, 4, 16, 3)
    cache, given = backend.kv_cache(case.geometry, BLOCKS), [backend.constant(x) for x in case.inputs()]
    q, k, v, index_q, index_k = given
    room = StepLimits(4, 1, 1, BLOCKS)
    for block, count, local in ((16, 0, 1), (48, 2, 1), (16, 2, 0), (16, 2, 3), (512, 1, 1)):
        with pytest.raises(ValueError, match="choose_blocks"):
            backend.compile(
                lambda ops, how=(block, count, local): ops.choose_blocks(index_q, index_k, cache, 2, *how), room
            )

    def in_blocks_of(size: int) -> None:
        def forward(ops: Ops) -> Tensor:
            chosen = ops.choose_blocks(index_q, index_k, cache, 2, 8, 3, 1)
            return ops.attention(q, k, v, cache, 1, ScoreRule(1.0), AttendedKeys(chosen=chosen, chosen_block=size))

        backend.compile(forward, room)

    for size in (1, 8, 24):
        with pytest.raises(ValueError, match="blocks of a multiple of 16"):
            in_blocks_of(size)


def test_a_clamped_gate(backend: NativeBackend) -> None:
    x = np.random.default_rng(2).standard_normal((5, 2 * 37)).astype(np.float32) * 9
    room, step = StepLimits(5, 1, 1, 1), step_of([Part(0, 5)])
    found = backend.compile(lambda ops: ops.clamped_mul(backend.constant(x)), room).run(step).numpy()
    wanted = ReferenceBackend().compile(lambda ops: ops.clamped_mul(x), room).run(step)
    np.testing.assert_allclose(found, np.asarray(wanted), rtol=2e-5, atol=2e-5)
