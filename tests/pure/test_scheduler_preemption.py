"""Who gives way when KV blocks run out, and that all get on."""

from __future__ import annotations

import pytest

from homenode.engine.kv.sequence import BlockAllocation, Sequence
from homenode.engine.scheduler.events import Warn
from homenode.engine.scheduler.order.preemption import choose_victim
from homenode.engine.scheduler_config import SchedulerConfig
from homenode.engine.step import Step
from tests.pure.schedule_bench import Bench, limits_of

_CONFIG = SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=8)


def _until_preemption(bench: Bench) -> Step:
    """The step that was planned when the first preemption happened."""
    for _ in range(200):
        step = bench.step()
        assert step is not None
        if bench.scheduler.statistics().preemptions:
            return step
        bench.finish_step()
    raise AssertionError("memory never ran out")


def _running(bench: Bench) -> list[int]:
    return [s.id for s in bench.scheduler.lists.running]


def test_the_cheapest_to_compute_again_gives_way_not_the_last() -> None:
    bench = Bench(_CONFIG, limits=limits_of(num_blocks=16))
    bench.submit([1] * 15, max_tokens=40, ignore_eos=True)
    bench.submit([2] * 7, max_tokens=40, ignore_eos=True)
    bench.submit([3] * 15, max_tokens=40, ignore_eos=True)
    _until_preemption(bench)
    assert _running(bench) == [0, 2]
    bench.finish_step()
    bench.run()


def test_what_others_share_costs_nothing() -> None:
    """The last one is the longest, but most of it lies in blocks it shares with the first."""
    bench = Bench(_CONFIG, limits=limits_of(num_blocks=16))
    bench.submit([1] * 25, max_tokens=40, ignore_eos=True)
    bench.finish_step() if bench.step() else None
    bench.submit([2] * 9, max_tokens=40, ignore_eos=True)
    bench.submit([1] * 24 + [3], max_tokens=40, ignore_eos=True)
    _until_preemption(bench)
    assert bench.outputs[2][0].cached_tokens == 24
    assert _running(bench) == [0, 1]
    bench.finish_step()
    bench.run()


def test_the_least_important_gives_way_first_whatever_it_costs() -> None:
    bench = Bench(_CONFIG, limits=limits_of(num_blocks=16))
    bench.submit([1] * 7, max_tokens=40, ignore_eos=True)
    bench.submit([2] * 7, max_tokens=40, ignore_eos=True)
    bench.submit([3] * 23, max_tokens=40, ignore_eos=True, priority=1)
    _until_preemption(bench)
    assert _running(bench) == [0, 1]
    bench.finish_step()
    bench.run()


def test_a_preempted_request_keeps_its_place_and_goes_on_under_a_new_handle() -> None:
    bench = Bench(SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=3), limits=limits_of(num_blocks=12))
    for n in range(3):
        bench.submit([n + 1] * 7, max_tokens=25, ignore_eos=True)
    bench.submit([9] * 9, max_tokens=2, ignore_eos=True)  # waits behind the three
    step = _until_preemption(bench)
    (victim,) = {0, 1, 2} - set(_running(bench))
    assert not step.starts, "nobody is admitted in a step that preempted"
    assert victim in step.ends
    first = bench.scheduler.lists.waiting.first()
    assert first is not None and first.id == victim
    bench.finish_step()
    bench.run()
    starts = [start for step in bench.steps for start in step.starts if start.token_ids[:7] == [victim + 1] * 7]
    assert starts[0].seq == victim and starts[1].seq > 2 and len(starts[1].token_ids) > starts[1].num_prompt == 7
    assert bench.final(victim).num_preemptions >= 1


def test_the_warning_names_the_request_the_cause_what_to_raise_and_the_total() -> None:
    bench = Bench(_CONFIG, limits=limits_of(num_blocks=12))
    for n in range(3):
        bench.submit([n + 1] * 7, max_tokens=30, ignore_eos=True)
    bench.run()
    warnings = [i.message for i in bench.instructions if isinstance(i, Warn)]
    assert len(warnings) == bench.scheduler.statistics().preemptions >= 2
    assert "request 2 was preempted: none of the 12 KV blocks was free for" in warnings[0]
    assert "--kv-cache-memory" in warnings[0] and "--max-num-seqs" in warnings[0]
    assert warnings[-1].endswith(f"Preemptions since the start: {len(warnings)}")


@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize("bound", [0, 1, 3])
def test_the_bound_holds_but_for_the_sake_of_the_first(bound: int, lookahead: int) -> None:
    """Whenever one beyond the bound was taken, the needy one was the first in order."""
    bench = Bench(
        SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=8, max_preemptions=bound),
        limits=limits_of(num_blocks=14),
        lookahead=lookahead,
    )
    for n in range(12):
        bench.submit([n + 1] * 5, max_tokens=40, ignore_eos=True)
    counted: dict[int, int] = {}
    seen = 0
    while not bench.scheduler.idle():
        first = bench.scheduler.lists.running[0].id if bench.scheduler.lists.running else None
        bench.step()
        bench.finish_step()
        warnings = [i.message for i in bench.instructions if isinstance(i, Warn)]
        for text in warnings[seen:]:
            victim = int(text.split()[1])
            if counted.get(victim, 0) >= bound:
                assert f"the next token of request {first}." in text
            counted[victim] = counted.get(victim, 0) + 1
        seen = len(warnings)
    assert sum(counted.values()) == bench.scheduler.statistics().preemptions > 0
    bench.check_rest()


def test_with_a_step_in_flight_the_victim_s_token_still_counts() -> None:
    bench = Bench(_CONFIG, limits=limits_of(num_blocks=6), lookahead=1)
    bench.submit([1] * 7, max_tokens=16, ignore_eos=True)
    bench.submit([2] * 7, max_tokens=16, ignore_eos=True)
    while not bench.scheduler.statistics().preemptions:
        bench.step()
        before = {n: len(bench.tokens(n)) for n in (0, 1)}
        if bench.scheduler.statistics().preemptions:
            break
        if bench.executor.pending == 2:
            bench.finish_step()
    assert _running(bench) == [0]
    bench.finish_step()
    assert len(bench.tokens(1)) == before[1] + 1
    bench.run()
    assert [len(bench.tokens(n)) for n in (0, 1)] == [16, 16]


def _ahead(bench: Bench, steps: int) -> None:
    """Send this many steps; the last is still in flight."""
    while len(bench.steps) < steps:
        if bench.step() is None:
            bench.finish_step()
    while bench.executor.pending > 1:
        bench.finish_step()


def test_nobody_is_preempted_for_blocks_that_are_on_their_way_back() -> None:
    """Three times three blocks are full, and the next position of each needs a fourth; one leaves with a step in
    flight.
    """
    bench = Bench(_CONFIG, limits=limits_of(num_blocks=9), lookahead=1)
    for n in range(3):
        bench.submit([n + 1] * 7, max_tokens=10, ignore_eos=True)
    _ahead(bench, 6)
    bench.abort(2)
    assert bench.step() is None
    bench.finish_step()
    assert [item.new_blocks != [] for item in _turn(bench).items] == [True, True]
    bench.run()
    assert bench.scheduler.statistics().preemptions == 0


def test_nor_while_the_last_token_of_another_is_being_drawn() -> None:
    """As above, but the one that leaves does so by itself: its sixth and last token is drawn by the step in flight."""
    bench = Bench(_CONFIG, limits=limits_of(num_blocks=9), lookahead=1)
    for n, max_tokens in enumerate((10, 6, 10)):
        bench.submit([n + 1] * 7, max_tokens=max_tokens, ignore_eos=True)
    _ahead(bench, 6)
    assert bench.step() is None
    bench.finish_step()
    assert [item.seq for item in _turn(bench).items] == [0, 2]
    bench.run()
    assert bench.scheduler.statistics().preemptions == 0


def test_a_newcomer_leaves_a_block_for_the_others_to_grow_into() -> None:
    for prompt, admitted in ((11, True), (12, False)):  # with the next token 3 and 4 of the 6 blocks; the first has 2
        bench = Bench(_CONFIG, limits=limits_of(num_blocks=6))
        bench.submit([1] * 6, max_tokens=2, ignore_eos=True)
        bench.submit([2] * prompt, max_tokens=2, ignore_eos=True)
        assert bool(_turn(bench).starts[1:]) is admitted
        bench.run()


def test_whole_prompts_only_does_not_lock_out_one_that_grew_beyond_a_step() -> None:
    config = SchedulerConfig(max_num_batched_tokens=12, max_num_seqs=4, enable_chunked_prefill=False)
    bench = Bench(config, limits=limits_of(num_blocks=10), caching=False)
    for n in range(2):
        bench.submit([n + 1] * 7, max_tokens=30, ignore_eos=True)
    bench.run()
    again = [start for step in bench.steps for start in step.starts if len(start.token_ids) > 12]
    assert again and [len(bench.tokens(n)) for n in range(2)] == [30, 30]


def test_a_block_on_its_way_back_serves_one_only() -> None:
    """Four sequences: one takes the last free block, one waits for the block of the fourth, which leaves, the third
    gives way.
    """
    bench = Bench(_CONFIG, limits=limits_of(num_blocks=11), lookahead=1)
    for n in range(3):
        bench.submit([n + 1] * 7, max_tokens=12, ignore_eos=True)
    _ahead(bench, 5)
    bench.submit([9] * 3, max_tokens=12)
    _ahead(bench, 6)
    assert bench.scheduler.allocator.pool.num_free == 1
    bench.abort(3)
    step = bench.step()
    assert step is not None and [item.seq for item in step.items] == [0]
    assert bench.scheduler.statistics().preemptions == 1 and _running(bench) == [0, 1]
    bench.run()


def _turn(bench: Bench) -> Step:
    step = bench.step()
    assert step is not None
    assert bench.finish_step()
    return step


def test_nobody_is_admitted_in_a_step_that_preempted_even_if_there_is_room() -> None:
    bench = Bench(SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=3), limits=limits_of(num_blocks=16))
    bench.submit([1] * 7, max_tokens=40, ignore_eos=True)
    bench.submit([2] * 7, max_tokens=40, ignore_eos=True)
    bench.submit([3] * 23, max_tokens=40, ignore_eos=True, priority=1)
    _turn(bench)
    bench.submit([4] * 3, max_tokens=2, ignore_eos=True)  # more important than the third, but all places are taken
    step = _until_preemption(bench)
    assert _running(bench) == [0, 1] and not step.starts
    bench.finish_step()
    assert [start.token_ids for start in _turn(bench).starts] == [[4] * 3]
    bench.run()


def _sequence(number: int, *, priority: int = 0, preemptions: int = 0) -> Sequence:
    bench = Bench()
    bench.submit([1, 2, 3], max_tokens=9, priority=priority)
    sequence = bench.scheduler.requests[0]
    sequence.order = (priority, 0.0, number)
    sequence.preemptions = preemptions
    return sequence


def test_no_victim_is_more_important_than_the_needy() -> None:
    first, middle, last = _sequence(0), _sequence(1), _sequence(2, priority=1)
    running = [first, middle, last]
    assert choose_victim(last, running, first, 8, lambda s: s.order[2]) is last
    assert choose_victim(middle, running, first, 8, lambda s: 10 - s.order[2]) is last
    assert choose_victim(first, [first], first, 8, lambda s: 0) is None
    last.preemptions = 8  # it may not be taken once more, but that is no reason to take the other
    assert choose_victim(last, running, first, 8, lambda s: 5) is None


def test_one_about_to_finish_is_no_victim() -> None:
    first, middle, last = _sequence(0), _sequence(1), _sequence(2)
    last.allocation = BlockAllocation(
        seq=0, blocks=[0, 1, 2], scheduled=11, computed=3, prefill_target=3, first_unscored=3
    )
    assert last.pending == 9 and last.exhausted  # all it may draw is being drawn
    assert choose_victim(first, [first, middle, last], first, 8, lambda s: 5) is middle
    assert choose_victim(first, [first, last], first, 8, lambda s: 5) is None


def test_equal_costs_make_the_last_to_arrive_give_way() -> None:
    running = [_sequence(n) for n in range(4)]
    assert choose_victim(running[1], running, running[0], 8, lambda s: 5) is running[3]


def test_beyond_the_bound_the_needy_waits_unless_it_is_first() -> None:
    running = [_sequence(0), _sequence(1, preemptions=2), _sequence(2, preemptions=2)]
    assert choose_victim(running[1], running, running[0], 2, lambda s: 5) is None
    assert choose_victim(running[0], running, running[0], 2, lambda s: 5) is running[2]
    fresh = _sequence(3)
    assert choose_victim(running[1], [*running, fresh], running[0], 2, lambda s: 5) is fresh
