"""Ceilings and fractions are plain arithmetic; a machine that changed between two readings is noticed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from homenode.bench.compute.model import in_one_placement
from homenode.bench.compute.model_result import ModelBenchResult, TimedSteps, result_of
from homenode.bench.compute.work import WorkCounter
from homenode.bench.machine.ceilings import Ceilings, Operations, Work, path_of
from homenode.bench.machine.fingerprint import Fingerprint, moved, moved_prints
from homenode.bench.machine.repetition import (
    MachineReading,
    Run,
    Runs,
    measure_repeatedly,
    repeat_steadily,
    take_reading,
)
from homenode.compute.ops import KvGeometry, LayerKv
from homenode.model.spec import IndexerSpec, ModelSpec, MoeSpec, RopeSpec
from homenode.model.weights.layout import MatrixLayout, WeightLayout

MACHINE = Ceilings(read=50e9, int8=1000e9, bf16=500e9, f32=250e9, int6=2000e9)


def spec(*, tied: bool = True, window: int | None = None, sliding: tuple[bool, ...] = ()) -> ModelSpec:
    return ModelSpec(
        "llama", 64, 96, 2, 4, 2, 16, 1000, 512, 1e-5, RopeSpec(), tied, sliding_window=window, sliding_layers=sliding
    )  # fmt: skip


def matrix(name: str, rows: int, columns: int, target: str, size: int) -> MatrixLayout:
    return MatrixLayout(name, rows, columns, target, target, "as stored", size, size)


EMBEDDING = matrix("model.embed_tokens.weight", 1000, 64, "Q8_0", 68_000)
LAYERS = (matrix("a", 96, 64, "Q8_0", 6528), matrix("b", 64, 96, "BF16", 12288))
HEAD = matrix("lm_head.weight", 1000, 64, "F16", 128_000)
KV = KvGeometry.uniform(2, 2, 16, 32, "bf16")  # a token's key and value in a layer: 2 * 2 heads * 16 * 2 bytes = 128


def test_the_slower_of_reading_and_multiplying_sets_the_least_time() -> None:
    assert MACHINE.seconds(Work(50e9, Operations(int8=500e9))) == 1.0
    assert MACHINE.limit(Work(50e9, Operations(int8=500e9))) == "read"
    both = Work(1e9, Operations(int8=1000e9, bf16=250e9, f32=250e9, int6=500e9))
    assert MACHINE.seconds(both) == 1 + 0.5 + 1 + 0.25
    assert MACHINE.limit(both) == "multiply"


def test_two_readings_have_their_mean_between_them() -> None:
    assert MACHINE.between(Ceilings(70e9, 1200e9, 600e9, 150e9, 3000e9)) == Ceilings(60e9, 1100e9, 550e9, 200e9, 2500e9)
    assert MACHINE.to_json() == {
        "read_gb_s": 50.0,
        "int8_gops": 1000.0,
        "int6_gops": 2000.0,
        "bf16_gops": 500.0,
        "f32_gops": 250.0,
    }


@pytest.mark.parametrize(
    ("format", "path"),
    [
        ("Q8_0", "int8"),
        ("IQ4_NL", "int8"),
        ("Q4_K", "int6"),
        ("MXFP4", "int6"),
        ("BF16", "bf16"),
        ("F16", "f32"),
        ("F32", "f32"),
    ],
)
def test_formats_have_their_kind_of_product(format: str, path: str) -> None:
    assert path_of(format) == path


def test_decoding_reads_every_matrix_and_the_context_once() -> None:
    work = WorkCounter(WeightLayout((EMBEDDING, *LAYERS), 0), spec(), KV).decode(batch=3, context=9)
    looked_up = 3 * 68
    assert work.bytes == 68_000 + 6528 + 12288 + looked_up + 3 * 2 * 10 * 128
    head, a, b = 2 * 3 * 64_000, 2 * 3 * 96 * 64, 2 * 3 * 64 * 96
    assert work.operations == Operations(int8=head + a, bf16=b + 3 * 2 * 10 * 4 * 4 * 16)


def test_an_untied_model_looks_up_one_table_and_multiplies_the_other() -> None:
    work = WorkCounter(WeightLayout((EMBEDDING, HEAD, *LAYERS), 0), spec(tied=False), KV).decode(batch=1, context=0)
    assert work.bytes == 68 + 128_000 + 6528 + 12288 + 2 * 128
    assert work.operations.f32 == 2 * 64_000
    assert work.operations.int8 == 2 * 96 * 64


def test_a_prompt_multiplies_its_layers_for_every_token_and_the_head_once() -> None:
    work = WorkCounter(WeightLayout((EMBEDDING, *LAYERS), 0), spec(), KV).prefill(100)
    pairs = 100 * 101 // 2 + 100  # in the last layer those of the last token
    assert work.operations == Operations(int8=2 * 64_000 + 100 * 2 * 96 * 64, bf16=100 * 2 * 64 * 96 + pairs * 4 * 64)
    assert work.bytes == 68_000 + 100 * 68 + 6528 + 12288


def test_of_the_last_layer_only_sampled_rows_are_multiplied_behind_its_attention() -> None:
    names = [
        f"model.layers.{layer}.{name}.weight"
        for layer in (0, 1)
        for name in ("self_attn.k_proj", "self_attn.o_proj", "mlp.up_proj")
    ]
    work = WorkCounter(WeightLayout(tuple(matrix(name, 64, 64, "Q8_0", 4000) for name in names), 0), spec(), KV)
    phases = work.prefill_phases(100)
    each = 2 * 64 * 64
    assert [phases[p].operations.int8 for p in ("qkv", "o", "gate_up")] == [200 * each, 101 * each, 101 * each]
    assert work.prefill(100).bytes == 6 * 4000


def test_of_experts_those_count_that_tokens_choose() -> None:
    experts = tuple(matrix(f"model.layers.0.mlp.experts.{e}.up_proj.weight", 96, 64, "Q8_0", 6528) for e in range(8))
    moe = replace(spec(), moe=MoeSpec(num_experts=8, experts_per_token=2, intermediate_size=96, normalise=True))
    work, nothing = WorkCounter(WeightLayout(experts, 0), moe, KV), WorkCounter(WeightLayout((), 0), moe, KV)
    assert work.decode(1, 0).bytes - nothing.decode(1, 0).bytes == 2 * 6528
    assert work.decode(3, 0).bytes - nothing.decode(3, 0).bytes == pytest.approx(8 * (1 - 0.75**3) * 6528)
    assert work.decode(3, 0).operations.int8 == 3 * 2 * (2 * 96 * 64)


@pytest.mark.parametrize("name", ["mlp.gate", "mlp.router", "block_sparse_moe.gate"])
def test_routers_are_a_phase_of_their_own(name: str) -> None:
    router = matrix(f"model.layers.0.{name}.weight", 8, 64, "F32", 2048)
    assert WorkCounter(WeightLayout((router,), 0), spec(), KV).decode_phases(1, 0)["router"].bytes == 2048


def test_windows_bound_what_a_token_sees_in_the_layers_that_have_them() -> None:
    full = WorkCounter(WeightLayout(LAYERS, 0), spec(), KV).decode(1, 100).bytes
    one = WorkCounter(WeightLayout(LAYERS, 0), spec(window=8, sliding=(True, False)), KV).decode(1, 100).bytes
    every = WorkCounter(WeightLayout(LAYERS, 0), spec(window=8), KV).decode(1, 100).bytes
    assert (full - one, full - every) == (93 * 128, 2 * 93 * 128)


def test_where_an_indexer_chooses_its_keys_count_and_the_chosen_tokens() -> None:
    """Two layers with latents of 40 elements, of which the first has an indexer; a head multiplies with 30 columns."""
    indexer = IndexerSpec(heads=3, width=8, chosen=20, layers=(0,), adjacent=False)
    widths = {"latent_query": 18, "latent_value": 12}
    latent = replace(spec(), layer_kv=(LayerKv(1, 40, 0, 32),) * 2, head_widths=widths)
    kept = KvGeometry((*latent.layer_kv, LayerKv(1, 8, 0)), 32, "bf16")  # type: ignore[arg-type]
    sparse = WorkCounter(WeightLayout(LAYERS, 0), replace(latent, indexer=indexer), kept)
    dense = WorkCounter(WeightLayout(LAYERS, 0), latent, kept)
    assert sparse.decode(3, 19) == dense.decode(3, 19)  # all are chosen
    phases = sparse.decode_phases(3, 99)
    assert phases["attention"] == dense.decode_phases(3, 19)["attention"]
    assert phases["attention"].operations.bf16 == 3 * 2 * 20 * 2 * 4 * 30
    assert phases["choose"] == Work(3 * 100 * 8 * 2, Operations(bf16=3 * 100 * 2 * 3 * 8))
    prompt = sparse.prefill_phases(25)
    assert prompt["choose"] == Work(0.0, Operations(bf16=(21 + 22 + 23 + 24 + 25) * 2 * 3 * 8))
    assert prompt["attention"].operations.bf16 == (20 * 21 // 2 + 5 * 20 + 20) * 2 * 4 * 30


def test_phases_are_the_work_of_their_matrices_and_sum_up_to_the_step() -> None:
    names = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "router")
    layers = tuple(matrix(f"model.layers.0.x.{name}.weight", 64, 64, "Q8_0", 4000 + i) for i, name in enumerate(names))
    work = WorkCounter(WeightLayout((EMBEDDING, HEAD, *layers), 0), spec(tied=False), KV)
    phases = work.decode_phases(batch=3, context=9)
    assert {name: phase.bytes for name, phase in phases.items()} == {
        "embedding": 3 * 68, "lm_head": 128_000, "qkv": 12_003, "o": 4003, "gate_up": 8009, "down": 4006,
        "linear": 4007,
        "attention": 3 * 2 * 10 * 128,
    }  # fmt: skip
    assert phases["qkv"].operations == Operations(int8=3 * 3 * 2 * 64 * 64)
    prompt = work.prefill_phases(5)
    assert prompt["lm_head"].operations == Operations(f32=2 * 64_000) and prompt["attention"].bytes == 0
    assert work.prefill(5).bytes == sum(p.bytes for p in prompt.values())


def test_steps_in_a_row_see_a_growing_context() -> None:
    work = WorkCounter(WeightLayout(LAYERS, 0), spec(), KV)
    assert work.decoding(2, 5, 3) == work.decode(2, 5) + work.decode(2, 6) + work.decode(2, 7)


SHARED = Fingerprint((38.0,), 40e9)
APART = Fingerprint((290.0,), 67e9)


def test_noise_is_no_move_and_a_move_is_named() -> None:
    assert moved(SHARED, Fingerprint((45.0,), 36e9)) is None
    assert moved(SHARED, APART) == "the round trip to thread 1 went from 38 to 290 ns"
    assert moved(APART, SHARED) == "the round trip to thread 1 went from 290 to 38 ns"
    assert moved(Fingerprint((), 40e9), Fingerprint((), 67e9)) == "read bandwidth went from 40.0 to 67.0 GB/s"
    assert (
        moved(Fingerprint((38.0, 40.0), 1e9), Fingerprint((38.0, 300.0), 1e9))
        == "the round trip to thread 2 went from 40 to 300 ns"
    )


def test_those_strayed_that_were_not_where_most_were() -> None:
    near, far = Fingerprint((45.0,), 36e9), Fingerprint((270.0,), 60e9)
    assert moved_prints([SHARED, APART, near]) == [1] and moved_prints([APART, SHARED, far]) == [1]
    assert moved_prints([SHARED, APART]) == [0], "of two places with as many the later one counts"
    assert moved_prints([SHARED, near, SHARED]) == [] and moved_prints([]) == []
    assert Fingerprint.from_json(APART.to_json()) == APART


def test_a_test_in_another_placement_than_most_is_measured_anew_and_not_forever() -> None:
    still, first, moving = iter([SHARED] * 4), iter([APART]), iter(Fingerprint((40.0 * 4**i,), 40e9) for i in range(99))

    def result(seen: Iterator[Fingerprint]) -> ModelBenchResult:
        last = next(seen)
        reading = MachineReading(last, MACHINE)
        runs = Runs((Run(2, MACHINE),), (), True, reading, reading)
        return result_of(
            ("decode", 1, 3, 0),
            3,
            TimedSteps(lambda _: None, 1),
            Work(1.0, Operations()),
            Work(1.0, Operations()),
            runs,
        )

    told: list[int] = []
    found = in_one_placement(
        3, lambda index: result((first, still, still)[index] if index or not told else still), told.append
    )
    assert told == [0] and [r.placement["after"]["round_trip_ns"] for r in found] == [[38.0]] * 3
    told.clear()
    in_one_placement(2, lambda _: result(moving), told.append)
    assert len(told) == 4


def readings(*prints: Fingerprint) -> Iterator[MachineReading]:
    return (MachineReading(p, Ceilings(p.read, 1e12, 1e12, 1e12, 1e12)) for p in prints)


def test_runs_between_unlike_readings_are_discarded_and_made_again() -> None:
    """The machine moves during the second run; the first and the third count, each with the ceilings around it."""
    seen = readings(SHARED, SHARED, APART, APART)
    seconds = iter([1.0, 2.0, 3.0])
    said: list[str] = []
    runs = repeat_steadily(lambda: next(seconds), lambda: next(seen), 2, said.append)
    assert [r.seconds for r in runs.counted] == [1.0, 3.0]
    assert [r.ceilings.read for r in runs.counted] == [40e9, 67e9]
    assert list(runs.discarded) == said == ["the round trip to thread 1 went from 38 to 290 ns"]
    assert runs.steady
    assert (runs.before.fingerprint, runs.after.fingerprint) == (SHARED, APART)


def test_a_machine_that_never_rests_gives_figures_that_say_so() -> None:
    seen = readings(*[SHARED, APART] * 4)
    runs = repeat_steadily(lambda: 1.0, lambda: next(seen), 2)
    assert (len(runs.counted), len(runs.discarded), runs.steady) == (6, 6, False)


def test_some_steady_runs_are_enough_when_tries_run_out() -> None:
    seen = readings(SHARED, SHARED, APART, SHARED, APART, SHARED, APART)
    runs = repeat_steadily(lambda: 1.0, lambda: next(seen), 2)
    assert (len(runs.counted), len(runs.discarded), runs.steady) == (1, 5, True)


def test_a_result_holds_each_run_against_the_ceilings_around_it() -> None:
    """Runs of 10 tokens that read 40 GB: they could take 1, 0.8 and 1 s; the fastest step of all took 0.1 s for one
    token.
    """
    slow, fast = Ceilings(40e9, 1e12, 1e12, 1e12, 1e12), Ceilings(50e9, 1e12, 1e12, 1e12, 1e12)
    first = MachineReading(SHARED, slow)
    runs = Runs((Run(2.0, slow), Run(1.0, fast), Run(4.0, slow)), ("why",), True, first, first)
    steps = TimedSteps(lambda index: None, 10)
    steps()
    steps.fastest = 0.1
    step = Work(4e9, Operations(int8=6e9))
    result = result_of(("decode", 1, 10, 5), 10, steps, Work(40e9, Operations(int8=60e9)), step, runs)
    assert (result.seconds, result.tok_s, result.runs) == (2.0, 5.0, (2.0, 1.0, 4.0))
    assert (result.ceiling_tok_s, result.fraction, result.limit) == (10.0, 0.5, "read")
    assert result.best_step_tok_s == 10.0
    assert (result.step["bytes"], result.step["operations_per_token"]) == (4e9, 6e9)
    assert (result.discarded, result.steady) == (("why",), True)


def test_a_warm_up_is_made_and_not_counted() -> None:
    class Counts:
        ran_times = 0

        def started(self, what: str) -> None:
            raise AssertionError(what)

        def ran(self) -> None:
            self.ran_times += 1

        def discarded(self, reason: str) -> None:
            raise AssertionError(reason)

    seconds, watch = iter([9.0, 1.0, 2.0]), Counts()
    runs = measure_repeatedly(lambda: next(seconds), Bursts(), 2, watch)
    assert ([r.seconds for r in runs.counted], watch.ran_times) == ([1.0, 2.0], 3)


class Bursts:
    """A meter whose bursts differ; the undisturbed ones are the best."""

    def __init__(self) -> None:
        self.calls = 0

    def _disturbed(self) -> float:
        self.calls += 1
        return 1.0 if self.calls % 3 == 0 else 0.5

    def read(self, eight_streams: bool, short: bool) -> float:
        return (60e9 if eight_streams else 50e9) * (self._disturbed() if short else 0.75)

    def multiply(self, kind: str) -> float:
        return {"int8": 1000e9, "bf16": 500e9, "f32": 250e9, "int6": 2000e9}[kind] * self._disturbed()

    def round_trips(self) -> tuple[float, ...]:
        return 40 / self._disturbed(), 300 / self._disturbed()


def test_a_reading_is_the_best_of_its_bursts_but_long_reads_take_what_comes() -> None:
    reading = take_reading(Bursts())
    assert reading.fingerprint == Fingerprint((40.0, 300.0), 60e9)
    assert reading.ceilings == Ceilings(45e9, 1000e9, 500e9, 250e9, 2000e9)
    assert take_reading(Bursts(), short=True).ceilings.read == 60e9
