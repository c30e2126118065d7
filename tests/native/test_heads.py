"""Products and copies head by head, against single products of the same columns; rotation of neighbours, against that
of halves.
"""

from __future__ import annotations

import numpy as np
import pytest

from homenode.compute.native import NativeBackend
from homenode.compute.ops import Ops, Tensor
from tests.native.steps import evaluate, same_bits
from tests.native.test_linear import random

HEADS, INSIDE, OUTSIDE = 5, 96, 45


@pytest.mark.parametrize("rows", [1, 7, 40])
@pytest.mark.parametrize("kept", ["F32", "BF16", "Q8_0", "Q4_0"])
def test_each_head_has_the_bits_of_a_product_of_its_own(backend: NativeBackend, kept: str, rows: int) -> None:
    weights = [backend.weight_from_array(random(OUTSIDE, INSIDE, seed=head), kept) for head in range(HEADS)]
    x = random(rows, HEADS * INSIDE)

    def one(ops: Ops, head: int) -> Tensor:
        return ops.linear(ops.split(backend.constant(x), (INSIDE,) * HEADS)[head], [weights[head]])

    wanted = [evaluate(backend, lambda ops, head=head: one(ops, head), rows) for head in range(HEADS)]
    found = evaluate(backend, lambda ops: ops.linear_heads(backend.constant(x), weights), rows)
    assert same_bits(found, np.concatenate(wanted, axis=1))


@pytest.mark.parametrize("heads", [1, 4])
def test_heads_are_joined_one_by_one(backend: NativeBackend, heads: int) -> None:
    x, y = random(9, 12 * heads), random(9, 5 * heads, seed=4)
    wanted = np.concatenate([x.reshape(9, heads, 12), y.reshape(9, heads, 5)], axis=2).reshape(9, -1)
    found = evaluate(backend, lambda ops: ops.join_heads(backend.constant(x), backend.constant(y), heads), 9)
    assert same_bits(found, wanted)


@pytest.mark.parametrize("rotary", [24, 16])
def test_neighbours_turn_as_halves_do(backend: NativeBackend, rotary: int) -> None:
    """The elements of a pair, put apart before they turn, are where halves have them after."""
    head, half = 24, rotary // 2
    x = random(11, 3 * head)
    frequencies = np.linspace(0.1, 1, half).astype(np.float32)
    order = [*range(0, rotary, 2), *range(1, rotary, 2), *range(rotary, head)]
    apart = x.reshape(11, 3, head)[..., order].reshape(11, -1)

    def turned(ops: Ops, rows: Tensor, adjacent: bool) -> Tensor:
        return ops.rope(rows, ops.rope_angles(frequencies, 1.0), head, adjacent)

    found = evaluate(backend, lambda ops: turned(ops, backend.constant(x), True), 11)
    assert same_bits(found, evaluate(backend, lambda ops: turned(ops, backend.constant(apart), False), 11))


def test_weights_of_unlike_heads_are_refused(backend: NativeBackend) -> None:
    weights = [backend.weight_from_array(random(rows, INSIDE), "F32") for rows in (45, 44)]
    with pytest.raises(ValueError, match="not all of one shape"):
        evaluate(backend, lambda ops: ops.linear_heads(backend.constant(random(2, 2 * INSIDE)), weights), 2)
    with pytest.raises(ValueError, match="2 weights of 96 columns for rows of 90"):
        evaluate(backend, lambda ops: ops.linear_heads(backend.constant(random(2, 90)), weights[:1] * 2), 2)
