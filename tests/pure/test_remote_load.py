"""What fronts tell each other keeps their routers alike, whoever asked and whatever is lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from homenode.engine.fronts.messages import Began, Booked, FrontLeft, OfOthers, RequestEnded
from homenode.engine.fronts.numbers import first_number, front_of
from homenode.engine.router.prefixes import cacheable
from homenode.engine.router.remote_load import RemoteLoad
from homenode.engine.router.router import RoutedRequest, Router

ENGINES, BLOCKS, BLOCK = 3, 40, 4
KEY = b"k" * 32


def router() -> Router:
    made = Router(BLOCK, key=KEY)
    for number in range(ENGINES):
        made.add(number, BLOCKS)
    return made


class Front:
    """A router with requests of its own, as `LinkedClient` keeps it."""

    def __init__(self, number: int) -> None:
        self.number, self.router = number, router()
        self.elsewhere = RemoteLoad(self.router)
        self.routed_requests: dict[int, RoutedRequest] = {}
        self.count = 0

    def ask(self, tokens: list[int]) -> tuple[int, Booked]:
        self.count += 1
        request, routed = first_number(self.number) + self.count, self.router.new_request(tokens, "")
        route = self.router.route(routed, dict.fromkeys(range(ENGINES), 0.0))
        assert route is not None
        self.routed_requests[request] = routed
        return request, Booked(request, route.number, route.work, cacheable(routed.chain, tokens, BLOCK))

    def begin(self, request: int) -> Began:
        self.router.began(self.routed_requests[request])
        return Began(request)

    def end(self, request: int, answer: list[int]) -> RequestEnded:
        routed = self.routed_requests.pop(request)
        known = len(cacheable(routed.chain, routed.tokens, BLOCK))
        whole = [*routed.tokens, *answer]
        self.router.ended(routed, whole)
        return RequestEnded(request, cacheable(routed.chain, whole, BLOCK)[known:])


def same(a: Router, b: Router) -> bool:
    return all(a.load(n) == b.load(n) and a.known(n) == b.known(n) for n in range(ENGINES))


STEPS = st.lists(
    st.tuples(
        st.integers(0, 2), st.integers(0, 1), st.lists(st.integers(0, 2), min_size=1, max_size=20), st.integers(0, 50)
    ),
    max_size=40,
)


@given(STEPS)
def test_fronts_that_hear_each_other_know_the_same(steps: list[tuple[int, int, list[int], int]]) -> None:
    fronts, coordinator = [Front(1), Front(2)], RemoteLoad(watched := router())
    for what, who, tokens, pick in steps:
        speaker, listener = fronts[who], fronts[1 - who]
        told: OfOthers
        if what == 0 or not speaker.routed_requests:
            told = speaker.ask(tokens)[1]
        else:
            request = sorted(speaker.routed_requests)[pick % len(speaker.routed_requests)]
            told = speaker.begin(request) if what == 1 else speaker.end(request, tokens)
        listener.elsewhere.take(told)
        coordinator.take(told)
        assert same(fronts[0].router, fronts[1].router) and same(fronts[0].router, watched)
    late = Front(3)
    for told in coordinator.all(ENGINES):
        late.elsewhere.take(told)
    for n in range(ENGINES):
        now, seen = watched.load(n), late.router.load(n)
        assert (now.requests, now.waiting_tokens, set(watched.known(n))) == (
            seen.requests,
            seen.waiting_tokens,
            set(late.router.known(n)),
        )
    coordinator.take(FrontLeft(1))
    coordinator.take(FrontLeft(2))
    assert len(coordinator) == 0
    assert all((watched.load(n).requests, watched.load(n).waiting_tokens) == (0, 0) for n in range(ENGINES))


def test_what_is_told_late_of_a_lost_engine_changes_nothing() -> None:
    asking, hearing = Front(1), Front(2)
    request, booked = asking.ask([1] * 9)
    hearing.elsewhere.take(booked)
    hearing.elsewhere.add(booked.engine, BLOCKS)
    assert hearing.router.load(booked.engine).requests == 0 and not hearing.router.known(booked.engine)
    for told in (asking.begin(request), asking.end(request, [2]), RequestEnded(request)):
        hearing.elsewhere.take(told)
    assert (hearing.router.load(booked.engine).requests, hearing.router.load(booked.engine).waiting_tokens) == (0, 0)


def test_an_engine_that_was_never_there_is_not_told_of() -> None:
    empty = RemoteLoad(made := Router(BLOCK, key=KEY))
    empty.take(Booked(first_number(1) + 1, 7, 5, []))
    assert len(empty) == 0 and not made.has(7) and list(empty.all(9)) == []


@given(st.integers(0, 2**22), st.integers(1, 2**40 - 1))
def test_numbers_tell_their_front(front: int, count: int) -> None:
    assert front_of(first_number(front) + count) == front
    assert first_number(front) + count < 2**63
