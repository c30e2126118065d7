"""What the scheduler decides, case by case. Invariants over random lives: test_schedule_properties."""

from __future__ import annotations

import random

import pytest

from homenode.engine.kv.sequence import BlockAllocation
from homenode.engine.request import Request, Urgency
from homenode.engine.scheduler.events import Emit, RequestArrived, StepDone, Warn
from homenode.engine.scheduler.scheduler import Scheduler
from homenode.engine.scheduler.steps.budget import StepPlan, prefill_count
from homenode.engine.scheduler_config import KvConfig, SchedulerConfig
from homenode.engine.step import Advance, Step, StepResult
from homenode.errors import InternalError, UserError
from homenode.sampling import SamplingParams
from homenode.testing.scripted_executor import scripted_logprob, scripted_token
from tests.pure.schedule_bench import EOS, Bench, expected, limits_of


def _items(step: Step | None) -> list[tuple[int, int, int]]:
    """(seq, start, count) of each item."""
    assert step is not None
    return [(item.seq, item.start, item.count) for item in step.items]


def _turn(bench: Bench) -> Step:
    step = bench.step()
    assert step is not None
    assert bench.finish_step()
    return step


def _warnings(bench: Bench) -> list[str]:
    return [i.message for i in bench.instructions if isinstance(i, Warn)]


# Filling a step


def test_decodes_come_first_and_the_rest_is_filled_with_cut_prefill() -> None:
    bench = Bench(SchedulerConfig(max_num_batched_tokens=10, max_num_seqs=4))
    bench.submit([1, 2, 3], max_tokens=20, ignore_eos=True)
    bench.submit([4] * 15, max_tokens=20, ignore_eos=True)
    bench.submit([5] * 6, max_tokens=20, ignore_eos=True)
    assert _items(_turn(bench)) == [(0, 0, 3), (1, 0, 6), (2, 0, 1)]  # the one with the least left first
    assert _items(_turn(bench)) == [(0, 3, 1), (1, 6, 1), (2, 1, 8)]
    assert _items(_turn(bench)) == [(0, 4, 1), (1, 7, 1), (2, 9, 6)]
    assert _items(_turn(bench)) == [(0, 5, 1), (2, 15, 1), (1, 8, 1)]
    bench.run()


def test_no_prompt_that_nobody_waits_for_is_in_a_step_with_one_that_somebody_does() -> None:
    bench = Bench(SchedulerConfig(max_num_batched_tokens=8, max_num_seqs=4))
    bench.submit([1] * 12, max_tokens=3, ignore_eos=True, urgency=Urgency.BACKGROUND)
    assert _items(_turn(bench)) == [(0, 0, 8)]
    bench.submit([2] * 4, max_tokens=3, ignore_eos=True)
    bench.submit([3] * 4, max_tokens=3, ignore_eos=True, urgency=Urgency.BACKGROUND)
    assert _items(_turn(bench)) == [(1, 0, 4)]
    assert _items(_turn(bench)) == [(1, 4, 1), (0, 8, 4), (2, 0, 3)]
    bench.run()


def test_who_is_more_urgent_begins_before_shorter_prompts_whatever_their_key_and_priority() -> None:
    for key, priority in (("", 0), ("", -1), ("batch", 0)):
        bench = Bench(SchedulerConfig(max_num_batched_tokens=8, max_num_seqs=1))
        bench.submit([1] * 2, max_tokens=2, ignore_eos=True)
        bench.step()
        later = bench.submit([2] * 2, max_tokens=2, urgency=Urgency.BACKGROUND, key=key, priority=priority)
        first = bench.submit([3] * 6, max_tokens=2, ignore_eos=True)
        while not bench.tokens(first):
            assert not bench.tokens(later)
            bench.finish_step()
            bench.step()
        bench.run()


def test_a_more_important_newcomer_goes_before_a_prompt_that_was_begun() -> None:
    bench = Bench(SchedulerConfig(max_num_batched_tokens=8, max_num_seqs=4))
    bench.submit([1] * 12, max_tokens=2)
    assert _items(_turn(bench)) == [(0, 0, 8)]
    bench.submit([2] * 12, max_tokens=2, priority=-1)
    assert _items(_turn(bench)) == [(1, 0, 8)]
    assert _items(_turn(bench)) == [(1, 8, 4), (0, 8, 4)]
    bench.run()


def test_a_short_newcomer_goes_before_a_long_prompt_that_was_begun_which_has_a_fourth() -> None:
    bench = Bench(SchedulerConfig(max_num_batched_tokens=8, max_num_seqs=8))
    bench.submit([1] * 40, max_tokens=1)
    assert _items(_turn(bench)) == [(0, 0, 8)]
    for number in range(3):
        bench.submit([2 + number] * 6, max_tokens=1)
    assert _items(_turn(bench)) == [(1, 0, 6), (0, 8, 2)]
    assert _items(_turn(bench)) == [(2, 0, 6), (0, 10, 2)]
    bench.submit([9] * 20, max_tokens=1)  # longer than what is left of none: it waits for its turn
    assert _items(_turn(bench)) == [(3, 0, 6), (0, 12, 2)]
    assert _items(_turn(bench)) == [(4, 0, 6), (0, 14, 2)]
    bench.run()


def test_what_the_cache_holds_is_not_left_to_compute() -> None:
    bench = Bench(SchedulerConfig(max_num_batched_tokens=32, max_num_seqs=1))
    bench.submit([1] * 24, max_tokens=4, ignore_eos=True)
    _turn(bench)
    bench.submit([2] * 9, max_tokens=1)
    bench.submit([1] * 24, max_tokens=1)
    bench.run()
    told = (output for each in bench.instructions if isinstance(each, Emit) for output in each.outputs)
    assert [output.id for output in told if output.finish_reason is not None] == [0, 2, 1]


def test_whoever_was_passed_over_begins_at_last_where_blocks_are_short() -> None:
    """Short ones that keep coming have the blocks that a long one needs, until they had three times as much."""
    bench = Bench(
        SchedulerConfig(max_num_batched_tokens=32, max_num_seqs=4), limits=limits_of(num_blocks=12), caching=False
    )
    bench.submit([9] * 6, max_tokens=30, ignore_eos=True)
    _turn(bench)
    long = bench.submit([1] * 36, max_tokens=1)
    for number in range(60):
        bench.submit([2 + number % 30] * 5, max_tokens=2, ignore_eos=True)
        bench.fill()
        bench.finish_step()
        if bench.outputs.get(long):
            break
    assert number < 50, "the long prompt never began"
    bench.run()


def test_a_step_is_filled_within_the_time_that_it_may_take() -> None:
    """A millisecond a token: 150 of them beside a stream, twice as many alone, less those of a step in flight."""
    room = limits_of(num_blocks=200, block_size=16, max_model_len=3000)
    bench = Bench(SchedulerConfig(max_num_batched_tokens=512, max_num_seqs=8), limits=room, token_s=0.001)
    bench.submit([1] * 16, max_tokens=400, ignore_eos=True)
    for _ in range(4):
        _turn(bench)
    bench.submit([2] * 1000, max_tokens=1)
    tokens = [_turn(bench).num_tokens for _ in range(6)]
    assert max(tokens) <= 200 and all(128 <= count <= 150 for count in tokens[4:]), tokens
    bench.run()
    bench.submit([3] * 1000, max_tokens=1)
    tokens = [_turn(bench).num_tokens for _ in range(3)]  # the first of their kind after hundreds that only decoded
    assert max(tokens) <= 400 and 200 <= tokens[-1] <= 300, tokens
    bench.run()


def test_steps_planned_ahead_count_in_the_time_of_prompts_alone() -> None:
    room = limits_of(num_blocks=200, block_size=16, max_model_len=3000)
    config = SchedulerConfig(max_num_batched_tokens=512, max_num_seqs=8)
    bench = Bench(config, limits=room, token_s=0.001, lookahead=1)
    bench.submit([3] * 2900, max_tokens=1)
    for _ in range(6):
        bench.fill()
        assert bench.scheduler.pending_steps.seconds <= 0.3001
        bench.finish_step()
    bench.run()


def test_without_a_bound_and_where_nobody_waits_steps_are_full() -> None:
    room = limits_of(num_blocks=200, block_size=16, max_model_len=3000)
    bench = Bench(SchedulerConfig(step_time=0, max_num_seqs=8), limits=room, token_s=0.001)
    bench.submit([3] * 1300, max_tokens=1)
    assert [_turn(bench).num_tokens for _ in range(3)] == [512, 512, 276]
    bench = Bench(SchedulerConfig(max_num_seqs=8), limits=room, token_s=0.001)
    bench.submit([3] * 1300, max_tokens=1, awaited=False)
    assert [_turn(bench).num_tokens for _ in range(3)] == [512, 512, 276]


def test_the_queue_is_served_by_priority_then_arrival_and_nobody_overtakes() -> None:
    bench = Bench(SchedulerConfig(max_num_batched_tokens=32, max_num_seqs=1))
    for priority in (1, 0, 1, 0):
        bench.submit([3, 4], max_tokens=1, priority=priority)
    bench.run()
    finished = [output.id for i in bench.instructions if isinstance(i, Emit) for output in i.outputs]
    assert finished == [1, 3, 0, 2]


def test_without_chunking_a_prompt_is_computed_whole_or_waits() -> None:
    config = SchedulerConfig(max_num_batched_tokens=10, max_num_seqs=4, enable_chunked_prefill=False)
    bench = Bench(config, limits=limits_of(max_model_len=10))
    bench.submit([1] * 3, max_tokens=3, ignore_eos=True)
    bench.submit([2] * 9, max_tokens=1, ignore_eos=True)
    bench.submit([3] * 2, max_tokens=1, ignore_eos=True)
    assert _items(_turn(bench)) == [(0, 0, 2), (1, 0, 3)]  # nine do not fit beside them
    assert _items(_turn(bench)) == [(1, 3, 1), (2, 0, 9)]
    bench.run()


def test_a_budget_of_the_model_length_gives_whole_prompts_after_the_decodes() -> None:
    bench = Bench(SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=4))
    bench.submit([1] * 20, max_tokens=9, ignore_eos=True)
    _turn(bench)
    bench.submit([2] * 60, max_tokens=1)
    assert _items(_turn(bench)) == [(0, 20, 1), (1, 0, 60)]
    bench.run()


def test_never_more_sequences_than_allowed() -> None:
    bench = Bench(SchedulerConfig(max_num_batched_tokens=32, max_num_seqs=2))
    for _ in range(5):
        bench.submit([1, 2], max_tokens=4, ignore_eos=True)
    assert len(_turn(bench).items) == 2
    statistics = bench.scheduler.statistics()
    assert (statistics.num_running, statistics.num_waiting) == (2, 3)
    bench.run()


def test_a_prompt_lies_in_adjacent_blocks_and_the_worker_hears_of_them_as_it_needs_them() -> None:
    bench = Bench(SchedulerConfig(max_num_batched_tokens=8, max_num_seqs=2))
    bench.submit([1] * 18, max_tokens=1)
    new = [_turn(bench).items[0].new_blocks for _ in range(3)]
    assert [len(blocks) for blocks in new] == [2, 2, 1]
    assert [block for blocks in new for block in blocks] == list(range(5))


def test_what_is_planned_takes_its_tokens_and_rows() -> None:
    plan = StepPlan(0, 10, 4)
    bench = Bench()
    bench.submit([1] * 6, max_tokens=1)
    sequence = bench.scheduler.requests[0]
    plan.add(sequence, BlockAllocation(seq=0, blocks=[], scheduled=0, prefill_target=6, first_unscored=6), 6)
    assert (plan.tokens_left, plan.rows_left, plan.prefill) == (4, 3, 6)
    decoding = BlockAllocation(
        seq=1, blocks=[0, 1], scheduled=7, prefill_target=6, first_unscored=6, sent_blocks=1, last=20
    )
    plan.decode([sequence], [decoding], 4)
    plan.decode([sequence], [decoding], 4)
    assert (plan.tokens_left, plan.rows_left, decoding.scheduled, decoding.unchecked_until) == (2, 1, 9, 8)
    assert [(item.start, item.new_blocks) for item in plan.decodes] == [(7, [1]), (8, [])]


def test_positions_scored_before_a_preemption_cost_no_rows() -> None:
    bench = Bench()
    bench.submit([1] * 20, max_tokens=1, prompt_logprobs=0)
    again = BlockAllocation(seq=0, blocks=[], scheduled=0, prefill_target=20, first_unscored=9)
    assert prefill_count(bench.scheduler.requests[0], again, StepPlan(0, 32, 4), max_tokens=32, chunked=True) == 13


# The prefix cache


def test_a_block_is_found_once_computed_not_before() -> None:
    prompt = list(range(1, 21))
    bench = Bench(SchedulerConfig(max_num_batched_tokens=32, max_num_seqs=4))
    bench.submit(prompt, max_tokens=9, ignore_eos=True)
    bench.submit(prompt, max_tokens=1)
    assert _items(_turn(bench)) == [(0, 0, 20), (1, 0, 12)]  # both in one step: nothing to find yet
    bench.submit(prompt, max_tokens=1)
    assert _items(_turn(bench)) == [(0, 20, 1), (2, 16, 4), (1, 12, 8)]  # 20 = 5 blocks, but the last token is computed
    bench.run()
    assert [bench.outputs[n][0].cached_tokens for n in range(3)] == [0, 0, 16]
    statistics = bench.scheduler.statistics()
    assert (statistics.prefix_queries, statistics.prefix_hits) == (60, 16)


def test_answers_are_found_by_the_next_turn_of_a_conversation() -> None:
    bench = Bench()
    bench.submit([1, 2, 3], max_tokens=8, ignore_eos=True)
    bench.run()
    bench.submit([1, 2, 3, *bench.tokens(0), 4, 5], max_tokens=1)
    bench.run()
    assert bench.outputs[1][0].cached_tokens == 8  # of 3 + 8 tokens 10 were computed, which fill two blocks


def test_salts_keep_requests_apart() -> None:
    bench = Bench()
    for salt in ("a", "b", "a"):
        bench.submit([7] * 13, salt=salt, max_tokens=1)
        bench.run()
    assert [bench.outputs[n][0].cached_tokens for n in range(3)] == [0, 0, 12]


def test_switched_off_nothing_is_found() -> None:
    bench = Bench(caching=False)
    for _ in range(2):
        bench.submit([7] * 13, max_tokens=1)
        bench.run()
    assert bench.outputs[1][0].cached_tokens == 0
    assert bench.scheduler.statistics().prefix_hits == 0


# The end of a sequence


def test_the_stopping_token_is_told_and_included() -> None:
    limits = limits_of()
    natural = expected(Request(id=0, prompt_ids=[5, 6], params=SamplingParams(max_tokens=9, ignore_eos=True)), limits)[
        0
    ]
    bench = Bench()
    bench.submit([5, 6], max_tokens=9, ignore_eos=True, stop_token_ids=(natural[3],))
    bench.run()
    cut = natural.index(natural[3]) + 1
    assert bench.tokens(0) == natural[:cut]
    assert (bench.final(0).finish_reason, bench.final(0).stop_token) == ("stop", natural[3])


def _prompt_that_draws_eos_at(position: int) -> list[int]:
    """A prompt whose answer has the first EOS at this index."""
    for first in range(1, 40):
        for second in range(1, 40):
            prompt, tokens = [first, second], [first, second]
            for _ in range(position + 1):
                tokens.append(scripted_token(tokens, 40))
            if EOS in tokens and tokens.index(EOS) == 2 + position:
                return prompt
    raise AssertionError("none found")


def test_eos_ends_unless_ignored_or_too_early() -> None:
    prompt = _prompt_that_draws_eos_at(3)
    bench = Bench()
    bench.submit(prompt, max_tokens=9)
    bench.submit(prompt, max_tokens=9, ignore_eos=True)
    bench.submit(prompt, max_tokens=9, min_tokens=3)
    bench.submit(prompt, max_tokens=5, min_tokens=4)
    bench.run()
    assert [len(bench.tokens(n)) for n in range(4)] == [4, 9, 4, 5]
    assert [(bench.final(n).finish_reason, bench.final(n).stop_token) for n in range(4)] == [
        ("stop", EOS),
        ("length", None),
        ("stop", EOS),
        ("length", None),
    ]


def test_eos_as_the_last_token_allowed_is_a_stop() -> None:
    bench = Bench()
    bench.submit(_prompt_that_draws_eos_at(3), max_tokens=4)
    bench.run()
    assert (bench.final(0).finish_reason, len(bench.tokens(0))) == ("stop", 4)


def test_more_tokens_than_the_model_holds_end_with_length() -> None:
    bench = Bench()
    bench.submit([1] * 50, max_tokens=1000, ignore_eos=True)
    bench.run()
    assert len(bench.tokens(0)) == 14 and bench.final(0).finish_reason == "length"
    assert not _warnings(bench)


def test_a_sequence_that_outgrows_the_memory_ends_with_length_and_a_warning() -> None:
    bench = Bench(limits=limits_of(num_blocks=6, max_model_len=64))
    bench.submit([1] * 10, max_tokens=1000, ignore_eos=True)
    bench.run()
    assert len(bench.tokens(0)) == 14
    assert _warnings(bench) == [
        (
            "request 0 ended at 24 tokens because the 6 KV blocks hold no more, below --max-model-len 64; raise "
            "--kv-cache-memory"
        )
    ]


def test_nothing_to_draw_and_nothing_to_score_ends_at_once() -> None:
    bench = Bench()
    bench.submit([1, 2, 3], max_tokens=0)
    assert bench.final(0).finish_reason == "length" and bench.scheduler.idle()


@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize("max_tokens", [0, 4])
def test_prompt_scores_come_once_within_the_row_budget_and_without_the_cache(max_tokens: int, lookahead: int) -> None:
    bench = Bench(
        SchedulerConfig(max_num_batched_tokens=32, max_num_seqs=4),
        limits=limits_of(max_sampled_rows=6),
        lookahead=lookahead,
    )
    prompt = list(range(1, 20))
    bench.submit(prompt, max_tokens=1)
    bench.run()
    bench.submit([30] * 4, max_tokens=30, ignore_eos=True)
    bench.submit(prompt, max_tokens=max_tokens, prompt_logprobs=0, ignore_eos=True)
    bench.run()
    first = bench.outputs[2][0]
    assert first.prompt_logprobs == [None, *(scripted_logprob(token, p) for p, token in enumerate(prompt) if p)]
    assert first.cached_tokens == 0
    assert len(bench.tokens(2)) == max_tokens and bench.final(2).finish_reason == "length"
    computed = sum(item.count for step in bench.steps for item in step.items if item.seq == 2)
    assert computed == (18 if max_tokens == 0 else 19 + 3)  # the last position is needed only to draw from


def test_scores_survive_a_preemption() -> None:
    """The scored request is pushed out halfway and goes on scoring where it was."""
    limits = limits_of(num_blocks=12, max_sampled_rows=4)
    bench = Bench(SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=4), limits=limits)
    bench.submit([1] * 7, max_tokens=30, ignore_eos=True)
    bench.submit([2] * 7, max_tokens=20, ignore_eos=True)
    bench.submit(list(range(1, 25)), max_tokens=2, prompt_logprobs=0, priority=1, ignore_eos=True)
    bench.run()
    assert bench.final(2).num_preemptions > 0
    assert bench.outputs[2][0].prompt_logprobs == [None, *(scripted_logprob(p + 1, p) for p in range(1, 24))]


def test_a_stop_string_found_by_the_client_becomes_the_reason() -> None:
    bench = Bench()
    bench.submit([1, 2], max_tokens=50, ignore_eos=True)
    _turn(bench)
    bench.abort(0, "stop")
    assert bench.final(0).finish_reason == "stop" and bench.final(0).stop_token is None
    bench.abort(0)  # a second one is ignored
    bench.abort(99)
    bench.check_rest()


def test_seeds_are_drawn_where_there_are_none() -> None:
    def seeds(source: int) -> list[int | None]:
        scheduler = Scheduler(
            SchedulerConfig(), KvConfig(), limits_of(max_sampled_rows=128), [EOS], seeds=random.Random(source)
        )
        for number, seed in enumerate((None, 7, None)):
            request = Request(id=number, prompt_ids=[1], params=SamplingParams(seed=seed))
            scheduler.apply(RequestArrived(0.0, request))
        step = scheduler.next_step()
        assert step is not None
        return [start.params.seed for start in step.starts]

    assert seeds(1) == seeds(1) != seeds(2)
    assert seeds(1)[1] == 7 and None not in seeds(1)


# One step ahead


def test_without_lookahead_a_step_waits_for_the_one_before() -> None:
    bench = Bench()
    bench.submit([1, 2], max_tokens=5, ignore_eos=True)
    assert bench.step() is not None
    assert bench.step() is None


def test_with_lookahead_the_next_position_is_scheduled_before_its_token_is_known() -> None:
    bench = Bench(lookahead=1)
    bench.submit([1, 2], max_tokens=4, ignore_eos=True)
    assert _items(bench.step()) == [(0, 0, 2)]
    assert _items(bench.step()) == [(0, 2, 1)]
    assert bench.step() is None  # two in flight are enough
    bench.finish_step()
    assert _items(bench.step()) == [(0, 3, 1)]
    bench.finish_step()
    assert _items(bench.step()) == [(0, 4, 1)]
    bench.finish_step()
    assert bench.step() is None  # four tokens are drawn or being drawn: a fifth would be one too many
    bench.finish_step()
    assert len(bench.tokens(0)) == 4
    bench.check_rest()


def test_the_token_drawn_too_much_is_dropped_and_its_block_kept_until_then() -> None:
    prompt = _prompt_that_draws_eos_at(2)
    bench = Bench(lookahead=1, limits=limits_of(num_blocks=2))
    bench.submit(prompt, max_tokens=9)
    bench.step()
    while bench.scheduler.statistics().num_running:
        bench.step()
        bench.finish_step()
    assert bench.executor.pending == 1 and bench.scheduler.allocator.pool.num_free == 0
    bench.finish_step()
    assert len(bench.tokens(0)) == 3
    bench.check_rest()


# The worker's state


def test_ends_travel_with_the_next_step() -> None:
    bench = Bench()
    bench.submit([1, 2], max_tokens=1)
    bench.submit([1, 3], max_tokens=2, ignore_eos=True)
    _turn(bench)
    assert _turn(bench).ends == [0]
    assert bench.step() is None
    bench.submit([1, 4], max_tokens=1)
    assert _turn(bench).ends == [1]


def test_a_lost_step_ends_its_requests_and_the_others_start_again() -> None:
    def fault(step: Step) -> Exception | None:
        return RuntimeError("out of memory") if step.number == 2 else None

    bench = Bench(SchedulerConfig(max_num_batched_tokens=8, max_num_seqs=3), lookahead=1, fault=fault)
    bench.submit([1] * 4, max_tokens=1)
    bench.submit([2] * 4, max_tokens=9, ignore_eos=True)
    bench.step()  # 0
    bench.finish_step()
    bench.submit([3] * 20, max_tokens=2, ignore_eos=True)
    bench.step()  # 1 tells the worker of the first one's end
    bench.finish_step()
    bench.abort(1)
    bench.submit([4] * 30, max_tokens=2, ignore_eos=True)
    lost = bench.step()  # 2: the third's prefill, and the end of the second
    assert lost is not None and lost.ends == [1]
    bench.step()  # 3 is lost with it
    bench.finish_step()
    assert bench.final(2).error_kind == "InternalError" and "out of memory" in (bench.final(2).error or "")
    bench.submit([5] * 4, max_tokens=2, ignore_eos=True)
    following = bench.step()
    assert following is not None and 1 in following.ends and 2 in following.ends
    bench.finish_step()
    bench.run()
    assert len(bench.tokens(4)) == 2


def test_results_that_cannot_be_are_refused() -> None:
    def scheduler() -> Scheduler:
        made = Scheduler(SchedulerConfig(), KvConfig(), limits_of(max_sampled_rows=128), [EOS])
        made.apply(RequestArrived(0.0, Request(id=0, prompt_ids=[1], params=SamplingParams())))
        made.next_step()
        return made

    for result, complaint in (
        (StepResult(1, [Advance(0, [1])]), "not the oldest in flight"),
        (StepResult(0, []), "drew tokens for other sequences"),
        (StepResult(0, [Advance(0, [1]), Advance(1, [1])]), "drew tokens for other sequences"),
        (StepResult(0, [Advance(0, [40])]), "not in the vocabulary"),
    ):
        with pytest.raises(InternalError, match=complaint):
            scheduler().apply(StepDone(0.0, result))
    twice = scheduler()
    with pytest.raises(InternalError, match="request id 0 is in use"):
        twice.apply(RequestArrived(0.0, Request(id=0, prompt_ids=[1], params=SamplingParams())))


def test_small_steps_have_fewer_sequences_unless_somebody_says_otherwise() -> None:
    assert SchedulerConfig().max_num_seqs == 128
    assert SchedulerConfig(max_num_batched_tokens=48).max_num_seqs == 48
    assert SchedulerConfig(max_num_batched_tokens=48, max_num_seqs=3).max_num_seqs == 3


def test_limits_that_cannot_work_are_refused() -> None:
    with pytest.raises(UserError, match="--max-num-seqs 9 is more than --max-num-batched-tokens 8"):
        Bench(SchedulerConfig(max_num_batched_tokens=8, max_num_seqs=9))
    with pytest.raises(InternalError, match="the worker samples 4 rows a step; 8 sequences"):
        Bench(limits=limits_of(max_sampled_rows=4))
    with pytest.raises(InternalError, match="lookahead is 2"):
        Bench(lookahead=2)


@pytest.mark.parametrize(("blocks", "slots"), [(64, 1), (8, 4)], ids=["no slot", "no blocks"])
def test_a_prompt_that_nobody_waits_for_goes_on_where_an_awaited_one_waits_for_what_it_holds(
    blocks: int, slots: int
) -> None:
    bench = Bench(SchedulerConfig(max_num_batched_tokens=8, max_num_seqs=slots), limits=limits_of(num_blocks=blocks))
    bench.submit([1] * 20, max_tokens=2, ignore_eos=True, urgency=Urgency.BACKGROUND)
    bench.step()
    bench.finish_step()
    bench.submit([2] * 16, max_tokens=2, ignore_eos=True)
    bench.run()


def test_what_nobody_waits_for_goes_behind_requests_of_a_key_that_had_more() -> None:
    bench = Bench(SchedulerConfig(max_num_batched_tokens=8, max_num_seqs=1))
    bench.submit([1] * 8, max_tokens=4, ignore_eos=True, key="chat")
    bench.run()
    batch = bench.submit([2] * 8, max_tokens=2, ignore_eos=True, key="batch", urgency=Urgency.BACKGROUND)
    chat = bench.submit([3] * 8, max_tokens=2, ignore_eos=True, key="chat")
    while not bench.tokens(chat):
        assert not bench.tokens(batch)
        bench.step()
        bench.finish_step()
    bench.run()
