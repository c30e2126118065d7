"""Who is let in, who is refused with which numbers, and when time is up."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homenode.engine.runtime.planned_parts import queue_limits
from homenode.engine.scheduler.admission import Throughput
from homenode.engine.scheduler_config import KvConfig, SchedulerConfig, check_config
from homenode.engine.step import Step
from tests.examples import examples
from tests.pure.schedule_bench import Bench, limits_of


def test_settings_that_contradict_each_other_are_named_with_their_numbers() -> None:
    assert check_config(SchedulerConfig(), KvConfig(), 100_000) == []
    whole = SchedulerConfig(max_num_batched_tokens=512, enable_chunked_prefill=False)
    assert check_config(whole, KvConfig(), 512) == []
    (problem,) = check_config(whole, KvConfig(), 513)
    assert problem.param == "max_num_batched_tokens"
    assert "--max-num-batched-tokens 512 is less than --max-model-len 513" in problem.message
    assert "--no-enable-chunked-prefill" in problem.message
    narrow = SchedulerConfig(max_num_batched_tokens=127, max_num_seqs=128)
    (problem,) = check_config(narrow, KvConfig(), 100)
    assert "--max-num-seqs 128 is more than --max-num-batched-tokens 127" in problem.message
    (problem,) = check_config(SchedulerConfig(), KvConfig(block_size=33), 100)
    assert problem.param == "block_size" and "--block-size 33" in problem.message


@pytest.mark.parametrize(
    ("prompt", "params", "kind", "numbers"),
    [
        (
            [1] * 64,
            {},
            "ContextLengthError",
            ["64 tokens", "maximum context length is 64 tokens", "--max-model-len", "63 tokens or fewer"],
        ),
        (
            [1] * 48,
            {},
            "ContextLengthError",
            [
                "48 tokens",
                "maximum context length is 47 tokens",
                "13 KV blocks of 4",
                "there are 12",
                "--kv-cache-memory",
            ],
        ),
        (
            [1] * 33,
            {},
            "ContextLengthError",
            [
                "33 tokens",
                "maximum context length is 32 tokens",
                "--max-num-batched-tokens",
                "--no-enable-chunked-prefill",
            ],
        ),
        ([], {}, "UserError", ["the prompt is empty"]),
        ([1, 40], {}, "UserError", ["token id 40 in prompt", "0 to 39"]),
        ([1, -1, 90], {}, "UserError", ["token id -1 in prompt", "0 to 39"]),
        ([1], {"logit_bias": {40: 1.0}}, "UserError", ["token id 40 in logit_bias"]),
        ([1], {"max_tokens": -1}, "UserError", ["max_tokens is -1"]),
        ([1], {"prompt_logprobs": -2}, "UserError", ["prompt_logprobs is -2"]),
    ],
)
def test_what_can_never_run_is_refused_on_arrival_with_the_numbers(
    prompt: list[int], params: dict[str, object], kind: str, numbers: list[str]
) -> None:
    config = SchedulerConfig(max_num_batched_tokens=32, max_num_seqs=4, enable_chunked_prefill=False)
    bench = Bench(config, limits=limits_of(num_blocks=12))
    bench.submit(prompt, **params)  # type: ignore[arg-type]
    final = bench.final(0)
    assert (final.finish_reason, final.error_kind, final.retry_after_s) == ("error", kind, None)
    assert all(number in (final.error or "") for number in numbers), final.error
    assert bench.scheduler.statistics().rejected == {"capacity" if kind == "ContextLengthError" else "invalid": 1}
    bench.check_rest()


def test_the_longest_prompts_that_fit_do_run() -> None:
    for prompt, limits in (([1] * 63, limits_of()), ([1] * 47, limits_of(num_blocks=12))):
        bench = Bench(limits=limits)
        bench.submit(prompt, max_tokens=100, ignore_eos=True)
        bench.run()
        assert len(bench.tokens(0)) == 1 and bench.final(0).finish_reason == "length"


def test_a_full_queue_refuses_with_a_time_to_come_back() -> None:
    bench = Bench(SchedulerConfig(max_num_batched_tokens=8, max_num_seqs=2, max_num_queued_requests=3))
    for _ in range(7):
        bench.submit([1] * 4, max_tokens=2)
    assert [n for n in range(7) if n in bench.outputs] == [5, 6]  # two can start at once, three may wait
    final = bench.final(5)
    assert final.error_kind == "OverloadedError" and (final.retry_after_s or 0) >= 1
    assert "--max-num-queued-requests 3" in (final.error or "")
    bench.run()
    assert bench.scheduler.statistics().rejected == {"queued_requests": 2}
    bench.submit([1] * 4, max_tokens=2)
    bench.run()
    assert bench.final(7).error is None


@given(running=st.integers(1, 5), waiting=st.integers(0, 6), waiting_tokens=st.integers(0, 30))
@settings(max_examples=examples(30), deadline=None)
def test_as_many_at_once_are_let_in_as_the_front_is_told(running: int, waiting: int, waiting_tokens: int) -> None:
    """Prompts of three tokens: the last of those that the limits allow is let in, one more is not."""
    config = SchedulerConfig(
        max_num_batched_tokens=8,
        max_num_seqs=running,
        max_num_queued_requests=waiting,
        max_num_queued_tokens=waiting_tokens,
    )
    bench, limits = Bench(config), queue_limits(config)
    most = 20 if limits.most_requests is None else limits.most_requests
    for _ in range(most + 1):
        bench.submit([1] * 3, max_tokens=2)
    refused = {number for number in range(most + 1) if number in bench.outputs}
    by_tokens = {number for number in range(most) if waiting_tokens and 3 * (number + 1 - running) > waiting_tokens}
    assert by_tokens <= refused, "what the server refuses for its tokens is never let in"
    if not waiting_tokens:
        assert refused == ({most} if waiting else set())


def test_a_queue_full_of_tokens_refuses_and_lets_in_what_can_start_at_once() -> None:
    bench = Bench(SchedulerConfig(max_num_batched_tokens=32, max_num_seqs=1, max_num_queued_tokens=20))
    bench.submit([1] * 30, max_tokens=2)  # more than may wait, but it need not
    bench.step()
    bench.submit([1] * 15, max_tokens=2)
    bench.submit([1] * 6, max_tokens=2)
    bench.submit([1] * 5, max_tokens=2)
    assert bench.final(2).error_kind == "OverloadedError"
    assert "15 prompt tokens are waiting already and this request has 6 (--max-num-queued-tokens 20)" in (
        bench.final(2).error or ""
    )
    bench.finish_step()
    bench.run()
    assert bench.scheduler.statistics().rejected == {"queued_tokens": 1}


def test_the_time_to_come_back_follows_the_speed() -> None:
    throughput = Throughput()
    assert throughput.retry_after(10**6) == 1.0
    throughput.add(100, 0.0)  # a step without a time tells nothing
    assert throughput.retry_after(10**6) == 1.0
    throughput.add(100, 2.0)
    assert throughput.retry_after(500) == pytest.approx(10.0)
    assert throughput.retry_after(1) == 1.0
    assert throughput.retry_after(10**6) == 60.0
    for _ in range(50):
        throughput.add(1000, 2.0)
    assert throughput.retry_after(5000) == pytest.approx(10.0, rel=0.01)


def test_draining_refuses_newcomers_and_finishes_the_others() -> None:
    bench = Bench(SchedulerConfig(max_num_batched_tokens=8, max_num_seqs=1))
    for _ in range(3):
        bench.submit([1, 2], max_tokens=3, ignore_eos=True)
    bench.step()
    bench.drain()
    bench.submit([1, 2], max_tokens=3)
    assert bench.final(3).error_kind == "OverloadedError" and "shutting down" in (bench.final(3).error or "")
    bench.finish_step()
    bench.run()
    assert [len(bench.tokens(n)) for n in range(3)] == [3, 3, 3]
    assert bench.scheduler.statistics().rejected == {"draining": 1}


def test_a_deadline_ends_a_request_wherever_it_is() -> None:
    bench = Bench(SchedulerConfig(max_num_batched_tokens=8, max_num_seqs=1))
    bench.submit([1, 2], max_tokens=50, ignore_eos=True, deadline=10.0)
    bench.submit([1, 2], max_tokens=50, ignore_eos=True, deadline=5.0)
    bench.submit([1, 2], max_tokens=2, ignore_eos=True)
    assert bench.scheduler.next_deadline() == 5.0
    bench.step()
    bench.tick(4.9)
    assert 1 not in bench.outputs
    bench.tick(0.1)
    waited = bench.final(1)
    assert waited.error_kind == "OverloadedError" and "while it waited" in (waited.error or "") and waited.retry_after_s
    assert bench.scheduler.next_deadline() == 10.0
    bench.finish_step()
    bench.step()
    bench.tick(5.0)  # in flight
    ran = bench.final(0)
    assert (ran.finish_reason, ran.error_kind) == ("error", "UserError")
    assert "deadline passed after 1 output token" in (ran.error or "") and "--request-timeout" in (ran.error or "")
    assert bench.scheduler.next_deadline() is None
    bench.run()
    assert len(bench.tokens(2)) == 2


def test_the_server_s_own_deadline_counts_if_it_is_earlier() -> None:
    bench = Bench(SchedulerConfig(max_num_batched_tokens=8, max_num_seqs=1, request_timeout=3.0))
    bench.tick(100.0)
    bench.submit([1, 2], max_tokens=50, deadline=200.0)
    bench.submit([1, 2], max_tokens=50, deadline=101.0)
    assert bench.scheduler.next_deadline() == 101.0
    bench.tick(1.0)
    assert bench.scheduler.next_deadline() == 103.0
    bench.abort(0)
    assert bench.scheduler.next_deadline() is None


def test_counters_count() -> None:
    bench = Bench(SchedulerConfig(max_num_batched_tokens=8, max_num_seqs=2))
    bench.submit([1] * 12, max_tokens=3, ignore_eos=True)
    steps: list[Step] = []
    while step := bench.step():
        steps.append(step)
        assert bench.scheduler.statistics().kv_usage == pytest.approx((3 if len(steps) < 3 else 4) / 64)
        bench.finish_step()
    statistics = bench.scheduler.statistics()
    assert (statistics.prompt_tokens, statistics.generation_tokens) == (12, 3)
    assert (statistics.steps, statistics.step_tokens) == (4, 14) == (len(steps), sum(step.num_tokens for step in steps))
