"""Whole simulations: everything ends once, the same input gives the same, faster is never slower."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from homenode.engine.scheduler.scheduler import Scheduler
from homenode.engine.scheduler_config import KvConfig, SchedulerConfig
from homenode.engine.step import WorkerLimits
from homenode.host.plan.numa.weight_cost import ModelWork
from homenode.simulate.costs import Link, StageCost, WorkerCost, WorkerWork
from homenode.simulate.engine import SimulatedEngine
from homenode.simulate.rates import Rates
from homenode.simulate.run import Outcome, simulate
from homenode.simulate.stats import OutcomeStats, percentiles
from homenode.simulate.workload import Job, Workload, synthetic
from tests.examples import examples

LIMITS = WorkerLimits(num_blocks=64, block_size=32, max_model_len=1024, vocab_size=1000, max_sampled_rows=16)
RATES = Rates(byte=1e-9, operation=1e-9, unpacking=1e-9, exchange_layer=0.0, exchange_byte=0.0, barrier=1e-6)
WORK = WorkerWork(ModelWork(10_000_000, 1e5, 100, 2, 0), 0.0, 0.0, 10.0)
STAGE = StageCost((WorkerCost(RATES, WORK),), row_bytes=64)


def engine(stages: int = 1, stage: StageCost = STAGE) -> SimulatedEngine:
    config = SchedulerConfig(max_num_batched_tokens=128, max_num_seqs=16, step_time=0, max_num_queued_requests=20)
    scheduler = Scheduler(
        config, KvConfig(block_size=32), LIMITS, (), hash_seed=bytes(32), lookahead=stages == 1, stages=stages
    )
    return SimulatedEngine(scheduler, (stage,) * stages, back=1e-5)


def run(workload: Workload, engines: int = 1, stages: int = 1, stage: StageCost = STAGE) -> Outcome:
    return simulate([engine(stages, stage) for _ in range(engines)], [64] * engines, 32, 1000, workload)


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(st.floats(0, 1), st.integers(1, 1200), st.integers(1, 60)), min_size=1, max_size=40),
    st.integers(1, 3),
    st.integers(1, 4),
)
def test_every_request_ends_once(asked: list[tuple[float, int, int]], engines: int, stages: int) -> None:
    jobs = sorted((Job(at, prompt, output) for at, prompt, output in asked), key=lambda job: job.at)
    outcome = run(Workload("", jobs), engines, stages)
    assert outcome.requests == len(jobs) == outcome.finished + outcome.refused == sum(outcome.by_engine)
    assert len(outcome.latency) == outcome.finished
    assert len(outcome.ttft) + len(outcome.itl) == outcome.output_tokens
    assert all(gap >= 0 for gap in (*outcome.itl, *outcome.ttft))
    if not outcome.refused:
        assert outcome.output_tokens == sum(min(job.output, 1024 - job.prompt) for job in jobs)
        assert outcome.prompt_tokens == sum(job.prompt for job in jobs)


@pytest.mark.parametrize(("engines", "stages"), [(1, 1), (1, 3), (3, 1), (2, 2)])
def test_the_same_again(engines: int, stages: int) -> None:
    outcomes = []
    for _ in range(2):
        workload = synthetic("poisson:rate=50,in=100,out=20,n=60,seed=3")
        assert workload is not None
        outcomes.append(run(workload, engines, stages))
    assert outcomes[0] == outcomes[1]


def test_one_request_by_hand() -> None:
    """100 tokens in one step, and 4 more tokens, each read at 10 MB and its context; nothing else runs."""
    outcome = run(Workload("", [Job(2.0, 100, 5)]))
    cost = WorkerCost(RATES, WORK)
    from homenode.engine.scheduler.steps.step_load import StepLoad

    first = cost.seconds(StepLoad(100, 1, 100, 100 * 101 // 2))
    rest = [cost.seconds(StepLoad(1, 1, n, n)) for n in range(101, 105)]
    assert list(outcome.ttft) == pytest.approx([first + 1e-5])
    assert list(outcome.itl) == pytest.approx(rest, rel=1e-9)
    assert outcome.end == pytest.approx(2.0 + first + sum(rest) + 1e-5)


def test_clients_have_one_request_each() -> None:
    workload = synthetic("closed:clients=3,in=50,out=10,n=20")
    assert workload is not None
    outcome = run(workload)
    assert outcome.finished == 20 and outcome.output_tokens == 200
    assert sum(outcome.latency) <= 3 * outcome.end * (1 + 1e-9)  # never more than three at once


@settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(1, 8), st.integers(1, 300), st.integers(1, 40), st.integers(1, 3), st.floats(1.0, 10.0))
def test_faster_memory_is_never_slower(clients: int, prompt: int, output: int, stages: int, times: float) -> None:
    """With clients that all begin at once: what a faster machine could lose by other batches is not in it."""
    text = f"closed:clients={clients},in={prompt},out={output},n={clients}"
    faster = replace(STAGE, workers=(WorkerCost(replace(RATES, byte=RATES.byte / times), WORK),))
    ends = []
    for stage in (STAGE, faster):
        workload = synthetic(text)
        assert workload is not None
        ends.append(run(workload, 1, stages, stage).end)
    assert ends[1] <= ends[0] * (1 + 1e-9)


def test_two_stages_overlap() -> None:
    """Two stages of half the work each serve several clients nearly as fast as twice, and one client no faster."""
    half = WorkerWork(replace(WORK.model, weight_bytes=10_000, flops_per_token=5e4, layers=1), 0.0, 0.0, 5.0)
    whole = StageCost((WorkerCost(RATES, replace(WORK, model=replace(WORK.model, weight_bytes=20_000))),), 64)
    stage = StageCost((WorkerCost(RATES, half),), 64, onward=Link(1e-6))
    times = {}
    for clients in (1, 8):
        text = f"closed:clients={clients},in=10,out=50,n={clients}"
        first, second = synthetic(text), synthetic(text)
        assert first is not None and second is not None
        times[clients] = run(first, 1, 1, whole).end / run(second, 1, 2, stage).end
    assert times[1] <= 1.0
    assert 1.3 < times[8] <= 2.0


def test_requests_with_the_same_beginning_meet_their_cache() -> None:
    same = run(Workload("", [Job(float(at), 512, 1, (5,)) for at in range(4)]))
    other = run(Workload("", [Job(float(at), 512, 1) for at in range(4)]))
    assert same.ttft[0] == other.ttft[0]
    assert max(list(same.ttft)[1:]) < 0.5 * min(other.ttft)


def test_a_router_shares_out() -> None:
    outcome = run(Workload("", [Job(0.0, 100, 20) for _ in range(8)]), engines=4)
    assert outcome.by_engine == [2, 2, 2, 2]


def test_percentiles() -> None:
    assert percentiles([float(n) for n in range(1, 101)]) == (50.0, 90.0, 99.0)
    assert percentiles([]) == (None, None, None)
    stats = OutcomeStats.of(Outcome(requests=1, refused=1))
    assert stats.output_tok_s == 0 and stats.latency == (None, None, None)
