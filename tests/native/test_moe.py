"""Mixtures of experts at every level: against NumPy over random shapes and formats, bit for bit alone and in company,
and what is refused.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from homenode.compute.native import NativeBackend
from homenode.compute.ops import Experts, FloatArray, Ops, Routing, Tensor
from homenode.compute.reference.moe import choose_experts
from homenode.compute.reference.ops import EagerOps
from tests.examples import seeds
from tests.native.steps import Part, evaluate, limits, same_bits, step_of
from tests.native.weights import FORMATS, load, stored

# Relative to the root mean square of what the experts add. Block formats multiply with activations rounded to 8 bits,
# twice in a row.
BOUNDS = {"F32": 2e-6, "F16": 2e-6, "BF16": 6e-3}
CODED_BOUND = 3e-2


def normal(rows: int, columns: int, seed: int) -> FloatArray:
    return np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)


class Case:
    """A mixture of stored experts, and rows with logits and a residual for it."""

    def __init__(self, format: str, experts: int, columns: int, inner: int, tokens: int, seed: int = 0) -> None:
        shapes = {"gate": (inner, columns), "up": (inner, columns), "down": (columns, inner)}
        kinds = {"gate": format, "up": format, "down": format}
        self.stored = {
            kind: [stored(kinds[kind], *shapes[kind], seed=seed + 100 * e + i) for e in range(experts)]
            for i, kind in enumerate(shapes)
        }
        self.x, self.logits, self.residual = (
            normal(tokens, columns, 1),
            normal(tokens, experts, 2),
            normal(tokens, columns, 3),
        )

    def loaded(self, backend: NativeBackend, file: Path) -> Experts:
        return Experts(
            **{kind: [load(backend, file, matrix) for matrix in matrices] for kind, matrices in self.stored.items()}
        )

    def run(
        self,
        backend: NativeBackend,
        experts: Experts,
        chosen: int,
        normalise: bool = True,
        rows: slice | list[int] = slice(None),
    ) -> FloatArray:
        def forward(ops: Ops) -> Tensor:
            x, logits, residual = (backend.constant(v[rows]) for v in (self.x, self.logits, self.residual))
            return ops.moe(x, logits, experts, Routing(chosen, normalise=normalise), residual)

        return evaluate(backend, forward, len(self.x[rows]))

    def added(self, chosen: int, normalise: bool) -> FloatArray:
        """What the experts add, in double precision."""
        out = np.zeros(self.x.shape)
        for row, (x, logits) in enumerate(zip(self.x.astype(np.float64), self.logits, strict=True)):
            for e, weight in zip(*choose_experts(logits, Routing(chosen, normalise=normalise)), strict=True):
                gate, up, down = (self.stored[kind][e].values.astype(np.float64) for kind in ("gate", "up", "down"))
                g = gate @ x
                out[row] += weight * (down @ (g / (1 + np.exp(np.minimum(-g, 700))) * (up @ x)))
        return out.astype(np.float32)


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_against_numpy(backend: NativeBackend, format: str, tmp_path: Path) -> None:
    case = Case(format, experts=5, columns=256, inner=256, tokens=7)
    experts = case.loaded(backend, tmp_path / "matrix")
    for tokens, chosen, normalise in ((7, 2, True), (1, 3, False)):
        rows = slice(0, tokens)
        found = case.run(backend, experts, chosen, normalise, rows) - case.residual[rows]
        wanted = case.added(chosen, normalise)[rows]
        error = np.sqrt(np.mean((found - wanted) ** 2) / np.mean(wanted**2))
        assert error < BOUNDS.get(format, CODED_BOUND)


@pytest.mark.parametrize("seed", seeds(8))
def test_shapes_of_any_kind(backend: NativeBackend, seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    experts, tokens = int(rng.integers(1, 20)), int(rng.integers(1, 300))
    case = Case("F32", experts, int(rng.integers(1, 90)), int(rng.integers(1, 90)), tokens, seed)
    chosen, normalise = int(rng.integers(1, experts + 1)), bool(rng.integers(2))
    found = case.run(backend, case.loaded(backend, tmp_path / "matrix"), chosen, normalise)
    wanted = case.residual + case.added(chosen, normalise)
    assert np.abs(found - wanted).max() < 1e-5 * np.abs(wanted).max()


@pytest.mark.parametrize("format", ["F32", "BF16", "Q8_0", "Q4_K"])
def test_a_row_does_not_depend_on_its_company_nor_on_threads(level: str, format: str, tmp_path: Path) -> None:
    case = Case(format, experts=6, columns=256, inner=256, tokens=210)
    case.logits[:130, 2] += 9  # more tokens of one expert than are multiplied at once
    two, three = (NativeBackend([-1] * threads, spin_us=0, level=level) for threads in (2, 3))
    experts = case.loaded(two, tmp_path / "matrix")
    every = case.run(two, experts, 3)
    for rows in ([0], [209], [5, 80, 140], list(range(100, 200))):
        assert same_bits(case.run(two, experts, 3, rows=rows), every[rows])
    assert same_bits(case.run(three, case.loaded(three, tmp_path / "matrix"), 3), every)
    assert same_bits(case.run(three, experts, 3), every)  # pieces of other threads


def test_gate_up_and_down_of_different_formats(backend: NativeBackend, tmp_path: Path) -> None:
    """As files of mixed types have them: one is multiplied with encoded activations, the next with floats."""
    case = Case("Q8_0", experts=3, columns=64, inner=96, tokens=9)
    case.stored["up"] = [stored("F32", 96, 64, seed=e) for e in range(3)]
    case.stored["down"] = [stored("BF16", 64, 96, seed=e) for e in range(3)]
    experts = case.loaded(backend, tmp_path / "matrix")
    found, wanted = case.run(backend, experts, 2) - case.residual, case.added(2, True)
    assert np.sqrt(np.mean((found - wanted) ** 2) / np.mean(wanted**2)) < CODED_BOUND
    assert same_bits(case.run(backend, experts, 2, rows=[4]) - case.residual[[4]], found[[4]])


def test_ties_go_to_the_lowest_index(backend: NativeBackend, tmp_path: Path) -> None:
    case = Case("F32", experts=7, columns=32, inner=32, tokens=3)
    case.logits[:] = [[1, 5, 5, 5, 0, 5, 5], [0, 0, 0, 0, 0, 0, 0], [2, 1, 1, 2, 1, 2, 3]]
    found = case.run(backend, case.loaded(backend, tmp_path / "matrix"), 3)
    chosen = [choose_experts(row, Routing(3))[0].tolist() for row in case.logits]
    assert chosen == [[1, 2, 3], [0, 1, 2], [0, 3, 6]]
    np.testing.assert_allclose(found, case.residual + case.added(3, True), rtol=1e-4, atol=1e-4)


def test_logits_that_are_no_numbers_harm_their_row_only(backend: NativeBackend, tmp_path: Path) -> None:
    case = Case("Q8_0", experts=4, columns=32, inner=32, tokens=5)
    experts = case.loaded(backend, tmp_path / "matrix")
    usual = case.run(backend, experts, 2)
    case.logits[1], case.logits[3] = np.nan, [np.inf, -np.inf, np.nan, 0]
    found = case.run(backend, experts, 2)
    assert same_bits(found[[0, 2, 4]], usual[[0, 2, 4]])
    assert np.isnan(found[1]).all()


@pytest.mark.parametrize("ids", [None, (0, 3, 6)], ids=["all experts", "some"])
def test_uses_of_experts_are_counted(backend: NativeBackend, ids: tuple[int, ...] | None, tmp_path: Path) -> None:
    case = Case("Q8_0", 7, 64, 32, 20)
    experts = case.loaded(backend, tmp_path / "weights")
    if ids is not None:
        experts = Experts(
            *([matrices[e] for e in ids] for matrices in (experts.gate, experts.up, experts.down)), ids=ids
        )
    sizes = (1, 5, 20)  # of which the mixture computes the last in another way
    x, logits = backend.constant(case.x), backend.constant(case.logits)
    program = backend.compile(
        lambda ops: ops.moe(x, ops.moe(x, logits, experts, Routing(2), None) and logits, experts, Routing(3), None),
        limits(20),
    )
    wanted = np.zeros((2, 7), np.uint64)
    for tokens in sizes:
        program.run(step_of([Part(0, tokens)], sample_rows=()))
        for mixture, chosen in enumerate((2, 3)):
            for row in case.logits[:tokens]:
                wanted[mixture, choose_experts(row, Routing(chosen))[0]] += np.uint64(1)
    if ids is not None:
        wanted[:, [e for e in range(7) if e not in ids]] = 0
    assert np.array_equal(program.expert_usage(), wanted)


ROUTINGS = [
    Routing(3, "sigmoid", epsilon=1e-20, scale=2.5),
    Routing(3, "sigmoid", normalise=False),
    Routing(3, "sigmoid", groups=4, groups_chosen=2),
    Routing(2, "softmax", normalise=False, scale=16.0, groups=4, groups_chosen=2, group_score="max"),
    Routing(4, "softmax", epsilon=0.5, groups=2, groups_chosen=2),
    Routing(3, "chosen_softmax"),
    Routing(3, "sparsemixer", jitter=0.2),
]


@pytest.mark.parametrize("routing", ROUTINGS, ids=lambda r: f"{r.score}-{r.groups}-{r.group_score}")
@pytest.mark.parametrize("ids", [None, (0, 3, 4, 7)], ids=["all", "some"])
def test_routings_biases_factors_and_gates(
    backend: NativeBackend, routing: Routing, ids: tuple[int, ...] | None, tmp_path: Path
) -> None:
    """All that a family may have beside a plain softmax, alone and in company, against the reference."""
    experts, columns, inner, tokens = 8, 48, 70, 21
    case = Case("F32", experts, columns, inner, tokens)
    here = range(experts) if ids is None else ids
    biases = [[normal(1, n, 10 * e + i)[0] * 9 for e in here] for i, n in enumerate((inner, inner, columns))]
    scales, choice = np.abs(normal(1, experts, 5)[0]), normal(1, experts, 6)[0]
    loaded = case.loaded(backend, tmp_path / "matrix")
    for activation, biased, gated in (
        ("silu", False, True),
        ("gelu", True, True),
        ("clamped", True, True),
        ("gelu_erf", False, True),
        ("relu2", False, False),
        ("gelu", True, False),
    ):
        extras = {"ids": ids, "activation": activation}
        chosen_by_bias = biased and routing.score != "sparsemixer"
        matrices = ([of[e] for e in here] for of in (loaded.gate, loaded.up, loaded.down))
        values = ([case.stored[kind][e].values for e in here] for kind in ("gate", "up", "down"))
        given, plain = Experts(*matrices, **extras), Experts(*values, **extras)
        if not gated:
            given, plain = replace(given, gate=()), replace(plain, gate=())
        if biased:
            names = ("gate_bias", "up_bias", "down_bias")
            given = replace(
                given,
                scales=backend.vector(scales),
                **{
                    name: vectors(backend, b)
                    for name, b in zip(names, biases, strict=True)
                    if gated or name != names[0]
                },
            )
            plain = replace(
                plain,
                scales=scales,
                **{name: b for name, b in zip(names, biases, strict=True) if gated or name != names[0]},
            )
        for rows in (slice(0, 21), slice(2, 7), slice(4, 5)):

            def forward(
                ops: Ops, rows: slice = rows, given: Experts = given, chosen_by_bias: bool = chosen_by_bias
            ) -> Tensor:
                x, logits, residual = (backend.constant(v[rows]) for v in (case.x, case.logits, case.residual))
                return ops.moe(x, logits, given, routing, residual, backend.vector(choice) if chosen_by_bias else None)

            wanted = EagerOps(step_of([Part(0, tokens)])).moe(
                case.x, case.logits, plain, routing, case.residual, choice if chosen_by_bias else None
            )
            found = evaluate(backend, forward, len(case.x[rows]))
            np.testing.assert_allclose(found, wanted[rows], rtol=2e-5, atol=2e-4 * np.abs(wanted).max())


def vectors(backend: NativeBackend, of: list[FloatArray]) -> list[Any]:
    return [backend.vector(each) for each in of]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"routing": Routing(2, groups=3)}, "2 experts from 1 of 3 groups of 4 experts"),
        ({"routing": Routing(3, groups=2)}, "3 experts from 1 of 2 groups of 4 experts"),
        ({"choice": 3}, "choice biases of 3; wanted a parameter of 4"),
        ({"scales": 5}, "factors of 5; wanted a parameter of 4"),
        ({"gate_bias": [7] * 4}, "a bias of 7; wanted a parameter of 96"),
        ({"down_bias": [64] * 3}, "3 biases for 4 experts"),
    ],
)
def test_routings_and_biases_that_do_not_fit_are_refused(
    backend: NativeBackend, change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    case = Case("F32", experts=4, columns=64, inner=96, tokens=2)
    experts = case.loaded(backend, tmp_path / "matrix")
    for name in ("gate_bias", "up_bias", "down_bias"):
        if name in change:
            experts = replace(experts, **{name: vectors(backend, [np.ones(n, np.float32) for n in change[name]])})
    if "scales" in change:
        experts = replace(experts, scales=backend.vector(np.ones(change["scales"], np.float32)))
    choice = backend.vector(np.ones(change["choice"], np.float32)) if "choice" in change else None
    x, logits = backend.constant(case.x), backend.constant(case.logits)
    with pytest.raises(ValueError, match=message):
        evaluate(backend, lambda ops: ops.moe(x, logits, experts, change.get("routing", Routing(2)), None, choice), 2)


def test_gated_sum(backend: NativeBackend) -> None:
    x, y, gate = normal(6, 50, 1), normal(6, 50, 2), normal(6, 1, 3) * 50
    found = evaluate(backend, lambda ops: ops.add_gated(*(backend.constant(v) for v in (x, y, gate))), 6)
    wanted = x + y / (1 + np.exp(-gate.astype(np.float64)))
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"chosen": 0}, "0 experts of 4 for each token"),
        ({"chosen": 5}, "5 experts of 4 for each token"),
        ({"logits": 3}, "with 3 logits, for 4 experts of 64 columns"),
        ({"x": 32}, "rows of 32 and 64 columns"),
        ({"residual": 32}, "rows of 64 and 32 columns"),
        ({"up": 3}, "matrices of 4, 3 and 4 experts"),
        ({"down": 0}, "matrices of 4, 4 and 0 experts"),
        ({"format": "F16"}, "one shape and format are needed; seen F32 96 x 64 and F16 96 x 64"),
        ({"swapped": True}, "the shapes do not fit each other"),
    ],
)
def test_what_does_not_fit_is_refused(
    backend: NativeBackend, change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    case = Case("F32", experts=4, columns=64, inner=96, tokens=2)
    if "format" in change:
        case.stored["gate"][2] = stored(change["format"], 96, 64)
    if "swapped" in change:
        case.stored["up"], case.stored["down"] = case.stored["down"], case.stored["up"]
    for kind in ("up", "down"):
        case.stored[kind] = case.stored[kind][: change.get(kind, 4)]
    case.x, case.logits = case.x[:, : change.get("x", 64)], case.logits[:, : change.get("logits", 4)]
    case.residual = case.residual[:, : change.get("residual", 64)]
    with pytest.raises(ValueError, match=message):
        case.run(backend, case.loaded(backend, tmp_path / "matrix"), change.get("chosen", 2))
