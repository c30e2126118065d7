"""Speed of a model here, and the speed that it could have: prefill, and decode at several batch sizes, through the same
program the server runs.

Prompt processing is one step of `prompt_tokens` tokens in an empty context; decoding is one token for each of `batch`
sequences whose context holds `context` tokens, sampled greedily. Times are wall times of the whole step, Python
included. Before and after every run the machine's limits are measured on the same threads, so each run is held against
what the machine could do just then (see `repetition` and `work`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np

from homenode.bench.compute.model_result import ModelBenchResult, PhaseShare, TimedSteps, result_of
from homenode.bench.compute.work import WorkCounter
from homenode.bench.machine.ceilings import Work
from homenode.bench.machine.fingerprint import Fingerprint, moved_prints
from homenode.bench.machine.repetition import BenchListener, Meter, Runs, measure_repeatedly, take_reading
from homenode.compute.ops import Backend, Program, SamplingArrays, StepArrays, StepLimits
from homenode.errors import UserError
from homenode.model.state import state_geometry_of
from homenode.model.weights.load import LoadedModel
from homenode.units import format_count

_BLOCK = 64
_ROUNDS = 4  # in which tests are measured anew that were not in the placement of the others


@runtime_checkable
class PhasedProgram(Protocol):
    """A program that can tell where its time goes: `compute.native.NativeProgram`."""

    def measure_phases(self, on: bool) -> None:
        """Add up times from the next run on, or forget them."""

    def phase_times(self) -> Sequence[Any]:
        """Return what was measured: for each kind of phase its name, `seconds`, and of these `waited`."""


@dataclass(frozen=True)
class ModelBenchPlan:
    """The measurements to make. `repeat` runs of each; the median counts."""

    prompt_tokens: int = 512
    gen_tokens: int = 128
    batches: tuple[int, ...] = (1,)
    context: int = 0
    repeat: int = 3
    kv_dtype: str = "auto"
    phases: bool = False  # one more run of each test, to see where the time of a step goes

    @property
    def tests(self) -> int:
        """Return how many results it gives."""
        return (1 if self.prompt_tokens else 0) + (len(self.batches) if self.gen_tokens else 0)


def measure(
    model: LoadedModel, backend: Backend, meter: Meter, plan: ModelBenchPlan, watch: BenchListener
) -> list[ModelBenchResult]:
    """Run the plan; `meter` measures the limits of the CPUs `backend` computes on.

    Results are to be compared with each other, so those that were measured in another placement than most are measured
    anew, a few times at most. Raises UserError when the model's context is too short for the plan.
    """
    bench = _ModelBench(timed_runs(model, backend, plan), meter, watch)
    tests = [(f"prefill of {plan.prompt_tokens}", bench.prefill)] if plan.prompt_tokens else []
    tests += [(f"decode, batch {batch}", partial(bench.decode, batch)) for batch in plan.batches if plan.gen_tokens]

    def measured(index: int) -> ModelBenchResult:
        title, test = tests[index]
        watch.started(title)
        return test()

    def discarding(index: int) -> None:
        watch.discarded(f"{tests[index][0]} was measured in another placement than the others")

    return in_one_placement(len(tests), measured, discarding)


def in_one_placement(
    tests: int, measured: Callable[[int], ModelBenchResult], discarding: Callable[[int], None]
) -> list[ModelBenchResult]:
    """The results of tests 0 .. tests - 1. Those that were in another placement than most are `measured` again;
    `discarding` is told before."""
    results = [measured(index) for index in range(tests)]
    for _ in range(_ROUNDS):
        for index in moved_prints([Fingerprint.from_json(result.placement["after"]) for result in results]):
            discarding(index)
            results[index] = measured(index)
    return results


def timed_runs(model: LoadedModel, backend: Backend, plan: ModelBenchPlan) -> ModelRuns:
    """The runs of a plan, to be timed by whoever calls them. Raises UserError when the model's context is too short for
    the plan."""
    longest = max(plan.prompt_tokens, plan.context + plan.gen_tokens)
    if longest > model.spec.max_position:
        raise UserError(
            f"the plan needs a context of {format_count(longest, 'token')}; the model has {model.spec.max_position}",
            param="--context",
        )
    widest = max(plan.batches)
    blocks = -(-longest // _BLOCK)
    limits = StepLimits(max(plan.prompt_tokens, widest), widest, widest, blocks)
    geometry = model.kv_geometry(_BLOCK, plan.kv_dtype)
    cache = backend.kv_cache(geometry, blocks * widest)
    states = state_geometry_of(model.spec, model.part)
    state = None if states is None else backend.state_memory(states, widest)
    return ModelRuns(
        backend,
        backend.compile(model.forward(cache, state), limits),
        plan,
        WorkCounter(model.layout, model.spec, geometry),
        blocks,
    )


@dataclass(frozen=True)
class ModelRuns:
    """The runs of one plan. `blocks`: KV blocks of a sequence."""

    backend: Backend
    program: Program
    plan: ModelBenchPlan
    work: WorkCounter
    blocks: int

    def prefill(self) -> TimedSteps:
        """One step a run."""
        n = self.plan.prompt_tokens
        ids = np.random.default_rng(0).integers(0, self.work.spec.vocab_size, n).astype(np.int32)
        arrays = StepArrays(
            ids,
            _int32(range(n)),
            _int32([0, n]),
            _int32([n]),
            _tables(1, self.blocks),
            _int32([n - 1]),
        )
        return TimedSteps(lambda _: self.program.run(_with_states(arrays)), 1)

    def decode(self, batch: int) -> TimedSteps:
        """`gen_tokens` steps a run, each fed with the tokens the one before drew."""
        return TimedSteps(self._decode_step(batch), self.plan.gen_tokens)

    def _decode_step(self, batch: int) -> Callable[[int], object]:
        tables, how = _tables(batch, self.blocks), _greedy(batch)
        first = np.random.default_rng(batch).integers(0, self.work.spec.vocab_size, batch).astype(np.int32)
        ids = first

        def step(index: int) -> None:
            nonlocal ids
            at = self.plan.context + index
            arrays = StepArrays(
                ids if index else first,
                np.full(batch, at, np.int32),
                _int32(range(batch + 1)),
                np.full(batch, at + 1, np.int32),
                tables,
                _int32(range(batch)),
            )
            ids = self.backend.sample(self.program.run(_with_states(arrays)), how).tokens

        return step


@dataclass(frozen=True)
class _ModelBench:
    """Everything one plan is measured with."""

    runs: ModelRuns
    meter: Meter
    watch: BenchListener

    def prefill(self) -> ModelBenchResult:
        """One prompt a run."""
        n, run = self.runs.plan.prompt_tokens, self.runs.prefill()
        work = self.runs.work.prefill(n)
        result = result_of(("prefill", 1, n, 0), n, run, work, work, self._repeated(run))
        return self._with_phases(result, run, self.runs.work.prefill_phases(n))

    def decode(self, batch: int) -> ModelBenchResult:
        """`gen_tokens` tokens of each of `batch` sequences a run."""
        plan, work, run = self.runs.plan, self.runs.work, self.runs.decode(batch)
        whole = work.decoding(batch, plan.context, plan.gen_tokens)
        middle = work.decode(batch, plan.context + plan.gen_tokens // 2)
        test = ("decode", batch, plan.gen_tokens, plan.context)
        result = result_of(test, batch * plan.gen_tokens, run, whole, middle, self._repeated(run))
        return self._with_phases(result, run, work.decode_phases(batch, plan.context + plan.gen_tokens // 2))

    def _repeated(self, run: TimedSteps) -> Runs:
        return measure_repeatedly(run, self.meter, self.runs.plan.repeat, self.watch)

    def _with_phases(self, result: ModelBenchResult, run: TimedSteps, work: dict[str, Work]) -> ModelBenchResult:
        """The result with where the time goes, if asked for: from one more run, between two readings of the machine."""
        program = self.runs.program
        if not self.runs.plan.phases or not isinstance(program, PhasedProgram):
            return result
        before = take_reading(self.meter).ceilings
        program.measure_phases(True)
        run()
        times = program.phase_times()
        program.measure_phases(False)
        ceilings = before.between(take_reading(self.meter).ceilings)
        total = sum(t.seconds for t in times)
        shares = (
            PhaseShare(
                t.name,
                t.seconds / run.count,
                t.seconds / total,
                t.waited / run.count,
                ceilings.seconds(work[t.name]) * run.count / t.seconds if t.name in work else 0.0,
            )
            for t in times
        )
        return replace(result, phases=tuple(shares))


def _int32(values: Sequence[int] | range) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    return np.array(values, np.int32)


def _tables(sequences: int, blocks: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    """Each sequence owns a run of adjacent blocks."""
    return np.arange(sequences * blocks, dtype=np.int32).reshape(sequences, blocks)


def _with_states(arrays: StepArrays) -> StepArrays:
    """Each sequence has the slot of its number, and no copy is made of it."""
    count = len(arrays.context_len)
    fresh = (arrays.context_len == np.diff(arrays.query_start)).astype(np.int32)
    return replace(arrays, state_slot=_int32(range(count)), state_fresh=fresh)


def _greedy(rows: int) -> SamplingArrays:
    return SamplingArrays.of(rows, temperature=0.0)
