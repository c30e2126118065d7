"""Which engine gets a request: balance, known prefixes, nobody left out, nothing for an engine that takes nothing, and
books that come out even.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homenode.engine.kv.prefix import HashChain
from homenode.engine.router.prefixes import Prefixes, cacheable
from homenode.engine.router.router import SEQUENCE_TOKENS, EngineLoad, RoutedRequest, Router, choose
from tests.examples import examples

BLOCK = 32
BLOCKS = 1000
KEY = b"key"


def router(count: int, blocks: int = BLOCKS, caching: bool = True) -> Router:
    made = Router(BLOCK, caching, KEY)
    for number in range(count):
        made.add(number, blocks)
    return made


def idle(*numbers: int) -> dict[int, float]:
    return dict.fromkeys(numbers, 0.0)


def sent(books: Router, tokens: list[int], usages: dict[int, float], salt: str = "") -> tuple[RoutedRequest, int]:
    routed = books.new_request(tokens, salt)
    route = books.route(routed, usages)
    assert route is not None
    return routed, route.number


def test_equal_engines_take_turns_and_the_same_history_gives_the_same_choices() -> None:
    def history() -> list[int]:
        books, found = router(3), []
        for number in range(9):
            routed, at = sent(books, [number, 1, 2], idle(0, 1, 2))
            books.ended(routed)
            found.append(at)
        return found

    assert history() == history() == [0, 1, 2] * 3


def test_a_known_beginning_draws_a_request_as_far_as_it_saves_work() -> None:
    books = router(2)
    shared = list(range(1, 10 * BLOCK + 1))
    first, at = sent(books, [*shared, 5], idle(0, 1))
    books.ended(first, [*shared, 5, 6, 7])
    assert at == 0
    running = []
    for number in range(20):  # all with the beginning that engine 0 knows; each stays there
        routed, chosen = sent(books, [*shared, 1000 + number], idle(0, 1))
        books.began(routed)
        running.append(chosen)
    assert running[:5] == [0] * 5, "320 tokens are worth five sequences of 64"
    assert 7 <= running.count(1) <= 10, "beyond that the other one takes them, and then knows the beginning as well"


def test_an_answer_is_known_for_the_next_turn_of_a_conversation() -> None:
    books = router(2)
    prompt, answer = list(range(BLOCK)), list(range(100, 100 + 3 * BLOCK))
    routed, at = sent(books, prompt, idle(1))
    books.began(routed)
    books.ended(routed, [*prompt, *answer])
    assert at == 1
    follow = books.new_request([*prompt, *answer, 7, 8], "")
    route = books.route(follow, idle(0, 1))
    assert route is not None
    assert (route.number, route.work) == (1, BLOCK + 2), (
        "the last token of an answer is computed by nobody, so its block is not there"
    )
    other, elsewhere = sent(books, [*prompt, *answer, 7, 8], idle(0, 1), salt="other")
    assert elsewhere == 0 and other.route is not None and other.route.work == 4 * BLOCK + 2, "salts are kept apart"


def test_without_prefix_caches_nothing_is_remembered() -> None:
    books = router(2, caching=False)
    routed, _ = sent(books, list(range(200)), idle(0, 1))
    books.ended(routed, list(range(200)))
    assert books.known_blocks(0) == books.known_blocks(1) == 0


def test_an_engine_that_lost_its_memory_knows_nothing() -> None:
    books = router(2)
    routed, at = sent(books, list(range(200)), idle(0, 1))
    books.ended(routed)
    books.forget(at)
    again = books.new_request(list(range(200)), "")
    route = books.route(again, idle(0, 1))
    assert route is not None and route.work == 200


def test_a_request_avoids_an_engine_whose_memory_is_full_or_too_small_for_it() -> None:
    books = router(2)
    assert sent(books, list(range(200)), {0: 1.0, 1: 0.5})[1] == 1
    small = Router(BLOCK, True, KEY)
    small.add(0, 2)
    small.add(1, 100)
    assert [sent(small, list(range(100)), idle(0, 1))[1] for _ in range(4)] == [1] * 4
    assert sent(small, list(range(100)), idle(0))[1] == 0, "where all are too small, the engine itself says so"


def test_choose_none_of_none() -> None:
    assert choose({}, 5, {}) is None
    books = router(2)
    assert books.route(books.new_request([1], ""), {}) is None


LOADS = st.builds(EngineLoad, st.integers(0, 5000), st.integers(0, 100), st.integers(0, 5000), st.integers(0, 100))


@settings(deadline=None)
@given(st.dictionaries(st.integers(0, 9), LOADS, min_size=1), st.integers(1, 3000), st.data())
def test_nobody_is_chosen_over_an_engine_that_is_better_in_everything(
    loads: dict[int, EngineLoad], prompt: int, data: st.DataObject
) -> None:
    matches = {number: data.draw(st.integers(0, prompt - 1)) for number in loads}
    route = choose(loads, prompt, matches)
    assert route is not None and route.work == prompt - matches[route.number]
    mine = loads[route.number]
    for number, load in loads.items():
        better = (
            load.waiting_tokens < mine.waiting_tokens
            and load.requests <= mine.requests
            and load.free_tokens >= mine.free_tokens
            and matches[number] >= matches[route.number]
        )
        assert not better, number


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(2, 6), st.lists(st.integers(1, 800), min_size=1, max_size=120), st.integers(0, 2**32))
def test_different_prompts_are_spread_evenly(count: int, lengths: list[int], seed: int) -> None:
    """No two engines differ by more work than one request brings."""
    books, draw = router(count, blocks=10**6), random.Random(seed)
    most = SEQUENCE_TOKENS + max(lengths)
    for length in lengths:
        sent(books, [draw.randrange(10**6) for _ in range(length)], idle(*range(count)))
        work = [books.load(n).waiting_tokens + SEQUENCE_TOKENS * books.load(n).requests for n in range(count)]
        assert max(work) - min(work) <= most


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(2, 5), st.integers(1, 40), st.integers(30, 200))
def test_a_popular_beginning_starves_no_engine(count: int, blocks: int, requests: int) -> None:
    """However much it saves, the engine that knows it has at most that much more to do than any other."""
    books = router(count, blocks=10**6)
    shared = list(range(blocks * BLOCK))
    for number in range(requests):
        routed, _ = sent(books, [*shared, -1 - number], idle(*range(count)))
        books.began(routed)
        loads = [books.load(n).requests for n in range(count)]
        assert SEQUENCE_TOKENS * (max(loads) - min(loads)) <= len(shared) + 1 + SEQUENCE_TOKENS


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(1, 4), st.integers(1, 30), st.integers(0, 2**32))
def test_the_books_come_out_even_and_stay_small(count: int, blocks: int, seed: int) -> None:
    """Random lives: requests begin, end, are lost with their engine; nobody gets anything while it takes nothing."""
    books, draw, alive = router(count, blocks), random.Random(seed), set(range(count))
    routed_requests: list[RoutedRequest] = []
    for _ in range(150):
        move = draw.random()
        if move < 0.5:
            routed = books.new_request([draw.randrange(3) for _ in range(draw.randrange(1, 200))], "")
            route = books.route(routed, {number: draw.random() for number in alive})
            assert (route is None) == (not alive) and (route is None or route.number in alive)
            routed_requests += [routed] if route else []
        elif move < 0.8 and routed_requests:
            routed = routed_requests[draw.randrange(len(routed_requests))]
            books.began(routed)
            if draw.random() < 0.5:
                routed_requests.remove(routed)
                books.ended(routed, [*routed.tokens, *range(draw.randrange(100))])
        elif move < 0.9 and alive:
            dead = draw.choice(sorted(alive))
            alive.discard(dead)
            for routed in [t for t in routed_requests if t.route and t.route.number == dead]:
                routed_requests.remove(routed)
                books.ended(routed)
            books.forget(dead)
            assert (books.load(dead).waiting_tokens, books.load(dead).requests) == (0, 0)
        else:
            back = draw.randrange(count)
            if back not in alive:
                books.add(back, blocks)
                alive.add(back)
        assert all(books.known_blocks(number) <= blocks for number in range(count))
        assert all(
            books.load(n).requests == sum(t.route.number == n for t in routed_requests if t.route) for n in range(count)
        )
    for routed in routed_requests:
        books.ended(routed)
    assert all((books.load(n).waiting_tokens, books.load(n).requests) == (0, 0) for n in range(count))


def digests(tokens: list[int]) -> list[bytes]:
    return cacheable(HashChain(KEY, 4, ""), tokens, 4)


def test_the_end_of_a_prompt_is_forgotten_before_its_beginning_and_the_oldest_first() -> None:
    known = Prefixes(4)
    long, other = digests(list(range(25))), digests(list(range(100, 109)))
    known.add(long[:4])
    known.add(other)
    assert (known.match(long), known.match(other), len(known)) == (2, 2, 4)
    known.add(long)
    assert (known.match(long), len(known)) == (4, 4), "of more blocks than there are the beginning is kept"
    known.forget()
    assert (known.match(long), len(known)) == (0, 0)


@pytest.mark.parametrize(("length", "blocks"), [(1, 0), (4, 0), (5, 1), (8, 1), (9, 2)])
def test_the_last_token_is_never_in_a_cache(length: int, blocks: int) -> None:
    assert len(digests(list(range(length)))) == blocks
