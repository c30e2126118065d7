"""Prefill and decode apart where servers are of several engines, or answer with several fronts, behind the proxy."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from homenode.host.topology.allowance import Allowance
from tests.engine.live import LiveServer
from tests.engine.test_live_faults import Proxy
from tests.engine.transfer_pair import Live, Pair, one_engine_says, prompts, tokens_of
from tests.waiting import wait_until

pytest.importorskip("homenode._native", reason="needs the compiled core")
pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(not LiveServer.possible(), reason="needs a model"),
    pytest.mark.skipif(len(Allowance.of_process().physical_cpus) < 2, reason="two engines need two cores"),
]

PROMPTS = prompts(10)
TOKENS = 12
MEMORY = ("--kv-cache-memory", "16MiB")
ALONE = ("--api-server-count", "1")
FRONTS = ("--api-server-count", "2")
TWO = (*MEMORY, "--data-parallel-size", "2")
slow = pytest.mark.slow


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    """What one engine says."""
    return one_engine_says(PROMPTS, TOKENS)


def published(live: Live) -> list[dict[str, Any]]:
    documents: list[dict[str, Any]] = live.http.get("/kv_transfer").json()
    assert isinstance(documents, list)
    return documents


def by_engine(live: Live, name: str) -> dict[str, float]:
    """A metric of each engine."""
    lines = [
        line
        for line in live.http.get("/metrics").text.splitlines()
        if line.startswith(f"homenode:kv_transfer_{name}{{")
    ]
    return {line.partition('engine="')[2].partition('"')[0]: float(line.rsplit(" ", 1)[1]) for line in lines}


def engine_pids(live: Live) -> list[int]:
    return list(live.server.children("homenode-worker").values())


CASES = [
    ("shm", "push", MEMORY, (*TWO, *ALONE)),
    ("shm", "pull-delay", (*TWO, *FRONTS), (*TWO, *FRONTS)),
    pytest.param("tcp", "push", (*TWO, *ALONE), (*TWO, *FRONTS), marks=slow),
    pytest.param("tcp", "pull-delay", (*MEMORY, *FRONTS), (*TWO, *ALONE), marks=slow),
    pytest.param("shm", "pull-eager", (*TWO, *FRONTS), (*MEMORY, *FRONTS), marks=slow),
    pytest.param("shm", "pull-eager", MEMORY, (*TWO, *ALONE, "--pd-in-place"), marks=slow),
]


@pytest.mark.parametrize(("channel", "mode", "ours", "theirs"), CASES)
def test_the_tokens_of_one_engine(
    expected: list[list[int]], channel: str, mode: str, ours: Sequence[str], theirs: Sequence[str]
) -> None:
    with Pair(mode, channel, sender=ours, receiver=theirs) as pair:
        proxy = Proxy(pair)
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(lambda prompt: proxy.answer(prompt, TOKENS), PROMPTS)) == expected
        assert pair.receiver.metric("recomputed_tokens_total") == 0, "each request came to the engine that had its KV"
        for live, flags in ((pair.receiver, theirs), (pair.sender, ours)):
            if flags[: len(TWO)] == TWO:
                assert min(by_engine(live, "bytes_total").values()) > 0, "all of them had something to do"
        wait_until(pair.nothing_pinned)
        assert proxy.close() == 0
    assert pair.codes == [0, 0]


def prefill(pair: Pair, prompt: Sequence[int], ticket: str, peer: dict[str, Any]) -> None:
    answer = pair.sender.complete(prompt, kv_transfer_params={"do_remote_decode": True, "ticket": ticket, "peer": peer})
    assert answer.status_code == 200, answer.text


def decode(pair: Pair, prompt: Sequence[int], ticket: str, engine: str) -> list[int]:
    params = {"do_remote_prefill": True, "ticket": ticket, "engine": engine}
    return tokens_of(pair.receiver.complete(prompt, TOKENS, kv_transfer_params=params))


@pytest.mark.parametrize("fronts", [ALONE, pytest.param(FRONTS, marks=slow)])
def test_a_ticket_is_of_one_engine_until_it_is_released_or_the_engine_is_lost(
    expected: list[list[int]], fronts: Sequence[str]
) -> None:
    with Pair("push", sender=MEMORY, receiver=(*TWO, *fronts)) as pair:
        for number, peer in enumerate(published(pair.receiver)):
            ticket = pair.ticket()
            prefill(pair, PROMPTS[5], ticket, peer)
            wait_until(lambda number=number: by_engine(pair.receiver, "pinned_pages")[str(number)] > 0)  # type: ignore[misc]
            assert by_engine(pair.receiver, "pinned_pages")[str(1 - number)] == 0
            assert pair.receiver.http.post("/kv_transfer/release", json={"ticket": ticket}).status_code == 200
            wait_until(pair.nothing_pinned)
        before = published(pair.receiver)
        for number, peer in enumerate(before):
            had = by_engine(pair.receiver, "recomputed_tokens_total")
            prefill(pair, PROMPTS[6], ticket := pair.ticket(), peer)
            assert decode(pair, PROMPTS[6], ticket, peer["incarnation"]) == expected[6]
            assert by_engine(pair.receiver, "recomputed_tokens_total") == had, f"engine {number} took its own"
        prefill(pair, PROMPTS[7], ticket := pair.ticket(), before[0])
        os.kill(engine_pids(pair.receiver)[0], signal.SIGKILL)
        assert decode(pair, PROMPTS[7], ticket, before[0]["incarnation"]) == expected[7], "another one computes it"
        wait_until(
            lambda: len(now := published(pair.receiver)) == 2 and now[0]["incarnation"] != before[0]["incarnation"]
        )
        now = published(pair.receiver)
        assert now[1] == before[1]
        prefill(pair, PROMPTS[8], ticket := pair.ticket(), now[0])
        assert decode(pair, PROMPTS[8], ticket, now[0]["incarnation"]) == expected[8]
        wait_until(pair.nothing_pinned)
    assert pair.codes == [0, 0]


def test_an_engine_of_each_side_killed_under_load(expected: list[list[int]]) -> None:
    """Every request ends with the right tokens; the proxy has the newcomers' addresses by itself."""
    with Pair("pull-eager", both=(*TWO, *ALONE)) as pair:
        proxy = Proxy(pair)
        many = PROMPTS * 4
        with ThreadPoolExecutor(16) as pool:
            answers = [pool.submit(proxy.answer, prompt, TOKENS) for prompt in many]
            wait_until(lambda: pair.receiver.metric("bytes_total") > 0)
            os.kill(engine_pids(pair.receiver)[1], signal.SIGKILL)
            os.kill(engine_pids(pair.sender)[0], signal.SIGKILL)
            assert [answer.result() for answer in answers] == expected * 4
        wait_until(lambda: len(published(pair.receiver)) == 2 == len(published(pair.sender)))
        before = by_engine(pair.receiver, "bytes_total")
        fresh = iter(range(1000))

        def comes_to_both() -> bool:
            number = next(fresh)
            proxy.answer([5 + (number * 17 + 3 * k) % 300 for k in range(130)], 1 + TOKENS)
            now = by_engine(pair.receiver, "bytes_total")
            return all(now[engine] > before[engine] for engine in now)

        wait_until(comes_to_both)
        wait_until(pair.nothing_pinned)
        assert proxy.close() == 0
    assert pair.codes == [0, 0]
