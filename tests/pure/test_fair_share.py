"""How keys share the machine: who goes first, how long anybody waits, and what a flood of one key does to another."""

from __future__ import annotations

import statistics

import pytest

from homenode.engine.scheduler.events import Emit
from homenode.engine.scheduler.order.fair_share import AGED_S, EQUAL_S, RECENT_S, KeyShares
from homenode.engine.scheduler.steps.time_bound import yielding_limit
from homenode.engine.scheduler_config import SchedulerConfig
from tests.pure.schedule_bench import Bench, limits_of

TOKEN_S = 0.001
LIMITS = limits_of(num_blocks=420, block_size=32, max_model_len=800, max_sampled_rows=128)
CONFIG = SchedulerConfig(max_num_batched_tokens=512, max_num_seqs=64)


def bench_of(config: SchedulerConfig = CONFIG, lookahead: int = 1) -> Bench:
    return Bench(config, limits=LIMITS, lookahead=lookahead, caching=False, token_s=TOKEN_S)


def prompt(tokens: int, number: int = 0) -> list[int]:
    return [1 + (number + at) % 39 for at in range(tokens)]


def spend(bench: Bench, key: str, seconds: float) -> None:
    """Let `key` have the machine for so long."""
    begun = bench.now
    while bench.now < begun + seconds:
        bench.submit(prompt(400), key=key, max_tokens=1, ignore_eos=True)
        bench.run()


def first_token_s(bench: Bench, number: int) -> float:
    """Go on until request `number` has its first token; the seconds that takes."""
    begun = bench.now
    while not bench.tokens(number):
        bench.fill()
        assert bench.finish_step()
    return bench.now - begun


def ends(bench: Bench) -> list[int]:
    """Requests in the order in which they ended."""
    told = (output for each in bench.instructions if isinstance(each, Emit) for output in each.outputs)
    return [output.id for output in told if output.finish_reason is not None]


def test_the_key_that_had_least_goes_first_whenever_it_comes() -> None:
    bench = bench_of(SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=1))
    spend(bench, "ada", 2.0)
    before = len(bench.requests)
    for key in ("ada", "ada", "bob", "ada", "bob"):
        bench.submit(prompt(8), key=key, max_tokens=1, ignore_eos=True)
    bench.run()
    assert [number - before for number in ends(bench)[before:]] == [2, 4, 0, 1, 3]


def test_a_minute_later_nothing_counts_any_more() -> None:
    bench = bench_of()
    spend(bench, "ada", 2.0)
    shares = bench.scheduler.lists.shares
    bench.submit(prompt(8), key="bob", max_tokens=1)
    assert shares.ahead("bob", "ada") and shares.yields("ada") and not shares.yields("bob")
    bench.run()
    bench.tick(61.0)
    assert shares.cost("ada") == shares.cost("bob") == 0.0
    assert not shares.ahead("bob", "ada") and not shares.yields("ada")


def test_equals_take_turns_by_the_tokens_of_their_prompts() -> None:
    bench = bench_of(SchedulerConfig(max_num_batched_tokens=512, max_num_seqs=1), lookahead=0)
    bench = Bench(bench.config, limits=LIMITS, caching=False)  # steps that take no time: all keys are equal
    for _ in range(2):
        bench.submit(prompt(512), key="long", max_tokens=1, ignore_eos=True)
    for _ in range(6):
        bench.submit(prompt(128), key="short", max_tokens=1, ignore_eos=True)
    bench.run()
    order = ["long" if number < 2 else "short" for number in ends(bench)]
    assert order[:2] == ["short", "short"] and order.index("long") <= 4  # 512 tokens are as many as four times 128
    assert order[-1] == "long" or order[-2:].count("short") <= 2


def test_nobody_waits_for_ever() -> None:
    """A key that has had much is served although another one, which has had less, always has something waiting."""
    bench = bench_of(SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=1))
    spend(bench, "ada", 25.0)
    waits = bench.submit(prompt(8), key="ada", max_tokens=1, ignore_eos=True)
    begun = bench.now
    while not bench.tokens(waits):
        if bench.scheduler.statistics().num_waiting < 3:
            bench.submit(prompt(60), key="bob", max_tokens=1, ignore_eos=True)
        bench.fill()
        bench.finish_step()
        assert bench.now - begun < AGED_S + 2.0
    bench.run()


@pytest.mark.parametrize("lookahead", [0, 1])
def test_a_flood_of_one_key_leaves_the_other_alone(lookahead: int) -> None:
    """32 clients with prompts of 256 tokens and answers of 48, and one with prompts of 384, at every phase
    of a step.
    """
    bench = bench_of(lookahead=lookahead)
    alone, among = [], []
    for _ in range(8):
        number = bench.submit(prompt(384), key="calm", max_tokens=2, ignore_eos=True)
        alone.append(first_token_s(bench, number))
        bench.run()
    flood = {bench.submit(prompt(256, n), key="crowd", max_tokens=48, ignore_eos=True) for n in range(32)}

    def turn() -> None:
        nonlocal flood
        bench.fill()
        assert bench.finish_step()
        over = {number for number in flood if bench.outputs.get(number) and bench.outputs[number][-1].finish_reason}
        flood -= over
        flood |= {bench.submit(prompt(256, n), key="crowd", max_tokens=48, ignore_eos=True) for n in over}

    begun = bench.now
    while bench.now < begun + 6.0:
        turn()
    for _ in range(20):
        bench.fill()  # it comes while a step is computed
        came = bench.now
        number = bench.submit(prompt(384), key="calm", max_tokens=2, ignore_eos=True)
        while not bench.tokens(number):
            turn()
        among.append(bench.now - came)
        for _ in range(40):
            turn()
    # Up to two steps that were begun before it came, and readers of the crowd who go on in each of its own.
    step_s, readers_s = CONFIG.step_time / 1000, CONFIG.max_num_seqs * TOKEN_S
    most = 2 * yielding_limit(readers_s, step_s) + statistics.median(alone) * step_s / (step_s - readers_s)
    assert max(among) < most, (among, alone)
    assert statistics.median(among) < 1.5 * statistics.median(alone)
    bench.run()


def test_steps_are_short_while_another_key_asks_and_long_again_soon() -> None:
    bench = bench_of(lookahead=0)
    bench.submit(prompt(100), key="calm", max_tokens=1, ignore_eos=True)
    bench.run()
    spend(bench, "crowd", 2.0)
    took: list[float] = []
    asked = bench.now
    bench.submit(prompt(40), key="calm", max_tokens=1, ignore_eos=True)
    while bench.now < asked + RECENT_S + 3.0:
        begun = bench.now
        bench.submit(prompt(400), key="crowd", max_tokens=1, ignore_eos=True)
        bench.fill()
        assert bench.finish_step()
        if begun > asked + 1.0:
            took.append(bench.now - begun)
    step_s = CONFIG.step_time / 1000
    assert max(took[:3]) <= step_s / 4
    assert max(took[-3:]) > step_s


def test_a_full_queue_has_room_for_another_key() -> None:
    bench = bench_of(SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=1, max_num_queued_requests=8))
    for _ in range(12):
        bench.submit(prompt(8), key="crowd", max_tokens=4, ignore_eos=True)
    refused = [number for number, outputs in bench.outputs.items() if outputs[-1].error_kind == "OverloadedError"]
    assert refused
    taken = [bench.submit(prompt(8), key="calm", max_tokens=4, ignore_eos=True) for _ in range(8)]
    let_in = [number for number in taken if not bench.outputs.get(number)]
    assert 4 <= len(let_in) <= 5  # half of the queue, and the slot that is free
    bench.run()


def test_slots_are_left_for_the_key_that_goes_first() -> None:
    bench = bench_of(SchedulerConfig(max_num_batched_tokens=512, max_num_seqs=16))
    bench.submit(prompt(8), key="calm", max_tokens=1, ignore_eos=True)
    bench.run()
    spend(bench, "crowd", 2 * EQUAL_S)
    for n in range(40):
        bench.submit(prompt(8, n), key="crowd", max_tokens=400, ignore_eos=True)
    for _ in range(20):
        bench.fill()
        bench.finish_step()
    assert bench.scheduler.statistics().num_running == 14
    number = bench.submit(prompt(8), key="calm", max_tokens=4, ignore_eos=True)
    assert first_token_s(bench, number) < 0.1
    bench.run()


def test_costs_go_to_keys_by_their_tokens() -> None:
    bench = bench_of(lookahead=0)
    bench.submit(prompt(300), key="ada", max_tokens=1, ignore_eos=True)
    bench.submit(prompt(100), key="bob", max_tokens=1, ignore_eos=True)
    bench.run()
    shares = bench.scheduler.lists.shares
    assert shares.cost("ada") == pytest.approx(0.3) and shares.cost("bob") == pytest.approx(0.1)
    assert not KeyShares().several and KeyShares().cost("ada") == 0.0
