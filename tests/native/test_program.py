"""Recorded programs: against the NumPy backend on random graphs and a small transformer, and what they refuse."""

from __future__ import annotations

import dataclasses
import gc
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from homenode.compute.native import NativeBackend
from homenode.compute.ops import Backend, KvGeometry, Ops, ScoreRule, StepArrays, StepLimits, Tensor
from homenode.compute.reference import ReferenceBackend
from tests.examples import seeds
from tests.native.steps import Part, evaluate, limits, same_bits, step_of

VOCABULARY, WIDTH, HEAD = 40, 48, 8


def matrix(rows: int, columns: int, seed: int) -> Any:
    return (0.2 * np.random.default_rng(seed).standard_normal((rows, columns))).astype(np.float32)


def random_graph(backend: Backend, seed: int) -> Callable[[Ops], Tensor]:
    """A forward function of 40 random ops; handles are dropped at random, so that their buffers are used again."""
    table = backend.weight_from_array(matrix(VOCABULARY, WIDTH, 1), "F32")
    square = backend.weight_from_array(matrix(WIDTH, WIDTH, 2), "F32")
    wide = backend.weight_from_array(matrix(2 * WIDTH, WIDTH, 3), "F32")
    norm, head_norm = backend.vector(matrix(1, WIDTH, 4) + 1), backend.vector(matrix(1, HEAD, 5) + 1)
    bias = backend.vector(matrix(1, WIDTH, 6))
    cache = backend.kv_cache(KvGeometry.uniform(40, WIDTH // HEAD // 2, HEAD, 32, "f32"), 8)
    frequencies = np.array([1, 0.1, 0.01, 0.001], np.float32)

    def attend(ops: Ops, x: Tensor, layer: int) -> Tensor:
        q, k, v = ops.split(ops.linear(x, [square, square], [None, bias]), [WIDTH, WIDTH // 2, WIDTH // 2])
        angles = ops.rope_angles(frequencies, 1.0)
        q, k = ops.rope(ops.rms_norm(q, head_norm, 1e-5), angles, HEAD), ops.rope(k, angles, HEAD)
        return ops.attention(q, k, v, cache, layer, ScoreRule(HEAD**-0.5, 20 if layer % 2 else None))

    def forward(ops: Ops) -> Tensor:
        rng = random.Random(seed)
        live = [ops.embedding(table), ops.embedding(table)]
        for i in range(40):
            x = rng.choice(live)
            kind = rng.randrange(5)
            if kind == 0:
                live.append(ops.rms_norm(x, norm, 1e-5))
            elif kind == 1:
                live.append(ops.rms_norm(x, head_norm, 1e-5))
            elif kind == 2:
                live.append(ops.linear(x, [square], [bias], rng.choice(live)))
            elif kind == 3:
                live.append(ops.silu_mul(ops.linear(x, [wide])))
            else:
                live.append(attend(ops, x, i))
            x = None
            while len(live) > 3:
                live.pop(rng.randrange(len(live)))
        total = live.pop()
        while live:
            total = ops.linear(live.pop(), [square], residual=total)
        return ops.linear(ops.rms_norm(ops.select(total), norm, 1e-5), [table])

    return forward


@pytest.mark.parametrize("seed", seeds(6))
def test_random_graphs_compute_what_numpy_does(level: str, seed: int) -> None:
    """Wrong barriers or buffers given out too early show here as values of another op."""
    step = step_of(
        [Part(0, 40, [3, 1]), Part(0, 7, [0]), Part(0, 1, [2])], [(5 * i) % VOCABULARY for i in range(48)], [39, 46, 47]
    )
    reference = ReferenceBackend()
    wanted = np.asarray(reference.compile(random_graph(reference, seed), limits(48)).run(step))
    outs = []
    for threads in (1, 3):
        backend = NativeBackend([-1] * threads, 10, level)
        program = backend.compile(random_graph(backend, seed), limits(48))
        for _ in range(3):
            outs.append(program.run(step).numpy())
    np.testing.assert_allclose(outs[0], wanted, rtol=1e-3, atol=2e-4)
    assert all(same_bits(outs[0], out) for out in outs[1:])


def test_buffers_are_used_again() -> None:
    backend = NativeBackend([-1])
    norm = backend.vector(np.ones(4096))
    sizes = []
    for depth in (4, 40):

        def forward(ops: Ops, depth: int = depth) -> Tensor:
            x = ops.rms_norm(backend.constant(np.ones((1, 4096))), norm, 1e-5)
            for _ in range(depth):
                x = ops.rms_norm(x, norm, 1e-5)
            return x

        before = backend.statistics()["program_bytes"]
        backend.compile(forward, limits(64))
        sizes.append(backend.statistics()["program_bytes"] - before)
    assert sizes[0] == sizes[1] > 0


def test_row_ops_do_not_wait_for_each_other() -> None:
    """A thread runs ahead over its own rows, whether their memory is used again or kept."""
    backend = NativeBackend([-1, -1])
    norm = backend.vector(np.ones(64))

    def forward(ops: Ops) -> Tensor:
        x = backend.constant(matrix(4, 64, 0))
        for _ in range(4):
            x = ops.rms_norm(x, norm, 1e-5)
        return x

    assert backend.compile(forward, limits(4)).barriers(4) == 0


def test_a_program_outlives_its_backend_and_its_parameters() -> None:
    def build() -> Any:
        backend = NativeBackend([-1, -1])
        weight, norm = backend.weight_from_array(matrix(5, 16, 0), "F32"), backend.vector(np.ones(16))
        table = backend.weight_from_array(matrix(9, 16, 1), "F32")
        return backend.compile(
            lambda ops: ops.linear(ops.rms_norm(ops.embedding(table), norm, 1e-5), [weight]), limits(8)
        )

    program = build()
    gc.collect()
    output = program.run(step_of([Part(0, 3)], [1, 2, 8]))
    del program
    gc.collect()
    assert output.numpy().shape == (3, 5) and np.isfinite(output.numpy()).all()


def test_two_callers_take_turns() -> None:
    backend = NativeBackend([-1, -1], 0)
    program = backend.compile(random_graph(backend, 1), limits(8))
    step = step_of([Part(0, 8, [1])], range(8), [7])
    wanted = program.run(step).numpy()
    failures: list[int] = []

    def call() -> None:
        for _ in range(20):
            if not same_bits(program.run(step).numpy(), wanted):
                failures.append(1)

    callers = [threading.Thread(target=call) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not failures


GOOD = step_of([Part(30, 3, [1, 0]), Part(0, 2, [2])], [1, 2, 3, 4, 5], [2, 4])


def int32(*values: int) -> Any:
    return np.array(values, np.int32)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"ids": int32(1, 2, 3, 4, 40)}, "token 4 has id 40 in a vocabulary of 40"),
    ({"ids": int32(1, -2, 3, 4, 5)}, "token 1 has id -2"),
    ({"ids": int32(1, 2, 3, 4)}, "positions for 4 ids|query_start runs"),
    ({"positions": int32(30, 31, 33, 0, 1)}, "token 2 of sequence 0 has position 33; its context length says 32"),
    ({"positions": int32(30, 31, 32, 0)}, "4 positions for 5 ids"),
    ({"query_start": int32(0, 5)}, "query_start has 2 entries for 2 sequences"),
    ({"query_start": int32(0, 6, 5)}, "sequence 0 has tokens 0 to 6"),
    ({"query_start": int32(0, -3, 5)}, "sequence 0 has tokens 0 to -3"),
    ({"query_start": int32(0, 0, 5)}, "sequence 0 has tokens 0 to 0"),
    ({"query_start": int32(0, 3, 4)}, "query_start runs from 0 to 4; wanted 0 to 5"),
    ({"context_len": int32(2, 2)}, "sequence 0 has 3 tokens in a context of 2"),
    ({"context_len": int32(2**31 - 1, 2)}, "position"),
    ({"context_len": int32()}, "0 sequences"),
    ({"block_table": np.array([[1, 8], [2, -1]], np.int32)}, "sequence 0 names block 8 of 8"),
    ({"block_table": np.array([[-1, 0], [2, -1]], np.int32)}, "sequence 0 names block -1 of 8"),
    ({"block_table": np.array([[1], [2]], np.int32)}, "sequence 0 needs 2 blocks; its table has room for 1"),
    ({"block_table": np.array([[1, 0]], np.int32)}, "block_table has another number of rows"),
    ({"sample_rows": int32(2, 5)}, r"sample_rows\[1\] is 5"),
    ({"sample_rows": int32(-1)}, r"sample_rows\[0\] is -1"),
    ({"sample_rows": int32(3, 3)}, r"sample_rows\[1\] is 3; wanted rows of the step, ascending"),
    ({"sample_rows": int32(0, 1, 2, 3)}, "4 sampled rows; at most 3"),
]


@pytest.mark.parametrize(("change", "message"), BAD, ids=[m for _, m in BAD])
def test_wrong_steps_are_refused_and_change_nothing(change: dict[str, Any], message: str) -> None:
    backend = NativeBackend([-1])
    program = backend.compile(random_graph(backend, 2), StepLimits(8, 4, 3, 4))
    wanted = program.run(GOOD).numpy()
    with pytest.raises(ValueError, match=message):
        program.run(dataclasses.replace(GOOD, **change))
    assert same_bits(program.run(GOOD).numpy(), wanted)


def test_steps_beyond_the_limits_are_refused() -> None:
    backend = NativeBackend([-1])
    program = backend.compile(random_graph(backend, 2), StepLimits(8, 2, 3, 1))
    empty = np.empty(0, np.int32)
    cases: list[tuple[StepArrays, str]] = [
        (step_of([Part(0, 9, [1])]), "9 tokens; wanted 1 to 8"),
        (step_of([Part(0, 1, [1])] * 3), "3 sequences; wanted 1 to 2"),
        (step_of([Part(32, 1, [1, 2])]), "needs 2 blocks; its table has room for 2, the program for 1"),
        (StepArrays(empty, empty, int32(0), empty, np.empty((0, 1), np.int32), empty), "0 tokens"),
    ]
    for step, message in cases:
        with pytest.raises(ValueError, match=message):
            program.run(step)


def test_arrays_of_other_shapes_are_refused() -> None:
    backend = NativeBackend([-1])
    program = backend.compile(random_graph(backend, 2), limits(8))
    with pytest.raises(TypeError):
        program.run(dataclasses.replace(GOOD, ids=np.zeros((5, 1), np.int32)))


def test_shapes_that_do_not_fit_are_refused() -> None:
    backend = NativeBackend([-1])
    weight, x = backend.weight_from_array(matrix(6, 16, 0), "F32"), backend.constant(matrix(2, 16, 1))
    cache = backend.kv_cache(KvGeometry.uniform(2, 1, 8, 32, "f32"), 2)
    wrong: list[tuple[Callable[[Ops], Tensor], str]] = [
        (lambda ops: ops.linear(backend.constant(matrix(2, 15, 1)), [weight]), "16 columns for rows of 15"),
        (lambda ops: ops.linear(x, []), "no weights"),
        (lambda ops: ops.linear(x, [weight], [None, None]), "2 biases for 1 weights"),
        (lambda ops: ops.linear(x, [weight], [backend.vector(np.ones(5))]), "a bias of 5"),
        (lambda ops: ops.linear(x, [weight], residual=x), "a residual of 16 columns for 6 outputs"),
        (lambda ops: ops.rms_norm(x, backend.vector(np.ones(5)), 1e-5), "a weight of 5 for rows of 16"),
        (lambda ops: ops.split(x, [8, 9])[0], "parts of 17 columns"),
        (lambda ops: ops.split(x, [16, 0])[0], "a part of 0 columns"),
        (lambda ops: ops.silu_mul(backend.constant(matrix(2, 5, 1))), "no halves"),
        (lambda ops: ops.rope(x, ops.rope_angles(np.ones(8, np.float32), 1.0), 8), "angles of 16"),
        (lambda ops: ops.rope_angles(np.empty(0, np.float32), 1.0), "no frequencies"),
        (lambda ops: ops.attention(x, x, x, cache, 0, ScoreRule(1.0)), "1 heads of 8"),
        (lambda ops: ops.attention(x, *ops.split(x, [8, 8]), cache, 2, ScoreRule(1.0)), "layer 2 of 2"),
        (lambda ops: ops.attention(x, *ops.split(x, [8, 8]), cache, 0, ScoreRule(1.0, 0)), "window of 0"),
        (lambda ops: ops.attention(x, *ops.split(x, [8, 8]), cache, 0, ScoreRule(1.0, None, 0.0)), "capped at 0.0"),
        (
            lambda ops: ops.attention(x, *ops.split(x, [8, 8]), cache, 0, ScoreRule(1.0, None, float("inf"))),
            "capped at inf",
        ),
        (lambda ops: ops.select(ops.select(x)), "selected already"),
    ]
    for forward, message in wrong:
        with pytest.raises(ValueError, match=message):
            backend.compile(forward, limits(4))


def test_handles_of_another_program_are_refused() -> None:
    backend = NativeBackend([-1])
    table = backend.weight_from_array(matrix(9, 16, 1), "F32")
    norm = backend.vector(np.ones(16))
    kept: list[Tensor] = []

    def leak(ops: Ops) -> Tensor:
        kept.append(ops.embedding(table))
        return kept[0]

    backend.compile(leak, limits(4))
    with pytest.raises(ValueError, match="a handle of another program"):
        backend.compile(lambda ops: ops.rms_norm(kept[0], norm, 1e-5), limits(4))


def test_impossible_kv_memory_is_refused() -> None:
    backend = NativeBackend([-1])
    for geometry, blocks, message in (
        (KvGeometry.uniform(1, 1, 7, 32, "f32"), 1, "even head"),
        (KvGeometry.uniform(1, 1, 8, 33, "f32"), 1, "multiple of 32"),
        (KvGeometry.uniform(1, 1, 8, 32, "f32"), 0, "0 KV blocks"),
        (KvGeometry.uniform(90000, 90000, 4096, 65536, "f32"), 2**31 - 1, "address space"),
    ):
        with pytest.raises(ValueError, match=message):
            backend.kv_cache(geometry, blocks)


def test_a_constant_shorter_than_the_step_is_refused() -> None:
    backend = NativeBackend([-1])
    norm = backend.vector(np.ones(16))
    program = backend.compile(lambda ops: ops.rms_norm(backend.constant(matrix(3, 16, 0)), norm, 1e-5), limits(8))
    with pytest.raises(ValueError, match="4 tokens; wanted 1 to 3"):
        program.run(step_of([Part(0, 4)]))
    assert evaluate(backend, lambda ops: ops.rms_norm(backend.constant(matrix(3, 16, 0)), norm, 1e-5), 3).shape == (
        3,
        16,
    )


def test_statistics(level: str) -> None:
    backend = NativeBackend([-1, -1], level=level)
    backend.weight_from_array(matrix(64, 64, 0), "F32")
    caches = [(KvGeometry.uniform(2, 1, 8, 32, "bf16"), 3), (KvGeometry.uniform(1, 3, 10, 96, "int8"), 5)]
    for geometry, blocks in caches:
        backend.kv_cache(geometry, blocks)
    found = backend.statistics()
    assert found["level"] == level and found["threads"] == 2 and found["cpus"] == [-1, -1]
    assert found["weight_bytes"] >= 64 * 64 * 4 and found["kv_bytes"] == sum(g.block_bytes * n for g, n in caches)
