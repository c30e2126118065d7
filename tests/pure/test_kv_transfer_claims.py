"""Who gets what was handed over: the request with the ticket and the same tokens, and nobody else."""

from __future__ import annotations

import pytest

from homenode.engine.scheduler.events import Warn
from homenode.transfer import scheduler_events
from tests.pure.receiver_bench import PROMPT, bench_of, items_of


@pytest.mark.parametrize("reserve", [False, True])
def test_other_tokens_under_the_same_ticket_are_computed(reserve: bool) -> None:
    bench = bench_of()
    ticket = bench.offer(PROMPT, lie=True, reserve=reserve)
    if reserve:
        bench.arrive(ticket)
    bench.ask(PROMPT, ticket, max_tokens=2)
    assert items_of(bench) == [(0, 14)]
    (warning,) = [i for i in bench.instructions if isinstance(i, Warn)]
    assert ticket in warning.message and "other tokens" in warning.message
    assert bench.coming[ticket].claimed is None and not bench.coming[ticket].stopped  # it stays for its owner
    bench.settle()


def test_another_salt_is_another_owner() -> None:
    bench = bench_of()
    ticket = bench.offer(PROMPT, salt="mine")
    bench.arrive(ticket)
    bench.submit(PROMPT, kv=scheduler_events.KvTicket(ticket, sends=False), salt="", max_tokens=1)
    assert items_of(bench) == [(0, 14)]
    bench.settle()


@pytest.mark.parametrize("prompt", [PROMPT[:-1], [*PROMPT, 3]])
def test_a_shorter_or_longer_prompt_is_another(prompt: list[int]) -> None:
    bench = bench_of()
    ticket = bench.offer(PROMPT)
    bench.arrive(ticket)
    bench.ask(prompt, ticket, max_tokens=1)
    assert items_of(bench) == [(0, len(prompt))]
    bench.settle()


def test_of_two_requests_the_first_takes_it() -> None:
    bench = bench_of()
    ticket = bench.offer(PROMPT)
    bench.arrive(ticket)
    for _ in range(3):
        bench.ask(PROMPT, ticket, max_tokens=4)
    assert items_of(bench) == [(13, 1), (12, 2), (12, 2)]  # the others find its full blocks
    bench.settle()


@pytest.mark.parametrize("reserve", [False, True])
@pytest.mark.parametrize("end", ["arrives", "fails", "aborted", "forgotten"])
def test_further_requests_of_a_ticket_wait_for_the_first(reserve: bool, end: str) -> None:
    """They find in the cache what came for it, and go their own way if nothing did."""
    bench = bench_of()
    ticket = bench.offer(PROMPT, reserve=reserve)
    numbers = [bench.ask(PROMPT, ticket, max_tokens=3) for _ in range(4)]
    assert bench.step() is None
    assert bench.scheduler.statistics().waiting_for_kv == 4
    bench.abort(numbers[1])
    if end == "arrives":
        bench.arrive(ticket)
        assert items_of(bench) == [(13, 1), (12, 2), (12, 2)]
    elif end == "aborted":
        bench.abort(numbers[0])
        assert items_of(bench) == [(0, 14), (0, 14)]
    else:
        bench.arrive(ticket, 8)
        bench.fail(ticket) if end == "fails" else bench.forget(ticket)
        assert items_of(bench) == [(8, 6), (8, 6), (8, 6)]
    bench.settle()


def test_without_a_cache_nobody_waits_for_the_first() -> None:
    bench = bench_of(caching=False)
    ticket = bench.offer(PROMPT)
    for _ in range(2):
        bench.ask(PROMPT, ticket, max_tokens=3)
    assert items_of(bench) == [(0, 14)]
    bench.settle()


def test_an_unknown_ticket_is_an_ordinary_prefill() -> None:
    bench = bench_of()
    bench.ask(PROMPT, "never heard of", max_tokens=2)
    assert items_of(bench) == [(0, 14)]
    bench.settle()
    assert bench.scheduler.statistics().recomputed_tokens == 13


def test_scores_of_the_prompt_need_every_position() -> None:
    bench = bench_of()
    ticket = bench.offer(PROMPT)
    bench.ask(PROMPT, ticket, max_tokens=2, prompt_logprobs=0)
    assert bench.coming[ticket].stopped
    assert items_of(bench) == [(0, 14)]
    bench.settle()
