"""What a step costs the scheduler: deciding what to compute, and taking in what came of it. No model is needed.

    python -m benchmarks.decision_time [--running 256] [--waiting 0] [--steps 2000] [--stages 1 2] [--drafts]

A step's cost here is `next_step` and `apply(StepDone)` of that step, with everybody decoding: the price of every token,
on one thread. Prompts differ in length, so that in most steps somebody needs a KV block, and fills one that the prefix
cache has to hear of. With `--drafts` prompts and answers repeat themselves, but for one token in eight, tokens are
drafted as `--speculative auto` does it, and rows cost so little that it pays for everybody.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections import deque
from dataclasses import dataclass

from homenode.engine.request import Request
from homenode.engine.scheduler.drafts.draft_choice import DraftChoice
from homenode.engine.scheduler.events import RequestArrived, StepDone
from homenode.engine.scheduler.scheduler import Scheduler
from homenode.engine.scheduler.steps.step_costs import StepCosts
from homenode.engine.scheduler.steps.step_load import NO_LOAD, StepLoad
from homenode.engine.scheduler_config import KvConfig, SchedulerConfig
from homenode.engine.speculation.config import SpeculationConfig
from homenode.engine.step import Advance, Step, StepItem, StepResult, WorkerLimits, num_accepted
from homenode.sampling import SamplingParams

_BLOCK = 64
_SHORTEST, _LONGEST = 64, 320  # tokens of a prompt
_VOCAB = 32_000
_REPEATED = 37  # tokens, after which a text that is drafted from begins anew
_OTHERWISE = 8  # tokens of it, of which one is another each time
_STEP_S, _ROW_S = 0.02, 0.00002  # of a step of the made-up workers, and of each row


@dataclass(frozen=True)
class DecisionTime:
    """Seconds a step, of each step: `plan` for deciding, `take` for its result."""

    plan: list[float]
    take: list[float]
    drafted: float = 0.0  # tokens a step, on average

    @property
    def both(self) -> list[float]:
        """Together, sorted."""
        return sorted(map(sum, zip(self.plan, self.take, strict=True)))

    def quantile(self, share: float) -> float:
        """Such a share of the steps took this long or less, in seconds."""
        return self.both[min(len(self.plan) - 1, int(share * len(self.plan)))]


def measure(running: int, steps: int, stages: int = 1, waiting: int = 0, *, drafts: bool = False) -> DecisionTime:
    """Times of `steps` steps, after the prompts of those that run were computed; others wait for their slots. `drafts`:
    tokens are drafted, of a text that repeats itself.
    """
    scheduler = _scheduler(running, steps, stages, waiting, drafts)
    in_flight: deque[Step] = deque()
    plan, take, now, asked = [], [], 0.0, 0.0
    for _ in range(_warm_up(running, stages) + (2 if drafts else 1) * stages * steps):
        begin = time.perf_counter()
        step = scheduler.next_step()
        asked += time.perf_counter() - begin
        if step is not None:
            in_flight.append(step)
            plan.append(asked)
            asked = 0.0  # where a step waits for tokens, what it took to find that out is part of the next one
        if step is None or len(in_flight) > 1 + (stages > 1):
            result = _result(in_flight.popleft(), drafts)
            now += result.seconds
            begin = time.perf_counter()
            scheduler.apply(StepDone(now, result))
            take.append(time.perf_counter() - begin)
    counted = scheduler.statistics()
    return DecisionTime(plan[-steps:], take[-steps:], counted.drafted_tokens / max(1, counted.steps))


def _scheduler(running: int, steps: int, stages: int, waiting: int, drafts: bool) -> Scheduler:
    """One in which so many requests are that none of them ends."""
    length = _LONGEST + 4 * steps * (4 if drafts else 1) + 1000
    limits = WorkerLimits(
        num_blocks=running * (length // _BLOCK + 2),
        block_size=_BLOCK,
        max_model_len=length,
        vocab_size=_VOCAB,
        max_sampled_rows=2048 if drafts else running,
    )
    config = SchedulerConfig(
        max_num_batched_tokens=max(2048, running), max_num_seqs=running, max_num_queued_requests=running + waiting
    )
    costs = _known_costs() if drafts else StepCosts()
    scheduler = Scheduler(
        config,
        KvConfig(block_size=_BLOCK),
        limits,
        [2],
        lookahead=1,
        stages=stages,
        costs=costs,
        drafter=DraftChoice(SpeculationConfig().resolved(), costs) if drafts else None,
    )
    draw = random.Random(0)
    params = SamplingParams(max_tokens=length, ignore_eos=False)
    for number in range(running + waiting):
        count = draw.randrange(_SHORTEST, _LONGEST)
        prompt = [_token(number, at) if drafts else draw.randrange(3, _VOCAB) for at in range(count)]
        scheduler.apply(RequestArrived(0.0, Request(id=number, prompt_ids=prompt, params=params)))
    return scheduler


def _known_costs() -> StepCosts:
    """Return what steps of few and of many rows have taught."""
    costs = StepCosts()
    for rows in [1, 4, 16, 64, 256, 1024] * 500:
        costs.learn(StepLoad(rows, rows, rows, rows, rows), NO_LOAD, _STEP_S + rows * _ROW_S)
    return costs


def _warm_up(running: int, stages: int) -> int:
    """Turns until all prompts are computed and the micro-batches are even."""
    return running * _LONGEST // 2048 + 50 * stages


def _token(text: int, at: int) -> int:
    """One of a text that repeats itself, but for some of its tokens."""
    place = at % _REPEATED
    other = at // _REPEATED if (place + text) % _OTHERWISE == 0 else 0
    return 3 + (31 * text + 101 * place + 9973 * other) % (_VOCAB - 3)


def _result(step: Step, drafts: bool) -> StepResult:
    """Every sequence draws a token that ends nothing, or as many as were drafted right and one more."""
    rows = sum(item.count for item in step.items)
    return StepResult(
        step.number,
        [Advance(item.seq, _drawn(item, drafts)) for item in step.items if item.draws],
        seconds=_STEP_S + rows * _ROW_S,
    )


def _drawn(item: StepItem, drafts: bool) -> list[int]:
    if not drafts:
        return [3 + (item.start + 7 * item.seq) % 1000]
    drawn = [_token(item.seq, at + 1) for at in range(item.start + item.count - item.draws, item.start + item.count)]
    return drawn[: num_accepted(item.drafted, drawn)]


def main() -> None:
    """Print a line for each number of stages."""
    parser = argparse.ArgumentParser(description="Time the scheduler's decisions.")
    parser.add_argument("--running", type=int, default=256)
    parser.add_argument("--waiting", type=int, default=0)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--stages", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--drafts", action="store_true", help="draft tokens of texts that repeat themselves")
    asked = parser.parse_args()
    for stages in asked.stages:
        found = measure(asked.running, asked.steps, stages, asked.waiting, drafts=asked.drafts)
        print(
            f"{stages} stages, {asked.running} running, {asked.waiting} waiting, {asked.steps} steps: a step takes "
            f"{1e6 * found.quantile(0.5):.0f} us, "
            f"99 % of them {1e6 * found.quantile(0.99):.0f} us or less (deciding "
            f"{1e6 * statistics.median(found.plan):.0f} us, "
            f"taking the result {1e6 * statistics.median(found.take):.0f} us), "
            f"{found.drafted:.0f} drafted tokens a step"
        )


if __name__ == "__main__":
    main()
