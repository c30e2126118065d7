"""Paged attention against softmax in float64, and bit by bit against itself however the work is cut."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from homenode.compute.native import NativeBackend
from homenode.compute.ops import (
    AttentionMask,
    FloatArray,
    KvGeometry,
    Ops,
    RelativeBias,
    ScoreRule,
    StepLimits,
    Tensor,
    WindowKind,
)
from homenode.compute.reference import ReferenceBackend
from tests.native.steps import PAIR_LEVELS, Part, same_bits, step_of

BLOCKS = 64


@dataclass(frozen=True)
class Case:
    """Heads, a sequence length, and how keys and values are kept."""

    heads: int
    kv_heads: int
    head_dim: int
    length: int
    dtype: str = "f32"
    block_size: int = 32
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    sloped: bool = False
    reach: int = 0  # of biases by distance; 0: none
    window_kind: WindowKind = "sliding"
    mask: AttentionMask = "causal"

    def slopes(self) -> FloatArray | None:
        """From none to one that leaves a few keys only."""
        return np.linspace(0, 0.7, self.heads, dtype=np.float32) if self.sloped else None

    def biases(self) -> FloatArray | None:
        """Of five buckets, of each head and of one before them that is elsewhere."""
        return np.random.default_rng(7).standard_normal((5, self.heads + 1)).astype(np.float32) if self.reach else None

    @property
    def buckets(self) -> tuple[int, ...]:
        """Of each distance."""
        return tuple((3 * apart) % 5 for apart in range(2 * self.reach + 1))

    def head_sinks(self) -> FloatArray | None:
        """From far below the scores to far above them."""
        return np.linspace(-6, 6, self.heads, dtype=np.float32) if self.sinks else None

    @property
    def geometry(self) -> KvGeometry:
        return KvGeometry.uniform(2, self.kv_heads, self.head_dim, self.block_size, self.dtype)

    def inputs(self, seed: int = 0) -> list[FloatArray]:
        rng = np.random.default_rng(seed)
        widths = [self.heads * self.head_dim, self.kv_heads * self.head_dim, self.kv_heads * self.head_dim]
        return [rng.standard_normal((self.length, w)).astype(np.float32) for w in widths]


class Cached:
    """One cache, and attention of any mix of sequences over it; q, k and v of a step are constants."""

    def __init__(self, backend: NativeBackend, case: Case, layer: int = 1) -> None:
        self.backend, self.case, self.layer = backend, case, layer
        self.cache = backend.kv_cache(case.geometry, BLOCKS)

    def __call__(self, parts: Sequence[Part], inputs: Sequence[FloatArray]) -> FloatArray:
        q, k, v = (self.backend.constant(x) for x in inputs)
        case, rows = self.case, sum(p.count for p in parts)
        sinks = case.head_sinks()
        given = None if sinks is None else self.backend.vector(sinks)
        bias = case.biases()
        if bias is not None:
            bias = RelativeBias(self.backend.vector(bias.reshape(-1)), case.buckets, case.heads + 1, 1)
        program = self.backend.compile(
            lambda ops: ops.attention(
                q,
                k,
                v,
                self.cache,
                self.layer,
                ScoreRule(
                    case.head_dim**-0.5,
                    case.window,
                    case.softcap,
                    sinks=given,
                    slopes=case.slopes(),
                    bias=bias,
                    window_kind=case.window_kind,
                    mask=case.mask,
                ),
            ),
            StepLimits(rows, len(parts), 1, BLOCKS),
        )
        return program.run(step_of(parts)).numpy()


def oracle(case: Case, inputs: Sequence[FloatArray], first: int = 0) -> FloatArray:
    """Attention of the positions from `first` on, in float64."""
    q, k, v = (x.astype(np.float64) for x in inputs)
    if case.dtype != "f32":
        k, v = (stored(case, x).astype(np.float64) for x in inputs[1:])
    n, group = case.length, case.heads // case.kv_heads
    queries = q[first:].reshape(-1, case.heads, case.head_dim).swapaxes(0, 1)
    keys, values = (np.repeat(x.reshape(n, case.kv_heads, case.head_dim), group, axis=1).swapaxes(0, 1) for x in (k, v))
    scores = queries @ keys.swapaxes(1, 2) * case.head_dim**-0.5
    if case.softcap is not None:
        scores = case.softcap * np.tanh(scores / case.softcap)
    distance = np.arange(first, n)[:, None] - np.arange(n)
    visible = (distance >= 0) & (distance < (case.window if case.window and case.window_kind == "sliding" else n))
    if case.window_kind == "chunked":
        assert case.window is not None
        visible &= np.arange(n) // case.window == np.arange(first, n)[:, None] // case.window
    if case.mask == "all":
        visible = np.abs(distance) < (case.window or n)
    if (slopes := case.slopes()) is not None:
        scores = scores - slopes.astype(np.float64)[:, None, None] * np.abs(distance)
    if (biases := case.biases()) is not None:
        places = np.array(case.buckets)[np.clip(-distance, -case.reach, case.reach) + case.reach]
        scores = scores + biases[places, 1:].transpose(2, 0, 1)
    scores = np.where(visible, scores, -np.inf)
    sinks = case.head_sinks()
    sink = np.full((1, 1, 1), -np.inf) if sinks is None else sinks.astype(np.float64)[:, None, None]
    largest = np.maximum(scores.max(-1, keepdims=True), sink)
    weights = np.exp(scores - largest)
    weights /= weights.sum(-1, keepdims=True) + np.exp(sink - largest)
    return (weights @ values).swapaxes(0, 1).reshape(n - first, -1)


def stored(case: Case, x: FloatArray) -> FloatArray:
    """Keys or values as the cache keeps them."""
    if case.dtype == "bf16":
        return rounded_to_bf16(x)
    heads = x.reshape(len(x), case.kv_heads, case.head_dim)
    largest = np.abs(heads).max(-1, keepdims=True)
    codes = np.rint(heads * (np.float32(127) / largest))
    return np.asarray(codes * (largest / np.float32(127)), np.float32).reshape(x.shape)


def check(case: Case, found: FloatArray, wanted: FloatArray, level: str) -> None:
    """float32 and bf16 differ from float64 by the order of sums. With int8, queries and weights are rounded too, to 15
    bits, and with bf16 at the levels that multiply pairs of bfloat16, to those.
    """
    if case.dtype == "bf16" and level in PAIR_LEVELS:
        error = found - wanted
        assert np.abs(error).max() < 3e-2 and np.sqrt(np.mean(error**2)) < 2e-3  # measured: 1.2e-2 and 1.1e-3
    elif case.dtype == "int8":
        error = found - wanted
        assert np.abs(error).max() < 4e-4 and np.sqrt(np.mean(error**2)) < 3e-5  # measured: 2.5e-4 and 1.2e-5
    else:
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=2e-6)


def rounded_to_bf16(x: FloatArray) -> FloatArray:
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def shuffled_blocks(case: Case, seed: int = 3) -> list[int]:
    return random.Random(seed).sample(range(BLOCKS), -(-case.length // case.block_size))


CASES = [
    Case(1, 1, 8, 1),
    Case(8, 4, 8, 300),
    Case(4, 4, 64, 130),
    Case(7, 1, 64, 290),
    Case(14, 2, 64, 70, block_size=64),
    Case(6, 2, 80, 97, block_size=96),
    Case(4, 2, 96, 65),
    Case(8, 2, 128, 530, block_size=64),
    Case(2, 1, 256, 40),
    Case(20, 1, 16, 33),
    Case(3, 1, 6, 50),
    Case(8, 4, 8, 300, "bf16"),
    Case(7, 1, 64, 290, "bf16"),
    Case(6, 2, 80, 97, "bf16"),
    Case(2, 1, 10, 270, "bf16"),
    Case(8, 2, 128, 300, "bf16", 64, 100),
    Case(16, 2, 64, 300, "bf16"),
    Case(16, 1, 80, 275, "bf16", 96),
    Case(7, 7, 96, 131, "bf16"),
    Case(4, 2, 256, 263, "bf16", window=129),
    Case(4, 2, 16, 700, "bf16", window=1),
    Case(4, 2, 16, 700, "bf16", window=250),
    Case(8, 4, 64, 300, sinks=True),
    Case(8, 2, 64, 300, "bf16", window=128, sinks=True),
    Case(8, 2, 64, 300, "int8", window=128, softcap=1.5, sinks=True),
    Case(8, 4, 64, 300, sloped=True),
    Case(3, 3, 80, 700, "bf16", sloped=True),
    Case(8, 2, 64, 300, "int8", window=128, sinks=True, sloped=True),
    Case(8, 2, 64, 300, "bf16", sinks=True, reach=40),
    Case(7, 1, 64, 290, softcap=1.5),
    Case(7, 1, 64, 290, "bf16", softcap=1.5),
    Case(7, 1, 64, 290, "int8", softcap=1.5),
    Case(4, 2, 96, 65, softcap=50.0),
    Case(4, 2, 16, 700, window=1),
    Case(4, 2, 16, 700, window=257),
    Case(4, 2, 16, 700, window=250),  # position 504, the first of its tile, sees the last key of the first chunk
    Case(4, 2, 16, 100, window=4096),
    Case(1, 1, 8, 1, "int8"),
    Case(7, 1, 64, 290, "int8"),
    Case(14, 2, 64, 70, "int8", 64),
    Case(6, 2, 80, 97, "int8", 96),
    Case(2, 1, 10, 270, "int8"),
    Case(20, 1, 16, 33, "int8"),
    Case(2, 1, 256, 40, "int8"),
    Case(8, 2, 128, 300, "int8", 64, 100),
    Case(4, 2, 16, 700, "int8", window=1),
    Case(4, 2, 16, 700, "int8", window=257),
    Case(4, 2, 16, 700, "int8", window=250),
    Case(4, 2, 16, 700, window=1, window_kind="chunked"),
    Case(4, 2, 16, 700, window=250, window_kind="chunked"),
    Case(8, 2, 64, 530, "bf16", window=256, window_kind="chunked", sinks=True),
    Case(7, 1, 64, 290, "int8", window=100, window_kind="chunked", softcap=1.5),
    Case(4, 2, 16, 100, window=4096, window_kind="chunked"),
]
BOTH_WAYS = [
    Case(1, 1, 8, 1, mask="all"),
    Case(4, 4, 64, 130, mask="all"),
    Case(7, 1, 64, 290, "bf16", mask="all"),
    Case(4, 2, 16, 700, mask="all"),
    Case(4, 2, 16, 700, mask="all", window=1),
    Case(4, 2, 16, 700, "bf16", mask="all", window=65),
    Case(4, 2, 16, 700, mask="all", window=250),
    Case(4, 2, 16, 700, "int8", mask="all", window=257),
    Case(4, 4, 64, 600, sloped=True, mask="all"),
    Case(12, 12, 64, 70, "bf16", sloped=True, mask="all"),
    Case(4, 4, 64, 600, reach=128, mask="all"),
    Case(12, 12, 64, 70, "int8", reach=9, mask="all"),
]


@pytest.mark.parametrize("case", [*CASES, *BOTH_WAYS], ids=str)
def test_against_float64(backend: NativeBackend, level: str, case: Case) -> None:
    inputs = case.inputs()
    found = Cached(backend, case)([Part(0, case.length, shuffled_blocks(case))], inputs)
    check(case, found, oracle(case, inputs), level)


@pytest.mark.parametrize("case", [c for c in BOTH_WAYS if c.length > 40], ids=str)
def test_what_comes_behind_is_seen_with_the_same_bits_in_any_batch(level: str, case: Case) -> None:
    """On one and three threads, by itself and between two other texts."""
    q, k, v = case.inputs()
    other = replace(case, length=75).inputs(seed=9)
    blocks = random.Random(5).sample(range(BLOCKS), -(-case.length // case.block_size) + 6)
    found = []
    for threads in (1, 3):
        cached = Cached(NativeBackend([-1] * threads, level=level), case)
        found.append(cached([Part(0, case.length, blocks[6:])], [q, k, v]))
        parts = [Part(0, 75, blocks[:3]), Part(0, case.length, blocks[6:]), Part(0, 75, blocks[3:6])]
        among = cached(parts, [np.concatenate([o, x, o]) for o, x in zip(other, (q, k, v), strict=True)])
        found.append(among[75 : 75 + case.length])
    assert all(same_bits(found[0], each) for each in found[1:])


@pytest.mark.parametrize("case", [c for c in CASES if c.length > 40], ids=str)
def test_chunks_batches_and_threads_change_no_bit(level: str, case: Case) -> None:
    """Whole, in random chunks among another sequence's tokens, and token by token at the end; on one, two and three
    threads.
    """
    inputs = case.inputs()
    blocks = shuffled_blocks(case)
    other_blocks = [b for b in range(BLOCKS) if b not in blocks][: len(blocks)]
    whole = Cached(NativeBackend([-1], 10, level), case)([Part(0, case.length, blocks)], inputs)
    for threads in (1, 2, 3):
        rng = random.Random(threads)
        cached = Cached(NativeBackend([-1] * threads, 10, level), case)
        start, parts = 0, []
        while start < case.length:
            count = 1 if start > case.length - 4 else min(rng.randint(1, 90), case.length - start)
            mine = [x[start : start + count] for x in inputs]
            # The other sequence is the same one, one step behind and before us in the batch.
            step = (
                [(parts[-1][0], other_blocks), (Part(start, count, blocks), blocks)]
                if parts
                else [(Part(start, count, blocks), blocks)]
            )
            stacked = (
                [np.concatenate([theirs, ours]) for theirs, ours in zip(parts[-1][1], mine, strict=True)]
                if parts
                else mine
            )
            out = cached([Part(p.start, p.count, b) for p, b in step], stacked)
            assert same_bits(np.ascontiguousarray(out[-count:]), np.ascontiguousarray(whole[start : start + count])), (
                threads,
                start,
                count,
            )
            if parts:
                before = parts[-1][0]
                theirs_out = np.ascontiguousarray(out[: before.count])
                assert same_bits(theirs_out, np.ascontiguousarray(whole[before.start : before.start + before.count]))
            parts.append((Part(start, count), mine))
            start += count


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
def test_long_decode_is_split_over_threads_and_keeps_every_bit(level: str, dtype: str) -> None:
    case = Case(4, 2, 32, 2001, dtype, 64)
    inputs, blocks = case.inputs(), shuffled_blocks(case)
    results = []
    for threads in (1, 2, 3, 4):
        cached = Cached(NativeBackend([-1] * threads, 10, level), case)
        cached([Part(0, 2000, blocks)], [x[:2000] for x in inputs])
        results.append(cached([Part(2000, 1, blocks)], [x[2000:] for x in inputs]))
    assert all(same_bits(results[0], r) for r in results[1:])
    check(case, results[0], oracle(case, inputs, 2000), level)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "int8"])
def test_what_lies_beyond_the_context_is_never_read(backend: NativeBackend, level: str, dtype: str) -> None:
    """Blocks full of NaN from an earlier sequence: only the keys and values of the context may count."""
    case = Case(4, 2, 10, 45, dtype)
    inputs = case.inputs()
    cached, blocks = Cached(backend, case), [5, 9]
    cached([Part(0, 64, blocks)], [np.full((64, x.shape[1]), np.nan, np.float32) for x in inputs])
    first = cached([Part(0, 20, blocks)], [x[:20] for x in inputs])
    rest = cached([Part(20, 25, blocks)], [x[20:] for x in inputs])
    check(case, np.concatenate([first, rest]), oracle(case, inputs), level)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "int8"])
def test_a_window_never_reads_what_it_left_behind(backend: NativeBackend, level: str, dtype: str) -> None:
    case = Case(2, 1, 16, 90, dtype, window=20)
    inputs = case.inputs()
    inputs[1][:30], inputs[2][:30] = np.nan, np.nan
    clean = [inputs[0], np.nan_to_num(inputs[1], nan=1), np.nan_to_num(inputs[2], nan=1)]
    found = Cached(backend, case)([Part(0, 90, [3, 1, 2])], inputs)
    check(case, found[50:], oracle(case, clean)[50:], level)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_values_that_are_not_finite_spoil_the_rows_that_see_them(backend: NativeBackend, dtype: str) -> None:
    """Rows before them are multiplied together with rows behind them, which see them."""
    case = Case(4, 2, 48, 90, dtype)
    inputs = case.inputs()
    clean = Cached(backend, case)([Part(0, 90, [3, 1, 2])], inputs)
    inputs[2][37, 5], inputs[2][70, 50] = np.inf, np.nan  # elements of the first and of the second KV head
    found = Cached(backend, case)([Part(0, 90, [3, 1, 2])], inputs)
    spoiled = np.zeros_like(found, bool)
    spoiled[37:, [5, 53]], spoiled[70:, [98, 146]] = True, True  # each KV head is that of two query heads
    assert not np.isfinite(found[spoiled]).any()
    assert same_bits(found[~spoiled], clean[~spoiled])


def test_large_scores_do_not_overflow(backend: NativeBackend) -> None:
    case = Case(2, 1, 16, 300)
    inputs = case.inputs()
    inputs[0] *= 300
    found = Cached(backend, case)([Part(0, 300, shuffled_blocks(case))], inputs)
    np.testing.assert_allclose(found, oracle(case, inputs), rtol=1e-3, atol=2e-4)


def test_layers_do_not_touch_each_other(backend: NativeBackend) -> None:
    case = Case(2, 1, 8, 40)
    one, two = case.inputs(1), case.inputs(2)
    first = Cached(backend, case, layer=0)
    second = Cached(backend, case, layer=1)
    second.cache = first.cache
    blocks = [0, 1]
    first([Part(0, 39, blocks)], [x[:39] for x in one])
    second([Part(0, 40, blocks)], two)
    last = first([Part(39, 1, blocks)], [x[39:] for x in one])
    np.testing.assert_allclose(last[0], oracle(case, one, 39)[0], rtol=1e-5, atol=2e-6)


def test_sums_of_codes_at_their_bounds(backend: NativeBackend) -> None:
    """Every code at its largest, in the longest head and a full chunk: sums of 32 bits just hold it."""
    case = Case(1, 1, 4096, 257, "int8")
    inputs = [
        np.full((257, 4096), -3, np.float32),
        np.full((257, 4096), 2, np.float32),
        np.full((257, 4096), -5, np.float32),
    ]
    found = Cached(backend, case)([Part(0, 257, shuffled_blocks(case))], inputs)
    np.testing.assert_allclose(found, inputs[2], rtol=1e-6)


@pytest.mark.parametrize("size", [1e-38, 1e-25, 1e30])
def test_int8_keeps_values_of_any_size(backend: NativeBackend, size: float) -> None:
    """The largest of a head is met to seven digits whatever it is; what no float32 inverse exists for becomes 0."""
    case = Case(2, 1, 16, 40, "int8")
    inputs = case.inputs()
    inputs[1][:] = 0  # equal weights
    inputs[2][:] = np.float32(size)
    found = Cached(backend, case)([Part(0, 40, [1, 0])], inputs)
    np.testing.assert_allclose(found, np.full_like(found, size if size > 1e-30 else 0), rtol=1e-5)


@pytest.mark.parametrize("which", [0, 1, 2], ids=["query", "key", "value"])
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_what_is_not_finite_is_not_hidden_by_int8(backend: NativeBackend, which: int, poison: float) -> None:
    """It reaches every row that sees it, and no other."""
    case = Case(2, 2, 8, 40, "int8")
    inputs = case.inputs()
    clean = Cached(backend, case)([Part(0, 40, [1, 0])], inputs)
    inputs[which][20, 3] = poison
    found = Cached(backend, case)([Part(0, 40, [1, 0])], inputs)
    touched = np.zeros(found.shape, bool)
    touched[slice(20, 21 if which == 0 else 40), :8] = True
    assert np.isnan(found[touched]).all()
    assert same_bits(np.ascontiguousarray(found[~touched]), np.ascontiguousarray(clean[~touched]))


def test_error_of_each_storage_against_float32(backend: NativeBackend, capsys: pytest.CaptureFixture[str]) -> None:
    """docs/models.md quotes what this prints: the relative error (root of the mean square) of attention over normal
    keys and values.
    """
    exact = Case(14, 2, 64, 600)
    inputs, blocks = exact.inputs(), shuffled_blocks(exact)
    wanted = oracle(exact, inputs)
    bounds = {"f32": (0, 1e-6), "bf16": (1e-3, 3e-3), "int8": (4e-3, 1.2e-2)}
    for dtype, (low, high) in bounds.items():
        error = Cached(backend, replace(exact, dtype=dtype))([Part(0, exact.length, blocks)], inputs) - wanted
        relative = float(np.sqrt(np.mean(error**2) / np.mean(wanted**2)))
        with capsys.disabled():
            print(f" {dtype} {relative:.1e}", end="")
        assert low <= relative < high


@pytest.mark.parametrize("dtype", ["f32", "bf16", "int8"])
def test_a_cap_bounds_scores_as_the_reference_does(backend: NativeBackend, dtype: str) -> None:
    """Scores far beyond the cap all become the cap: then every visible key weighs the same."""
    case = Case(2, 1, 16, 70, dtype, softcap=3.0)
    inputs = case.inputs()
    inputs[0][:], inputs[1][:] = 40, np.abs(inputs[1]) + 1
    found = Cached(backend, case)([Part(0, 70, [2, 0, 1])], inputs)
    values = inputs[2] if dtype == "f32" else stored(case, inputs[2])
    means = np.cumsum(values, axis=0) / np.arange(1, 71)[:, None]
    np.testing.assert_allclose(found, np.tile(means, 2), rtol=1e-4, atol=4e-4 if dtype == "int8" else 1e-5)  # see check
    eager = ReferenceBackend()
    cache = eager.kv_cache(replace(case.geometry, dtype="f32"), 3)
    program = eager.compile(
        lambda ops: ops.attention(*inputs, cache, 1, ScoreRule(0.25, None, 3.0)), StepLimits(70, 1, 1, 3)
    )
    wanted = program.run(step_of([Part(0, 70, [2, 0, 1])]))
    np.testing.assert_allclose(
        np.asarray(wanted), np.tile(np.cumsum(inputs[2], axis=0) / np.arange(1, 71)[:, None], 2), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("group", [1, 7, 40])
def test_rows_that_nobody_reads_change_no_other(group: int) -> None:
    """A product of selected rows has attention compute those alone: the same bits, whichever they are, and keys and
    values of all are written.
    """
    backend = NativeBackend([-1, -1, -1])
    case = Case(2 * group, 2, 16, 700, "bf16")
    width = case.heads * case.head_dim
    cache = backend.kv_cache(case.geometry, BLOCKS)
    q, k, v = (backend.constant(x) for x in case.inputs())
    weight = backend.weight_from_array(np.random.default_rng(1).standard_normal((32, width)).astype(np.float32), "F32")
    parts = [Part(0, 600, range(19)), Part(30, 1, [20]), Part(0, 97, range(21, 25)), Part(0, 2, [25])]

    def attended(ops: Ops) -> Tensor:
        return ops.attention(q, k, v, cache, 1, ScoreRule(0.25))

    room = StepLimits(700, len(parts), 700, BLOCKS)
    every = backend.compile(lambda ops: ops.linear(attended(ops), [weight]), room).run(step_of(parts)).numpy()
    program = backend.compile(lambda ops: ops.linear(ops.select(attended(ops)), [weight]), room)
    for rows in ([599], [599, 600, 697, 699], [3, 250, 251, 640], [], range(700)):
        assert same_bits(program.run(step_of(parts, sample_rows=rows)).numpy(), every[list(rows)])
