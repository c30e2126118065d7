"""Windows of tokens pooled to one row each, attention to these beside tokens, the choice among them and the weights of
streams: against the reference, and bit by bit against themselves however the work is cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from homenode.compute.native import NativeBackend
from homenode.compute.ops import (
    AttendedKeys,
    Experts,
    FloatArray,
    KvGeometry,
    LayerKv,
    LayerState,
    Ops,
    PooledKeys,
    Routing,
    ScoreRule,
    StateGeometry,
    StepLimits,
    Tensor,
)
from homenode.compute.reference import ReferenceBackend
from tests.native.steps import Part, evaluate, same_bits, step_of

BLOCKS, SIZE, SLOTS = 40, 32, 5


def random(*shape: int, seed: int = 0) -> FloatArray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@dataclass(frozen=True)
class Pooled:
    """`heads` heads of `width`, a window of `window` tokens, and rows of runs of `ratio` tokens, which overlap where an
    indexer chooses `count` of them.
    """

    heads: int
    width: int
    window: int
    ratio: int
    count: int = 0
    length: int = 150
    dtype: str = "f32"
    index_width: int = 12

    @property
    def widths(self) -> tuple[int, ...]:
        return (self.width, self.index_width) if self.count else (self.width,)

    @property
    def columns(self) -> tuple[int, ...]:
        """Of queries, rows of tokens, what is pooled, the indexer's queries and its weights."""
        pooled = 2 * (2 if self.count else 1) * sum(self.widths)
        return self.heads * self.width, self.width, pooled, 3 * self.index_width, 3

    def rows(self, seed: int = 7) -> FloatArray:
        return random(self.length, sum(self.columns), seed=seed)


class Machine:
    def __init__(self, backend: Any, case: Pooled) -> None:
        row, series = LayerKv(1, case.width, 0, case.width), 2 if case.count else 1
        windows = [LayerKv.of_windows(width, case.ratio) for width in (case.width, case.index_width)]
        geometry = KvGeometry((row, *windows), SIZE, case.dtype)
        self.cache = backend.kv_cache(geometry, BLOCKS)
        state = LayerState(case.columns[2], series * case.ratio)
        self.memory = backend.state_memory(StateGeometry((LayerState(3, 1), state)), SLOTS)
        biases = [random(case.ratio * series * width, seed=3 + n) for n, width in enumerate(case.widths)]

        def forward(ops: Ops) -> Tensor:
            q, k, x, index_q, weights = ops.split(ops.received(sum(case.columns)), case.columns)
            plus = [backend.vector(bias) for bias in biases]
            rows = ops.pool_windows(x, plus, self.memory, 1, case.ratio, case.widths, case.count > 0)
            chosen = None
            if case.count:
                rows, key = ops.split(rows, case.widths)
                chosen = ops.choose_tokens(index_q, weights, key, self.cache, 2, case.count, case.ratio)
            pooled = PooledKeys(rows, 1, case.ratio, chosen)
            sinks = backend.vector(random(case.heads, seed=9))
            scale = case.width**-0.5
            return ops.attention(
                q,
                k,
                None,
                self.cache,
                0,
                ScoreRule(scale, case.window, sinks=sinks),
                AttendedKeys(case.width, pooled=pooled),
            )

        self.program = backend.compile(forward, StepLimits(400, 8, 400, BLOCKS))

    def run(
        self, work: Sequence[tuple[int, int, FloatArray]], copies: Sequence[tuple[int, int, int]] = ()
    ) -> FloatArray:
        """Of each sequence its slot, which its blocks follow from, the position it goes on from, and rows."""
        parts = [
            Part(start, len(rows), [(7 * i + 11 * slot) % BLOCKS for i in range(-(-(start + len(rows)) // SIZE))])
            for slot, start, rows in work
        ]
        arrays = replace(
            step_of(parts),
            hidden=np.concatenate([rows for _, _, rows in work]),
            state_slot=np.array([slot for slot, _, _ in work], np.int32),
            state_fresh=np.array([start == 0 for _, start, _ in work], np.int32),
            state_copies=np.array(copies, np.int32).reshape(-1, 3),
        )
        return np.array(np.asarray(self.program.run(arrays)))


CASES = {
    "all rows": Pooled(6, 20, 7, 8),
    "chosen rows": Pooled(5, 24, 9, 4, count=5),
    "many heads and rows": Pooled(70, 64, 40, 2, count=300, length=700),
    "a long window": Pooled(3, 16, 300, 32, length=350),
    "no choice yet": Pooled(4, 16, 5, 4, count=64),
}


@pytest.mark.parametrize("name", CASES)
def test_it_computes_what_numpy_does(backend: NativeBackend, name: str) -> None:
    case = CASES[name]
    wanted = Machine(ReferenceBackend(), case).run([(3, 0, case.rows())]) if case.length < 400 else None
    machine, rows, found = Machine(backend, case), case.rows(), []
    for first, end in pairwise((0, case.length - 130, case.length)):
        found += [machine.run([(3, at, rows[at : min(at + 350, end)])]) for at in range(first, end, 350)]
    if wanted is None:
        reference = Machine(ReferenceBackend(), case)
        wanted = np.concatenate([reference.run([(3, at, rows[at : at + 350])]) for at in range(0, case.length, 350)])
    np.testing.assert_allclose(np.concatenate(found), wanted, atol=3e-5)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "int8"])
@pytest.mark.parametrize("name", ["all rows", "chosen rows"])
def test_cuts_company_and_threads_change_no_bit(level: str, name: str, dtype: str) -> None:
    case = replace(CASES[name], dtype=dtype)
    rows, others = case.rows(), case.rows(8)
    whole = Machine(NativeBackend([-1], 10, level), case).run([(3, 0, rows)])
    for threads in (1, 3):
        machine, at, found = Machine(NativeBackend([-1] * threads, 10, level), case), 0, []
        for number, count in enumerate((1, 1, 2, 31, 33, 1, 1, 80)):
            found.append(machine.run([(1, number, others[number : number + 1]), (3, at, rows[at : at + count])])[1:])
            at += count
        assert at == case.length and same_bits(np.concatenate(found), whole)


@pytest.mark.parametrize("name", ["all rows", "chosen rows"])
def test_a_copy_goes_on_as_the_sequence_did(backend: NativeBackend, name: str) -> None:
    """From the blocks that the sequence has, which follow from its slot, so that the copy is brought back to that."""
    case = CASES[name]
    machine, rows = Machine(backend, case), case.rows()
    whole = machine.run([(3, 0, rows)])
    for place in (0, 3, 4, 20, 31, 64):
        machine.run([(1, 0, case.rows(9)[:6]), (3, 0, rows[:70])], [(1, 4, place)])
        machine.memory.copy_slot(4, 3)
        assert same_bits(machine.run([(3, place + 1, rows[place + 1 :])]), whole[place + 1 :])


@pytest.mark.parametrize("streams", [1, 2, 4])
def test_weights_of_streams(backend: NativeBackend, streams: int) -> None:
    mixes, base = random(9, (2 + streams) * streams), random((2 + streams) * streams, seed=1)
    x, scales = random(9, streams * 24, seed=2), np.array([0.7, 1.3, 2.0], np.float32)

    def forward(ops: Ops, vector: Any, given: Any) -> Tensor:
        weights = ops.stream_weights(given(mixes), vector(scales), vector(base), streams, 4, 1e-3)
        joins, parts, kept = ops.split(weights, (streams, streams, streams**2))
        none = ops.scale(given(x), 0.0)
        one = ops.add_weighted(ops.scale(given(x[:, :24]), 0.0), given(x), joins, 24)
        return ops.add_weighted(ops.add_weighted(none, given(x), kept, 24), one, parts, 24)

    found = evaluate(backend, lambda ops: forward(ops, backend.vector, backend.constant), 9)
    reference = ReferenceBackend()
    program = reference.compile(lambda ops: forward(ops, reference.vector, np.asarray), StepLimits(9, 1, 1, 1))
    np.testing.assert_allclose(found, program.run(step_of([Part(0, 9)])), atol=1e-5)

    def joining(ops: Ops) -> Tensor:
        scale, plus = backend.vector(scales[:1]), backend.vector(base[:streams])
        return ops.stream_weights(backend.constant(mixes[:, :streams]), scale, plus, streams, 4, 0.5)

    wanted = 1 / (1 + np.exp(-(mixes[:, :streams] * scales[0] + base[:streams]))) + 0.5
    np.testing.assert_allclose(evaluate(backend, joining, 9), wanted, atol=1e-6)


@pytest.mark.parametrize("tokens", [3, 40])
def test_experts_that_are_told(backend: NativeBackend, tokens: int) -> None:
    """Weighted by their own scores, the root of the softplus of their logits, with gates that are limited."""
    x, logits = random(tokens, 32, seed=1), 6 * random(tokens, 7, seed=2)
    told = np.argsort(random(tokens, 7, seed=3))[:, :3].astype(np.float32)
    matrices = {
        name: [9 * random(*shape, seed=10 * n + e) for e in range(7)]
        for n, (name, shape) in enumerate({"gate": (24, 32), "up": (24, 32), "down": (32, 24)}.items())
    }
    how = Routing(3, "sqrt_softplus", epsilon=1e-20, scale=1.5)

    def forward(ops: Ops, weight: Any, given: Any) -> Tensor:
        experts = Experts(
            **{name: [weight(each, "F32") for each in of] for name, of in matrices.items()}, activation="limited"
        )
        return ops.moe(given(x), given(logits), experts, how, None, chosen=given(told))

    reference = ReferenceBackend()
    program = reference.compile(
        lambda ops: forward(ops, reference.weight_from_array, np.asarray), StepLimits(tokens, 1, 1, 1)
    )
    wanted = program.run(step_of([Part(0, tokens)]))
    found = evaluate(backend, lambda ops: forward(ops, backend.weight_from_array, backend.constant), tokens)
    np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max())
    told[0, 0] = told[0, 1]  # which counts twice
    twice, once = program.run(step_of([Part(0, tokens)])), wanted
    assert not np.allclose(twice[0], once[0])
    found = evaluate(backend, lambda ops: forward(ops, backend.weight_from_array, backend.constant), tokens)
    np.testing.assert_allclose(found, twice, atol=1e-4 * np.abs(wanted).max())
    for wrong in (7.0, -1.0, 0.5):
        told[1, 0] = wrong
        found = evaluate(backend, lambda ops: forward(ops, backend.weight_from_array, backend.constant), tokens)
        assert np.isnan(found[1]).all() and not np.isnan(np.delete(found, 1, axis=0)).any()


def test_what_does_not_fit_is_refused(backend: NativeBackend) -> None:
    case = CASES["all rows"]
    machine, room = Machine(backend, case), StepLimits(4, 1, 1, BLOCKS)
    row, q = backend.constant(random(4, case.width)), backend.constant(random(4, 6 * case.width))
    x, bias = backend.constant(random(4, 2 * case.width)), backend.vector(random(8 * case.width))
    key, one = backend.constant(random(4, case.index_width)), backend.constant(random(4, 1))
    mixes, vector = backend.constant(random(4, 8)), backend.vector(random(8))

    def attend(ops: Ops, *how: Any, **more: Any) -> Tensor:
        pooled = PooledKeys(*how)
        rule = ScoreRule(1.0, 7, **more)
        return ops.attention(q, row, None, machine.cache, 0, rule, AttendedKeys(case.width, pooled=pooled))

    def pool(ops: Ops, ratio: int, widths: tuple[int, ...]) -> Tensor:
        return ops.pool_windows(x, [bias], machine.memory, 1, ratio, widths, False)

    wrong: dict[str, Any] = {
        "pool_windows: windows of 9": lambda ops: pool(ops, 9, case.widths),
        "pool_windows: windows of 8 tokens, 2": lambda ops: pool(ops, 8, (20, 4)),
        "attention: rows of 20 of every 1": lambda ops: attend(ops, row, 1, 1),
        "attention: layer 9": lambda ops: attend(ops, row, 9, 8),
        "kept as 2 of a token": lambda ops: attend(ops, row, 2, 8),
        "a cap": lambda ops: attend(ops, row, 1, 8, softcap=3.0),
        "stream_weights: rows of 8 for 3": lambda ops: ops.stream_weights(mixes, vector, vector, 3, 2, 0.1),
        "of every 0": lambda ops: ops.choose_tokens(key, one, key, machine.cache, 2, 3, 0),
        "behind": lambda ops: ops.rope_angles(np.ones(2, np.float32), 1.0, -1),
    }
    for match, forward in wrong.items():
        with pytest.raises(ValueError, match=match):
            backend.compile(forward, room)
