"""The results of measuring a model: times of steps, and the figures made of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from homenode.bench.machine.ceilings import Ceilings, Work
from homenode.bench.machine.repetition import Runs


@dataclass(frozen=True)
class PhaseShare:
    """All phases of one name in a step, as the first thread sees them.

    `seconds`: of a step; `share`: of the whole step; `waited`: part of `seconds` spent waiting for other threads;
    `fraction`: how much of the ceiling of the phase's own work was reached, 0 for what is not counted as work.
    """

    name: str
    seconds: float
    share: float
    waited: float
    fraction: float


@dataclass(frozen=True)
class ModelBenchResult:
    """One test. `seconds` are of one run, the median; `tok_s` tokens of all sequences in a second.

    `ceiling_tok_s`: what the machine allowed around the median run, reading and multiplying overlapped; `fraction`: how
    much of it was reached, the median over the runs; `limit`: whether `read` or `multiply` sets the ceiling.
    `best_step_tok_s`: from the fastest single step, which on a machine with other work shows the engine undisturbed.
    `cpu_seconds`: CPU time of all threads of the run that used least. `discarded`, `steady`: see `repetition.Runs`.
    `phases`: where the time of a step goes, if asked for.
    """

    test: str
    batch: int
    tokens: int
    context: int
    seconds: float
    tok_s: float
    runs: tuple[float, ...]
    ceiling_tok_s: float
    fraction: float
    limit: str
    best_step_tok_s: float
    cpu_seconds: float
    # Of one step, the middle one of a run: bytes read, operations by kind; and operations for each token.
    step: dict[str, float]
    ceilings: dict[str, float]
    placement: dict[str, Any]
    discarded: tuple[str, ...]
    steady: bool
    phases: tuple[PhaseShare, ...] = ()


class TimedSteps:
    """A run of `count` steps; calling it gives its seconds. `fastest`: seconds of the fastest step, `least_cpu`: CPU
    seconds of all threads of the run that used least, of all runs so far.
    """

    def __init__(self, step: Callable[[int], object], count: int) -> None:
        self._step = step
        self.count = count
        self.fastest = float("inf")
        self.least_cpu = float("inf")

    def __call__(self) -> float:
        cpu = time.process_time()
        start = before = time.perf_counter()
        for index in range(self.count):
            self._step(index)
            now = time.perf_counter()
            self.fastest = min(self.fastest, now - before)
            before = now
        self.least_cpu = min(self.least_cpu, time.process_time() - cpu)
        return before - start


def result_of(
    what: tuple[str, int, int, int], made: int, run: TimedSteps, work: Work, step: Work, runs: Runs
) -> ModelBenchResult:
    """Return what the runs of one test come to.

    what: test, batch, tokens and context as in `ModelBenchResult`. made: tokens of a run. work: of a run; step: of its
    middle step.
    """
    seconds = statistics.median(r.seconds for r in runs.counted)
    around = _median(tuple(r.ceilings for r in runs.counted))
    test, batch, tokens, context = what
    return ModelBenchResult(
        test=test,
        batch=batch,
        tokens=tokens,
        context=context,
        seconds=seconds,
        tok_s=made / seconds,
        runs=tuple(r.seconds for r in runs.counted),
        ceiling_tok_s=made / around.seconds(work),
        fraction=statistics.median(r.ceilings.seconds(work) / r.seconds for r in runs.counted),
        limit=around.limit(work),
        best_step_tok_s=made / run.count / run.fastest,
        cpu_seconds=run.least_cpu,
        step=_step_json(step, made / run.count),
        ceilings=around.to_json(),
        placement={"before": runs.before.fingerprint.to_json(), "after": runs.after.fingerprint.to_json()},
        discarded=runs.discarded,
        steady=runs.steady,
    )


def _median(readings: Sequence[Ceilings]) -> Ceilings:
    """The median of each limit."""
    return Ceilings(
        statistics.median(c.read for c in readings),
        statistics.median(c.int8 for c in readings),
        statistics.median(c.bf16 for c in readings),
        statistics.median(c.f32 for c in readings),
        statistics.median(c.int6 for c in readings),
    )


def _step_json(step: Work, tokens: float) -> dict[str, float]:
    done = step.operations
    return {
        "bytes": round(step.bytes),
        "int8_operations": round(done.int8),
        "int6_operations": round(done.int6),
        "bf16_operations": round(done.bf16),
        "f32_operations": round(done.f32),
        "operations_per_token": round(done.total / tokens),
    }
