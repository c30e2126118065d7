"""How many micro-batches a pipeline should have: the real scheduler before stages whose times follow a formula. No
model is needed.

    python -m benchmarks.pipeline_pace [--stages 2] [--running 8]

A stage takes `read` seconds a step, however few tokens it has, and `token` seconds for each of them; `back` is the way
of a result from the last stage to the first one's next step. Where weights are read from memory `read` is most of it,
where they are in a cache or many tokens are computed `token` is. Lock step is one step at a time, with everybody in it.
"""

from __future__ import annotations

import argparse
import heapq
from dataclasses import dataclass

from homenode.engine.request import Request
from homenode.engine.scheduler.events import RequestArrived, StepDone
from homenode.engine.scheduler.scheduler import Scheduler
from homenode.engine.scheduler_config import KvConfig, SchedulerConfig
from homenode.engine.step import Advance, Step, StepResult, WorkerLimits
from homenode.sampling import SamplingParams

_LIMITS = WorkerLimits(num_blocks=4096, block_size=32, max_model_len=2048, vocab_size=1000, max_sampled_rows=256)


@dataclass(frozen=True)
class StageCost:
    """Seconds of one stage, and of the way back."""

    read: float
    token: float
    back: float

    def of(self, step: Step) -> float:
        """What a step costs each stage."""
        return self.read + self.token * step.num_tokens


def throughput(
    cost: StageCost, stages: int, running: int, *, micro_batches: int = 0, lock_step: bool = False, tokens: int = 400
) -> float:
    """Tokens drawn in a second by `running` requests of `tokens` each, over `stages` stages that cost the same."""
    config = SchedulerConfig(max_num_batched_tokens=256, max_num_seqs=running)
    scheduler = Scheduler(
        config, KvConfig(block_size=32), _LIMITS, (), stages=1 if lock_step else stages, micro_batches=micro_batches
    )
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    for number in range(running):
        scheduler.apply(RequestArrived(0.0, Request(id=number, prompt_ids=[1 + number] * 8, params=params)))
    now, free, number = 0.0, [0.0] * stages, 0
    results: list[tuple[float, int, Step]] = []
    while True:
        while (step := scheduler.next_step()) is not None:
            done = now
            for stage in range(stages):
                done = free[stage] = max(done, free[stage]) + cost.of(step)
            heapq.heappush(results, (done + cost.back, step.number, step))
        if not results:
            return running * tokens / now
        now, number, step = heapq.heappop(results)
        scheduler.apply(
            StepDone(now, StepResult(number, [Advance(item.seq, [5]) for item in step.items if item.draws], [], 1e-3))
        )


def main() -> None:
    """Print a table: what micro-batches gain over lock step."""
    parser = argparse.ArgumentParser(description="Compare numbers of micro-batches.")
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--running", type=int, default=8)
    asked = parser.parse_args()
    print(
        f"{asked.stages} stages, {asked.running} running: times lock step with as many micro-batches as stages, and "
        "with one more"
    )
    for read, back in [(share, way) for share in (0.0, 0.25, 0.5, 0.9) for way in (0.0, 0.1, 0.3)]:
        cost = StageCost(read, (1 - read) / asked.running, back)  # a step with everybody takes a stage 1
        one = throughput(cost, asked.stages, asked.running, lock_step=True)
        gains = [
            throughput(cost, asked.stages, asked.running, micro_batches=asked.stages + more) / one for more in (0, 1)
        ]
        print(
            f"  reading weights {read:4.0%} of a stage's step, way back {back:4.0%} of it: {gains[0]:.2f}  "
            f"{gains[1]:.2f}"
        )


if __name__ == "__main__":
    main()
