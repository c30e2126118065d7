"""Matrix products against float64, every format at every level; the same bits whatever the batch, the threads and the
level.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from homenode import _native
from homenode.compute.native import NativeBackend, available_levels
from homenode.compute.ops import FloatArray, Precision
from tests.native.steps import Part, evaluate, limits, same_bits, step_of
from tests.native.weights import ENCODED, FLOATS, FORMATS, SCALES, load, stored, unpacked, with_codes

SHAPES = [(1, 256), (45, 768), (96, 512), (130, 256)]
MANY_TOKENS = 60  # the products of every level that are for many tokens take so many
PADDED = [(67, 172), (33, 64), (70, 896), (5, 31), (2, 1)]  # for what we encode ourselves: rows that end inside a block


def random(*shape: int, seed: int = 3) -> FloatArray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def make(backend: NativeBackend, file: Path, format: str, rows: int, columns: int) -> _native.Weight:
    if format in ENCODED:
        return backend.weight_from_array(random(rows, columns, seed=rows), format)
    return load(backend, file, stored(format, rows, columns))


def multiply(
    backend: NativeBackend, x: FloatArray, weight: _native.Weight, precision: Precision = "usual"
) -> FloatArray:
    return evaluate(backend, lambda ops: ops.linear(backend.constant(x), [weight], precision=precision), len(x))


def arithmetic(format: str, level: str) -> str:
    """What levels must have in common to give the same bits: all levels do, but for BF16 where activations are rounded
    and summed in pairs or tiles.
    """
    return level if format == "BF16" and level in ("avx512bf16", "amx", "i8mm") else "common"


def rounds_activations(format: str, level: str) -> bool:
    return arithmetic(format, level) != "common"


def bfloat16(x: FloatArray) -> FloatArray:
    """Rounded to eight significant bits, ties to even. x must be finite."""
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def as_multiplied(x: FloatArray, format: str, level: str) -> FloatArray:
    """The activations a kernel really multiplies: exact or bfloat16 for float formats, else eight bits with a scale for
    each 32 columns.

    The scale is the least whole number of eighths of a power of two that holds the largest of them.
    """
    if rounds_activations(format, level):
        return bfloat16(x)
    if format in FLOATS:
        return x
    rows, columns = x.shape
    padded = np.zeros((rows, -(-columns // 32) * 32), np.float32)
    padded[:, :columns] = x
    parts = padded.reshape(rows, -1, 32)
    largest = np.abs(parts).max(-1, keepdims=True)
    scale = upper_eighth(largest / np.float32(127))
    codes = np.rint(parts * (np.float32(1) / scale))
    assert np.abs(codes).max() <= 127
    multiplied: FloatArray = (codes * scale).reshape(rows, -1)[:, :columns]
    return multiplied


def upper_eighth(x: FloatArray) -> FloatArray:
    """The least of 8/8, 9/8 .. 15/8 times a power of two that is not below x, which is positive."""
    fraction, exponent = np.frexp(x)  # 0.5 <= fraction < 1
    return np.ldexp(np.ceil(fraction * 16) / 16, exponent).astype(np.float32)


@pytest.mark.parametrize("format", FORMATS)
def test_products(backend: NativeBackend, level: str, tmp_path: Path, format: str) -> None:
    for rows, columns in SHAPES + (PADDED if format in ENCODED else []):
        weight = make(backend, tmp_path / "w", format, rows, columns)
        w, x = unpacked(weight).astype(np.float64), random(7, columns)
        seen = as_multiplied(x, format, level).astype(np.float64)
        # No more than a rounding for each column, relative to the sum of magnitudes; a forgotten column or minimum is
        # far more.
        bound = (columns + 4) * 2.0**-24 * (np.abs(seen) @ np.abs(w.T)) + 1e-30
        assert (np.abs(multiply(backend, x, weight) - seen @ w.T) <= bound).all(), (rows, columns)


@pytest.mark.parametrize("format", FORMATS)
def test_a_row_has_the_same_bits_alone_in_any_batch_and_at_any_place(level: str, tmp_path: Path, format: str) -> None:
    backend = NativeBackend([-1], spin_us=20, level=level)
    # More tokens and columns than one cache block.
    weight, x = (make(backend, tmp_path / "w", format, 75, 1280), random(103, 1280))
    whole = multiply(backend, x, weight)
    for begin, end in [(0, 1), (102, 103), (3, 5), (50, 53), (10, 14), (7, 12), (20, 26), (90, 97), (35, 68), (1, 103)]:
        assert same_bits(multiply(backend, x[begin:end], weight), whole[begin:end]), (begin, end)


def test_rows_that_together_exceed_the_cache_have_the_bits_they_have_alone(level: str, tmp_path: Path) -> None:
    if level == "scalar":
        pytest.skip("takes a minute; csrc/tests/linear.cpp has smaller products with a smaller cache")
    backend = NativeBackend([-1], spin_us=20, level=level)
    # 1.3 MiB of bfloat16, and so many groups of rows that two are multiplied together
    rows, columns, tokens = 17 * 32 + 5, 3072, 218
    gate, up = (load(backend, tmp_path / f"{seed}", stored("BF16", rows, columns, seed)) for seed in (1, 2))
    down = make(backend, tmp_path / "down", "BF16", 40, rows)
    x, residual, bias = random(tokens, columns), random(tokens, rows, seed=8), backend.vector(random(rows, seed=9))

    def product(begin: int, end: int) -> list[FloatArray]:
        part, rest = backend.constant(x[begin:end]), backend.constant(residual[begin:end])
        return [
            evaluate(backend, lambda ops: ops.linear(part, [gate], [bias], rest), end - begin),
            evaluate(backend, lambda ops: ops.linear(ops.silu_mul(ops.linear(part, [gate, up])), [down]), end - begin),
        ]

    whole = product(0, tokens)
    for begin, end in [(0, 1), (40, 45), (200, 218), (3, 120)]:
        for part, found in zip(product(begin, end), whole, strict=True):
            assert same_bits(part, found[begin:end]), (begin, end)


@pytest.mark.parametrize("format", ["Q8_0", "Q4_0", "Q4_K", "Q5_1", "Q6_K", "Q2_K"])
def test_error_of_encoded_activations(backend: NativeBackend, tmp_path: Path, format: str) -> None:
    """Normally distributed activations with weights taken as they are: 5.8e-3 of the products, root mean square (5.4e-3
    with scales not rounded).
    """
    weight, x = make(backend, tmp_path / "w", format, 96, 4864), random(64, 4864)
    wanted = x.astype(np.float64) @ unpacked(weight).astype(np.float64).T
    found = np.sqrt(((multiply(backend, x, weight) - wanted) ** 2).mean() / (wanted**2).mean())
    print(f"{format}: {found:.2e}")
    assert 5.3e-3 < found < 6.1e-3


def test_error_of_rounded_activations(backend: NativeBackend, level: str, tmp_path: Path) -> None:
    """BF16 matrices at the levels that round activations: the root mean square error is 1.7e-3 of the products', 2^-9
    at most of a product.
    """
    if not rounds_activations("BF16", level):
        pytest.skip("this level multiplies float32")
    weight, x = make(backend, tmp_path / "w", "BF16", 96, 4864), random(64, 4864)
    w = unpacked(weight).astype(np.float64)
    wanted = x.astype(np.float64) @ w.T
    error = multiply(backend, x, weight) - wanted
    assert 1.4e-3 < np.sqrt((error**2).mean() / (wanted**2).mean()) < 2.0e-3
    assert (np.abs(error) <= (2.0**-9 + 4868 * 2.0**-24) * (np.abs(x) @ np.abs(w.T))).all()


def test_fine_products_have_the_error_of_sixteen_bits(backend: NativeBackend, level: str, tmp_path: Path) -> None:
    """BF16 matrices where activations are rounded, and what that leaves of them besides: 1e-5 of the products, root
    mean square. Elsewhere the two precisions are one.
    """
    weight, x = make(backend, tmp_path / "w", "BF16", 96, 4864), random(64, 4864)
    found, usual = multiply(backend, x, weight, "fine"), multiply(backend, x, weight)
    if not rounds_activations("BF16", level):
        assert same_bits(found, usual)
        return
    wanted = x.astype(np.float64) @ unpacked(weight).astype(np.float64).T
    assert np.sqrt(((found - wanted) ** 2).mean() / (wanted**2).mean()) < 1e-5


@pytest.mark.parametrize("columns", [31, 1280])
def test_a_row_of_a_fine_product_has_the_same_bits_alone_and_in_any_batch(
    level: str, tmp_path: Path, columns: int
) -> None:
    found = []
    for threads in (1, 3):
        backend = NativeBackend([-1] * threads, spin_us=20, level=level)
        weight, x = backend.weight_from_array(random(75, columns, seed=75), "BF16"), random(303, columns)
        whole = multiply(backend, x, weight, "fine")
        for begin, end in [(0, 1), (302, 303), (3, 5), (10, 14), (7, 20), (35, 68), (1, 303)]:
            assert same_bits(multiply(backend, x[begin:end], weight, "fine"), whole[begin:end]), (begin, end)
        found.append(whole)
    assert same_bits(*found)


@pytest.mark.parametrize("precision", ["usual", "fine"])
def test_products_of_normed_and_selected_rows_in_both_precisions(
    backend: NativeBackend, level: str, precision: Precision
) -> None:
    """What is fused with a product prepares its rows in two parts as well; a matrix in blocks beside it wants codes."""
    weights = [backend.weight_from_array(random(n, 96, seed=n), kind) for n, kind in ((40, "BF16"), (33, "Q8_0"))]
    x, norm = random(19, 96), backend.vector(1 + random(96, seed=4))
    fused = evaluate(
        backend,
        lambda ops: ops.linear(ops.rms_norm(ops.select(backend.constant(x)), norm, 1e-5), weights, precision=precision),
        len(x),
        range(len(x)),
    )
    normed = evaluate(backend, lambda ops: ops.rms_norm(backend.constant(x), norm, 1e-5), len(x))
    single = [multiply(backend, normed, weight, precision) for weight in weights]
    assert same_bits(fused, np.concatenate(single, axis=1))


def test_activations_are_rounded_to_nearest_even(backend: NativeBackend, level: str) -> None:
    """One column times one: the product is the rounded activation itself, or zero below the smallest normal number."""
    if not rounds_activations("BF16", level):
        pytest.skip("this level multiplies float32")
    bits = np.random.default_rng(5).integers(0x00800000, 0x7F000000, 3000, dtype=np.uint32)
    bits[::3] = bits[::3] & 0xFFFF0000 | 0x8000  # ties
    bits[::2] |= 0x80000000
    x = np.append(bits, np.array([0, 1, 0x007FFFFF], np.uint32)).view(np.float32)[:, None]
    found = multiply(backend, x, backend.weight_from_array(np.ones((1, 1), np.float32), "BF16"))
    assert np.array_equal(found[:-3], bfloat16(x[:-3])) and not found[-3:].any()


@pytest.mark.parametrize("format", FORMATS)
def test_levels_and_threads_change_no_bit(tmp_path: Path, format: str) -> None:
    x, found = random(33, 768), []
    for level in available_levels():
        for threads in (1, 2, 3, 5):  # five threads for three groups of rows: two have none
            backend = NativeBackend([-1] * threads, spin_us=20, level=level)
            product = multiply(backend, x, make(backend, tmp_path / "w", format, 80, 768))
            found.append((arithmetic(format, level), product))
    for how, product in found:
        assert all(same_bits(product, other) == (how == another) for another, other in found)


@pytest.mark.parametrize("formats", [("F32",), ("Q8_0", "Q8_0"), ("Q4_K", "Q6_K", "F16"), ("BF16", "Q5_1", "F32")])
def test_several_weights_biases_and_a_residual(backend: NativeBackend, tmp_path: Path, formats: Sequence[str]) -> None:
    heights = [70, 33, 6][: len(formats)]
    weights = [make(backend, tmp_path / f, f, n, 256) for f, n in zip(formats, heights, strict=True)]
    x, residual, biases = random(9, 256), random(9, sum(heights), seed=8), [random(n, seed=n) for n in heights]
    biases_or_none = [None if i == 1 else backend.vector(b) for i, b in enumerate(biases)]
    found = evaluate(
        backend,
        lambda ops: ops.linear(backend.constant(x), weights, biases_or_none, backend.constant(residual)),
        len(x),
    )
    parts = [multiply(backend, x, w) for w in weights]
    wanted = np.hstack([p if i == 1 else p + b for i, (p, b) in enumerate(zip(parts, biases, strict=True))]) + residual
    assert same_bits(found, wanted)


@pytest.mark.parametrize("format", ["F32", "BF16", "Q8_0", "Q4_K", "Q2_K", "MXFP4"])
def test_what_is_not_finite_spoils_its_own_row_only(backend: NativeBackend, tmp_path: Path, format: str) -> None:
    weight, x = make(backend, tmp_path / "w", format, 40, 256), random(MANY_TOKENS, 256)
    clean = multiply(backend, x, weight)
    x[1, 200], x[3, 0], x[6, 255] = np.nan, np.inf, -np.inf
    found, bad = multiply(backend, x, weight), [1, 3, 6]
    assert not np.isfinite(found[bad]).any()
    assert same_bits(np.delete(found, bad, 0), np.delete(clean, bad, 0))


@pytest.mark.parametrize("format", ["F32", "BF16", "Q8_0", "Q5_K"])
def test_extreme_activations(backend: NativeBackend, tmp_path: Path, format: str) -> None:
    weight, x = make(backend, tmp_path / "w", format, 40, 256), random(MANY_TOKENS, 256)
    x[0], x[1], x[2], x[3] = 0, 1e-38 * x[1], 1e30 * x[2], 1e-44
    found, magnitude = multiply(backend, x, weight), np.abs(unpacked(weight)).sum(1).max()
    for few in (20, 4):
        assert same_bits(found[:few], multiply(backend, x[:few], weight))
    assert not found[0].any() and np.abs(found[[1, 3]]).max() < 1e-36 * magnitude
    assert np.isfinite(found[2]).all() and np.abs(found[2]).max() > 1e29


@pytest.mark.parametrize("format", ["Q8_0", "Q4_K"])
def test_magnitudes_beyond_the_largest_scale_spoil_their_row_visibly(
    backend: NativeBackend, tmp_path: Path, format: str
) -> None:
    weight, x = make(backend, tmp_path / "w", format, 40, 256), random(MANY_TOKENS, 256)
    x[3, 7], x[11, 200], x[17, 0] = 1.1e33, -3e38, 0.9e33
    found = multiply(backend, x, weight)
    assert np.isnan(found[[3, 11]]).all() and np.isfinite(np.delete(found, [3, 11], 0)).all()


@pytest.mark.parametrize("format", SCALES)
@pytest.mark.parametrize("fill", [0x00, 0x7F, 0x80, 0xFF])
def test_codes_at_their_extremes_do_not_saturate(
    backend: NativeBackend, tmp_path: Path, format: str, fill: int
) -> None:
    """Against activations of largest magnitude, of one sign and of both: the largest sums an integer kernel meets."""
    weight = load(backend, tmp_path / "w", with_codes(format, 32, 256, fill))
    w = unpacked(weight).astype(np.float64)
    x = np.full((MANY_TOKENS, 256), 127 / 128, np.float32)  # codes of 127, exactly
    x[1], x[2, ::2] = -x[1], -x[2, ::2]
    x[3:] = np.resize(x[:3], x[3:].shape)
    bound = 260 * 2.0**-24 * np.abs(w).sum(1) + 1e-30
    for rows in (x, x[:24], x[:5], x[:4], x[:3]):
        assert (np.abs(multiply(backend, rows, weight) - rows @ w.T) <= bound).all()


@pytest.mark.parametrize("format", FORMATS)
def test_embedding_is_the_stored_row(backend: NativeBackend, tmp_path: Path, format: str) -> None:
    table = make(backend, tmp_path / "w", format, 50, 256)
    ids = [0, 49, 31, 32, 7, 7, 48]
    program = backend.compile(lambda ops: ops.embedding(table), limits(len(ids), blocks=0))
    assert same_bits(program.run(step_of([Part(0, len(ids))], ids=ids)).numpy(), unpacked(table)[ids])
