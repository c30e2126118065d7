"""Products whose matrix each row names: the bits of a product of its own, whatever is beside it and however many rows
there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from homenode.compute.native import NativeBackend
from homenode.compute.ops import FloatArray, Ops, Tensor
from tests.native.steps import Part, evaluate, limits, same_bits, step_of
from tests.native.test_linear import random

COLUMNS, ROWS, MATRICES = 96, 45, 4
NAMED = (2, 0, -1, 3, 2, 7, 1, 0)  # 1 has no matrix, and so do -1 and 7


def index_of(backend: NativeBackend, named: Sequence[float]) -> Tensor:
    return backend.constant(np.array(named, np.float32)[:, None])


def apart(backend: NativeBackend, weight: Tensor, x: FloatArray) -> FloatArray:
    return evaluate(backend, lambda ops: ops.linear(backend.constant(x), [weight]), len(x))


def wanted_of(
    backend: NativeBackend, weights: Sequence[Tensor | None], x: FloatArray, named: Sequence[int]
) -> FloatArray:
    found = np.zeros((len(x), ROWS), np.float32)
    for row, number in enumerate(named):
        weight = weights[number] if 0 <= number < len(weights) else None
        if weight is not None:
            found[row] = apart(backend, weight, x[row : row + 1])[0]
    return found


def some_weights(backend: NativeBackend, kept: str) -> list[Tensor | None]:
    made = [backend.weight_from_array(random(ROWS, COLUMNS, seed=number), kept) for number in range(MATRICES)]
    return [made[0], None, *made[2:]]


@pytest.mark.parametrize("rows", [1, 7, 40, 300])
@pytest.mark.parametrize("kept", ["F32", "BF16", "F16", "Q8_0", "Q4_0"])
def test_a_row_has_the_bits_of_a_product_of_its_own(backend: NativeBackend, kept: str, rows: int) -> None:
    weights, x = some_weights(backend, kept), random(rows, COLUMNS)
    named = [NAMED[row * 5 % len(NAMED)] for row in range(rows)]
    found = evaluate(
        backend, lambda ops: ops.linear_indexed(backend.constant(x), weights, index_of(backend, named)), rows
    )
    assert same_bits(found, wanted_of(backend, weights, x, named))


@pytest.mark.parametrize("threads", [1, 3, 5])
def test_threads_share_what_few_rows_of_weights_there_are(threads: int) -> None:
    backend = NativeBackend([-1] * threads, spin_us=20)
    weights = [backend.weight_from_array(random(8, COLUMNS, seed=number), "F32") for number in range(3)]
    for rows in (5, 90):
        x, named = random(rows, COLUMNS), [row % 3 for row in range(rows)]
        found = evaluate(
            backend,
            lambda ops, x=x, named=named: ops.linear_indexed(backend.constant(x), weights, index_of(backend, named)),
            rows,
        )
        wanted = np.concatenate([apart(backend, weights[n], x[row : row + 1]) for row, n in enumerate(named)])
        assert same_bits(found, wanted)


@pytest.mark.parametrize("rows", [6, 20])
def test_what_a_residual_has_is_added_to(backend: NativeBackend, rows: int) -> None:
    """Twice, beside each other; other columns, and rows without a matrix, stay as they are."""
    weights, x, first = some_weights(backend, "F32"), random(rows, COLUMNS), 11
    base = backend.weight_from_array(random(first + 2 * ROWS, COLUMNS, seed=9), "F32")
    named = [NAMED[row % len(NAMED)] for row in range(rows)]

    def forward(ops: Ops) -> Tensor:
        given, index = ops.silu_mul(backend.constant(np.concatenate([x, x], axis=1))), index_of(backend, named)
        y = ops.linear(given, [base])
        y = ops.linear_indexed(given, weights, index, y, first)
        return ops.linear_indexed(given, weights, index, y, first + ROWS)

    found = evaluate(backend, forward, rows)
    given = evaluate(backend, lambda ops: ops.silu_mul(backend.constant(np.concatenate([x, x], axis=1))), rows)
    wanted, product = apart(backend, base, given), wanted_of(backend, weights, given, named)
    wanted[:, first : first + ROWS] += product
    wanted[:, first + ROWS :] += product
    assert same_bits(found, wanted)


@pytest.mark.parametrize("counts", [(1, 1, 1), (4, 9, 3)])
def test_rows_have_the_matrix_of_their_sequence(backend: NativeBackend, counts: tuple[int, ...]) -> None:
    """All rows, and those that are selected; a step without adapters is as one in which nobody has any."""
    weights, rows = some_weights(backend, "F32"), sum(counts)
    x, starts = random(rows, COLUMNS), np.cumsum([0, *counts])
    picked = [int(start) for start in starts[1:] - 1]
    plain = step_of([Part(0, count) for count in counts], sample_rows=picked)
    step = replace(plain, adapters=np.array([3, -1, 0], np.int32))
    named = np.repeat([3, -1, 0], counts)
    base = backend.weight_from_array(random(ROWS, COLUMNS, seed=9), "F32")

    def forward(ops: Ops, *, selected: bool, adds: bool) -> Tensor:
        given = ops.scale(backend.constant(x), 1.0)
        given = ops.select(given) if selected else given
        return ops.linear_indexed(given, weights, ops.adapter_index(), ops.linear(given, [base]) if adds else None)

    for selected in (False, True):
        seen = picked if selected else list(range(rows))
        for adds in (False, True):
            program = backend.compile(
                lambda ops, selected=selected, adds=adds: forward(ops, selected=selected, adds=adds), limits(rows)
            )
            alone = apart(backend, base, x)[seen] if adds else np.zeros((len(seen), ROWS), np.float32)
            product = wanted_of(backend, weights, x, [int(n) for n in named])[seen]
            assert same_bits(program.run(step).numpy(), alone + product if adds else product)
            assert same_bits(program.run(plain).numpy(), alone)


def test_an_index_that_is_no_number_names_nothing(backend: NativeBackend) -> None:
    weights, x = some_weights(backend, "F32"), random(3, COLUMNS)
    found = evaluate(
        backend,
        lambda ops: ops.linear_indexed(backend.constant(x), weights, index_of(backend, [np.nan, np.inf, 2])),
        3,
    )
    assert not found[:2].any() and same_bits(found[2:], apart(backend, weights[2], x[2:]))


def test_what_does_not_fit_is_refused(backend: NativeBackend) -> None:
    weights, x = some_weights(backend, "F32"), random(2, COLUMNS)
    other = backend.weight_from_array(random(ROWS + 1, COLUMNS), "F32")

    def call(ops: Ops, weights: Sequence[Tensor | None], width: int = COLUMNS, **more: object) -> Tensor:
        given = backend.constant(x[:, :width].copy())
        return ops.linear_indexed(given, weights, index_of(backend, [0, 0]), **more)

    def onto_what_is_read(ops: Ops) -> Tensor:
        y = ops.linear(backend.constant(x), [weights[0]])
        ops.scale(y, 2.0)
        return call(ops, weights, residual=y)

    with pytest.raises(ValueError, match="not all of one shape"):
        evaluate(backend, lambda ops: call(ops, [*weights, other]), 2)
    with pytest.raises(ValueError, match="no weights"):
        evaluate(backend, lambda ops: call(ops, [None, None]), 2)
    with pytest.raises(ValueError, match="96 columns for rows of 90"):
        evaluate(backend, lambda ops: call(ops, weights, 90), 2)
    with pytest.raises(ValueError, match="columns from 1 on"):
        evaluate(
            backend, lambda ops: call(ops, weights, residual=ops.linear(backend.constant(x), [weights[0]]), first=1), 2
        )
    with pytest.raises(ValueError, match="something else reads"):
        evaluate(backend, onto_what_is_read, 2)
    program = backend.compile(
        lambda ops: ops.linear_indexed(backend.constant(x), weights, ops.adapter_index()), limits(2)
    )
    with pytest.raises(ValueError, match="adapters of 2 sequences for 1"):
        program.run(replace(step_of([Part(0, 2)]), adapters=np.zeros(2, np.int32)))
