"""Row kernels against NumPy in float64, over odd shapes, at every level."""

from __future__ import annotations

import math
from typing import get_args

import numpy as np
import pytest

from homenode.compute.native import NativeBackend
from homenode.compute.ops import FloatArray, PlainActivation
from tests.native.steps import Part, evaluate, limits, same_bits, step_of

ROWS = [1, 2, 7, 33]


def random(*shape: int, seed: int = 0) -> FloatArray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(
    ("columns", "group"), [(8, 8), (48, 8), (64, 64), (172, 172), (320, 80), (896, 896), (1000, 1000)]
)
def test_rms_norm(backend: NativeBackend, rows: int, columns: int, group: int) -> None:
    x, weight = random(rows, columns), random(group, seed=1)
    found = evaluate(backend, lambda ops: ops.rms_norm(backend.constant(x), backend.vector(weight), 1e-5), rows)
    groups = x.astype(np.float64).reshape(rows, -1, group)
    wanted = groups / np.sqrt((groups**2).mean(-1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(found, wanted.reshape(rows, columns), rtol=2e-6, atol=1e-7)


def test_rms_norm_of_zeros_and_of_one_bad_row(backend: NativeBackend) -> None:
    x = random(3, 96)
    x[0], x[1, 5] = 0, np.nan
    found = evaluate(backend, lambda ops: ops.rms_norm(backend.constant(x), backend.vector(np.ones(96)), 1e-6), 3)
    assert not found[0].any() and np.isnan(found[1]).all() and np.isfinite(found[2]).all()


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("half", [1, 8, 48, 172, 513])
def test_silu_mul(backend: NativeBackend, rows: int, half: int) -> None:
    x = 6 * random(rows, 2 * half)
    found = evaluate(backend, lambda ops: ops.silu_mul(backend.constant(x)), rows)
    gate, up = x[:, :half].astype(np.float64), x[:, half:]
    np.testing.assert_allclose(found, gate / (1 + np.exp(-gate)) * up, rtol=3e-6, atol=1e-7)


def test_silu_mul_at_the_edges(backend: NativeBackend) -> None:
    gate = np.array([0, -0.0, 50, -50, 1000, -1000, 3e38, -3e38, np.nan], np.float32)
    x = np.concatenate([gate, np.ones_like(gate)])[None]
    found = evaluate(backend, lambda ops: ops.silu_mul(backend.constant(x)), 1)[0]
    assert found[:3].tolist() == [0, 0, 50] and found[4] == 1000 and found[6] == np.float32(3e38)
    assert np.abs(found[[3, 5]]).max() < 1e-19 and np.isnan(found[8])


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("half", [1, 8, 48, 172, 513])
def test_gelu_mul(backend: NativeBackend, rows: int, half: int) -> None:
    x = 3 * random(rows, 2 * half)
    found = evaluate(backend, lambda ops: ops.gelu_mul(backend.constant(x)), rows)
    gate, up = x[:, :half].astype(np.float64), x[:, half:]
    wanted = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3))) * up
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_gelu_mul_at_the_edges(backend: NativeBackend) -> None:
    gate = np.array([0, -0.0, 50, -50, 1000, -1000, 1e30, -1e30, np.nan], np.float32)
    x = np.concatenate([gate, np.ones_like(gate)])[None]
    found = evaluate(backend, lambda ops: ops.gelu_mul(backend.constant(x)), 1)[0]
    assert found[:3].tolist() == [0, 0, 50] and found[4] == 1000 and found[6] == np.float32(1e30)
    assert np.abs(found[[3, 5, 7]]).max() < 1e-7 and np.isnan(found[8])


PLAIN = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "gelu_erf": lambda x: 0.5 * x * (1 + np.vectorize(math.erf)(x / np.sqrt(2))),
    "relu": lambda x: np.maximum(x, 0),
    "relu2": lambda x: np.maximum(x, 0) ** 2,
    "exp_rest": lambda x: np.expm1(np.minimum(x, 0)) - np.minimum(x, 0),
}


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("columns", [1, 8, 48, 172, 513])
@pytest.mark.parametrize("activation", get_args(PlainActivation))
def test_activations(backend: NativeBackend, activation: PlainActivation, rows: int, columns: int) -> None:
    """Alone, as what a product makes, and of a gate."""
    x, weight, bias = 3 * random(rows, columns), random(24, columns, seed=1), random(24, seed=2)
    wanted = PLAIN[activation](x.astype(np.float64))
    found = evaluate(backend, lambda ops: ops.activate(backend.constant(x), activation), rows)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    made = backend.weight_from_array(weight, "F32")
    product = evaluate(backend, lambda ops: ops.linear(backend.constant(x), (made,), (backend.vector(bias),)), rows)
    found = evaluate(
        backend,
        lambda ops: ops.activate(ops.linear(backend.constant(x), (made,), (backend.vector(bias),)), activation),
        rows,
    )
    apart = evaluate(backend, lambda ops: ops.activate(backend.constant(product), activation), rows)
    assert np.array_equal(found, apart)
    if activation in ("gelu", "gelu_erf"):
        up = random(rows, columns, seed=3)
        found = evaluate(backend, lambda ops: ops.gelu_mul(backend.constant(x), backend.constant(up), activation), rows)
        np.testing.assert_allclose(found, wanted * up, rtol=1e-5, atol=1e-6)


def test_exact_gelu_at_the_edges(backend: NativeBackend) -> None:
    x = np.array([[0, -0.0, 50, -50, 1000, -1000, 1e30, -1e30, np.nan]], np.float32)
    found = evaluate(backend, lambda ops: ops.activate(backend.constant(x), "gelu_erf"), 1)[0]
    assert found[:3].tolist() == [0, 0, 50] and found[4] == 1000 and found[6] == np.float32(1e30)
    assert np.abs(found[[3, 5, 7]]).max() < 1e-30 and np.isnan(found[8])


def test_a_clamp(backend: NativeBackend) -> None:
    x = 3 * random(5, 70)
    found = evaluate(backend, lambda ops: ops.clamp(backend.constant(x), 1.5), 5)
    assert np.array_equal(found, np.clip(x, -1.5, 1.5))
    with pytest.raises(ValueError, match=r"values limited to 0\.0+; wanted more than 0"):
        evaluate(backend, lambda ops: ops.clamp(backend.constant(x), 0.0), 5)


def test_rows_of_a_table_of_positions(backend: NativeBackend) -> None:
    table = random(40, 24)
    made = backend.weight_from_array(table, "F32")
    program = backend.compile(lambda ops: ops.position_rows(made, 2), limits(9))
    found = program.run(step_of([Part(30, 5), Part(0, 3)])).numpy()
    assert np.array_equal(found, table[[*range(32, 37), 2, 3, 4]])
    with pytest.raises(ValueError, match="a context of 39; the table of positions has 38 rows"):
        program.run(step_of([Part(34, 5)]))


def test_rows_of_a_table_of_types(backend: NativeBackend) -> None:
    table = random(3, 24)
    made = backend.weight_from_array(table, "F32")
    program = backend.compile(lambda ops: ops.type_rows(made), limits(9))
    step = step_of([Part(0, 4), Part(0, 1)])
    assert np.array_equal(program.run(step).numpy(), table[[0] * 5])
    step.token_types = np.array([0, 0, 2, 2, 1], np.int32)
    assert np.array_equal(program.run(step).numpy(), table[[0, 0, 2, 2, 1]])
    step.token_types = np.array([0, 0, 3, 2, 1], np.int32)
    with pytest.raises(ValueError, match="token 2 has type 3 of 3"):
        program.run(step)
    step.token_types = np.zeros(4, np.int32)
    with pytest.raises(ValueError, match="4 types for 5 ids"):
        program.run(step)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("columns", [1, 16, 50, 257, 1000])
def test_soft_cap(backend: NativeBackend, rows: int, columns: int) -> None:
    x = 40 * random(rows, columns)
    x[0, 0] = 1e30
    found = evaluate(backend, lambda ops: ops.soft_cap(backend.constant(x), 30.0), rows)
    np.testing.assert_allclose(found, 30 * np.tanh(x.astype(np.float64) / 30), rtol=2e-6, atol=1e-6)


def test_a_cap_that_is_none(backend: NativeBackend) -> None:
    with pytest.raises(ValueError, match=r"values capped at 0\.0+; wanted more than 0"):
        evaluate(backend, lambda ops: ops.soft_cap(backend.constant(random(1, 4)), 0.0), 1)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("columns", [1, 16, 128])
def test_gates_by_the_largest_logit(backend: NativeBackend, rows: int, columns: int) -> None:
    x, logits = random(rows, 50), 9 * random(rows, columns, seed=2)
    logits[0, -1] = 200
    found = evaluate(backend, lambda ops: ops.gate_by_largest(backend.constant(x), backend.constant(logits)), rows)
    wanted = x / (1 + np.exp(-logits.max(axis=1, keepdims=True).astype(np.float64)))
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", [8, 50, 211])
def test_weighted_sums_of_runs(backend: NativeBackend, rows: int, width: int) -> None:
    """As many as there are weights, or each once where there are none: products added to x in turn, bit by bit."""
    x, y = random(rows, 3 * width), random(rows, 2 * width, seed=2)
    weights = random(rows, 6, seed=3)

    def wanted(factors: FloatArray) -> FloatArray:
        first, second = factors.reshape(rows, 3, 2, 1).transpose(2, 0, 1, 3)
        runs = y.reshape(rows, 2, 1, width)
        return (x.reshape(rows, 3, width) + first * runs[:, 0] + second * runs[:, 1]).reshape(rows, -1)

    constant = backend.constant
    found = evaluate(
        backend, lambda ops: ops.add_weighted(constant(x), constant(y), constant(weights), width, 0.5), rows
    )
    assert same_bits(found, wanted(weights + np.float32(0.5)))
    found = evaluate(backend, lambda ops: ops.add_weighted(constant(x), constant(y), None, width, 1.0), rows)
    assert same_bits(found, wanted(np.ones((rows, 6), np.float32)))
    with pytest.raises(ValueError, match="one for each pair of runs"):
        evaluate(backend, lambda ops: ops.add_weighted(constant(x), constant(y), constant(x), width, 0.0), rows)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("columns", [1, 16, 257])
def test_magnitudes_and_what_lies_above_the_mean(backend: NativeBackend, rows: int, columns: int) -> None:
    x, y, constant = random(rows, 2 * columns), random(rows, columns, seed=2), backend.constant
    x[0, :columns] = 1e-6  # below the floor
    runs = x.astype(np.float64).reshape(rows, 2, columns)
    there = np.maximum(np.square(runs).mean(axis=2, keepdims=True), 1e-5)
    wanted = runs * np.sqrt(np.square(y.astype(np.float64)).mean(axis=1)[:, None, None] / there)
    found = evaluate(backend, lambda ops: ops.match_magnitude(constant(x), constant(y), 1e-5), rows)
    np.testing.assert_allclose(found, wanted.reshape(x.shape), rtol=1e-5, atol=1e-7)
    found = evaluate(backend, lambda ops: ops.relu_above(constant(y), 0.7), rows)
    exact = y.astype(np.float64)
    rest = exact - exact.mean(axis=1, keepdims=True) - 0.7 * exact.std(axis=1, keepdims=True)
    np.testing.assert_allclose(found, np.maximum(rest, 0), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("columns", [8, 48, 200])
def test_sums_and_multiples(backend: NativeBackend, rows: int, columns: int) -> None:
    """A norm that only the sum reads is computed with it."""
    x, y, weight = random(rows, columns), random(rows, columns, seed=2), random(columns, seed=1)
    constant = backend.constant
    assert np.array_equal(evaluate(backend, lambda ops: ops.add(constant(x), constant(y)), rows), x + y)
    assert np.array_equal(evaluate(backend, lambda ops: ops.scale(constant(x), 1.7), rows), x * np.float32(1.7))
    assert np.array_equal(
        evaluate(backend, lambda ops: ops.multiply(constant(x), backend.vector(weight)), rows), x * weight
    )
    normed = evaluate(backend, lambda ops: ops.rms_norm(constant(y), backend.vector(weight), 1e-5), rows)
    found = evaluate(
        backend, lambda ops: ops.add(constant(x), ops.rms_norm(constant(y), backend.vector(weight), 1e-5)), rows
    )
    assert np.array_equal(found, x + normed)


def test_sums_of_unequal_rows(backend: NativeBackend) -> None:
    with pytest.raises(ValueError, match="add: rows of 4 and 8 columns"):
        evaluate(backend, lambda ops: ops.add(backend.constant(random(2, 4)), backend.constant(random(2, 8))), 2)


@pytest.mark.parametrize(("head_dim", "rotary"), [(8, 8), (64, 64), (80, 32), (128, 128), (6, 4)])
def test_rope(backend: NativeBackend, head_dim: int, rotary: int) -> None:
    rows, heads, half = 9, 3, rotary // 2
    x = random(rows, heads * head_dim)
    frequencies = (1 / 10000 ** (np.arange(half) / half)).astype(np.float32)
    start = 31000  # far along, where float32 angles are coarse
    program = backend.compile(
        lambda ops: ops.rope(backend.constant(x), ops.rope_angles(frequencies, 1.5), head_dim), limits(rows, blocks=0)
    )
    found = program.run(step_of([Part(start, rows)])).numpy().reshape(rows, heads, head_dim)
    angle = (np.arange(start, start + rows, dtype=np.float32)[:, None] * frequencies).astype(np.float64)[:, None]
    heads64 = x.astype(np.float64).reshape(rows, heads, head_dim)
    left, right = heads64[..., :half], heads64[..., half:rotary]
    wanted = heads64.copy()
    wanted[..., :half] = 1.5 * (left * np.cos(angle) - right * np.sin(angle))
    wanted[..., half:rotary] = 1.5 * (right * np.cos(angle) + left * np.sin(angle))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=2e-6)


def test_rope_leaves_a_constant_alone(backend: NativeBackend) -> None:
    x = random(4, 16)
    constant = backend.constant(x)
    program = backend.compile(
        lambda ops: ops.rope(constant, ops.rope_angles(np.ones(8, np.float32), 1.0), 16), limits(4)
    )
    first = program.run(step_of([Part(0, 4)])).numpy()
    assert same_bits(program.run(step_of([Part(0, 4)])).numpy(), first)


def test_select_and_split(backend: NativeBackend) -> None:
    x = random(12, 40)
    rows = [0, 3, 11]
    middle = evaluate(backend, lambda ops: ops.select(ops.split(backend.constant(x), [8, 20, 12])[1]), 12, rows)
    assert same_bits(middle, np.ascontiguousarray(x[rows, 8:28]))


def test_no_sampled_rows_give_no_rows(backend: NativeBackend) -> None:
    weight = backend.weight_from_array(random(10, 40), "F32")
    found = evaluate(backend, lambda ops: ops.linear(ops.select(backend.constant(random(3, 40))), [weight]), 3)
    assert found.shape == (0, 10)


def test_embedding(backend: NativeBackend) -> None:
    table = random(50, 24)
    weight = backend.weight_from_array(table, "F32")
    program = backend.compile(lambda ops: ops.embedding(weight), limits(64))
    ids = [(7 * i) % 50 for i in range(33)]
    assert same_bits(program.run(step_of([Part(0, 33)], ids)).numpy(), table[ids])


def test_rows_do_not_depend_on_each_other_or_on_threads(level: str) -> None:
    x, weight = random(33, 172), random(172, seed=1)
    results = []
    for threads in (1, 2, 3):
        backend = NativeBackend([-1] * threads, 10, level)
        results.append(
            evaluate(
                backend,
                lambda ops, backend=backend: ops.rms_norm(backend.constant(x), backend.vector(weight), 1e-5),
                33,
            )
        )
    alone = evaluate(backend, lambda ops: ops.rms_norm(backend.constant(x[20:21]), backend.vector(weight), 1e-5), 1)
    assert (
        same_bits(results[0], results[1]) and same_bits(results[0], results[2]) and same_bits(results[0][20:21], alone)
    )
