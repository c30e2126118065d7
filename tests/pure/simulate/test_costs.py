"""The cost of a step: against the cost model it is made of, and by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from homenode.engine.scheduler.steps.step_load import StepLoad
from homenode.engine.step import Step, StepItem
from homenode.host.plan.numa.machine_speed import MachineSpeed, NodeSpeed
from homenode.host.plan.numa.step_cost import OWN, StepWork, at_home, round_robin, step_time
from homenode.host.plan.numa.weight_cost import ModelWork
from homenode.simulate.costs import CommonExperts, IndexerWork, Link, StageCost, WorkerCost, WorkerWork
from homenode.simulate.rates import Rates

MACHINE = MachineSpeed(
    (NodeSpeed(0, 8, 100.0, 1000.0), NodeSpeed(1, 4, 50.0, 600.0)), {(0, 1): 40.0, (1, 0): 30.0}, 0.5, 2.0
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from([at_home(MACHINE.nodes), round_robin(MACHINE.nodes), at_home(MACHINE.nodes[:1])]),
    st.floats(0, 1e12),
    st.floats(0, 1e12),
    st.integers(1, 4096),
    st.integers(1, 100),
    st.floats(0, 1e6),
)
def test_rates_are_the_cost_model(
    spread: object, size: float, ops: float, tokens: int, layers: int, act: float
) -> None:
    rates = Rates.of(MACHINE, spread, OWN)  # type: ignore[arg-type]
    load = StepWork(size, ops * tokens, tokens, layers, act * layers * tokens, 5.0 * layers)
    work = WorkerWork(ModelWork(int(size), ops, 0, layers, 0), 0.0, 0.0, 0.0)
    expected = step_time(MACHINE, spread, load, OWN).total  # type: ignore[arg-type]
    busy = max(size * rates.byte, rates.multiplying(ops, tokens))
    across = tokens * layers * (rates.exchange_layer + rates.exchange_byte * act)
    assert busy + across + 5 * layers * rates.barrier == pytest.approx(expected, rel=1e-9, abs=1e-15)
    assert WorkerCost(rates, work).seconds(StepLoad(tokens, 1, 0, 0)) <= expected * (1 + 1e-9) + 1e-12


# Seconds by hand: a byte takes 1, an operation 2 and 3 more of a row, a barrier 7.
RATES = Rates(byte=1.0, operation=2.0, unpacking=3.0, exchange_layer=0.0, exchange_byte=0.0, barrier=7.0)
WORK = WorkerWork(
    ModelWork(100, 10.0, 4, 1, 0, barriers_per_layer=1), output_bytes=40.0, output_operations=5.0, attention=0.5
)


def test_a_step_by_hand() -> None:
    few = WorkerCost(RATES, WORK, fixed=11.0, float_cost=4.0).seconds(StepLoad(tokens=1, rows=1, read=20, attended=20))
    # read 100 + 4 * 20; multiply 10 * (2 + 3) + 5 * (2 + 3) + 4 * 2 * 0.5 * 20
    assert few == max(180, 50 + 25 + 80) + 7 + 11
    many = WorkerCost(RATES, WORK).seconds(StepLoad(tokens=10, rows=0, read=10, attended=55))
    # without a row of logits: read 60 + 40; multiply 10 * (10 * 2 + 3) + 4 * 2 * 0.5 * 55
    assert many == max(100, 230 + 220) + 7


def test_states_are_read_and_written_once_for_each_sequence() -> None:
    work = replace(WORK, state_bytes=50.0, state_operations=3.0)
    few = WorkerCost(RATES, work).seconds(StepLoad(tokens=1, rows=1, read=20, attended=20))
    assert few == 100 + 4 * 20 + 50 + 7
    many = WorkerCost(RATES, work, float_cost=4.0).seconds(StepLoad(10, 0, read=10, attended=55, sequences=2))
    # multiply 10 * (10 * 2 + 3) + 4 * 2 * (0.5 * 55 + 3 * 10)
    assert many == 230 + 460 + 7


def test_experts_in_common_are_read_at_their_own_speed() -> None:
    work = WorkerWork(ModelWork(100, 0.0, 0, 1, 0, 0, active_bytes=70, expert_share=0.5), 0.0, 0.0, 0.0)
    near, far = (WorkerCost(RATES, work, common=CommonExperts(40.0, byte)) for byte in (1.0, 4.0))
    for tokens, experts in ((1, 30), (2, 45)):  # of 60, half of which a token reads
        load = StepLoad(tokens, 1, 0, 0)
        assert near.seconds(load) == WorkerCost(RATES, work).seconds(load) == 40 + experts
        assert far.seconds(load) == 40 + 4 * experts


def test_ranks_wait_for_the_slowest_and_add_up() -> None:
    slow, fast = WorkerCost(RATES, WORK, fixed=5.0), WorkerCost(RATES, WORK)
    load = StepLoad(1, 1, 20, 20)
    stage = StageCost((fast, slow), row_bytes=8, sums=3, link=Link(2.0, 0.5), onward=Link(1.0, 1.0))
    assert stage.seconds(load) == slow.seconds(load) + 3 * (2 + 8 * 0.5)
    assert stage.handing_on(load) == 1 + 8


def test_what_a_step_asks_for() -> None:
    step = Step(0, [], [], [StepItem(1, 10, 1, [], 1), StepItem(2, 0, 4, [], 0)])
    # positions 11; and 1 + 2 + 3 + 4 of a prompt's first four
    assert StepLoad.of(step) == StepLoad(tokens=5, rows=1, read=15, attended=11 + 10, sequences=2)


def test_where_tokens_are_chosen_the_chosen_ones_count_and_what_the_choice_takes() -> None:
    step = Step(0, [], [], [StepItem(1, 10, 1, [], 1), StepItem(2, 3, 4, [], 0), StepItem(3, 0, 5, [], 0)])
    # chosen are 5: 5 of 11; 4 + 5 + 5 + 5, of which two sequences' last look at 6 + 7; and 1 + 2 + 3 + 4 + 5
    assert StepLoad.of(step, chosen=5) == StepLoad(
        tokens=10, rows=1, read=5 + 7 + 5, attended=5 + 19 + 15, sequences=3, scanned=11 + 7, scored=11 + 6 + 7,
        unread=11 - 5, unattended=11 - 5 + 6 - 5 + 7 - 5,
    )  # fmt: skip
    assert StepLoad.of(step, chosen=11) == StepLoad.of(step)


@given(st.integers(0, 60), st.integers(1, 60), st.integers(1, 70))
def test_a_chosen_load_is_the_sum_of_its_tokens(start: int, count: int, chosen: int) -> None:
    load, positions = StepLoad.of_sequence(start, count, 0, chosen), range(start, start + count)
    assert load.attended == sum(min(at + 1, chosen) for at in positions)
    assert load.scored == sum(at + 1 for at in positions if at + 1 > chosen)
    assert load.scanned == (start + count if load.scored else 0) and load.read + load.unread == start + count
    assert load.attended + load.unattended == sum(at + 1 for at in positions)


def test_an_indexer_reads_its_own_keys_in_place_of_what_is_not_chosen() -> None:
    work = replace(WORK, indexer=IndexerWork(chosen=20, key_bytes=1.0, operations=0.25))
    # a token's 4 bytes are 3 of the latent and 1 of the indexer
    load = StepLoad.of_sequence(99, 1, 1, chosen=20)
    assert WorkerCost(RATES, work, float_cost=1.0).seconds(load) == 100 + 3 * 20 + 100 + 7
    # multiply 10 * (2 + 3) + 5 * (2 + 3) + 20 * 2 * (0.5 * 20 + 0.25 * 100)
    assert WorkerCost(RATES, work, float_cost=20.0).seconds(load) == 50 + 25 + 1400 + 7
    short = StepLoad.of_sequence(9, 1, 1, chosen=20)
    assert WorkerCost(RATES, work, float_cost=1.0).seconds(short) == 100 + 3 * 10 + 7
    # where layers that keep 2 of the 4 bytes attend to all, with half of the operations
    mixed = replace(WORK, indexer=IndexerWork(20, 1.0, 0.25, dense_bytes=2.0, dense_attention=0.25))
    assert WorkerCost(RATES, mixed, float_cost=1.0).seconds(load) == 100 + 1 * 20 + 2 * 100 + 100 + 7
    assert WorkerCost(RATES, mixed, float_cost=20.0).seconds(load) == 50 + 25 + 1400 + 40 * 0.25 * 80 + 7
    assert StageCost((WorkerCost(RATES, work),), 8).chosen == 20
    assert StageCost((WorkerCost(RATES, WORK),), 8).chosen is None
