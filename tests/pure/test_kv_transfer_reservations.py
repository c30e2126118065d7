"""Which blocks a receiver has for what comes, and who gives way when there are too few."""

from __future__ import annotations

import pytest

from homenode.engine.scheduler.events import WorkersBack, WorkersLost
from homenode.transfer import scheduler_events
from tests.pure.receiver_bench import OTHER, PROMPT, bench_of, items_of


def test_there_is_room_for_all_or_for_nothing() -> None:
    bench = bench_of(num_blocks=8)
    first = bench.offer(PROMPT)
    second = bench.offer(OTHER)  # four more blocks, one to go on, and one for the first to grow
    assert not bench.coming[first].refused and "more are wanted" in bench.coming[second].refused
    assert bench.scheduler.allocator.pool.num_free == 4
    bench.settle()


@pytest.mark.parametrize(
    ("num_blocks", "length", "fits"), [(4, 14, True), (4, 15, True), (4, 16, False), (64, 63, True), (64, 64, False)]
)
def test_what_can_never_fit_is_refused_at_once(num_blocks: int, length: int, fits: bool) -> None:
    """As a request of that many tokens would be."""
    bench = bench_of(num_blocks=num_blocks)
    prompt = [n % 40 for n in range(length)]
    ticket = bench.offer(prompt)
    assert bool(bench.coming[ticket].refused) != fits
    number = bench.submit(prompt, max_tokens=1)
    bench.forget_for_good(ticket)
    bench.settle()
    assert (bench.final(number).finish_reason == "error") != fits


def test_nonsense_and_known_tickets_are_refused() -> None:
    bench = bench_of()
    ticket = bench.offer(PROMPT)
    offer = bench.coming[ticket].offer
    bench.coming["bad"] = bench.coming["worse"] = bench.coming[ticket]
    for number, (name, tokens, page_tokens) in enumerate(
        [("bad", 0, 4), ("worse", 13, 0), ("bad", 13, 5), (ticket, 13, 4)], 1
    ):
        for reserve in (False, True):
            bench.apply(scheduler_events.Offered(0.0, name, tokens, page_tokens, offer.identities, reserve))
        assert len(bench.told(scheduler_events.ReservationFailed)) == number
    assert "known already" in bench.coming[ticket].refused
    del bench.coming["bad"], bench.coming["worse"]
    bench.ask(PROMPT, ticket, max_tokens=1)
    bench.arrive(ticket)
    assert items_of(bench) == [(13, 1)]
    bench.settle()


def test_an_offer_leaves_room_for_who_waited_before() -> None:
    bench = bench_of(num_blocks=12, seqs=1)
    bench.submit([1, 2, 3], max_tokens=20, ignore_eos=True)
    bench.step()
    bench.submit(OTHER + OTHER, max_tokens=1)  # seven blocks and one more, when its turn comes
    ticket = bench.offer(PROMPT)
    assert "are to stay free" in bench.coming[ticket].refused
    bench.settle()


def test_reservations_without_a_request_give_way_to_the_first_that_runs() -> None:
    """Six blocks wait for a request that does not come; the only one that runs would stand still until the agent
    forgets them.
    """
    bench = bench_of(num_blocks=10)
    ticket = bench.offer(PROMPT)
    bench.arrive(ticket, 8)
    number = bench.submit([1, 2, 3], max_tokens=32, ignore_eos=True)
    while not bench.coming[ticket].stopped:
        assert bench.step() is not None or bench.executor.pending or bench.coming[ticket].stopped
        bench.finish_step()
    bench.scribble()
    assert bench.step() is None  # the sender may still write
    bench.fail(ticket)
    assert bench.step() is not None
    bench.settle()
    assert len(bench.tokens(number)) == 32


def test_with_one_place_the_ready_give_way_to_the_one_that_runs() -> None:
    """Neither could go on otherwise: one has the place, the other the blocks."""
    bench = bench_of(num_blocks=10, seqs=1)
    number = bench.submit([1, 2, 3], max_tokens=32, ignore_eos=True)
    bench.step()
    ticket = bench.offer(PROMPT)
    bench.arrive(ticket)
    late = bench.ask(PROMPT, ticket, max_tokens=3)
    bench.settle()
    assert bench.coming[ticket].claimed == 0
    assert len(bench.tokens(number)) == 32 and len(bench.tokens(late)) == 3


def test_the_ready_overtake_one_whose_blocks_they_hold() -> None:
    bench = bench_of(num_blocks=8)
    ticket = bench.offer(PROMPT)
    long = bench.submit([n % 40 for n in range(28)], max_tokens=1)  # seven blocks and one more
    assert bench.step() is None
    bench.arrive(ticket)
    bench.ask(PROMPT, ticket, max_tokens=1)
    assert items_of(bench) == [(13, 1)]
    bench.settle()
    assert bench.tokens(long)


def test_no_room_is_given_while_workers_are_lost() -> None:
    """Those that are left may be at the lost step still, and write into blocks that are free by now."""
    bench = bench_of()
    before = bench.offer(PROMPT)
    bench.apply(WorkersLost(bench.now, "worker 1 of 2 is being replaced"))
    during = bench.offer(OTHER)
    assert not bench.coming[before].refused
    assert bench.coming[during].refused == "workers of the engine were lost and are being replaced"
    bench.apply(WorkersBack(bench.now))
    assert not bench.coming[bench.offer(OTHER)].refused
    bench.settle()
