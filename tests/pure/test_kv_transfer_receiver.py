"""A receiver's scheduler: only what has arrived is used, and the rest is computed."""

from __future__ import annotations

import pytest

from homenode.transfer import scheduler_events
from tests.pure.receiver_bench import OTHER, PROMPT, bench_of, items_of, only

# Reservations


def test_only_the_last_prompt_token_is_computed() -> None:
    bench = bench_of()
    ticket = bench.offer(PROMPT)
    room = only(bench, scheduler_events.Reserved)
    assert isinstance(room, scheduler_events.Reserved) and (len(room.blocks), room.held) == (4, 0)
    bench.arrive(ticket)
    bench.ask(PROMPT, ticket, max_tokens=6)
    assert items_of(bench) == [(13, 1)]
    assert bench.coming[ticket].claimed == 13
    bench.settle()
    statistics = bench.scheduler.statistics()
    assert (statistics.handed_tokens, statistics.recomputed_tokens, statistics.prefix_queries) == (13, 0, 0)
    assert bench.outputs[0][0].cached_tokens == 13


def test_a_request_that_is_early_waits_for_the_rest() -> None:
    bench = bench_of()
    ticket = bench.offer(PROMPT)
    bench.arrive(ticket, 4)
    bench.ask(PROMPT, ticket, max_tokens=6)
    assert bench.coming[ticket].fetched  # the agent knows that it came
    bench.scribble()
    assert bench.step() is None
    assert bench.scheduler.statistics().waiting_for_kv == 1
    bench.arrive(ticket, 9)
    assert bench.step() is None
    bench.arrive(ticket)
    assert items_of(bench) == [(13, 1)]
    bench.settle()


def test_nothing_is_made_of_a_second_message() -> None:
    bench = bench_of()
    ticket = bench.offer(PROMPT)
    bench.arrive(ticket, 8)
    bench.apply(scheduler_events.Arrived(0.0, ticket, 4))  # counted from the beginning: no news
    bench.ask(PROMPT, ticket, max_tokens=2)
    bench.fail(ticket)
    assert items_of(bench) == [(8, 6)]
    for kind in (scheduler_events.Failed, scheduler_events.Forgotten):
        bench.apply(
            kind(0.0, ticket, "again") if kind is scheduler_events.Failed else scheduler_events.Forgotten(0.0, ticket)
        )
    bench.apply(scheduler_events.Arrived(0.0, ticket, 13))
    bench.apply(scheduler_events.Arrived(0.0, "unknown", 13))
    bench.apply(scheduler_events.SendAdmitted(0.0, "unknown"))
    bench.apply(scheduler_events.SendRefused(0.0, "unknown", "no"))
    bench.apply(scheduler_events.Returned(0.0, "unknown"))
    bench.apply(scheduler_events.Quarantined(0.0, "unknown", 3, "no"))
    bench.settle()


@pytest.mark.parametrize("length", [2, 4, 5, 6, 13, 14])
@pytest.mark.parametrize("reserve", [False, True])
def test_a_state_comes_behind_keys_and_values(length: int, reserve: bool) -> None:
    bench = bench_of(state_slots=4, state_pages=2)
    ticket = bench.offer(PROMPT[:length], reserve=reserve)
    bench.ask(PROMPT[:length], ticket, max_tokens=6)
    bench.fill()
    tokens = bench.coming[ticket].offer.tokens
    assert tokens == (-(-(length - 1) // 4) + 2) * 4
    bench.arrive(ticket, tokens - 4)
    assert bench.step() is None  # the state is not all there
    bench.arrive(ticket)
    assert items_of(bench) == [(length - 1, 1)]
    bench.settle()
    assert bench.scheduler.statistics().handed_tokens == length - 1
    assert bench.scheduler.allocator.pool.num_free == 64


@pytest.mark.parametrize("arrived", [0, 8, 16, 20])
@pytest.mark.parametrize("early", [False, True])
def test_keys_and_values_without_the_state_are_computed_again(arrived: int, early: bool) -> None:
    bench = bench_of(state_slots=4, state_pages=2)
    ticket = bench.offer(PROMPT)
    if early:
        bench.ask(PROMPT, ticket, max_tokens=3)
    bench.arrive(ticket, arrived)
    bench.fail(ticket)
    if not early:
        bench.ask(PROMPT, ticket, max_tokens=3)
    assert items_of(bench) == [(0, 14)]
    bench.settle()


def test_a_state_in_pages_of_another_size_is_not_taken() -> None:
    bench = bench_of(state_slots=4, state_pages=2)
    ticket = bench.offer(PROMPT, page_tokens=8)
    assert "are no whole pages of 4 as they are here, 2 of them for a state" in bench.coming[ticket].refused


@pytest.mark.parametrize("length", [2, 4, 5, 6, 13, 14])
@pytest.mark.parametrize("arrived", [0, 4, 100])
def test_whole_blocks_come_and_what_is_behind_the_prompt_is_of_no_matter(length: int, arrived: int) -> None:
    bench = bench_of(whole_pages=True)
    ticket = bench.offer(PROMPT[:length])
    bench.ask(PROMPT[:length], ticket, max_tokens=6)
    tokens = bench.coming[ticket].offer.tokens
    assert tokens == -(-(length - 1) // 4) * 4
    bench.arrive(ticket, min(arrived, tokens))
    if arrived < tokens:
        bench.fail(ticket)
    kept = min(arrived, length - 1)
    assert items_of(bench) == [(kept, length - kept)]
    bench.settle()


@pytest.mark.parametrize("arrived", [0, 3, 4, 10])
@pytest.mark.parametrize("early", [False, True])
def test_what_arrived_before_a_failure_is_kept(arrived: int, early: bool) -> None:
    bench = bench_of()
    ticket = bench.offer(PROMPT)
    if early:
        bench.ask(PROMPT, ticket, max_tokens=3)
    bench.arrive(ticket, arrived)
    bench.scribble()
    bench.fail(ticket)
    if not early:
        bench.ask(PROMPT, ticket, max_tokens=3)
    assert items_of(bench) == [(arrived, 14 - arrived)]
    bench.settle()
    assert bench.scheduler.statistics().recomputed_tokens == 13 - arrived


def test_after_a_failure_the_cache_may_know_more() -> None:
    bench = bench_of()
    ticket = bench.offer(PROMPT)
    bench.submit(PROMPT, max_tokens=1)  # computes the same meanwhile
    bench.step()
    bench.finish_step()
    bench.arrive(ticket, 6)
    bench.scribble()
    bench.fail(ticket)
    bench.ask(PROMPT, ticket, max_tokens=3)
    assert items_of(bench) == [(12, 2)]
    bench.settle()


def test_forgotten_blocks_are_free_and_the_late_request_computes() -> None:
    bench = bench_of()
    ticket = bench.offer(PROMPT)
    bench.arrive(ticket)
    bench.forget_for_good(ticket)
    assert bench.scheduler.allocator.pool.num_free == 64
    bench.ask(PROMPT, ticket, max_tokens=2)
    assert items_of(bench) == [(0, 14)]
    bench.settle()
    assert bench.scheduler.statistics().recomputed_tokens == 13


def test_forgotten_just_as_the_request_came() -> None:
    """The messages cross: it is as if no more came."""
    bench = bench_of()
    ticket = bench.offer(PROMPT)
    bench.arrive(ticket, 8)
    bench.ask(PROMPT, ticket, max_tokens=2)
    bench.forget(ticket)
    assert items_of(bench) == [(8, 6)]
    bench.settle()


def test_pages_in_the_cache_are_not_sent_again() -> None:
    bench = bench_of()
    bench.submit(PROMPT[:10], max_tokens=1)
    bench.settle()
    ticket = bench.offer(PROMPT)
    room = only(bench, scheduler_events.Reserved)
    assert isinstance(room, scheduler_events.Reserved) and room.held == 2
    bench.submit([30] * 40, max_tokens=20, ignore_eos=True)  # what is held is not given away
    bench.step()
    bench.arrive(ticket)
    bench.ask(PROMPT, ticket, max_tokens=2)
    bench.settle()
    assert bench.scheduler.statistics().recomputed_tokens == 0


def test_what_was_taken_over_can_be_found_by_others() -> None:
    bench = bench_of()
    ticket = bench.offer(PROMPT)
    bench.scribble()
    bench.submit(PROMPT, max_tokens=1)
    assert items_of(bench) == [(0, 14)]  # not before it has arrived
    bench.finish_step()
    bench.arrive(ticket)
    bench.ask(PROMPT, ticket, max_tokens=1)
    bench.submit([*PROMPT[:12], 33], max_tokens=1)
    assert items_of(bench) == [(13, 1), (12, 1)]
    bench.settle()


@pytest.mark.parametrize("page_tokens", [2, 6, 8, 12, 16])
@pytest.mark.parametrize("reserve", [False, True])
def test_pages_of_another_size(page_tokens: int, reserve: bool) -> None:
    """The identities are computed in the sender's pages; cached blocks are used as far as a page ends with them."""
    bench = bench_of()
    bench.submit(PROMPT[:10], max_tokens=1)
    bench.settle()
    ticket = bench.offer(PROMPT, page_tokens=page_tokens, reserve=reserve)
    bench.ask(PROMPT, ticket, max_tokens=2)
    bench.step()
    bench.scribble()
    bench.arrive(ticket)
    assert items_of(bench) == [(13, 1)]
    bench.settle()
    assert bench.scheduler.statistics().recomputed_tokens == 0


# Delayed


def test_a_delayed_ticket_takes_blocks_when_its_request_runs() -> None:
    bench = bench_of()
    ticket = bench.offer(PROMPT, reserve=False)
    assert not bench.messages and bench.scheduler.allocator.pool.num_free == 64
    bench.ask(PROMPT, ticket, max_tokens=3)
    assert not bench.messages
    assert bench.step() is None
    fetch = only(bench, scheduler_events.Fetch)
    assert isinstance(fetch, scheduler_events.Fetch) and (len(fetch.blocks), fetch.held) == (4, 0)
    other = bench.submit(OTHER, max_tokens=3)
    assert items_of(bench) == [(0, 14)]  # others go on meanwhile
    bench.finish_step()
    bench.arrive(ticket)
    assert items_of(bench) == [(14, 1), (13, 1)]
    bench.settle()
    assert bench.tokens(other) and bench.coming[ticket].claimed == 13


def test_one_that_is_fetched_has_a_place() -> None:
    bench = bench_of(seqs=1)
    ticket = bench.offer(PROMPT, reserve=False)
    bench.ask(PROMPT, ticket, max_tokens=2)
    bench.step()
    bench.submit(OTHER, max_tokens=1)
    assert bench.step() is None
    bench.arrive(ticket)
    assert items_of(bench) == [(13, 1)]
    bench.settle()


def test_what_the_cache_holds_is_not_fetched() -> None:
    bench = bench_of()
    bench.submit(PROMPT, max_tokens=1)
    bench.settle()
    ticket = bench.offer(PROMPT[:13], reserve=False)  # twelve positions: three blocks that are there
    bench.ask(PROMPT[:13], ticket, max_tokens=2)
    assert items_of(bench) == [(12, 1)]
    assert not bench.told(scheduler_events.Fetch) and bench.coming[ticket].claimed == 12
    bench.settle()


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_delayed_ticket_fails_before_its_request_runs(forgotten: bool) -> None:
    bench = bench_of(seqs=1)
    ticket = bench.offer(PROMPT, reserve=False)
    bench.submit(OTHER, max_tokens=2)
    bench.step()
    bench.ask(PROMPT, ticket, max_tokens=2)
    bench.coming[ticket].refused = "over"
    bench.forget(ticket) if forgotten else bench.fail(ticket)
    bench.settle()
    assert not bench.told(scheduler_events.Fetch)
