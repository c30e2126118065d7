"""Why requests wait, as the engine tells it: a history for each reason."""

from __future__ import annotations

from typing import get_args

from homenode.engine.messages import WAIT_REASONS, WaitReason
from homenode.engine.scheduler_config import SchedulerConfig
from homenode.engine.step import WorkerLimits
from tests.pure.schedule_bench import Bench, limits_of

LIMITS = limits_of(num_blocks=12, block_size=16, max_model_len=160, max_sampled_rows=8)


def bench_of(max_num_seqs: int = 8, max_num_batched_tokens: int = 128, limits: WorkerLimits = LIMITS) -> Bench:
    config = SchedulerConfig(max_num_batched_tokens=max_num_batched_tokens, max_num_seqs=max_num_seqs, step_time=0)
    return Bench(config, limits=limits)


def told(bench: Bench) -> dict[str, int]:
    found = bench.scheduler.statistics()
    assert sum(found.waiting_for.values()) == found.num_waiting
    assert set(found.waiting_for) <= set(WAIT_REASONS) == set(get_args(WaitReason))
    return found.waiting_for


def test_nobody_waits() -> None:
    bench = bench_of()
    bench.submit([1] * 20, max_tokens=4, ignore_eos=True)
    bench.fill()
    assert told(bench) == {}
    bench.run()


def test_slots_are_taken() -> None:
    bench = bench_of(max_num_seqs=1)
    for _ in range(3):
        bench.submit([1] * 20, max_tokens=4, ignore_eos=True)
    bench.fill()
    assert told(bench) == {"slots": 2}
    bench.run()
    assert told(bench) == {}


def test_blocks_are_taken() -> None:
    bench = bench_of(max_num_batched_tokens=512)
    for first in (1, 2, 3):
        bench.submit([first] * 90, max_tokens=4, ignore_eos=True)
    bench.fill()
    assert told(bench) == {"blocks": 2}
    bench.run()


def test_steps_have_no_room_yet() -> None:
    bench = bench_of(max_num_batched_tokens=16)
    for first in (1, 2):
        bench.submit([first] * 60, max_tokens=2, ignore_eos=True)
    bench.fill()
    assert told(bench) == {"turn": 1}
    bench.run()


def test_another_one_computes_the_beginning() -> None:
    """Of a model whose layers keep states: the snapshot that it goes on from is still to be taken."""
    limits = limits_of(
        num_blocks=24, block_size=16, max_model_len=160, max_sampled_rows=8, state_slots=8, state_interval=16
    )
    bench = bench_of(limits=limits)
    for last in (1, 2):
        bench.submit([*[5] * 48, last], max_tokens=2, ignore_eos=True)
    bench.fill()
    assert told(bench) == {"prefix": 1}
    bench.run()
