"""What a step costs the scheduler: deciding what to compute, and taking in what came of it. No model is needed.

    python -m benchmarks.decision_time [--running 256] [--waiting 0] [--steps 2000] [--stages 1 2]

A step's cost here is `next_step` and `apply(StepDone)` of that step, with everybody decoding: the price of every token,
on one thread. Prompts differ in length, so that in most steps somebody needs a KV block, and fills one that the prefix
cache has to hear of.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections import deque
from dataclasses import dataclass

from homenode.engine.request import Request
from homenode.engine.scheduler.events import RequestArrived, StepDone
from homenode.engine.scheduler.scheduler import Scheduler
from homenode.engine.scheduler_config import KvConfig, SchedulerConfig
from homenode.engine.step import Advance, Step, StepResult, WorkerLimits
from homenode.sampling import SamplingParams

_BLOCK = 64
_SHORTEST, _LONGEST = 64, 320  # tokens of a prompt
_VOCAB = 32_000


@dataclass(frozen=True)
class DecisionTime:
    """Seconds a step, of each step: `plan` for deciding, `take` for its result."""

    plan: list[float]
    take: list[float]

    @property
    def both(self) -> list[float]:
        """Together, sorted."""
        return sorted(map(sum, zip(self.plan, self.take, strict=True)))

    def quantile(self, share: float) -> float:
        """Such a share of the steps took this long or less, in seconds."""
        return self.both[min(len(self.plan) - 1, int(share * len(self.plan)))]


def measure(running: int, steps: int, stages: int = 1, waiting: int = 0) -> DecisionTime:
    """Times of `steps` steps, after the prompts of those that run were computed; others wait for their slots."""
    scheduler = _scheduler(running, steps, stages, waiting)
    in_flight: deque[Step] = deque()
    plan, take = [], []
    for _ in range(_warm_up(running, stages) + stages * steps):
        begin = time.perf_counter()
        step = scheduler.next_step()
        decided = time.perf_counter()
        if step is not None:
            in_flight.append(step)
            plan.append(decided - begin)
        if step is None or len(in_flight) > 1 + (stages > 1):
            result = _result(in_flight.popleft())
            begin = time.perf_counter()
            scheduler.apply(StepDone(0.0, result))
            take.append(time.perf_counter() - begin)
    return DecisionTime(plan[-steps:], take[-steps:])


def _scheduler(running: int, steps: int, stages: int, waiting: int) -> Scheduler:
    """One in which so many requests are that none of them ends."""
    length = _LONGEST + 4 * steps + 1000
    limits = WorkerLimits(
        num_blocks=running * (length // _BLOCK + 2),
        block_size=_BLOCK,
        max_model_len=length,
        vocab_size=_VOCAB,
        max_sampled_rows=running,
    )
    config = SchedulerConfig(
        max_num_batched_tokens=max(2048, running), max_num_seqs=running, max_num_queued_requests=running + waiting
    )
    scheduler = Scheduler(config, KvConfig(block_size=_BLOCK), limits, [2], lookahead=1, stages=stages)
    draw = random.Random(0)
    params = SamplingParams(max_tokens=length, ignore_eos=False)
    for number in range(running + waiting):
        prompt = [draw.randrange(3, _VOCAB) for _ in range(draw.randrange(_SHORTEST, _LONGEST))]
        scheduler.apply(RequestArrived(0.0, Request(id=number, prompt_ids=prompt, params=params)))
    return scheduler


def _warm_up(running: int, stages: int) -> int:
    """Turns until all prompts are computed and the micro-batches are even."""
    return running * _LONGEST // 2048 + 50 * stages


def _result(step: Step) -> StepResult:
    """Every sequence draws a token that ends nothing."""
    return StepResult(
        step.number,
        [Advance(item.seq, [3 + (item.start + 7 * item.seq) % 1000]) for item in step.items if item.draws],
        [],
        0.001,
    )


def main() -> None:
    """Print a line for each number of stages."""
    parser = argparse.ArgumentParser(description="Time the scheduler's decisions.")
    parser.add_argument("--running", type=int, default=256)
    parser.add_argument("--waiting", type=int, default=0)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--stages", type=int, nargs="+", default=[1, 2])
    asked = parser.parse_args()
    for stages in asked.stages:
        found = measure(asked.running, asked.steps, stages, asked.waiting)
        print(
            f"{stages} stages, {asked.running} running, {asked.waiting} waiting, {asked.steps} steps: a step takes "
            f"{1e6 * found.quantile(0.5):.0f} us, "
            f"99 % of them {1e6 * found.quantile(0.99):.0f} us or less (deciding "
            f"{1e6 * statistics.median(found.plan):.0f} us, "
            f"taking the result {1e6 * statistics.median(found.take):.0f} us)"
        )


if __name__ == "__main__":
    main()
