"""Operations with state memory beside NumPy, at every level: any cut of a sequence, any company in a step and any
number of threads give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from homenode.compute.native import NativeBackend
from homenode.compute.ops import (
    DeltaHeads,
    FloatArray,
    LayerState,
    Ops,
    ScanHeads,
    StateGeometry,
    StepArrays,
    StepLimits,
    Tensor,
)
from homenode.compute.reference import ReferenceBackend
from tests.native.steps import Part, same_bits, step_of

SLOTS = 9
# Key heads or groups, value heads, their widths, taps of the convolution; how value heads find their key head: in
# order or in turn, in the delta rule, or the recurrence of Mamba 2.
SHAPES = {
    "two to a key": (2, 4, 16, 16, 3, "order"),
    "in turn": (2, 6, 16, 32, 3, "turn"),
    "odd widths": (3, 3, 10, 21, 6, "order"),
    "one head": (1, 1, 130, 5, 2, "order"),
    "large": (2, 4, 128, 128, 3, "turn"),
    "Mamba 2 in groups": (2, 6, 16, 16, 3, "scan"),
    "Mamba 2 of odd widths": (1, 3, 11, 21, 3, "scan"),
    "Mamba 2, large": (1, 4, 128, 64, 3, "scan"),
}
Shape = tuple[int, int, int, int, int, str]


def random(*shape: int, seed: int = 0) -> FloatArray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def columns_of(shape: Shape) -> tuple[int, int]:
    """Of q, k and v together, and of v."""
    keys, values, key_width, value_width, _, _ = shape
    return 2 * keys * key_width + values * value_width, values * value_width


class Machine:
    """A convolution, then the delta rule or the recurrence of Mamba 2, on one backend: rows of a step in, their outputs
    out.
    """

    def __init__(self, backend: Any, shape: Shape) -> None:
        keys, values, key_width, value_width, taps, how = shape
        channels, _ = columns_of(shape)
        state = LayerState(channels, taps, values, key_width, value_width)
        self.memory = backend.state_memory(StateGeometry((LayerState(3, 1), state)), SLOTS)
        weights, biases = random(channels, taps + 1, seed=1), random(channels, seed=2)
        decay_weight, decay_bias = -np.exp(random(values, seed=3)), random(values, seed=4)

        def forward(ops: Ops) -> Tensor:
            x = ops.received(channels + 2 * values)
            qkv, beta, decay = ops.split(x, (channels, values, values))
            parts = [backend.vector(part.reshape(-1)) for part in np.split(weights, [channels // 3])]
            qkv = ops.short_convolution(qkv, parts, [backend.vector(biases)], self.memory, 1, True)
            vectors = (backend.vector(decay_weight), backend.vector(decay_bias))
            if how == "scan":
                skip = backend.vector(random(values, seed=5))
                return ops.selective_scan(qkv, beta, *vectors, skip, self.memory, 1, ScanHeads(values // keys))
            heads = DeltaHeads(keys, how == "turn", 2.0 if value_width % 2 else 1.0)
            return ops.delta_rule(qkv, beta, decay, *vectors, self.memory, 1, heads)

        self.program = backend.compile(forward, StepLimits(200, 8, 200, 1))

    def run(
        self, work: Sequence[tuple[int, int, FloatArray]], copies: Sequence[tuple[int, int, int]] = ()
    ) -> FloatArray:
        """Of each sequence its slot, the position it goes on from, and rows; `copies`: see `StepArrays`."""
        arrays = step_of([Part(start, len(rows)) for _, start, rows in work])
        return np.array(
            self.program.run(
                replace(
                    arrays,
                    hidden=np.concatenate([rows for _, _, rows in work]),
                    state_slot=np.array([slot for slot, _, _ in work], np.int32),
                    state_fresh=np.array([start == 0 for _, start, _ in work], np.int32),
                    state_copies=np.array(copies, np.int32).reshape(-1, 3),
                )
            )
        )


def rows_for(shape: Shape, count: int, seed: int = 7) -> FloatArray:
    return 2 * random(count, columns_of(shape)[0] + 2 * shape[1], seed=seed)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_it_computes_what_numpy_does(backend: NativeBackend, shape: Shape) -> None:
    rows = rows_for(shape, 70)
    wanted = Machine(ReferenceBackend(), shape).run([(3, 0, rows)])
    found = Machine(backend, shape).run([(3, 0, rows)])
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=2e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_cuts_and_company_change_no_bit(backend: NativeBackend, shape: Shape) -> None:
    rows, others = rows_for(shape, 70), rows_for(shape, 40, seed=8)
    whole = Machine(backend, shape).run([(3, 0, rows)])
    machine, at, found = Machine(backend, shape), 0, []
    for number, count in enumerate((1, 1, 2, 31, 33, 1, 1)):
        found.append(machine.run([(5, number, others[number : number + 1]), (3, at, rows[at : at + count])])[1:])
        at += count
    assert same_bits(np.concatenate(found), whole)
    assert same_bits(
        Machine(NativeBackend([-1] * 3, level=backend.statistics()["level"]), shape).run([(3, 0, rows)]), whole
    )


@pytest.mark.parametrize("at", [0, 1, 2, 31, 32, 69])
@pytest.mark.parametrize("name", ["in turn", "Mamba 2 in groups"])
def test_a_copy_goes_on_as_the_sequence_did(backend: NativeBackend, at: int, name: str) -> None:
    shape = SHAPES[name]
    rows = rows_for(shape, 75)
    machine = Machine(backend, shape)
    whole = machine.run([(0, 0, rows)])
    other = rows_for(shape, 3, seed=9)
    copies = [(1, slot, place) for slot, place in zip((2, 7, 8), sorted({at, 20, 33}), strict=True)]
    machine.run([(6, 0, other), (4, 0, rows[:70])], copies)
    for _, slot, place in copies:
        assert same_bits(machine.run([(slot, place + 1, rows[place + 1 :])]), whole[place + 1 :])
    assert same_bits(machine.run([(4, 70, rows[70:])]), whole[70:])


def test_a_fresh_state_is_zeros_whatever_the_slot_holds(backend: NativeBackend) -> None:
    shape = SHAPES["two to a key"]
    machine, rows = Machine(backend, shape), rows_for(shape, 9)
    first = machine.run([(1, 0, rows)])
    values = machine.memory.read_slot(1)
    machine.memory.write_slot(1, np.full_like(values, np.nan))
    assert same_bits(machine.run([(1, 0, rows[:2])]), first[:2])
    assert same_bits(machine.run([(1, 2, rows[2:])]), first[2:])
    assert same_bits(machine.memory.read_slot(1)[3:], values[3:])  # the first layer's three values nobody computes


def test_what_a_slot_holds_is_what_numpy_holds(backend: NativeBackend) -> None:
    shape = SHAPES["odd widths"]
    native, reference, rows = Machine(backend, shape), Machine(ReferenceBackend(), shape), rows_for(shape, 4)
    native.run([(6, 0, rows)]), reference.run([(6, 0, rows)])
    memory = reference.memory
    wanted = [kept[6].reshape(-1) for pair in zip(memory.tails, memory.matrices, strict=True) for kept in pair]
    found = native.memory.read_slot(6)
    np.testing.assert_allclose(found, np.concatenate(wanted), rtol=1e-4, atol=1e-5)
    native.memory.copy_slot(6, 7)
    assert same_bits(native.memory.read_slot(7), found)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"state_slot": [1, 1]}, "wanted each once"),
        ({"state_slot": [1, SLOTS]}, "of 9; wanted each once"),
        ({"state_copies": [(0, 2, 1)]}, "wanted each once"),
        ({"state_copies": [(0, 5, 2)]}, "copy its state at position 2"),
        ({"state_copies": [(0, 5, 1), (0, 6, 1)]}, "copy its state at position 1"),
        ({"state_copies": [(1, 5, 0), (0, 6, 1)]}, "of sequence 0 of 2 is to be copied; wanted ascending"),
        ({"state_copies": [(2, 5, 0)]}, "of sequence 2 of 2"),
        ({"state_slot": None}, "0 entries for 2 sequences"),
    ],
)
def test_a_step_with_impossible_slots_is_refused(change: dict[str, Any], problem: str) -> None:
    shape = SHAPES["two to a key"]
    machine = Machine(NativeBackend([-1]), shape)
    good: dict[str, Any] = {
        "state_slot": [1, 2],
        "state_fresh": [1, 1],
    }
    values = {name: None if value is None else np.array(value, np.int32) for name, value in (good | change).items()}
    arrays = replace(step_of([Part(0, 2), Part(0, 1)]), hidden=rows_for(shape, 3), **values)
    with pytest.raises(ValueError, match=problem):
        machine.program.run(arrays)


@pytest.mark.parametrize("first", [1, 2])
def test_heads_may_begin_within_a_group(backend: NativeBackend, first: int) -> None:
    """As those of a rank: the last heads of one group and the first of the next."""
    groups, heads, width, value = 2, 4, 8, 16
    columns = heads * value + 2 * groups * width

    def computed(on: Any) -> FloatArray:
        memory = on.state_memory(StateGeometry((LayerState(0, 0, heads, width, value),)), 2)
        vectors = [
            on.vector(values) for values in (-np.exp(random(heads)), random(heads, seed=1), random(heads, seed=2))
        ]

        def forward(ops: Ops) -> Tensor:
            xbc, dt = ops.split(ops.received(columns + heads), (columns, heads))
            return ops.selective_scan(xbc, dt, *vectors, memory, 0, ScanHeads(3, first))

        arrays = replace(
            step_of([Part(0, 9)]),
            hidden=random(9, columns + heads, seed=3),
            state_slot=np.array([1], np.int32),
            state_fresh=np.array([1], np.int32),
        )
        return np.array(on.compile(forward, StepLimits(20, 1, 20, 1)).run(arrays))

    wanted = computed(ReferenceBackend())
    np.testing.assert_allclose(computed(backend), wanted, rtol=1e-4, atol=2e-5 * np.abs(wanted).max())


GATES: dict[str, Callable[[Ops, Any, Tensor], Tensor]] = {
    "norm_gated": lambda ops, backend, x: ops.norm_gated(
        *_halves(ops, x, backend.vector(random(12, seed=5))), eps=1e-5
    ),
    "sigmoid_mul": lambda ops, _, x: ops.sigmoid_mul(*ops.split(x, (60, 60))),
    "softplus": lambda ops, _, x: ops.gate_runs(*ops.split(x, (100, 20)), softplus=True),
    "sigmoid": lambda ops, _, x: ops.gate_runs(*ops.split(x, (100, 20))),
    "rms_norm_grouped": lambda ops, backend, x: ops.rms_norm_grouped(x, backend.vector(random(120, seed=5)), 6, 1e-5),
    "multiply": lambda ops, _, x: ops.multiply(*ops.split(x, (60, 60))),
    "silu_mul": lambda ops, _, x: ops.silu_mul(*ops.split(x, (60, 60))),
    "regroup": lambda ops, _, x: ops.regroup(x, (3, 7, 10)),
}


def _halves(ops: Ops, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    left, right = ops.split(x, (60, 60))
    return left, weight, right


@pytest.mark.parametrize("gate", GATES.values(), ids=GATES)
@pytest.mark.parametrize("rows", [1, 2, 33])
def test_gates(backend: NativeBackend, gate: Callable[[Ops, Any, Tensor], Tensor], rows: int) -> None:
    x = 5 * random(rows, 120)

    def computed(on: Any) -> FloatArray:
        program = on.compile(lambda ops: gate(ops, on, ops.received(120)), StepLimits(40, 1, 40, 1))
        arrays: StepArrays = replace(step_of([Part(0, rows)]), hidden=x)
        return np.array(program.run(arrays))

    np.testing.assert_allclose(computed(backend), computed(ReferenceBackend()), rtol=3e-6, atol=1e-6)
