"""Speed of the matrix products by themselves: every format, shape and number of tokens against the machine's
limits.

A product is measured as a model's step does it, activations encoded and outputs stored, by programs of some products
that take turns. Each product has a matrix of its own: together they are larger than caches are, so that weights come
from memory as they do in a model.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from homenode.bench.compute.passes import Passes
from homenode.bench.compute.stored import FORMATS, stored_matrix
from homenode.bench.machine.ceilings import Operations, Work, path_of
from homenode.bench.machine.repetition import BenchListener, Meter, Runs, measure_repeatedly
from homenode.compute.ops import Ops, Program, StepArrays, StepLimits, Tensor, Weight
from homenode.compute.stored_matrix import StoredMatrix
from homenode.dtypes import BY_NAME
from homenode.errors import UserError
from homenode.spelling import with_suggestion

if TYPE_CHECKING:
    from homenode.compute.native import NativeBackend

_WEIGHT_BYTES = 128 << 20  # of all matrices of a point
_PROGRAMS = 8  # that take turns: a pass of one is short, and one of many short passes is undisturbed
_OPERATIONS = 2e9  # of a pass, unless a single product has more


@dataclass(frozen=True)
class KernelPlan:
    """The measurements to make: every combination. A shape is (columns K, rows N): K inputs, N outputs. `repeat` runs
    of each; the median counts.
    """

    formats: tuple[str, ...] = ("BF16", "Q8_0", "Q4_0", "Q4_K", "Q6_K")
    shapes: tuple[tuple[int, int], ...] = ((1024, 4096), (4096, 1024), (2048, 8192))
    tokens: tuple[int, ...] = (1, 4, 8, 32, 512)
    repeat: int = 2

    @property
    def points(self) -> int:
        """Return how many results it gives."""
        return len(self.formats) * len(self.shapes) * len(self.tokens)


@dataclass(frozen=True)
class KernelResult:
    """One product of `tokens` rows of activations [tokens, columns] with a matrix [rows, columns].

    `seconds`: of one product, the fastest pass of a run, the median over the runs. `cpu_gops`: 1e9 operations a second,
    had each thread always had its CPU: from the CPU time of the run that used least, a lower bound where multiplying is
    the limit, whatever else runs on the machine (where reading is, threads that run at different times each have the
    memory for themselves, so there it says nothing). `gb_s`: weight bytes a second; `gops`: 1e9 operations a second;
    `ceiling_gops`: what reading and multiplying, overlapped, allowed meanwhile; `limit`: which of them sets it.
    `intensity`: operations for each byte of weights. `discarded`, `steady`: see `repetition.Runs`.
    """

    format: str
    columns: int
    rows: int
    tokens: int
    seconds: float
    gb_s: float
    gops: float
    cpu_gops: float
    intensity: float
    path: str
    ceiling_gops: float
    fraction: float
    limit: str
    ceilings: dict[str, float]
    discarded: tuple[str, ...]
    steady: bool


def check_plan(plan: KernelPlan, formats: frozenset[str]) -> None:
    """UserError for a format that cannot be measured or a shape whose rows would end inside a block. `formats`: those
    with a kernel."""
    known = sorted(set(FORMATS) & formats)
    for name in plan.formats:
        if name not in known:
            message = f"no kernel for format {name}; there are {', '.join(known)}"
            raise UserError(with_suggestion(message, name, known), param="--formats")
        for columns, rows in plan.shapes:
            if columns % BY_NAME[name].block:
                raise UserError(
                    f"shape {columns}x{rows}: {name} has blocks of {BY_NAME[name].block} columns", param="--shapes"
                )


def measure_kernels(
    backend: NativeBackend, meter: Meter, plan: KernelPlan, watch: BenchListener
) -> Iterator[KernelResult]:
    """One result for each combination, as it is measured. Raises what `check_plan` raises."""
    check_plan(plan, backend.weight_types())
    for name in plan.formats:
        for columns, rows in plan.shapes:
            watch.started(f"{name} {columns}x{rows}")
            weights = _make_weights(backend, name, columns, rows)
            for tokens in plan.tokens:
                yield _measure(backend, meter, plan.repeat, watch, (name, columns, rows, tokens), weights)


def _make_weights(backend: NativeBackend, name: str, columns: int, rows: int) -> list[Weight]:
    dtype = BY_NAME[name]
    copies = max(1, -(-_WEIGHT_BYTES // (rows * dtype.row_bytes(columns))))
    with stored_matrix(dtype, rows, columns) as fd:
        return [backend.weight_from_file(StoredMatrix(fd, 0, dtype, rows, columns), name) for _ in range(copies)]


def _measure(
    backend: NativeBackend,
    meter: Meter,
    repeat: int,
    watch: BenchListener,
    point: tuple[str, int, int, int],
    weights: list[Weight],
) -> KernelResult:
    name, columns, rows, tokens = point
    operations = 2.0 * tokens * columns * rows
    products = max(1, min(int(_OPERATIONS / operations), len(weights) // _PROGRAMS))
    x = backend.constant(np.random.default_rng(tokens).standard_normal((tokens, columns)).astype(np.float32))
    used = [weights[i : i + products] for i in range(0, len(weights) - products + 1, products)][:_PROGRAMS]
    arrays = StepArrays(
        _int32([0] * tokens),
        _int32(range(tokens)),
        _int32([0, tokens]),
        _int32([tokens]),
        np.zeros((1, 1), np.int32),
        _int32([]),
    )
    run = Passes([_program(backend, some, x, tokens) for some in used], arrays, products)
    runs = measure_repeatedly(run, meter, repeat, watch, short=True)
    work = Work(rows * BY_NAME[name].row_bytes(columns), Operations.of(path_of(name), operations))
    return _result(point, work, runs, run.least_cpu / backend.statistics()["threads"])


def _program(backend: NativeBackend, weights: list[Weight], x: Tensor, tokens: int) -> Program:
    """The products of one activation matrix with each of the weights."""

    def forward(ops: Ops) -> Tensor:
        for weight in weights[:-1]:
            ops.linear(x, (weight,))
        return ops.linear(x, (weights[-1],))

    return backend.compile(forward, StepLimits(tokens, 1, 1, 1))


def _result(point: tuple[str, int, int, int], work: Work, runs: Runs, cpu_seconds: float) -> KernelResult:
    """`cpu_seconds`: of one product and thread."""
    name, columns, rows, tokens = point
    seconds = statistics.median(r.seconds for r in runs.counted)
    least = statistics.median(r.ceilings.seconds(work) for r in runs.counted)
    middle = runs.counted[len(runs.counted) // 2].ceilings
    return KernelResult(
        format=name,
        columns=columns,
        rows=rows,
        tokens=tokens,
        seconds=seconds,
        gb_s=work.bytes / seconds / 1e9,
        gops=work.operations.total / seconds / 1e9,
        cpu_gops=work.operations.total / cpu_seconds / 1e9,
        intensity=work.operations.total / work.bytes,
        path=path_of(name),
        ceiling_gops=work.operations.total / least / 1e9,
        fraction=statistics.median(r.ceilings.seconds(work) / r.seconds for r in runs.counted),
        limit=middle.limit(work),
        ceilings=middle.to_json(),
        discarded=runs.discarded,
        steady=runs.steady,
    )


def _int32(values: Any) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    return np.array(values, np.int32)
