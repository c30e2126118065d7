"""Several stages, and workers that are lost: micro-batches, fairness among them, and random lives."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homenode.engine.scheduler_config import SchedulerConfig
from homenode.engine.step import Step
from homenode.errors import InternalError
from tests.examples import examples, seeds
from tests.pure import test_kv_transfer_properties as handover
from tests.pure import test_schedule_properties as plain
from tests.pure.kv_transfer_bench import HandoverBench
from tests.pure.schedule_bench import Bench, limits_of

_MANY = SchedulerConfig(max_num_batched_tokens=256, max_num_seqs=32, step_time=0)
_ROOM = limits_of(num_blocks=450, block_size=32, max_model_len=400, max_sampled_rows=64)


def _decoding(count: int, stages: int, max_tokens: int = 300, micro_batches: int = 0) -> Bench:
    """So many sequences that have all drawn their first token, in whatever steps."""
    bench = Bench(_MANY, limits=_ROOM, stages=stages, micro_batches=micro_batches)
    for n in range(count):
        bench.submit([n + 1, n], max_tokens=max_tokens, ignore_eos=True)
    _turn(bench, 4 * stages)
    return bench


def _turn(bench: Bench, times: int = 1) -> list[Step]:
    """The oldest result comes and the pipeline is filled again, so many times. The steps sent."""
    first = len(bench.steps)
    bench.fill()
    for _ in range(times):
        bench.finish_step()
        bench.fill()
    return bench.steps[first:]


# Micro-batches


@pytest.mark.parametrize(
    ("count", "stages", "sizes"), [(8, 2, [4, 4]), (8, 3, [3, 3, 2]), (9, 2, [5, 4]), (1, 2, [1]), (3, 4, [1, 1, 1])]
)
def test_the_running_are_divided_evenly(count: int, stages: int, sizes: list[int]) -> None:
    bench = _decoding(count, stages)
    assert bench.executor.pending == len(sizes)  # all stages are busy, and nobody waits
    steps = _turn(bench, 12)[-len(sizes) :]
    assert sorted((len(step.items) for step in steps), reverse=True) == sizes


def test_more_micro_batches_than_stages_are_as_even() -> None:
    bench = _decoding(8, 2, micro_batches=3)
    assert sorted(len(step.items) for step in _turn(bench, 12)[-3:]) == [2, 3, 3]
    assert bench.executor.pending == 3


def test_newcomers_and_leavers_leave_even_batches_behind() -> None:
    bench = _decoding(8, 2)
    for n in range(4):
        bench.submit([30 + n], max_tokens=300, ignore_eos=True)
    _turn(bench, 8)
    assert [len(step.items) for step in _turn(bench, 4)[-2:]] == [6, 6]
    for n in range(0, 12, 2):
        bench.abort(n)
    for _ in range(3):
        bench.abort(1)
    _turn(bench, 8)
    assert sorted(len(step.items) for step in _turn(bench, 4)[-2:]) == [2, 3]
    bench.run()


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_nobody_is_left_behind(stages: int) -> None:
    """While some come and go everybody who decodes draws a token in every few steps."""
    rng = random.Random(stages)
    bench = _decoding(12, stages)
    drawn: dict[int, int] = {}
    for step in range(300):
        if rng.random() < 0.1:
            bench.submit(
                [rng.randrange(40)] * rng.randrange(1, 60), max_tokens=rng.choice([1, 5, 40, 200]), ignore_eos=True
            )
        for sent in _turn(bench):
            drawn |= {item.seq: step for item in sent.items}
        for sequence in bench.running():
            assert sequence.allocation is not None
            if sequence.allocation.decoding and not sequence.exhausted:
                assert step - drawn.setdefault(sequence.allocation.seq, step) <= 3 * stages, "left out again and again"
    bench.run()


def test_parts_of_one_prompt_follow_each_other_without_waiting() -> None:
    bench = Bench(SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=4), limits=_ROOM, stages=2)
    bench.submit([1] * 300, max_tokens=2, ignore_eos=True)
    bench.fill()
    # One more than stages.
    assert [(item.start, item.count) for step in bench.steps for item in step.items] == [(0, 64), (64, 64), (128, 64)]
    bench.run()


def test_a_prompt_that_fits_one_step_is_spread_over_the_stages() -> None:
    bench = Bench(_MANY, limits=_ROOM, stages=2)
    bench.submit([1] * 200, max_tokens=2, ignore_eos=True)
    bench.submit([2] * 20, max_tokens=2, ignore_eos=True)
    bench.fill()
    assert [step.num_tokens for step in bench.steps] == [110, 110]
    bench.run()


def test_a_prompt_that_may_not_be_cut_is_not_spread() -> None:
    config = SchedulerConfig(max_num_batched_tokens=256, max_num_seqs=8, enable_chunked_prefill=False)
    bench = Bench(config, limits=_ROOM, stages=2)
    bench.submit([1] * 200, max_tokens=2, ignore_eos=True)
    bench.fill()
    assert [step.num_tokens for step in bench.steps] == [200]
    bench.run()


def test_decodes_go_before_prompts_in_every_micro_batch() -> None:
    bench = _decoding(8, 2)
    bench.submit([1] * 390, max_tokens=2, ignore_eos=True)
    steps = _turn(bench, 2)
    assert [len([item for item in step.items if item.draws and item.count == 1]) for step in steps] == [4, 4]
    assert all(step.items[-1].count > 100 for step in steps)
    bench.run()


def test_a_failed_step_ends_its_own_requests_only() -> None:
    failing: list[int] = []
    bench = Bench(
        _MANY, limits=_ROOM, stages=2, fault=lambda step: ValueError("no") if step.number in failing else None
    )
    for n in range(8):
        bench.submit([n + 1, n], max_tokens=30, ignore_eos=True)
    _turn(bench, 8)
    failing.append(bench.steps[-1].number + 1)
    bench.finish_step()
    failed = bench.step()
    assert failed is not None and len(failed.items) == 4
    bench.run()
    ended = [n for n in bench.requests if bench.final(n).finish_reason == "error"]
    assert len(ended) == 4 and all(bench.final(n).error_kind == "InternalError" for n in ended)


def test_in_lock_step_everybody_is_in_the_one_step_there_is() -> None:
    bench = Bench(stages=2, micro_batches=1)
    for n in range(8):
        bench.submit([n + 1] * 4, max_tokens=6, ignore_eos=True)
    while bench.step():
        assert bench.step() is None
        bench.finish_step()
    assert all(len(bench.tokens(n)) == 6 for n in range(8))


def test_numbers_that_cannot_be_are_refused() -> None:
    with pytest.raises(InternalError, match="0 stages"):
        Bench(stages=0)
    with pytest.raises(InternalError, match="3 stages and 2 micro-batches"):
        Bench(stages=3, micro_batches=2)


# Lost workers


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_the_lost_go_on_where_they_were_and_say_nothing_twice(stages: int) -> None:
    bench = _decoding(6, stages, max_tokens=20)
    bench.submit([9] * 100, max_tokens=3, ignore_eos=True, prompt_logprobs=0, logprobs=0)
    _turn(bench, 3)
    before = [len(bench.tokens(n)) for n in range(6)]
    bench.lose()
    assert bench.scheduler.statistics().num_running == 0 and bench.scheduler.allocator.usage == 0
    bench.submit([1, 2], max_tokens=3, ignore_eos=True)
    bench.restore()
    step = bench.step()
    assert step is not None and not step.ends  # the workers know of nobody
    assert step.starts[0].token_ids[2:] == bench.tokens(0) and len(bench.tokens(0)) == before[0]
    bench.run()


def test_a_request_that_is_lost_again_and_again_ends_by_name() -> None:
    bench = Bench(stages=2)
    bench.submit([1, 2], max_tokens=30, ignore_eos=True)
    for _ in range(4):
        bench.step()
        bench.lose("worker 1 of 2 was killed")
        bench.restore()
    last = bench.final(0)
    assert last.error_kind == "WorkerLostError" and last.retry_after_s == 1.0
    assert str(last.error).startswith("worker_lost: ") and "worker 1 of 2 was killed" in str(last.error)
    bench.run()


def test_those_who_only_waited_have_lost_nothing() -> None:
    bench = Bench(SchedulerConfig(max_num_batched_tokens=8, max_num_seqs=1))
    for n in range(2):
        bench.submit([n, 2], max_tokens=30, ignore_eos=True)
    for _ in range(6):
        bench.step()
        bench.lose()
        bench.lose()  # another one, while the first is away
        bench.restore()
    assert bench.final(0).error_kind == "WorkerLostError"
    assert 1 not in bench.outputs
    bench.run()


def test_while_workers_are_away_deadlines_and_limits_hold() -> None:
    bench = Bench(SchedulerConfig(max_num_batched_tokens=8, max_num_seqs=1, max_num_queued_requests=1), stages=2)
    bench.lose()
    bench.submit([1], max_tokens=3, deadline=5.0)
    bench.submit([2], max_tokens=3)
    bench.submit([3], max_tokens=3)
    assert bench.final(2).error_kind == "OverloadedError"
    bench.tick(6.0)
    assert "deadline" in str(bench.final(0).error)
    assert 1 not in bench.outputs and bench.scheduler.has_work()
    bench.run()


def test_workers_that_were_not_away_are_not_back() -> None:
    with pytest.raises(InternalError, match="were not lost"):
        Bench().restore()


def test_a_sent_request_whose_pages_are_lost_is_refused_and_one_without_goes_on() -> None:
    bench = HandoverBench(SchedulerConfig(max_num_batched_tokens=8, max_num_seqs=4))
    told, untold = bench.send([1] * 20), bench.send([2] * 30)
    bench.admit(told)
    bench.admit(untold)
    bench.step()
    bench.finish_step()
    bench.step()
    bench.lose()
    assert bench.going[told].abandoned.startswith("worker_lost")
    assert bench.final(0).error_kind == "KvRefusedError" and not bench.going[untold].abandoned
    bench.settle()
    assert bench.going[untold].last


# Random lives


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("faults", [False, True])
@pytest.mark.parametrize("seed", seeds(12))
def test_any_life_with_stages_keeps_every_promise(seed: int, faults: bool, stages: int) -> None:
    rng = random.Random(1000 * stages + seed)
    bench = plain.make_bench(rng, 0, faults, stages, micro_batches=stages + seed % 2)
    for _ in range(300):
        plain.move(bench, rng, arrivals=0.12)
    bench.run()


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", seeds(20))
def test_any_life_with_losses_keeps_every_promise(seed: int, stages: int) -> None:
    rng = random.Random(1000 * stages + seed)
    bench = plain.make_bench(rng, seed % 2, seed % 3 == 0, stages)
    for _ in range(300):
        plain.move_with_losses(bench, rng)
    bench.run()
    ended = [outputs[-1] for outputs in bench.outputs.values()]
    assert all(o.error_kind != "WorkerLostError" or str(o.error).startswith("worker_lost") for o in ended)


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("seed", seeds(12))
def test_any_life_between_engines_keeps_every_promise(seed: int, stages: int) -> None:
    rng = random.Random(1000 * stages + seed)
    bench = handover.make_bench(rng, seed % 2, seed % 3 == 0, stages)
    for _ in range(300):
        if rng.random() < 0.01:
            bench.lose()
        if not bench.executor.serving and rng.random() < 0.1:
            bench.restore()
        handover.move(bench, rng)
    bench.settle()


@settings(derandomize=True, max_examples=examples(80), deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 4), st.lists(st.sampled_from("asdtfxlr"), max_size=60))
def test_short_lives_shrink_to_the_shortest_that_fails(rng: random.Random, stages: int, moves: list[str]) -> None:
    bench = plain.make_bench(rng, 1, stages=stages)
    for move in moves:
        if move in "af":
            plain.submit(bench, rng)
        if move in "sf":
            bench.step()
        elif move == "d":
            bench.finish_step()
        elif move == "t":
            bench.tick(rng.randrange(20))
        elif move == "x" and bench.requests:
            bench.abort(rng.randrange(len(bench.requests)))
        elif move == "l":
            bench.lose()
        elif move == "r" and not bench.executor.serving:
            bench.restore()
    bench.run()


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("max_preemptions", [0, 8])
def test_preemption_storm_over_stages_ends_with_every_token_right(max_preemptions: int, stages: int) -> None:
    rng = random.Random(stages)
    config = SchedulerConfig(max_num_batched_tokens=48, max_num_seqs=16, max_preemptions=max_preemptions)
    bench = Bench(config, limits=limits_of(num_blocks=20, max_model_len=72), stages=stages)
    for _ in range(40):
        bench.submit(
            [rng.randrange(40) for _ in range(rng.randrange(1, 9))],
            max_tokens=64,
            ignore_eos=True,
            priority=rng.choice([0, 0, 1]),
        )
    bench.run()
    statistics = bench.scheduler.statistics()
    assert statistics.preemptions > 0
    assert statistics.generation_tokens == sum(len(bench.tokens(n)) for n in bench.requests)
