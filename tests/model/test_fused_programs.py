"""What a program computes on the way into and out of other operations: the same bits as one by one, with
few barriers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("homenode._native", reason="the compiled core is not built; `make build` builds it")

from homenode.compute.native import NativeBackend, NativeProgram, available_levels
from homenode.compute.native.barrier_watch import BarrierWatch
from homenode.compute.ops import FloatArray, Ops, StepLimits, Tensor
from homenode.model.spec import ModelSpec
from homenode.model.weights.load import load_model
from tests.model.toys import array_checkpoint, toy_arrays, toy_spec
from tests.native.steps import Part, limits, same_bits, step_of

LIMITS = StepLimits(64, 12, 64, 8)

# Few tokens of one and of several sequences, a prompt, steps of decoding for few and for many sequences, and all of it
# at once.
STEPS = (
    [Part(0, 5, [1]), Part(0, 1, [2])],
    [Part(0, 50, [3, 4])],
    [Part(5, 1, [1]), Part(1, 1, [2])],
    [Part(0, 1, [5 + i]) for i in range(11)],
    [Part(6, 1, [1]), Part(2, 3, [2]), Part(50, 12, [3, 4])],
    [Part(7, 1, [1])],
    [Part(8, 20, [1])],
)


def spec_of(architecture: str) -> ModelSpec:
    spec = toy_spec(architecture)
    return replace(spec, sliding_window=40) if architecture == "mistral" else spec


def run_steps(program: NativeProgram) -> list[FloatArray]:
    outs = []
    for number, parts in enumerate(STEPS):
        tokens = sum(p.count for p in parts)
        # The last one is of a prompt that goes on.
        rows = sorted({0, tokens // 2, tokens - 1}) if number < len(STEPS) - 1 else []
        outs.append(program.run(step_of(parts, [(7 * i + number) % 80 for i in range(tokens)], rows)).numpy())
    return outs


def program_of(
    backend: NativeBackend, path: Path, spec: ModelSpec, quantize: str | None, kv: str, fuse: bool
) -> NativeProgram:
    model = load_model(
        array_checkpoint(path, spec, toy_arrays(spec)),
        backend,
        **({"dtype": "bfloat16"} if quantize == "bf16" else {"quantize": quantize}),
    )
    return backend.compile(model.forward(backend.kv_cache(model.kv_geometry(32, kv), 32)), LIMITS, fuse=fuse)


@pytest.mark.parametrize("level", available_levels())
@pytest.mark.parametrize("quantize", [None, "bf16", "q8_0", "q4_0"])
@pytest.mark.parametrize(
    "architecture",
    [
        "llama",
        "mistral",
        "qwen2",
        "qwen3",
        "mixtral",
        "qwen2_moe",
        "qwen3_moe",
        "gemma2",
        "gemma3",
        "gemma4",
        "falcon",
        "gpt2",
        "phi",
    ],
)
def test_fused_programs_give_the_same_bits(architecture: str, quantize: str | None, level: str, tmp_path: Path) -> None:
    spec = spec_of(architecture)
    wanted = run_steps(program_of(NativeBackend([-1], level=level), tmp_path / "a", spec, quantize, "bf16", fuse=False))
    for threads in (1, 3):
        fused = program_of(
            NativeBackend([-1] * threads, spin_us=0, level=level),
            tmp_path / f"b{threads}",
            spec,
            quantize,
            "bf16",
            fuse=True,
        )
        for number, (one, other) in enumerate(zip(wanted, run_steps(fused), strict=True)):
            assert np.isfinite(one).all()
            assert same_bits(one, other), f"step {number} on {threads} threads"


@pytest.mark.parametrize("architecture", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("quantize", [None, "bf16", "q8_0"])
def test_a_layer_waits_five_times_for_few_tokens(architecture: str, quantize: str | None, tmp_path: Path) -> None:
    """And once more to read the sampled rows of the last one."""
    spec = spec_of(architecture)
    program = program_of(NativeBackend([-1, -1], spin_us=0), tmp_path / "weights", spec, quantize, "bf16", fuse=True)
    for batch in (1, 2, 8):
        assert program.barriers(batch, batch) <= 5 * spec.num_layers + 1
    # Keys and values of several tokens of a sequence are written first.
    assert program.barriers(8, 1) <= 6 * spec.num_layers + 1
    assert program.barriers(64, 1) <= 9 * spec.num_layers + 2


@pytest.mark.parametrize("architecture", ["gemma2", "gemma3"])
def test_a_norm_before_a_sum_waits_once_more(architecture: str, tmp_path: Path) -> None:
    """Twice in a layer; then once for the embedding's scale and once for the cap of the logits."""
    spec = spec_of(architecture)
    program = program_of(NativeBackend([-1, -1], spin_us=0), tmp_path / "weights", spec, "q8_0", "bf16", fuse=True)
    for batch in (1, 2, 8):
        assert program.barriers(batch, batch) <= 7 * spec.num_layers + 3


@pytest.mark.parametrize("architecture", ["mixtral", "qwen3_moe"])
def test_a_mixture_waits_once_more(architecture: str, tmp_path: Path) -> None:
    """For the router."""
    spec = spec_of(architecture)
    program = program_of(NativeBackend([-1, -1], spin_us=0), tmp_path / "weights", spec, "q8_0", "bf16", fuse=True)
    for batch in (1, 2, 8):
        assert program.barriers(batch, batch) <= 6 * spec.num_layers + 1


Forward = Callable[[Ops], Tensor]


def gated(backend: NativeBackend, weights: list[Any], biases: list[Any], reuse: bool) -> Forward:
    """silu(gate) * up of a constant, through `down` or not; with `reuse` something else reads the gate, so that it has
    to be made.
    """
    x = backend.constant(np.random.default_rng(5).standard_normal((20, 64)).astype(np.float32))
    gate, up, down = weights

    def forward(ops: Ops) -> Tensor:
        both = ops.linear(x, [gate, up], biases)
        product = ops.silu_mul(both)
        if not reuse:
            return ops.linear(product, [down])
        left, _ = ops.split(both, [gate.rows, up.rows])
        return ops.linear(product, [down], residual=ops.linear(left, [down]))

    return forward


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize(
    "formats", [("Q8_0", "Q8_0", "Q8_0"), ("BF16", "Q4_0", "F32"), ("F32", "F32", "BF16"), ("Q8_0", "BF16", "F16")]
)
@pytest.mark.parametrize(("rows", "tokens"), [(96, 3), (160, 20)])
def test_gates_of_any_formats_and_lengths(formats: tuple[str, ...], rows: int, tokens: int, reuse: bool) -> None:
    """With biases; `rows` of three threads are pieces of unequal length."""
    shapes = [(rows, 64), (rows, 64), (48, rows)]
    outs = []
    for fuse, threads in ((False, 1), (True, 1), (True, 3)):
        backend = NativeBackend([-1] * threads, spin_us=0)
        random = np.random.default_rng(rows)
        weights = [
            backend.weight_from_array(random.standard_normal(s).astype(np.float32), f)
            for s, f in zip(shapes, formats, strict=True)
        ]
        biases = [backend.vector(random.standard_normal(rows)), None]
        program = backend.compile(gated(backend, weights, biases, reuse), limits(20), fuse=fuse)
        outs.append(program.run(step_of([Part(0, tokens)])).numpy())
    assert np.isfinite(outs[0]).all() and same_bits(outs[0], outs[1]) and same_bits(outs[0], outs[2])


def test_a_gate_that_is_the_result(tmp_path: Path) -> None:
    """It is written as float32 rows; 50 outputs end inside a group of 32."""
    outs = []
    for fuse in (False, True):
        backend = NativeBackend([-1, -1], spin_us=0)
        random = np.random.default_rng(3)
        x = backend.constant(random.standard_normal((7, 64)).astype(np.float32))
        gate, up = (
            backend.weight_from_array(random.standard_normal((50, 64)).astype(np.float32), "Q8_0") for _ in range(2)
        )
        program = backend.compile(
            lambda ops, x=x, w=(gate, up): ops.silu_mul(ops.linear(x, list(w))), limits(7), fuse=fuse
        )  # type: ignore[misc]
        outs.append(program.run(step_of([Part(0, 7)])).numpy())
    assert outs[0].shape == (7, 50) and same_bits(*outs)


def test_norms_that_others_read_are_made() -> None:
    """A norm with two readers is computed once, as rows; one whose weight is a head wide goes through memory before a
    product.
    """
    outs = []
    for fuse in (False, True):
        backend = NativeBackend([-1, -1], spin_us=0)
        random = np.random.default_rng(8)
        x = backend.constant(random.standard_normal((20, 64)).astype(np.float32))
        norm, head_norm = backend.vector(random.standard_normal(64)), backend.vector(random.standard_normal(16))
        weight = backend.weight_from_array(random.standard_normal((64, 64)).astype(np.float32), "Q8_0")

        def forward(ops: Ops, x: Any = x, norm: Any = norm, head_norm: Any = head_norm, weight: Any = weight) -> Tensor:
            normed = ops.rms_norm(x, norm, 1e-5)
            y = ops.linear(normed, [weight], residual=normed)
            y = ops.linear(ops.rms_norm(y, head_norm, 1e-5), [weight])
            return ops.linear(ops.rms_norm(ops.select(y), norm, 1e-5), [weight])

        program = backend.compile(forward, limits(20), fuse=fuse)
        outs.append(
            [
                program.run(step_of([Part(0, n)], sample_rows=rows)).numpy()
                for n, rows in ((20, [2, 19]), (20, range(12)), (3, [1]), (4, []))
            ]
        )
    assert [o.shape for o in outs[0]] == [(2, 64), (12, 64), (1, 64), (0, 64)]
    assert all(same_bits(a, b) for a, b in zip(*outs, strict=True))


def test_phases_are_timed_by_name(tmp_path: Path) -> None:
    program = program_of(
        NativeBackend([-1, -1], spin_us=0), tmp_path / "weights", spec_of("qwen2"), "q8_0", "bf16", fuse=True
    )
    run_steps(program)
    assert program.phase_times() == []
    program.measure_phases(True)
    run_steps(program)
    times = {p.name: p for p in program.phase_times()}
    assert set(times) == {
        "embedding", "angles", "qkv rows", "qkv", "kv", "attention", "o rows", "o", "gate_up rows", "gate_up", "down",
        "lm_head"
    }  # fmt: skip
    assert times["qkv"].runs == 2 * len(STEPS) and times["lm_head"].runs == len(STEPS)
    assert times["qkv rows"].runs == 2 * sum(sum(p.count for p in parts) > 8 for parts in STEPS)
    assert all(0 <= p.waited <= p.seconds and p.seconds > 0 for p in times.values())
    program.measure_phases(False)
    assert program.phase_times() == []


def test_a_step_now_and_then_tells_how_long_threads_wait_for_each_other(tmp_path: Path) -> None:
    for threads in (1, 2):
        backend = NativeBackend([-1] * threads, spin_us=0)
        program = program_of(backend, tmp_path / f"{threads}", spec_of("qwen2"), "q8_0", "bf16", fuse=True)
        assert backend.statistics()["barrier_wait_share"] is None
        run_steps(program)
        seen = backend.statistics()["barrier_wait_share"]
        assert seen is None if threads == 1 else 0 < seen < 1
        assert program.phase_times() == [], "nobody asked for these"


def test_the_share_of_waiting_is_of_recent_steps() -> None:
    now = [100.0]
    watch = BarrierWatch(2, lambda: now[0])
    assert watch.is_due() and watch.share is None and not BarrierWatch(1, lambda: now[0]).is_due()
    watch.take(0.010, 0.004)
    assert not watch.is_due() and watch.share == pytest.approx(0.4)
    for _ in range(30):
        now[0] += 0.51
        assert watch.is_due()
        watch.take(0.010, 0.001)
    assert watch.share == pytest.approx(0.1, rel=0.01)
