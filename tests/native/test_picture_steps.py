"""What a step brings of pictures: the native core does with it what NumPy does, and nothing where there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from homenode.compute.native import NativeBackend
from homenode.compute.ops import Backend, FloatArray, KvGeometry, Ops, ScoreRule, StepArrays, StepLimits, Tensor
from homenode.compute.reference import ReferenceBackend

WIDTH, HEADS, TOKENS, BLOCK = 32, 2, 40, 32
LIMITS = StepLimits(64, 4, 4, 4)
BACKENDS = (lambda: NativeBackend([-1, -1]), ReferenceBackend)
RNG = np.random.default_rng(11)
ROWS = RNG.standard_normal((TOKENS, WIDTH)).astype(np.float32)


def step(count: int = TOKENS, start: int = 0, **brought: Any) -> StepArrays:
    """A step of a sequence's positions from `start` on."""
    positions = np.arange(start, start + count, dtype=np.int32)
    return StepArrays(
        ids=np.zeros(count, np.int32),
        positions=positions,
        query_start=np.array([0, count], np.int32),
        context_len=np.array([start + count], np.int32),
        block_table=np.arange(-(-(start + count) // BLOCK), dtype=np.int32)[None],
        sample_rows=np.array([0], np.int32),
        hidden=ROWS[start : start + count].copy(),
        **brought,
    )


def computed(make: Callable[[Backend, Ops], Tensor], *steps: StepArrays) -> list[list[FloatArray]]:
    """The rows of both backends for each step."""
    found = []
    for backend in (make_backend() for make_backend in BACKENDS):
        program = backend.compile(lambda ops, backend=backend: make(backend, ops), LIMITS)  # type: ignore[misc]
        found.append([np.array(np.asarray(program.run(arrays))) for arrays in steps])
    return found


def test_rope_turns_by_the_axis_of_each_frequency() -> None:
    frequencies = np.geomspace(1, 0.01, 6).astype(np.float32)
    turned = RNG.integers(0, 90, (3, TOKENS)).astype(np.int32)
    for native, plain in zip(
        *computed(
            lambda _, ops: ops.rope_angles(frequencies, 1.0, axes=(0, 1, 2, 1, 1, 0)),
            step(rope_positions=turned),
            step(),
        ),
        strict=True,
    ):
        np.testing.assert_allclose(native, plain, atol=1e-5)
    native, _ = computed(lambda _, ops: ops.rope_angles(frequencies, 1.0, axes=(1,) * 6), step(rope_positions=turned))
    np.testing.assert_allclose(native[0][:, 0], np.cos(turned[1].astype(np.float32)), atol=1e-5)


@pytest.mark.parametrize("adds", [False, True])
def test_columns_of_rows_are_put_in_their_places_or_added(adds: bool) -> None:
    places = np.array([1, 2, 9, 39], np.int32)
    brought = RNG.standard_normal((4, 3 * WIDTH)).astype(np.float32)

    def make(_: Backend, ops: Ops) -> Tensor:
        return ops.place_rows(ops.scale(ops.received(WIDTH), 2.0), WIDTH, 3 * WIDTH, adds)

    native, plain = computed(make, step(row_places=places, input_rows=brought), step())
    wanted = 2 * ROWS
    assert np.array_equal(native[1], wanted) and np.array_equal(plain[1], wanted)
    middle = brought[:, WIDTH : 2 * WIDTH]
    wanted[places] = wanted[places] + middle if adds else middle
    assert np.array_equal(native[0], wanted) and np.array_equal(plain[0], wanted)


@pytest.mark.parametrize("window", [None, 5])
def test_rows_of_a_span_see_each_other(window: int | None) -> None:
    spans = np.zeros((TOKENS, 2), np.int32)
    spans[3:17], spans[30:36] = (3, 17), (30, 36)

    def make(backend: Backend, ops: Ops) -> Tensor:
        cache = backend.kv_cache(KvGeometry.uniform(1, HEADS, WIDTH // HEADS, BLOCK, "f32"), 4)
        x = ops.received(WIDTH)
        q, k, v = (ops.scale(x, factor) for factor in (1.0, 0.5, 2.0))
        return ops.attention(q, k, v, cache, 0, ScoreRule(0.3, window, mask="spans"))

    native, plain = computed(make, step(seen_spans=spans), step())
    for mine, other in zip(native, plain, strict=True):
        np.testing.assert_allclose(mine, other, atol=2e-5)
    assert not np.allclose(native[0][3], native[1][3]) and np.array_equal(native[0][17:20], native[1][17:20]) is (
        window is None or window <= 17
    )
    # A step of the end of what an earlier step began computes the same bits.
    first, second, _ = computed(make, step(20, seen_spans=spans[:20]), step(20, 20, seen_spans=spans[20:]), step())[0]
    assert np.array_equal(np.concatenate([first, second]), native[0])


@pytest.mark.parametrize(
    ("brought", "what"),
    [
        ({"seen_spans": np.full((TOKENS, 2), 9, np.int32)}, "wanted its own among them"),
        ({"seen_spans": np.tile(np.array([[0, TOKENS + 1]], np.int32), (TOKENS, 1))}, "in a context of 40"),
        ({"rope_positions": np.zeros((2, TOKENS), np.int32)}, "wanted 3 for each token"),
    ],
)
def test_what_cannot_be_is_refused(brought: dict[str, Any], what: str) -> None:
    program = NativeBackend([-1]).compile(lambda ops: ops.scale(ops.received(WIDTH), 1.5), LIMITS)
    with pytest.raises(ValueError, match=what):
        program.run(step(**brought))
