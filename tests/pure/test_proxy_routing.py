"""Which servers a request goes to, what is known of a server, and when it is left alone."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from homenode.server.proxy import routing
from homenode.server.proxy.breaker import LONGEST_PAUSE_S, CircuitBreaker
from homenode.server.proxy.instances import Instance, Role, Sight, obstacle
from homenode.server.proxy.routing import TRY_AGAIN, ChosenRoute, LoadTable, Prompt, RouteTarget
from homenode.server.proxy.speed import WorkKind
from homenode.transfer.wire.message import Published, decode_documents, encode_documents, encode_published

P, Q, R, D, E = map(RouteTarget, "PQRDE")
ALL = (P, Q, R)
KEY = b"key"


def fits(prefiller: RouteTarget, decoder: RouteTarget) -> bool:
    return True


def published(role: str = "sender", incarnation: str = "0" * 32, **changes: object) -> Published:
    values = {"mode": "push", "channel": "shm", "fingerprint": {"layers": "5"}, "block_size": 64, **changes}
    return Published(role=role, incarnation=incarnation, **values)  # type: ignore[arg-type]


def sight(role: str = "sender", incarnation: str = "0" * 32) -> Sight:
    return Sight("ready", "", published(role, incarnation), incarnation.encode())


def instance(role: Role = "prefill") -> Instance:
    return Instance("url", role, CircuitBreaker(3, 2.0))


def test_equal_servers_take_turns() -> None:
    loads, found = LoadTable(KEY), []
    for number in range(6):
        prompt = loads.prompt([number], 1, "")
        choice = loads.choose(prompt, ALL, (D, E), fits)
        assert choice is not None and choice.prefiller is not None
        for server in (choice.prefiller, choice.decoder):
            loads.end(loads.begin(server, prompt))
        found.append((choice.prefiller, choice.decoder))
    assert found == [(P, D), (Q, E), (R, D), (P, E), (Q, D), (R, E)]


def test_what_waits_counts_and_what_is_answered_does_not() -> None:
    loads, prompt = LoadTable(KEY), Prompt(1000)
    entry = loads.begin(P, prompt)
    assert loads.waiting("P") == 1000 and loads.choose(prompt, (P, Q), (D,), fits) == ChosenRoute(D, Q)
    loads.answered(entry)
    assert loads.waiting("P") == 0 and loads.requests("P") == 1
    second = loads.begin(Q, prompt)
    assert loads.choose(prompt, (P, Q), (D,), fits) == ChosenRoute(D, P)
    loads.end(second)
    loads.end(entry)
    assert loads.requests("P") == loads.requests("Q") == loads.waiting("P") == loads.waiting("Q") == 0


def test_a_known_beginning_draws_to_both_sides_but_not_into_a_flood() -> None:
    loads = LoadTable(KEY)
    prompt = loads.prompt(list(range(2000)), 2000, "")
    for server in (Q, E):
        loads.end(loads.begin(server, prompt))
    for server in (P, D):  # so that turns speak against them
        loads.end(loads.begin(server, Prompt(1)))
        loads.end(loads.begin(server, Prompt(1)))
    assert loads.choose(prompt, (P, Q), (D, E), fits) == ChosenRoute(E, Q)
    other_salt = loads.prompt(list(range(2000)), 2000, "salt")
    assert other_salt.digests and not set(other_salt.digests) & set(prompt.digests)
    for _ in range(40):
        loads.begin(Q, prompt)
    assert loads.choose(prompt, (P, Q), (D, E), fits) == ChosenRoute(E, P)
    loads.forget("E")
    loads.forget("Q")
    assert loads.choose(prompt, (Q,), (D, E), fits) == ChosenRoute(E, Q)


def test_only_pairs_that_fit_and_else_a_decoder_alone() -> None:
    loads, prompt = LoadTable(KEY), Prompt(100)
    assert loads.choose(prompt, (P, Q), (D, E), lambda p, d: (p, d) == (Q, E)) == ChosenRoute(E, Q)
    assert loads.choose(prompt, (P, Q), (D, E), lambda p, d: False) == ChosenRoute(D)
    assert loads.choose(prompt, (), (D, E), fits) == ChosenRoute(D)
    assert loads.choose(prompt, (P,), (), fits) is None


def test_little_that_is_lacking_is_not_handed_over() -> None:
    loads = LoadTable(KEY)
    assert loads.choose(Prompt(99), (P,), (D,), fits, 100) == ChosenRoute(D, None, short=True)
    assert loads.choose(Prompt(100), (P,), (D,), fits, 100) == ChosenRoute(D, P)
    prompt = loads.prompt(list(range(641)), 641, "")
    loads.end(loads.begin(E, prompt))
    assert loads.choose(prompt, (P,), (D, E), fits, 100) == ChosenRoute(E, None, short=True)


@given(st.lists(st.tuples(st.sampled_from(ALL), st.integers(0, 5000), st.booleans(), st.booleans())))
def test_the_books_come_out_even(history: list[tuple[RouteTarget, int, bool, bool]]) -> None:
    loads, open_ = LoadTable(KEY), []
    for server, tokens, answered, handed in history:
        entry = loads.begin(server, Prompt(tokens), WorkKind.HANDED_OVER if handed else WorkKind.WHOLE)
        if answered:
            loads.answered(entry)
        open_.append(entry)
        assert loads.waiting(server.server) >= 0
    for entry in open_:
        loads.end(entry)
    assert all(loads.requests(server.server) == 0 and loads.waiting(server.server) == 0 for server in ALL)


def test_each_engine_of_a_decode_server_is_a_place_of_its_own() -> None:
    loads = LoadTable(KEY)
    first, second = RouteTarget("D", "1" * 32), RouteTarget("D", "2" * 32)
    prompt = loads.prompt(list(range(2000)), 2000, "")
    loads.end(loads.begin(second, prompt))
    assert loads.choose(prompt, (P,), (first, second), fits) == ChosenRoute(second, P)
    held = [loads.begin(second, Prompt(9000), WorkKind.HANDED_OVER) for _ in range(3)]
    assert loads.choose(prompt, (P,), (first, second), fits) == ChosenRoute(first, P), (
        "what waits there is more than what is saved"
    )
    assert loads.requests("D") == 3 and loads.waiting("D") == 3 * 9000 / 16
    loads.keep("D", [first.engine or ""])
    assert loads.requests("D") == 0, "it was lost, and its successor begins with nothing"
    for entry in held:  # their ends come late
        loads.end(entry)
    assert loads.requests("D") == 0 and loads.choose(prompt, (P,), (first,), fits) == ChosenRoute(first, P)


def test_what_waits_at_a_prefill_server_is_divided_among_its_engines() -> None:
    loads = LoadTable(KEY)
    loads.divide("P", 4)
    for _ in range(2):
        loads.begin(P, Prompt(1000))
    loads.begin(Q, Prompt(600))
    assert loads.choose(Prompt(100), (P, Q), (D,), fits) == ChosenRoute(D, P)
    loads.divide("P", 1)
    assert loads.choose(Prompt(100), (P, Q), (D,), fits) == ChosenRoute(D, Q)


def _served(loads: LoadTable, seconds: dict[RouteTarget, float], tokens: int = 100) -> list[RouteTarget]:
    """One request: the servers that it went to, which took so many seconds each."""
    prompt = loads.prompt([], tokens, "")
    choice = loads.choose(prompt, (P, Q), (D, E), fits)
    assert choice is not None and choice.prefiller is not None
    kinds = ((choice.prefiller, WorkKind.PREFILL), (choice.decoder, WorkKind.HANDED_OVER))
    for server, kind in kinds:
        entry = loads.begin(server, prompt, kind)
        loads.learn(entry, seconds[server])
        loads.end(entry)
    return [server for server, _ in kinds]


@pytest.mark.parametrize(("slow", "times"), [(P, 3.0), (Q, 1000.0), (D, 10.0), (E, 3.0)])
def test_a_slow_server_gets_one_request_in_a_hundred_and_work_again_when_it_is_fast(
    slow: RouteTarget, times: float
) -> None:
    loads = LoadTable(KEY)
    equal = dict.fromkeys((P, Q, D, E), 0.1)
    for _ in range(8):
        _served(loads, equal)
    begun = [slow in _served(loads, equal | {slow: 0.1 * times}) for _ in range(1000)]
    assert sum(begun[:20]) <= 4 and sum(begun) <= 10
    assert loads.slowness(slow.server, "PQ" if slow in (P, Q) else "DE") >= 2
    again = [slow in _served(loads, equal) for _ in range(TRY_AGAIN + 40)]
    assert sum(again[-40:]) >= 20, "it had fewer than the other"


@given(st.lists(st.floats(0.06, 0.1), min_size=40, max_size=40), st.floats(1, 50))
def test_noise_and_a_machine_that_is_slower_as_a_whole_change_no_turns(noise: list[float], later: float) -> None:
    loads, found = LoadTable(KEY), []
    for number, seconds in enumerate(noise):
        found.append(_served(loads, dict.fromkeys((P, Q, D, E), seconds * (later if number >= 20 else 1.0))))
    for part in (found[:20], found[-8:]):  # it is seen at the first server, a moment later at the other
        assert sum(P in each for each in part) == sum(D in each for each in part) == len(part) / 2


def test_a_slow_server_is_used_where_others_have_as_much_more_to_do() -> None:
    loads = LoadTable(KEY)
    for _ in range(6):
        _served(loads, {P: 0.4, Q: 0.1, D: 0.1, E: 0.1})
    entries = []
    for _ in range(10):
        choice = loads.choose(Prompt(100), (P, Q), (D,), fits)
        assert choice is not None and choice.prefiller is not None
        entries.append((choice.prefiller, loads.begin(choice.prefiller, Prompt(100), WorkKind.PREFILL)))
    assert [server for server, _ in entries].count(P) == 2
    loads.forget("P")
    assert loads.choose(Prompt(100), (P, Q), (D,), fits) == ChosenRoute(D, P), "it is another life"


def _answered(
    loads: LoadTable,
    server: RouteTarget,
    prompt: Prompt,
    seconds: float,
    kind: WorkKind = WorkKind.WHOLE,
    model: str | None = "",
) -> None:
    """One request to a server, and its answer."""
    entry = loads.begin(server, prompt, kind, model)
    loads.learn(entry, seconds)
    loads.end(entry)


def _slow(loads: LoadTable, servers: str = "PQ") -> list[bool]:
    return [loads.slowness(server, servers) > 1 for server in servers]


def test_servers_are_compared_by_works_of_one_kind_and_size() -> None:
    loads = LoadTable(KEY)
    small, large = (10, 0.01), (10_000, 30.0)
    for server, works in ((P, (small, small, large)), (Q, (small, large, small))):
        for tokens, seconds in works:
            _answered(loads, server, Prompt(tokens), seconds, WorkKind.PREFILL)
    assert _slow(loads) == [False, False]
    for kind in (WorkKind.WHOLE, WorkKind.HANDED_OVER):
        _answered(loads, P, Prompt(10), 5.0, kind)
    assert _slow(loads) == [False, False]


def test_servers_are_compared_by_works_of_one_model() -> None:
    loads = LoadTable(KEY)
    for server, works in ((P, (("big", 2.0), ("small", 0.1))), (Q, (("big", 2.0),))):
        for model, seconds in works * 3:
            _answered(loads, server, Prompt(100), seconds, model=model)
    _answered(loads, P, Prompt(100), 30.0, model=None)  # it was loaded first
    found = []
    for _ in range(8):
        choice = loads.choose(Prompt(100), (), (P, Q), fits, model_at=lambda target: "big")
        assert choice is not None
        found.append(choice.decoder)
        _answered(loads, choice.decoder, Prompt(100), 2.0, model="big")
    assert _slow(loads) == [False, False] and sorted(target.server for target in found[-2:]) == ["P", "Q"]
    _answered(loads, P, Prompt(100), 30.0, model="big")
    _answered(loads, P, Prompt(100), 0.1, model="small")
    assert _slow(loads) == [True, False], "that it is fast by another model makes it no faster by this one"
    assert loads.choose(Prompt(100), (), (P, Q), fits, model_at=lambda target: "big") == ChosenRoute(Q)


SECOND = 1 / 1000  # for a token


@pytest.mark.parametrize("times", [1, 10])
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("queued", [True, False])
def test_a_wrong_guess_of_a_cache_makes_no_server_slow_and_a_right_one_none_fast(
    times: int, kept: bool, queued: bool
) -> None:
    loads = LoadTable(KEY)
    for _ in range(3):
        for server, factor in ((P, times), (Q, 1)):
            _answered(loads, server, Prompt(100), 164 * SECOND * factor)
    chat = loads.prompt(list(range(8000)), 8000, "")
    for server in (P, Q):
        _answered(loads, server, chat, 8064 * SECOND * (times if server is P else 1))
    for server, held in ((P, kept), (Q, True)):
        first = loads.begin(server, chat)
        last = loads.begin(server, Prompt(20)) if queued else first
        took = (128 if held else 8064) + (84 if queued else 0)
        loads.learn(last, took * SECOND * (times if server is P else 1))
        loads.end(last)
        if queued:
            loads.end(first)
    assert _slow(loads) == [times > 1, False]
    for _ in range(3):
        _answered(loads, P, Prompt(100), 0.164)
    assert _slow(loads) == [False, False]


@pytest.mark.parametrize("untold", [Prompt(15, told=False), Prompt(10_000, stream=False)])
def test_work_that_tokens_do_not_tell_teaches_nothing_nor_does_what_waits_behind_it(untold: Prompt) -> None:
    loads = LoadTable(KEY)
    for _ in range(3):
        for server in (P, Q):
            _answered(loads, server, Prompt(10_000), 10_064 * SECOND)
            _answered(loads, server, Prompt(100), 164 * SECOND)
    _answered(loads, P, untold, 20.0)
    before = loads.begin(P, untold)
    for seconds in (5.0 if untold.stream else 164 * SECOND,) * 3:
        _answered(loads, P, Prompt(100), seconds)
    loads.end(before)
    _answered(loads, Q, Prompt(10_000), 10_064 * SECOND)
    assert _slow(loads) == [False, False]


def test_a_server_is_tried_again_by_what_teaches() -> None:
    """Of seven requests one is a stream; a slow server is fast again after so many."""
    loads, found = LoadTable(KEY), []
    for number in range(7 * 3 * TRY_AGAIN):
        prompt = Prompt(100, stream=number % 7 == 0)
        choice = loads.choose(prompt, (), (P, Q), fits)
        assert choice is not None
        entry = loads.begin(choice.decoder, prompt)
        if prompt.stream:
            found.append(choice.decoder)
            loads.learn(entry, 1.0 if choice.decoder is P and number < 7 * TRY_AGAIN else 0.1)
        elif choice.decoder is P and number > 100:
            found.append(R)
        loads.end(entry)
        if number == 7 * TRY_AGAIN:
            assert found.count(P) <= 4 and found.count(R) == 0, "whoever teaches nothing goes elsewhere"
    assert found[-40:].count(P) + found[-40:].count(R) >= 20


def test_a_try_that_taught_nothing_is_made_again_but_not_at_once() -> None:
    loads, tries = LoadTable(KEY), 0
    for _ in range(3):
        for server, seconds in ((P, 1.0), (Q, 0.1)):
            _answered(loads, server, Prompt(100), seconds)
    for _ in range(4 * TRY_AGAIN):
        choice = loads.choose(Prompt(100), (), (P, Q), fits)
        assert choice is not None
        if choice.decoder is P:  # it gives no answer
            tries += 1
            loads.end(loads.begin(P, Prompt(100)))
        else:
            _answered(loads, Q, Prompt(100), 0.1)
    assert 4 < tries <= 8


def test_what_was_learned_lapses_where_nothing_tells_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "LAPSES_AFTER", 1000)
    loads, whole = LoadTable(KEY), Prompt(100, stream=False)
    for _ in range(8):
        for server, seconds in ((P, 2.0), (Q, 0.1)):
            _answered(loads, server, Prompt(100), seconds)
    assert _slow(loads) == [True, False]

    def share(count: int) -> float:
        chosen = []
        for _ in range(count):
            choice = loads.choose(whole, [], [P, Q], fits)
            assert choice is not None
            loads.end(loads.begin(choice.decoder, whole))
            chosen.append(choice.decoder is P)
        return sum(chosen) / count

    assert share(200) == 0.0
    share(1000)
    assert share(200) > 0.4


def test_a_short_prompt_that_overtakes_a_long_one_makes_nobody_fast() -> None:
    """How much of the long one was done with when it came is not known."""
    loads, long = LoadTable(KEY), Prompt(10_000)
    for server in (P, Q, P, Q, P, Q):
        _answered(loads, server, long, 10.0)
    ahead = loads.begin(Q, long)
    _answered(loads, Q, Prompt(100), 0.2)
    loads.end(ahead)
    _answered(loads, P, long, 10.0)
    assert _slow(loads) == [False, False]


def test_a_slow_server_keeps_no_prompts_for_the_little_that_they_lack() -> None:
    loads = LoadTable(KEY)
    prompt = loads.prompt(list(range(641)), 641, "")
    _answered(loads, D, prompt, 1.0)
    assert loads.choose(prompt, (P,), (D, E), fits, 100) == ChosenRoute(D, None, short=True)
    for _ in range(2):
        for server, seconds in ((D, 10.0), (E, 0.1)):
            _answered(loads, server, Prompt(100), seconds)
    assert loads.choose(prompt, (P,), (D, E), fits, 100) == ChosenRoute(E, P)
    assert loads.choose(prompt, (P,), (D,), fits, 100) == ChosenRoute(D, None, short=True)


def test_engines_of_one_server_are_compared_too() -> None:
    loads = LoadTable(KEY)
    for engine, seconds in (("1" * 32, 1.0), ("2" * 32, 0.1)):
        for _ in range(3):
            _answered(loads, RouteTarget("D", engine), Prompt(100), seconds)
    assert loads.slowness("D", "D") == pytest.approx(10)


def test_a_breaker_opens_after_failures_in_a_row_and_lets_one_probe_through() -> None:
    breaker = CircuitBreaker(3, 2.0)
    for _ in range(2):
        breaker.failed(0.0)
    breaker.succeeded()
    for _ in range(3):
        assert not breaker.open(1.0)
        breaker.failed(1.0)
    assert breaker.open(2.9) and not breaker.open(3.0)
    breaker.sent(3.0)
    assert breaker.open(3.0)  # one probe at a time
    breaker.spared()
    assert not breaker.open(3.0)  # it told nothing: another one
    breaker.sent(3.0)
    breaker.failed(3.5)
    assert breaker.open(7.4) and not breaker.open(7.5)  # twice as long
    breaker.sent(8.0)
    breaker.succeeded()
    assert not breaker.open(8.0)


@given(st.lists(st.sampled_from(["sent", "failed", "succeeded", "spared", "later"])))
def test_a_breaker_never_stays_open(history: list[str]) -> None:
    breaker, now = CircuitBreaker(2, 1.0), 0.0
    for word in history:
        if word == "later":
            now += 1.5
        elif word in ("sent", "failed"):
            getattr(breaker, word)(now)
        else:
            getattr(breaker, word)()
    breaker.spared()
    assert not breaker.open(now + LONGEST_PAUSE_S)


def test_the_states_of_a_server() -> None:
    server = instance()
    assert not server.usable(0) and server.looked(1.0, sight()) and server.usable(1.0) and server.lives == 1
    assert not server.looked(2.0, sight()) and server.since == 1.0
    server.suspected(3.0, "a connection broke")
    assert server.state == "suspect" and not server.usable(3.0) and server.lost_in(3.0, 1, 0.0) is None
    server.looked(4.0, sight())
    assert server.usable(4.0)
    assert server.looked(5.0, Sight("silent")) and not server.looked(5.5, Sight("silent"))
    assert server.lost_in(5.0, 1, 0.0) == 0 and server.lost_in(5.0, 1, 10.0) == 10 and server.document is not None
    server.heard_at = 6.0
    assert server.lost_in(7.0, 1, 10.0) == 9
    server.looked(8.0, sight(incarnation="1" * 32))
    assert (
        server.lives == 2
        and server.usable(8.0)
        and server.lost_in(8.0, 1, 10.0) == 0
        and server.lost_in(8.0, 2, 0.0) is None
    )


def several(*engines: str) -> Sight:
    documents = tuple(published("receiver", each * 32) for each in engines)
    return Sight("ready", "", documents[0], "".join(engines).encode(), documents)


def test_a_server_lives_while_one_of_its_engines_does() -> None:
    server = instance("decode")
    server.looked(0.0, several("1", "2"))
    assert (
        decode_documents(server.kv(None).of("2" * 32)) == published("receiver", "2" * 32)
        and server.kv(None).of("3" * 32) == b""
    )
    assert server.looked(1.0, several("1", "3")) and server.lives == 1 and server.kv(None).of("2" * 32) == b""
    assert server.looked(2.0, several("3")) and server.lives == 1
    assert server.looked(3.0, several("4", "5")) and server.lives == 2


def test_a_list_of_documents_is_read_within_bounds() -> None:
    one = published("receiver")
    assert decode_documents(encode_published(one)) == one and decode_documents(encode_documents([one, one])) == [
        one,
        one,
    ]
    for wrong in (b"[]", b"[1]", b"{}", b"[" + encode_published(one) + b"," * (1 << 20), b"\xff"):
        with pytest.raises(msgspec.DecodeError):
            decode_documents(wrong)


def test_answers_of_a_server_that_publishes_nothing_outlive_a_look_without_a_connection() -> None:
    server = instance("decode")
    for now, state in enumerate(("ready", "down", "ready")):
        server.looked(now, Sight(state))  # type: ignore[arg-type]
    assert server.lives == 1 and server.lost_in(3.0, 1, 0.0) is None


def test_roles() -> None:
    states = {}
    for role, seen in (("prefill", "receiver"), ("decode", "sender"), ("decode", "receiver"), ("prefill", "sender")):
        server = instance(role)  # type: ignore[arg-type]
        server.looked(0.0, sight(seen))
        states[role, seen] = server.state
    assert list(states.values()) == ["unfit", "unfit", "ready", "ready"]


def test_a_new_life_closes_the_breaker() -> None:
    server = instance()
    server.looked(0.0, sight())
    for _ in range(3):
        server.breaker.failed(0.0)
    assert not server.usable(0.0)
    server.looked(0.5, sight(incarnation="2" * 32))
    assert server.usable(0.5)


def test_obstacles_are_named() -> None:
    sender = published()
    assert obstacle(sender, published("receiver", block_size=32)) is None
    assert obstacle(None, sender) is not None
    assert "mode is 'push'" in str(obstacle(sender, published("receiver", mode="pull-eager")))
    assert "layers is '5' at the prefill server and '6'" in str(
        obstacle(sender, published("receiver", fingerprint={"layers": "6"}))
    )
    far = published("receiver", alloc=["unix:@x"], host="there")
    assert "two" in str(obstacle(published(host="here"), far)) and obstacle(published(host="there"), far) is None
    assert obstacle(published(host="here"), published("receiver", alloc=["tcp:h:1"], host="there")) is None
