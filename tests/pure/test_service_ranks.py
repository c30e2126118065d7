"""Ranks of requests at the scheduler: who goes first, and that whoever yields to others does not starve."""

from __future__ import annotations

import random

import pytest

from homenode.engine.scheduler.order.fair_share import AGED_S
from homenode.engine.scheduler_config import SchedulerConfig
from homenode.server.keys.service_tiers import PRIORITY_OF_TIER
from tests.examples import seeds
from tests.pure.schedule_bench import Bench, limits_of

TOKEN_S = 0.002
LONGEST = 240  # tokens of a prompt
MOST = 40  # tokens of an answer


def bench_of(rng: random.Random) -> Bench:
    """A machine that is small in slots, blocks or time, or in all of them."""
    num_seqs = rng.choice([1, 2, 4, 8])
    config = SchedulerConfig(
        max_num_batched_tokens=rng.choice([32, 64, 256]),
        max_num_seqs=num_seqs,
        step_time=rng.choice([0.0, 20.0, 150.0]),
        enable_chunked_prefill=True,
    )
    blocks = rng.choice([1, 2, num_seqs]) * -(-(LONGEST + MOST) // 16) + 2
    limits = limits_of(num_blocks=blocks, block_size=16, max_model_len=LONGEST + MOST, max_sampled_rows=8)
    return Bench(config, limits=limits, lookahead=rng.randrange(2), caching=rng.random() < 0.5, token_s=TOKEN_S)


def asked(bench: Bench, rng: random.Random, tier: str, key: str = "") -> int:
    prompt = [rng.randrange(1, 40) for _ in range(rng.randint(1, LONGEST))]
    priority = PRIORITY_OF_TIER[tier]  # type: ignore[index]
    return bench.submit(prompt, priority=priority, key=key, max_tokens=rng.randint(1, MOST), ignore_eos=True)


def turn(bench: Bench) -> None:
    bench.fill()
    if not bench.finish_step():
        bench.tick(0.01)


@pytest.mark.parametrize("seed", seeds(40))
def test_whoever_yields_does_not_starve(seed: int) -> None:
    """Others of higher ranks come without an end. The whole machine could compute it in `own_s`; it has its answer as
    soon as it has waited for long, and as many times of that and of what others are in the midst of.
    """
    rng = random.Random(seed)
    bench = bench_of(rng)
    tier = rng.choice(["flex", "default"])
    above = ["priority"] if tier == "default" else rng.choice([["priority"], ["default"], ["default", "priority"]])
    for _ in range(bench.config.max_num_seqs + 4):
        asked(bench, rng, rng.choice(above))
    for _ in range(20):
        turn(bench)
    number = asked(bench, rng, tier)
    begun, longest_s = bench.now, (LONGEST + MOST) * TOKEN_S
    by = begun + AGED_S + 8 * longest_s * (1 + bench.config.max_num_seqs)
    while not (bench.outputs.get(number) and bench.outputs[number][-1].finish_reason):
        while bench.scheduler.statistics().num_waiting < 3:
            asked(bench, rng, rng.choice(above))
        turn(bench)
        assert bench.now < by, f"it has {len(bench.tokens(number))} tokens after {bench.now - begun:.1f} s"
    bench.run()


@pytest.mark.parametrize("seed", seeds(10))
def test_a_higher_rank_goes_before_lower_ones_that_wait(seed: int) -> None:
    """With one place, whichever came first; nobody has waited for long."""
    rng = random.Random(seed)
    config = SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=1, step_time=rng.choice([0.0, 150.0]))
    limits = limits_of(num_blocks=40, block_size=16, max_model_len=LONGEST + MOST, max_sampled_rows=8)
    bench = Bench(config, limits=limits, token_s=0.0001)
    asked(bench, rng, "default")
    turn(bench)
    tiers = [rng.choice(list(PRIORITY_OF_TIER)) for _ in range(12)]
    numbers = [asked(bench, rng, tier) for tier in tiers]
    order: list[int] = []
    while len(order) < len(numbers):
        turn(bench)
        order += [n for n in numbers if n not in order and bench.tokens(n)]
    ranks = [PRIORITY_OF_TIER[tiers[number - numbers[0]]] for number in order]  # type: ignore[index]
    assert ranks == sorted(ranks)
    bench.run()
