"""A sender's scheduler: nothing is computed before there is room, everything is told of once, and nothing lent is
touched.
"""

from __future__ import annotations

import pytest

from homenode.engine.kv.prefix import HashChain
from homenode.engine.scheduler.steps.step_load import NO_LOAD, StepLoad
from homenode.engine.scheduler_config import SchedulerConfig
from homenode.engine.step import Step
from homenode.transfer import scheduler_events
from tests.pure.kv_transfer_bench import SEED, HandoverBench
from tests.pure.schedule_bench import limits_of

PROMPT = list(range(1, 15))  # 13 positions to hand over: three full blocks of four, and one position


def _bench(num_blocks: int = 64, tokens: int = 32, **more: object) -> HandoverBench:
    config = SchedulerConfig(max_num_batched_tokens=tokens, max_num_seqs=min(8, tokens))
    return HandoverBench(config, limits=limits_of(num_blocks=num_blocks), **more)  # type: ignore[arg-type]


def test_room_is_asked_for_before_anything_is_computed() -> None:
    bench = _bench()
    ticket = bench.send(PROMPT)
    identities = HashChain(SEED, 4, "").identities(PROMPT, 13)
    assert bench.messages == [scheduler_events.SendWanted(ticket, b"{}", 13, identities)]
    assert len(identities) == len(set(identities)) == 4
    assert bench.step() is None
    assert bench.scheduler.statistics().waiting_for_kv == bench.scheduler.statistics().num_waiting == 1
    bench.admit(ticket)
    assert bench.step() is not None
    bench.settle()


def test_a_hand_over_is_told_what_computing_its_prompt_takes() -> None:
    """By what steps took of late: so long it is worth waiting for."""
    bench = _bench()
    for tokens in (8, 16, 32) * 8:
        bench.scheduler.costs.learn(NO_LOAD, StepLoad.of_sequence(0, tokens, 0), 0.01 * tokens)
    for prompt in (PROMPT, PROMPT * 2):
        bench.send(prompt)
    short, long = (m.compute_s for m in bench.messages if isinstance(m, scheduler_events.SendWanted))
    assert short == pytest.approx(0.14, rel=0.2) and long == pytest.approx(0.28, rel=0.2)


def test_all_but_the_last_position_is_computed_and_told_of_chunk_by_chunk() -> None:
    bench = _bench(tokens=6)
    ticket = bench.send(PROMPT)
    bench.admit(ticket)
    steps = []
    while step := bench.step():
        steps.append([(item.start, item.count, item.draws > 0) for item in step.items])
        bench.finish_step()
    assert steps == [[(0, 6, False)], [(6, 6, False)], [(12, 1, False)]]
    told = [
        (m.first, len(m.blocks), m.last)
        for m in bench.told(scheduler_events.Computed)
        if isinstance(m, scheduler_events.Computed)
    ]
    assert told == [(0, 1, False), (1, 2, False), (3, 1, True)]
    last = bench.final(0)
    assert (last.finish_reason, last.tokens) == ("length", [])
    assert bench.scheduler.has_work()  # four blocks are lent
    assert bench.scheduler.allocator.pool.num_free == 60
    bench.give_back(ticket)
    bench.check_rest()
    assert not bench.scheduler.has_work()


@pytest.mark.parametrize("length", [2, 5, 6, 13, 14])
def test_a_state_goes_behind_keys_and_values(length: int) -> None:
    """Also where all keys and values are in the cache, and a state after them: a step has to come out with
    the state.
    """
    config = SchedulerConfig(max_num_batched_tokens=32, max_num_seqs=8)
    bench = HandoverBench(config, limits=limits_of(state_slots=8, state_pages=2))
    for turn in range(2):
        ticket = bench.send(PROMPT[:length], f"turn {turn}")
        bench.admit(ticket)
        step = bench.step()
        assert step is not None and step.items[0].count == (length - 1 if not turn else (length - 2) % 4 + 1)
        bench.finish_step()
        (told,) = [
            m
            for m in bench.told(scheduler_events.Computed)
            if isinstance(m, scheduler_events.Computed) and m.ticket == ticket
        ]
        assert len(told.blocks) == -(-(length - 1) // 4) + 2 and told.last
        bench.give_back(ticket)
    bench.settle()


def test_pages_held_over_there_are_computed_but_not_told_of() -> None:
    bench = _bench()
    ticket = bench.send(PROMPT)
    bench.admit(ticket, held=2)
    bench.step()
    bench.finish_step()
    (told,) = bench.told(scheduler_events.Computed)
    assert isinstance(told, scheduler_events.Computed)
    assert (told.first, len(told.blocks), told.last) == (2, 2, True)
    assert bench.scheduler.allocator.pool.num_free == 62  # the first two are not lent
    bench.give_back(ticket)
    bench.check_rest()


def test_when_all_is_held_over_there_only_the_end_is_told() -> None:
    bench = _bench()
    ticket = bench.send(PROMPT)
    bench.admit(ticket, held=4)
    bench.step()
    bench.finish_step()
    assert bench.told(scheduler_events.Computed) == [scheduler_events.Computed(ticket, 4, [], True)]
    bench.check_rest()
    assert not bench.scheduler.has_work()


def test_what_the_cache_holds_is_told_at_once() -> None:
    """A prompt whose positions are all cached needs no step, and does not stand in the way of the next one."""
    bench = HandoverBench(SchedulerConfig(max_num_batched_tokens=32, max_num_seqs=1), limits=limits_of())
    prompt = PROMPT[:13]  # three full blocks to hand over
    bench.submit([*prompt, 20], max_tokens=1)
    bench.settle()
    ticket = bench.send(prompt)
    other = bench.submit([30, 31], max_tokens=1)
    bench.admit(ticket)
    step = bench.step()
    assert step is not None and [(item.start, item.count) for item in step.items] == [(0, 2)]
    (told,) = bench.told(scheduler_events.Computed)
    assert isinstance(told, scheduler_events.Computed)
    assert (told.first, len(told.blocks), told.last) == (0, 3, True)
    assert bench.final(1).finish_reason == "length" and bench.final(1).cached_tokens == 12
    bench.settle()
    assert bench.final(other).tokens


def test_a_refusal_ends_the_request() -> None:
    bench = _bench()
    ticket = bench.send(PROMPT)
    bench.refuse(ticket)
    last = bench.final(0)
    assert (last.finish_reason, last.error, last.error_kind, last.retry_after_s) == (
        "error",
        "no room there",
        "KvRefusedError",
        3.0,
    )
    bench.check_rest()
    assert not bench.scheduler.has_work()
    assert not bench.told(scheduler_events.Abandoned)
    again = bench.send(PROMPT, "another")
    bench.refuse(again, None)
    assert bench.final(1).retry_after_s == 1.0


def test_a_request_given_up_while_it_waits_for_room() -> None:
    bench = _bench()
    ticket = bench.send(PROMPT)
    bench.abort(0)
    assert bench.going[ticket].abandoned == "abort"
    bench.admit(ticket)  # crossed the news
    assert bench.step() is None
    bench.check_rest()


def test_a_request_given_up_half_way_leaves_what_was_told_of_on_loan() -> None:
    bench = _bench(tokens=6, lookahead=1)
    ticket = bench.send(PROMPT)
    bench.admit(ticket)
    bench.step()
    bench.step()
    bench.finish_step()
    bench.abort(0)
    bench.finish_step()
    assert bench.going[ticket].abandoned == "abort"
    assert len(bench.going[ticket].blocks) == 1
    for n in range(3):  # whatever else is computed meanwhile
        bench.submit([50 + n] * 30, max_tokens=20, ignore_eos=True)
    while bench.step() is not None or bench.executor.pending:
        bench.read()
        bench.finish_step()
    bench.give_back(ticket)
    bench.check_rest()


def test_a_deadline_passes_while_room_is_waited_for() -> None:
    bench = _bench()
    ticket = bench.send(PROMPT, deadline=5.0)
    assert bench.scheduler.next_deadline() == 5.0
    bench.tick(6.0)
    assert bench.final(0).error_kind == "OverloadedError"
    assert "deadline" in bench.going[ticket].abandoned
    bench.check_rest()


def test_the_agent_ends_a_hand_over_half_way() -> None:
    bench = _bench(tokens=6)
    ticket = bench.send(PROMPT)
    bench.admit(ticket)
    bench.step()
    bench.finish_step()
    bench.give_back(ticket)
    assert bench.final(0).error_kind == "KvRefusedError"
    assert not bench.told(scheduler_events.Abandoned)  # it knows
    bench.check_rest()


def test_a_ticket_is_for_one_request_and_no_token_is_drawn_for_it() -> None:
    bench = _bench()
    ticket = bench.send(PROMPT)
    bench.send(PROMPT, ticket)
    assert bench.final(1).error_kind == "UserError" and "in use" in str(bench.final(1).error)
    bench.submit(PROMPT, kv=scheduler_events.KvTicket("t", sends=True), max_tokens=3)
    assert bench.final(2).error_kind == "UserError" and "make it 0" in str(bench.final(2).error)
    bench.settle()


def test_of_a_single_token_nothing_is_handed_over() -> None:
    bench = _bench()
    bench.send([5])
    assert bench.final(0).finish_reason == "length" and not bench.messages
    bench.check_rest()


@pytest.mark.parametrize("lookahead", [0, 1])
def test_a_lost_step_ends_its_request_but_not_its_loan(lookahead: int) -> None:
    """What was told of before is still right, and read until it is returned; the lost step's own pages were not told
    of.
    """

    def fault(step: Step) -> Exception | None:
        return RuntimeError("worker lost") if step.number == 1 else None

    bench = _bench(tokens=6, lookahead=lookahead, fault=fault)
    ticket = bench.send(PROMPT)
    bench.admit(ticket)
    for _ in range(2):
        bench.step()
        bench.finish_step()
    assert bench.final(0).error_kind == "InternalError"
    assert "worker lost" in bench.going[ticket].abandoned
    assert list(bench.going[ticket].blocks) == [0]
    again = bench.send(PROMPT, "again")
    bench.admit(again)
    bench.settle()
    # One of the lost request, three of the second: nothing was found in the cache.
    assert len(bench.told(scheduler_events.Computed)) == 4


@pytest.mark.parametrize("caching", [False, True])
def test_a_preempted_request_tells_of_no_page_twice(caching: bool) -> None:
    bench = _bench(tokens=6, caching=caching)
    ticket = bench.send(PROMPT)
    bench.admit(ticket)
    bench.step()
    bench.finish_step()
    before = dict(bench.going[ticket].blocks)
    assert list(before) == [0]
    bench.scheduler.lists.requeue(bench.running()[0])
    bench.scheduler.audit()
    bench.submit([9] * 20, max_tokens=8, priority=-1)
    bench.settle()  # which checks that pages are told of in order, each once
    assert bench.final(0).finish_reason == "length"
    assert bench.scheduler.statistics().step_tokens == 6 + 13 + 27 - (4 if caching else 0)
