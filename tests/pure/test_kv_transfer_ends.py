"""A hand-over that ends early: no block is used while somebody may write to it, and none stays behind."""

from __future__ import annotations

import pytest

from homenode.engine.step import Step
from tests.pure.receiver_bench import OTHER, PROMPT, bench_of, items_of

# Ends


@pytest.mark.parametrize("reserve", [False, True])
@pytest.mark.parametrize("arrived", [0, 5])
def test_an_abort_while_kv_comes_keeps_the_blocks_until_nobody_writes(reserve: bool, arrived: int) -> None:
    bench = bench_of(num_blocks=8)
    ticket = bench.offer(PROMPT, reserve=reserve)
    number = bench.ask(PROMPT, ticket, max_tokens=2)
    assert bench.step() is None
    bench.arrive(ticket, arrived)
    bench.abort(number)
    assert bench.coming[ticket].stopped
    assert bench.scheduler.allocator.pool.num_free == 4
    other = bench.submit(OTHER + OTHER, max_tokens=1)  # needs them
    bench.scribble()
    assert bench.step() is None
    bench.fail(ticket)
    assert bench.step() is not None
    bench.settle()
    assert bench.tokens(other)


def test_an_abort_after_all_has_arrived_frees_at_once() -> None:
    bench = bench_of()
    ticket = bench.offer(PROMPT)
    bench.arrive(ticket)
    number = bench.ask(PROMPT, ticket, max_tokens=2)
    bench.abort(number)
    assert bench.coming[ticket].claimed == 0
    bench.check_rest()


def test_a_deadline_passes_while_kv_comes() -> None:
    bench = bench_of()
    ticket = bench.offer(PROMPT)
    number = bench.ask(PROMPT, ticket, max_tokens=2, deadline=5.0)
    bench.tick(6.0)
    assert bench.final(number).error_kind == "OverloadedError" and bench.coming[ticket].stopped
    bench.settle()


def test_a_drain_waits_for_the_agent_and_takes_no_offers() -> None:
    bench = bench_of()
    first, second = bench.offer(PROMPT), bench.offer(OTHER)
    delayed = bench.offer([3, 4, 5], reserve=False)
    number = bench.ask(PROMPT, first, max_tokens=2)
    bench.drain()
    assert bench.coming[second].stopped and bench.coming[delayed].stopped and not bench.coming[first].stopped
    late = bench.offer(OTHER)
    assert "shutting down" in bench.coming[late].refused
    bench.arrive(first)
    while bench.step() is not None:
        bench.finish_step()
    assert bench.tokens(number) and bench.scheduler.has_work()
    bench.fail(second)
    assert not bench.scheduler.has_work()
    bench.check_rest()


@pytest.mark.parametrize("reserve", [False, True])
@pytest.mark.parametrize("done", [False, True])
def test_a_lost_step_makes_handed_over_kv_worthless(reserve: bool, done: bool) -> None:
    """As everything else that was there before it."""

    def fault(step: Step) -> Exception | None:
        return RuntimeError("worker lost") if step.number == 1 else None

    bench = bench_of(seqs=3, fault=fault)
    unclaimed = bench.offer([8, 7, 6, 5, 4, 3])
    ticket = bench.offer(PROMPT, reserve=reserve)
    number = bench.ask(PROMPT, ticket, max_tokens=2)
    bench.submit(OTHER, max_tokens=5)
    for turn in range(2):
        bench.step()
        if turn and done:
            bench.arrive(ticket)
        bench.finish_step()
    assert bench.coming[unclaimed].stopped
    assert bench.coming[ticket].stopped != (done and bench.coming[ticket].claimed is not None)
    assert items_of(bench) == [(0, 14)]
    bench.settle()
    assert bench.tokens(number)


# Quarantine


@pytest.mark.parametrize("early", [False, True])
def test_what_may_still_be_written_to_is_not_used(early: bool) -> None:
    bench = bench_of()
    ticket = bench.offer(PROMPT)
    if early:
        bench.ask(PROMPT, ticket, max_tokens=3)
    bench.arrive(ticket, 10)
    bench.quarantine(ticket)
    assert bench.scheduler.allocator.pool.num_free == 62  # two of four blocks had arrived whole
    if not early:
        bench.ask(PROMPT, ticket, max_tokens=3)
    bench.scribble()
    assert items_of(bench) == [(8, 6) if early else (0, 14)]
    bench.settle()


def test_a_request_that_only_the_quarantine_keeps_from_running_ends() -> None:
    bench = bench_of(num_blocks=8)
    ticket = bench.offer(PROMPT)
    bench.quarantine(ticket)
    number = bench.submit([n % 40 for n in range(28)], max_tokens=1)
    short = bench.submit(OTHER[:6], max_tokens=1)
    assert bench.step() is not None  # the second one
    bench.settle()
    assert bench.tokens(short)
    assert bench.final(number).error_kind == "OverloadedError" and "out of use" in str(bench.final(number).error)
