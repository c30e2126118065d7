"""A receiver's scheduler: only what has arrived is used, only by the request it is for, and the rest is computed."""

from __future__ import annotations

import pytest

from homenode.engine.schedule.config import SchedulerConfig
from homenode.engine.schedule.events import Warn
from homenode.engine.schedule.step import Step
from homenode.transfer import seam
from tests.pure.handover_bench import HandoverBench
from tests.pure.schedule_bench import limits_of

PROMPT = list(range(1, 15))  # 13 positions come: three full blocks of four, and one position
OTHER = [39 - token for token in PROMPT]


def _bench(num_blocks: int = 64, tokens: int = 32, seqs: int = 8, **more: object) -> HandoverBench:
    config = SchedulerConfig(max_num_batched_tokens=tokens, max_num_seqs=seqs)
    return HandoverBench(config, limits=limits_of(num_blocks=num_blocks), **more)  # type: ignore[arg-type]


def _items(bench: HandoverBench) -> list[tuple[int, int]]:
    step = bench.step()
    assert step is not None
    return [(item.start, item.count) for item in step.items]


def _only(bench: HandoverBench, kind: type[seam.ToAgent]) -> seam.ToAgent:
    (message,) = bench.told(kind)
    return message


# Reservations


def test_only_the_last_prompt_token_is_computed() -> None:
    bench = _bench()
    ticket = bench.offer(PROMPT)
    room = _only(bench, seam.Room)
    assert isinstance(room, seam.Room) and (len(room.blocks), room.held) == (4, 0)
    bench.arrive(ticket)
    bench.ask(PROMPT, ticket, max_tokens=6)
    assert _items(bench) == [(13, 1)]
    assert bench.coming[ticket].claimed == 13
    bench.settle()
    statistics = bench.scheduler.statistics()
    assert (statistics.handed_tokens, statistics.recomputed_tokens, statistics.prefix_queries) == (13, 0, 0)
    assert bench.outputs[0][0].cached_tokens == 13


def test_a_request_that_is_early_waits_for_the_rest() -> None:
    bench = _bench()
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
    assert _items(bench) == [(13, 1)]
    bench.settle()


def test_nothing_is_made_of_a_second_message() -> None:
    bench = _bench()
    ticket = bench.offer(PROMPT)
    bench.arrive(ticket, 8)
    bench.apply(seam.Arrived(0.0, ticket, 4))  # counted from the beginning: no news
    bench.ask(PROMPT, ticket, max_tokens=2)
    bench.fail(ticket)
    assert _items(bench) == [(8, 6)]
    for kind in (seam.Failed, seam.Forgotten):
        bench.apply(kind(0.0, ticket, "again") if kind is seam.Failed else seam.Forgotten(0.0, ticket))
    bench.apply(seam.Arrived(0.0, ticket, 13))
    bench.apply(seam.Arrived(0.0, "unknown", 13))
    bench.apply(seam.SendAdmitted(0.0, "unknown"))
    bench.apply(seam.SendRefused(0.0, "unknown", "no"))
    bench.apply(seam.Returned(0.0, "unknown"))
    bench.apply(seam.Quarantined(0.0, "unknown", 3, "no"))
    bench.settle()


@pytest.mark.parametrize("arrived", [0, 3, 4, 10])
@pytest.mark.parametrize("early", [False, True])
def test_what_arrived_before_a_failure_is_kept(arrived: int, early: bool) -> None:
    bench = _bench()
    ticket = bench.offer(PROMPT)
    if early:
        bench.ask(PROMPT, ticket, max_tokens=3)
    bench.arrive(ticket, arrived)
    bench.scribble()
    bench.fail(ticket)
    if not early:
        bench.ask(PROMPT, ticket, max_tokens=3)
    assert _items(bench) == [(arrived, 14 - arrived)]
    bench.settle()
    assert bench.scheduler.statistics().recomputed_tokens == 13 - arrived


def test_after_a_failure_the_cache_may_know_more() -> None:
    bench = _bench()
    ticket = bench.offer(PROMPT)
    bench.submit(PROMPT, max_tokens=1)  # computes the same meanwhile
    bench.step()
    bench.finish_step()
    bench.arrive(ticket, 6)
    bench.scribble()
    bench.fail(ticket)
    bench.ask(PROMPT, ticket, max_tokens=3)
    assert _items(bench) == [(12, 2)]
    bench.settle()


def test_forgotten_blocks_are_free_and_the_late_request_computes() -> None:
    bench = _bench()
    ticket = bench.offer(PROMPT)
    bench.arrive(ticket)
    bench.forget_for_good(ticket)
    assert bench.scheduler._residents.pool.num_free == 64
    bench.ask(PROMPT, ticket, max_tokens=2)
    assert _items(bench) == [(0, 14)]
    bench.settle()
    assert bench.scheduler.statistics().recomputed_tokens == 13


def test_forgotten_just_as_the_request_came() -> None:
    """The messages cross: it is as if no more came."""
    bench = _bench()
    ticket = bench.offer(PROMPT)
    bench.arrive(ticket, 8)
    bench.ask(PROMPT, ticket, max_tokens=2)
    bench.forget(ticket)
    assert _items(bench) == [(8, 6)]
    bench.settle()


def test_pages_in_the_cache_are_not_sent_again() -> None:
    bench = _bench()
    bench.submit(PROMPT[:10], max_tokens=1)
    bench.settle()
    ticket = bench.offer(PROMPT)
    room = _only(bench, seam.Room)
    assert isinstance(room, seam.Room) and room.held == 2
    bench.submit([30] * 40, max_tokens=20, ignore_eos=True)  # what is held is not given away
    bench.step()
    bench.arrive(ticket)
    bench.ask(PROMPT, ticket, max_tokens=2)
    bench.settle()
    assert bench.scheduler.statistics().recomputed_tokens == 0


def test_what_was_taken_over_can_be_found_by_others() -> None:
    bench = _bench()
    ticket = bench.offer(PROMPT)
    bench.scribble()
    bench.submit(PROMPT, max_tokens=1)
    assert _items(bench) == [(0, 14)]  # not before it has arrived
    bench.finish_step()
    bench.arrive(ticket)
    bench.ask(PROMPT, ticket, max_tokens=1)
    bench.submit([*PROMPT[:12], 33], max_tokens=1)
    assert _items(bench) == [(13, 1), (12, 1)]
    bench.settle()


@pytest.mark.parametrize("page_tokens", [2, 6, 8, 12, 16])
@pytest.mark.parametrize("reserve", [False, True])
def test_pages_of_another_size(page_tokens: int, reserve: bool) -> None:
    """The identities are computed in the sender's pages; cached blocks are used as far as a page ends with them."""
    bench = _bench()
    bench.submit(PROMPT[:10], max_tokens=1)
    bench.settle()
    ticket = bench.offer(PROMPT, page_tokens=page_tokens, reserve=reserve)
    bench.ask(PROMPT, ticket, max_tokens=2)
    bench.step()
    bench.scribble()
    bench.arrive(ticket)
    assert _items(bench) == [(13, 1)]
    bench.settle()
    assert bench.scheduler.statistics().recomputed_tokens == 0


# Who gets it


@pytest.mark.parametrize("reserve", [False, True])
def test_other_tokens_under_the_same_ticket_are_computed(reserve: bool) -> None:
    bench = _bench()
    ticket = bench.offer(PROMPT, lie=True, reserve=reserve)
    if reserve:
        bench.arrive(ticket)
    bench.ask(PROMPT, ticket, max_tokens=2)
    assert _items(bench) == [(0, 14)]
    (warning,) = [i for i in bench.instructions if isinstance(i, Warn)]
    assert ticket in warning.message and "other tokens" in warning.message
    assert bench.coming[ticket].claimed is None and not bench.coming[ticket].stopped  # it stays for its owner
    bench.settle()


def test_another_salt_is_another_owner() -> None:
    bench = _bench()
    ticket = bench.offer(PROMPT, salt="mine")
    bench.arrive(ticket)
    bench.submit(PROMPT, kv=seam.KvTicket(ticket, sends=False), salt="", max_tokens=1)
    assert _items(bench) == [(0, 14)]
    bench.settle()


@pytest.mark.parametrize("prompt", [PROMPT[:-1], [*PROMPT, 3]])
def test_a_shorter_or_longer_prompt_is_another(prompt: list[int]) -> None:
    bench = _bench()
    ticket = bench.offer(PROMPT)
    bench.arrive(ticket)
    bench.ask(prompt, ticket, max_tokens=1)
    assert _items(bench) == [(0, len(prompt))]
    bench.settle()


def test_of_two_requests_the_first_takes_it() -> None:
    bench = _bench()
    ticket = bench.offer(PROMPT)
    bench.arrive(ticket)
    for _ in range(3):
        bench.ask(PROMPT, ticket, max_tokens=4)
    assert _items(bench) == [(13, 1), (12, 2), (12, 2)]  # the others find its full blocks
    bench.settle()


@pytest.mark.parametrize("reserve", [False, True])
@pytest.mark.parametrize("end", ["arrives", "fails", "aborted", "forgotten"])
def test_further_requests_of_a_ticket_wait_for_the_first(reserve: bool, end: str) -> None:
    """They find in the cache what came for it, and go their own way if nothing did."""
    bench = _bench()
    ticket = bench.offer(PROMPT, reserve=reserve)
    numbers = [bench.ask(PROMPT, ticket, max_tokens=3) for _ in range(4)]
    assert bench.step() is None
    assert bench.scheduler.statistics().waiting_for_kv == 4
    bench.abort(numbers[1])
    if end == "arrives":
        bench.arrive(ticket)
        assert _items(bench) == [(13, 1), (12, 2), (12, 2)]
    elif end == "aborted":
        bench.abort(numbers[0])
        assert _items(bench) == [(0, 14), (0, 14)]
    else:
        bench.arrive(ticket, 8)
        bench.fail(ticket) if end == "fails" else bench.forget(ticket)
        assert _items(bench) == [(8, 6), (8, 6), (8, 6)]
    bench.settle()


def test_without_a_cache_nobody_waits_for_the_first() -> None:
    bench = _bench(caching=False)
    ticket = bench.offer(PROMPT)
    for _ in range(2):
        bench.ask(PROMPT, ticket, max_tokens=3)
    assert _items(bench) == [(0, 14)]
    bench.settle()


def test_an_unknown_ticket_is_an_ordinary_prefill() -> None:
    bench = _bench()
    bench.ask(PROMPT, "never heard of", max_tokens=2)
    assert _items(bench) == [(0, 14)]
    bench.settle()
    assert bench.scheduler.statistics().recomputed_tokens == 13


def test_scores_of_the_prompt_need_every_position() -> None:
    bench = _bench()
    ticket = bench.offer(PROMPT)
    bench.ask(PROMPT, ticket, max_tokens=2, prompt_logprobs=0)
    assert bench.coming[ticket].stopped
    assert _items(bench) == [(0, 14)]
    bench.settle()


# Room


def test_there_is_room_for_all_or_for_nothing() -> None:
    bench = _bench(num_blocks=8)
    first = bench.offer(PROMPT)
    second = bench.offer(OTHER)  # four more blocks, one to go on, and one for the first to grow
    assert not bench.coming[first].refused and "more are wanted" in bench.coming[second].refused
    assert bench.scheduler._residents.pool.num_free == 4
    bench.settle()


@pytest.mark.parametrize(("num_blocks", "length", "fits"), [(4, 14, True), (4, 15, True), (4, 16, False), (64, 63, True), (64, 64, False)])
def test_what_can_never_fit_is_refused_at_once(num_blocks: int, length: int, fits: bool) -> None:
    """As a request of that many tokens would be."""
    bench = _bench(num_blocks=num_blocks)
    prompt = [n % 40 for n in range(length)]
    ticket = bench.offer(prompt)
    assert bool(bench.coming[ticket].refused) != fits
    number = bench.submit(prompt, max_tokens=1)
    bench.forget_for_good(ticket)
    bench.settle()
    assert (bench.final(number).finish_reason == "error") != fits


def test_nonsense_and_known_tickets_are_refused() -> None:
    bench = _bench()
    ticket = bench.offer(PROMPT)
    offer = bench.coming[ticket].offer
    bench.coming["bad"] = bench.coming["worse"] = bench.coming[ticket]
    for number, (name, tokens, page_tokens) in enumerate([("bad", 0, 4), ("worse", 13, 0), ("bad", 13, 5), (ticket, 13, 4)], 1):
        for reserve in (False, True):
            bench.apply(seam.Offered(0.0, name, tokens, page_tokens, offer.identities, reserve))
        assert len(bench.told(seam.NoRoom)) == number
    assert "known already" in bench.coming[ticket].refused
    del bench.coming["bad"], bench.coming["worse"]
    bench.ask(PROMPT, ticket, max_tokens=1)
    bench.arrive(ticket)
    assert _items(bench) == [(13, 1)]
    bench.settle()


def test_an_offer_leaves_room_for_who_waited_before() -> None:
    bench = _bench(num_blocks=12, seqs=1)
    bench.submit([1, 2, 3], max_tokens=20, ignore_eos=True)
    bench.step()
    bench.submit(OTHER + OTHER, max_tokens=1)  # seven blocks and one more, when its turn comes
    ticket = bench.offer(PROMPT)
    assert "are to stay free" in bench.coming[ticket].refused
    bench.settle()


def test_reservations_without_a_request_give_way_to_the_first_that_runs() -> None:
    """Six blocks wait for a request that does not come; the only one that runs would stand still until the agent forgets them."""
    bench = _bench(num_blocks=10)
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
    bench = _bench(num_blocks=10, seqs=1)
    number = bench.submit([1, 2, 3], max_tokens=32, ignore_eos=True)
    bench.step()
    ticket = bench.offer(PROMPT)
    bench.arrive(ticket)
    late = bench.ask(PROMPT, ticket, max_tokens=3)
    bench.settle()
    assert bench.coming[ticket].claimed == 0
    assert len(bench.tokens(number)) == 32 and len(bench.tokens(late)) == 3


def test_the_ready_overtake_one_whose_blocks_they_hold() -> None:
    bench = _bench(num_blocks=8)
    ticket = bench.offer(PROMPT)
    long = bench.submit([n % 40 for n in range(28)], max_tokens=1)  # seven blocks and one more
    assert bench.step() is None
    bench.arrive(ticket)
    bench.ask(PROMPT, ticket, max_tokens=1)
    assert _items(bench) == [(13, 1)]
    bench.settle()
    assert bench.tokens(long)


# Delayed


def test_a_delayed_ticket_takes_blocks_when_its_request_runs() -> None:
    bench = _bench()
    ticket = bench.offer(PROMPT, reserve=False)
    assert not bench.messages and bench.scheduler._residents.pool.num_free == 64
    bench.ask(PROMPT, ticket, max_tokens=3)
    assert not bench.messages
    assert bench.step() is None
    fetch = _only(bench, seam.Fetch)
    assert isinstance(fetch, seam.Fetch) and (len(fetch.blocks), fetch.held) == (4, 0)
    other = bench.submit(OTHER, max_tokens=3)
    assert _items(bench) == [(0, 14)]  # others go on meanwhile
    bench.finish_step()
    bench.arrive(ticket)
    assert _items(bench) == [(14, 1), (13, 1)]
    bench.settle()
    assert bench.tokens(other) and bench.coming[ticket].claimed == 13


def test_one_that_is_fetched_has_a_place() -> None:
    bench = _bench(seqs=1)
    ticket = bench.offer(PROMPT, reserve=False)
    bench.ask(PROMPT, ticket, max_tokens=2)
    bench.step()
    bench.submit(OTHER, max_tokens=1)
    assert bench.step() is None
    bench.arrive(ticket)
    assert _items(bench) == [(13, 1)]
    bench.settle()


def test_what_the_cache_holds_is_not_fetched() -> None:
    bench = _bench()
    bench.submit(PROMPT, max_tokens=1)
    bench.settle()
    ticket = bench.offer(PROMPT[:13], reserve=False)  # twelve positions: three blocks that are there
    bench.ask(PROMPT[:13], ticket, max_tokens=2)
    assert _items(bench) == [(12, 1)]
    assert not bench.told(seam.Fetch) and bench.coming[ticket].claimed == 12
    bench.settle()


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_delayed_ticket_fails_before_its_request_runs(forgotten: bool) -> None:
    bench = _bench(seqs=1)
    ticket = bench.offer(PROMPT, reserve=False)
    bench.submit(OTHER, max_tokens=2)
    bench.step()
    bench.ask(PROMPT, ticket, max_tokens=2)
    bench.coming[ticket].refused = "over"
    bench.forget(ticket) if forgotten else bench.fail(ticket)
    bench.settle()
    assert not bench.told(seam.Fetch)


# Ends


@pytest.mark.parametrize("reserve", [False, True])
@pytest.mark.parametrize("arrived", [0, 5])
def test_an_abort_while_kv_comes_keeps_the_blocks_until_nobody_writes(reserve: bool, arrived: int) -> None:
    bench = _bench(num_blocks=8)
    ticket = bench.offer(PROMPT, reserve=reserve)
    number = bench.ask(PROMPT, ticket, max_tokens=2)
    assert bench.step() is None
    bench.arrive(ticket, arrived)
    bench.abort(number)
    assert bench.coming[ticket].stopped
    assert bench.scheduler._residents.pool.num_free == 4
    other = bench.submit(OTHER + OTHER, max_tokens=1)  # needs them
    bench.scribble()
    assert bench.step() is None
    bench.fail(ticket)
    assert bench.step() is not None
    bench.settle()
    assert bench.tokens(other)


def test_an_abort_after_all_has_arrived_frees_at_once() -> None:
    bench = _bench()
    ticket = bench.offer(PROMPT)
    bench.arrive(ticket)
    number = bench.ask(PROMPT, ticket, max_tokens=2)
    bench.abort(number)
    assert bench.coming[ticket].claimed == 0
    bench.check_rest()


def test_a_deadline_passes_while_kv_comes() -> None:
    bench = _bench()
    ticket = bench.offer(PROMPT)
    number = bench.ask(PROMPT, ticket, max_tokens=2, deadline=5.0)
    bench.tick(6.0)
    assert bench.final(number).error_kind == "OverloadedError" and bench.coming[ticket].stopped
    bench.settle()


def test_a_drain_waits_for_the_agent_and_takes_no_offers() -> None:
    bench = _bench()
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

    bench = _bench(seqs=3, fault=fault)
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
    assert _items(bench) == [(0, 14)]
    bench.settle()
    assert bench.tokens(number)


# Quarantine


@pytest.mark.parametrize("early", [False, True])
def test_what_may_still_be_written_to_is_not_used(early: bool) -> None:
    bench = _bench()
    ticket = bench.offer(PROMPT)
    if early:
        bench.ask(PROMPT, ticket, max_tokens=3)
    bench.arrive(ticket, 10)
    bench.quarantine(ticket)
    assert bench.scheduler._residents.pool.num_free == 62  # two of four blocks had arrived whole
    if not early:
        bench.ask(PROMPT, ticket, max_tokens=3)
    bench.scribble()
    assert _items(bench) == [(8, 6) if early else (0, 14)]
    bench.settle()


def test_a_request_that_only_the_quarantine_keeps_from_running_ends() -> None:
    bench = _bench(num_blocks=8)
    ticket = bench.offer(PROMPT)
    bench.quarantine(ticket)
    number = bench.submit([n % 40 for n in range(28)], max_tokens=1)
    short = bench.submit(OTHER[:6], max_tokens=1)
    assert bench.step() is not None  # the second one
    assert bench.final(number).error_kind == "OverloadedError" and "out of use" in str(bench.final(number).error)
    bench.settle()
    assert bench.tokens(short)
