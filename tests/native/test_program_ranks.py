"""Programs of ranks and stages: a program with sums is bit for bit the programs between the sums, with NumPy's sum in
the middle.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from homenode.compute.native import NativeBackend, NativeRankGroup
from homenode.compute.ops import Backend, Experts, KvGeometry, Ops, Routing, ScoreRule, StepArrays, Tensor
from homenode.compute.ranks import RankGroup
from homenode.compute.reference import ReferenceBackend, ThreadRanks
from homenode.errors import PeerError, UnsupportedError
from tests.native.rank_threads import ranks, together
from tests.native.steps import Part, evaluate, limits, same_bits, step_of
from tests.waiting import PATIENCE_S

VOCABULARY, WIDTH, HEAD = 40, 64, 8
Make = Callable[[Ops, Tensor], Tensor]


def matrix(rows: int, columns: int, seed: int) -> Any:
    return (0.2 * np.random.default_rng(seed).standard_normal((rows, columns))).astype(np.float32)


class Rank:
    """One rank's backend, its weights, and pieces of a model in whose middle sums stand."""

    def __init__(
        self, rank: int, threads: int, format: str = "F32", spin_us: int = 10, backend: Backend | None = None
    ) -> None:
        self.backend: Any = backend or NativeBackend([-1] * threads, spin_us)
        self.rank = rank
        self._format = format
        self._square, self._wide = self.weight(WIDTH, WIDTH, 2), self.weight(2 * WIDTH, WIDTH, 3)
        self._router, self._head = self.weight(6, WIDTH, 5, shared=True), self.weight(VOCABULARY, WIDTH, 4, shared=True)
        self._norm, self._bias = (
            self.backend.vector(matrix(1, WIDTH, 6) + 1),
            self.backend.vector(matrix(1, WIDTH, 7 + rank)),
        )
        ids = tuple(range(rank, 6, 2)) if rank < 2 else (5,)
        self._experts = Experts(*([self.weight(WIDTH, WIDTH, 20 + 3 * e + i) for e in ids] for i in range(3)), ids)
        self._cache = self.backend.kv_cache(KvGeometry.uniform(2, WIDTH // HEAD // 2, HEAD, 32, "f32"), 8)

    def weight(self, rows: int, columns: int, seed: int, shared: bool = False) -> Any:
        return self.backend.weight_from_array(
            matrix(rows, columns, seed + (0 if shared else 1000 * self.rank)), self._format
        )

    def product(self, ops: Ops, x: Tensor) -> Tensor:
        """What a norm is folded into, and a bias and residual are added by."""
        return ops.linear(
            ops.rms_norm(x, self._norm, 1e-5), [self._square], [self._bias], x if self.rank == 0 else None
        )

    def plain(self, ops: Ops, x: Tensor) -> Tensor:
        return ops.linear(x, [self._square])

    def norm(self, ops: Ops, x: Tensor) -> Tensor:
        """Row by row, as what follows it may be: no barrier may be missing."""
        return ops.rms_norm(x, self._norm, 1e-5)

    def gated(self, ops: Ops, x: Tensor) -> Tensor:
        return ops.linear(
            ops.silu_mul(ops.linear(ops.rms_norm(x, self._norm, 1e-5), [self._square, self._square])), [self._square]
        )

    def gate(self, ops: Ops, x: Tensor) -> Tensor:
        return ops.silu_mul(ops.linear(x, [self._wide]))

    def mixture(self, ops: Ops, x: Tensor) -> Tensor:
        """Some of the experts; what they add is of this rank only."""
        y = ops.rms_norm(x, self._norm, 1e-5)
        return ops.moe(y, ops.linear(y, [self._router]), self._experts, Routing(2), None)

    def attention(self, ops: Ops, x: Tensor) -> Tensor:
        q, k, v = ops.split(ops.linear(x, [self._square, self._square]), [WIDTH, WIDTH // 2, WIDTH // 2])
        angles = ops.rope_angles(np.array([1, 0.1, 0.01, 0.001], np.float32), 1.0)
        q, k = ops.rope(q, angles, HEAD), ops.rope(k, angles, HEAD)
        return self.plain(ops, ops.attention(q, k, v, self._cache, 0, ScoreRule(HEAD**-0.5)))

    def part_of_columns(self, ops: Ops, x: Tensor) -> Tensor:
        """Half of the columns of a value, as wide as before afterwards."""
        left, right = ops.split(ops.linear(x, [self._wide]), [WIDTH, WIDTH])
        return ops.linear(right, [self._square], residual=left)

    def head(self, ops: Ops, x: Tensor) -> Tensor:
        return ops.linear(ops.rms_norm(ops.select(x), self._norm, 1e-5), [self._head])


PIECES = ["product", "plain", "norm", "gated", "gate", "mixture", "attention", "part_of_columns"]
STEP = step_of(
    [Part(0, 40, [3, 1]), Part(0, 7, [0]), Part(0, 1, [2])], [(5 * i) % VOCABULARY for i in range(48)], [39, 46, 47]
)
ONE = step_of([Part(0, 1, [2])], [7], [0])


def by_pieces(makers: list[list[Make]], workers: list[Rank], step: StepArrays, hidden: Any) -> list[Any]:
    """Every rank's result of the pieces, a sum of all ranks between each two: programs without a group, and NumPy."""
    for makes in makers[:-1]:
        parts = []
        for make, worker in zip(makes, workers, strict=True):
            program = worker.backend.compile(lambda ops, make=make: make(ops, ops.received(WIDTH)), limits(64))
            parts.append(program.run(dataclasses.replace(step, hidden=hidden)).numpy())
        hidden = parts[0]
        for part in parts[1:]:
            hidden = hidden + part
    last = []
    for make, worker in zip(makers[-1], workers, strict=True):
        program = worker.backend.compile(lambda ops, make=make: make(ops, ops.received(WIDTH)), limits(64))
        last.append(program.run(dataclasses.replace(step, hidden=hidden)).numpy())
    return last


def with_sums(worker: Rank, names: list[str]) -> Callable[[Ops], Tensor]:
    """The pieces of these names one after the other, a sum over the ranks between each two."""

    def record(ops: Ops) -> Tensor:
        x = ops.received(WIDTH)
        for name in names[:-1]:
            x = ops.sum(getattr(worker, name)(ops, x))
        return getattr(worker, names[-1])(ops, x)

    return record


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_programs_with_sums_are_their_pieces(size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = [str(n) for n in rng.choice(PIECES, 6)] + ["head"]
    threads = [1 + (seed + r) % 3 for r in range(size)]
    format = ["F32", "Q8_0"][seed % 2]
    workers = [Rank(r, threads[r], format) for r in range(size)]
    makers = [[getattr(w, name) for w in workers] for name in names]
    hidden = matrix(48, WIDTH, 99)
    group = ranks(size, 1 << 13)  # some sums cross in two pieces

    for step, rows in ((STEP, hidden), (ONE, hidden[:1])):
        wanted = by_pieces(makers, workers, step, rows)
        for fuse in (True, False):
            programs = [
                w.backend.compile(with_sums(w, names), limits(64), g, fuse=fuse)
                for w, g in zip(workers, group, strict=True)
            ]
            stepped = dataclasses.replace(step, hidden=rows)
            for _ in range(2):
                found = together([lambda p=p, s=stepped: p.run(s).numpy() for p in programs])
                assert all(same_bits(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("size", [2, 3])
def test_programs_with_sums_compute_what_numpy_does(size: int) -> None:
    names = ["attention", "product", "mixture", "gated", "head"]
    hidden = matrix(48, WIDTH, 99)
    step = dataclasses.replace(STEP, hidden=hidden)

    def run(workers: list[Rank], group: Sequence[RankGroup]) -> list[Any]:
        programs = [w.backend.compile(with_sums(w, names), limits(64), g) for w, g in zip(workers, group, strict=True)]
        return [np.array(out) for out in together([lambda p=p: p.run(step) for p in programs])]

    found = run([Rank(r, 2) for r in range(size)], ranks(size))
    wanted = run([Rank(r, 1, backend=ReferenceBackend()) for r in range(size)], ThreadRanks(size, PATIENCE_S).ranks)
    assert all(same_bits(found[0], out) for out in found[1:])
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-3, atol=2e-4)


def test_without_a_group_nothing_changes() -> None:
    """A sum over one rank is no operation: the program is the one without it, and what could be folded together still
    is.
    """
    worker = Rank(0, 2)
    table = worker.weight(VOCABULARY, WIDTH, 1)

    def forward(ops: Ops, summed: bool) -> Tensor:
        x = ops.embedding(table)
        for name in PIECES:
            x = getattr(worker, name)(ops, x)
            x = ops.sum(x) if summed else x
        x = worker.head(ops, x)
        return ops.gather(x, [VOCABULARY]) if summed else x

    (alone,) = ranks(1)
    plain = worker.backend.compile(lambda ops: forward(ops, False), limits(64))
    for group in (None, alone):
        summed = worker.backend.compile(lambda ops: forward(ops, True), limits(64), group)
        assert same_bits(summed.run(STEP).numpy(), plain.run(STEP).numpy())
        for tokens in (1, 8, 48):
            assert summed.barriers(tokens, 1) == plain.barriers(tokens, 1)


def test_gathered_logits_and_cut_embeddings() -> None:
    """Vocabulary cut unevenly over three ranks: rows of the table here, columns of the logits there."""
    cuts = [(0, 5), (5, 25), (25, VOCABULARY)]
    widths = [end - begin for begin, end in cuts]
    table, group = matrix(VOCABULARY, WIDTH, 1), ranks(3, 1 << 12)

    def rank(r: int) -> Any:
        backend = NativeBackend([-1] * (r + 1), 10)
        begin, end = cuts[r]
        part = backend.weight_from_array(table[begin:end], "F32")
        norm = backend.vector(np.ones(WIDTH, np.float32))

        def forward(ops: Ops) -> Tensor:
            x = ops.sum(ops.embedding(part, begin, VOCABULARY))
            return ops.gather(ops.linear(ops.rms_norm(ops.select(x), norm, 1e-5), [part]), widths)

        program = backend.compile(forward, limits(64), group[r])
        with pytest.raises(ValueError, match="id 40 in a vocabulary of 40"):
            program.run(dataclasses.replace(ONE, ids=np.array([VOCABULARY], np.int32)))
        nothing = program.run(dataclasses.replace(ONE, sample_rows=np.empty(0, np.int32))).numpy()
        assert nothing.shape == (0, VOCABULARY)
        return program.run(STEP).numpy()

    whole = NativeBackend([-1])
    matrix_of_all, norm = whole.weight_from_array(table, "F32"), whole.vector(np.ones(WIDTH, np.float32))
    program = whole.compile(
        lambda ops: ops.linear(ops.rms_norm(ops.select(ops.embedding(matrix_of_all)), norm, 1e-5), [matrix_of_all]),
        limits(64),
    )
    wanted = program.run(STEP).numpy()
    for found in together([lambda r=r: rank(r) for r in range(3)]):
        assert same_bits(found, wanted)


def test_an_embedding_gives_zeros_for_what_is_elsewhere() -> None:
    backend = NativeBackend([-1, -1])
    table = matrix(10, 50, 1)
    part = backend.weight_from_array(table, "F32")
    ids = list(range(20)) * 2
    program = backend.compile(lambda ops: ops.embedding(part, 5, 20), limits(64))
    found = program.run(step_of([Part(0, 40)], ids)).numpy()
    assert same_bits(found, np.array([table[i - 5] if 5 <= i < 15 else np.zeros(50, np.float32) for i in ids]))
    for first, vocabulary in ((11, 20), (-1, 20), (0, 9), (5, None)):
        with pytest.raises(ValueError, match="embedding"):
            backend.compile(
                lambda ops, first=first, vocabulary=vocabulary: ops.embedding(part, first, vocabulary), limits(4)
            )


def test_a_stage_gives_rows_and_the_next_takes_them() -> None:
    first, second = Rank(0, 2), Rank(0, 1)
    table = first.weight(VOCABULARY, WIDTH, 1)
    both = first.backend.compile(
        lambda ops: first.head(ops, first.product(ops, first.attention(ops, ops.embedding(table)))), limits(64)
    )
    wanted = both.run(STEP).numpy()
    stages = (
        first.backend.compile(lambda ops: first.attention(ops, ops.embedding(table)), limits(64)),
        second.backend.compile(lambda ops: second.head(ops, second.product(ops, ops.received(WIDTH))), limits(64)),
    )
    rows = stages[0].run(STEP).numpy()
    assert rows.shape == (48, WIDTH)
    assert same_bits(stages[1].run(dataclasses.replace(STEP, hidden=rows)).numpy(), wanted)


def test_received_rows_that_do_not_fit_are_refused() -> None:
    worker = Rank(0, 1)
    program = worker.backend.compile(lambda ops: worker.plain(ops, ops.received(WIDTH)), limits(64))
    for hidden in (None, matrix(2, WIDTH, 1), matrix(1, WIDTH - 1, 1)):
        with pytest.raises(ValueError, match=f"hidden is .*; wanted 1 x {WIDTH}"):
            program.run(dataclasses.replace(ONE, hidden=hidden))
    for forward, message in (
        (lambda ops: ops.received(0), "0 columns"),
        (lambda ops: ops.received(WIDTH), "what it received"),
        (lambda ops: ops.split(ops.received(WIDTH), [8, WIDTH - 8])[1], "what it received"),
        (
            lambda ops: ops.linear(ops.received(WIDTH), [worker.weight(9, WIDTH, 1)], residual=ops.received(9)),
            "columns and of",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            worker.backend.compile(forward, limits(4))


def test_widths_that_are_not_those_of_the_ranks_are_refused() -> None:
    worker, (group, _) = Rank(0, 1), ranks(2)
    for widths in ([WIDTH], [WIDTH + 1, 4], [WIDTH, -1]):
        with pytest.raises(ValueError, match="gather"):
            worker.backend.compile(
                lambda ops, widths=widths: ops.gather(worker.plain(ops, ops.received(WIDTH)), widths), limits(4), group
            )
    with pytest.raises(UnsupportedError, match="of its own kind"):
        worker.backend.compile(lambda ops: worker.plain(ops, ops.received(WIDTH)), limits(4), object())  # type: ignore[arg-type]


@pytest.mark.parametrize("spin_us", [0, 200])
@pytest.mark.parametrize("way", ["leaves", "late"])
def test_a_lost_rank_ends_the_run_and_every_later_one(spin_us: int, way: str) -> None:
    memory = NativeRankGroup.make(2)
    mine = NativeRankGroup.attach(memory.fd, 0, PATIENCE_S if way == "leaves" else 0.2, spin_us)
    other = NativeRankGroup.attach(memory.fd, 1, PATIENCE_S)
    workers = [Rank(0, 3, spin_us=spin_us), Rank(1, 1)]

    def forward(worker: Rank) -> Callable[[Ops], Tensor]:
        return lambda ops: worker.head(
            ops, ops.sum(worker.mixture(ops, ops.sum(worker.attention(ops, ops.received(WIDTH)))))
        )

    program = workers[0].backend.compile(forward(workers[0]), limits(64), mine)
    step = dataclasses.replace(STEP, hidden=matrix(48, WIDTH, 1))

    def lose() -> None:
        other.sum(np.ones((48, WIDTH), np.float32))  # the first sum succeeds
        if way == "leaves":
            other.leave()

    def run() -> None:
        with pytest.raises(PeerError, match="rank 1 of 2"):
            program.run(step)

    together([run, lose])
    for _ in range(3):
        with pytest.raises(PeerError, match="rank 1 of 2"):
            program.run(step)
    # The thread pool is as it was.
    alone = workers[0].backend.compile(lambda ops: workers[0].head(ops, ops.received(WIDTH)), limits(64))
    assert alone.run(step).numpy().shape == (3, VOCABULARY)


def test_two_programs_of_one_rank_take_turns() -> None:
    group = ranks(2)
    workers = [Rank(r, 2) for r in range(2)]
    step = dataclasses.replace(ONE, hidden=matrix(1, WIDTH, 1))
    programs = [
        w.backend.compile(lambda ops, w=w: ops.sum(w.product(ops, ops.received(WIDTH))), limits(4), g)
        for w, g in zip(workers, group, strict=True)
    ]
    others = [
        w.backend.compile(lambda ops, w=w: ops.sum(w.product(ops, ops.received(WIDTH))), limits(4), g)
        for w, g in zip(workers, group, strict=True)
    ]
    wanted = together([lambda p=p: p.run(step).numpy() for p in programs])[0]
    found: list[Any] = []
    lock = threading.Lock()

    def run(program: Any) -> None:
        for _ in range(20):
            out = program.run(step).numpy()
            with lock:
                found.append(out)

    together([lambda p=p: run(p) for p in (*programs, *others)])
    assert len(found) == 80 and all(same_bits(out, wanted) for out in found)


def test_a_mixture_of_some_experts_adds_what_is_here() -> None:
    backend = NativeBackend([-1, -1])
    x, logits = matrix(70, 32, 1) * 5, matrix(70, 7, 2) * 9
    weights = [[backend.weight_from_array(matrix(32, 32, 10 * e + i), "F32") for e in range(7)] for i in range(3)]

    def run(ids: tuple[int, ...] | None, rows: slice, residual: Any = None) -> Any:
        experts = Experts(*([of[e] for e in (range(7) if ids is None else ids)] for of in weights), ids)

        def forward(ops: Ops) -> Tensor:
            added = None if residual is None else backend.constant(residual[rows])
            return ops.moe(
                backend.constant(x[rows]), backend.constant(logits[rows]), experts, Routing(3, normalise=False), added
            )

        return evaluate(backend, forward, len(x[rows]))

    for rows in (slice(0, 1), slice(0, 6), slice(0, 70)):
        every = run(None, rows)
        assert same_bits(every, run(tuple(range(7)), rows))
        assert same_bits(every, run(None, rows, np.zeros_like(x)))
        parts = [run(ids, rows) for ids in ((0, 3), (1, 2, 6), (4,), (5,))]
        np.testing.assert_allclose(sum(parts), every, rtol=1e-4, atol=1e-5)
        assert same_bits(run((1, 2, 6), rows, x), run((1, 2, 6), rows, x)[...])
    chosen = {int(e) for e in np.argsort(-logits[0], kind="stable")[:3]}
    assert not run(tuple(sorted(set(range(7)) - chosen)), slice(0, 1)).any()
    for ids in ((0,), (1, 0), (0, 7), (-1, 0), (3, 3), ()):
        with pytest.raises(ValueError, match="moe"):
            experts = Experts(*([of[0], of[1]] for of in weights), ids)
            backend.compile(
                lambda ops, e=experts: ops.moe(backend.constant(x), backend.constant(logits), e, Routing(2), None),
                limits(4),
            )
