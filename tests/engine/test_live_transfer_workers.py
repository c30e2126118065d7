"""Prefill and decode apart, where engines have several workers: ranks and stages, as many on one side as the other or
not, and workers that are killed.
"""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.engine.live import LiveServer
from tests.engine.live import workers as workers_of
from tests.engine.transfer_pair import Live, Pair, one_engine_says, prompts, tokens_of
from tests.waiting import wait_until

pytest.importorskip("homenode._native", reason="needs the compiled core")
pytestmark = [pytest.mark.alone, pytest.mark.skipif(not LiveServer.possible(), reason="needs a model")]

PROMPTS = prompts(10)
MEMORY = ("--kv-cache-memory", "16MiB")
OFFLOAD = ("--pd-use-cpu-offload", "--pd-cpu-buffer-size", "8MiB")
IN_PLACE = ("--pd-in-place",)
slow = pytest.mark.slow


def workers(ranks: int, stages: int = 1) -> tuple[str, ...]:
    return (*MEMORY, "--tensor-parallel-size", str(ranks), "--pipeline-parallel-size", str(stages))


ONE = MEMORY
CASES = [  # the model has two KV heads: with three ranks and more some are with several of them
    pytest.param("shm", "pull-eager", workers(2), ONE, marks=slow),
    ("shm", "push", workers(2), workers(3)),
    pytest.param("shm", "pull-delay", (*workers(2), *OFFLOAD), workers(2), marks=slow),
    pytest.param("tcp", "push", ONE, workers(4), marks=slow),
    pytest.param("tcp", "pull-eager", workers(3), workers(2, 2), marks=slow),
    ("tcp", "pull-delay", workers(1, 2), workers(2)),
    pytest.param("shm", "push", workers(2, 2), (*workers(1, 3), "--block-size", "32"), marks=slow),
    pytest.param("tcp", "push", (*workers(2), "--block-size", "32"), workers(4), marks=slow),
    pytest.param("shm", "pull-eager", workers(2, 2), (*ONE, *IN_PLACE), marks=slow),
    pytest.param("shm", "pull-eager", ONE, (*workers(3), *IN_PLACE), marks=slow),
    pytest.param("shm", "pull-delay", (*workers(2), *OFFLOAD), (*workers(1, 2), *IN_PLACE), marks=slow),
    ("shm", "pull-delay", workers(2), (*workers(2), *IN_PLACE)),
]


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    """What one engine says."""
    return one_engine_says(PROMPTS)


@pytest.mark.parametrize(("channel", "mode", "ours", "theirs"), CASES)
def test_the_tokens_of_one_worker(
    expected: list[list[int]], channel: str, mode: str, ours: tuple[str, ...], theirs: tuple[str, ...]
) -> None:
    with Pair(mode, channel, sender=ours, receiver=theirs) as pair:
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(pair.answer, PROMPTS)) == expected
        assert pair.receiver.metric("bytes_total") > 0
        assert pair.receiver.metric("recomputed_tokens_total") == 0
        assert pair.receiver.metric("digest_mismatches_total") == 0
        assert ("--pd-in-place" in theirs) == (pair.receiver.metric("in_place_pages_total") > 0)
        wait_until(pair.nothing_pinned)
    assert pair.codes == [0, 0]


def kill_a_worker(live: Live, number: int) -> None:
    os.kill(workers_of(live.server)[f"homenode-worker-{number}"], signal.SIGKILL)


def test_what_was_lent_outlives_the_worker_that_computed_it(expected: list[list[int]]) -> None:
    """Its pages are where they were, whoever has its place: they are read and found to be what was promised, and new
    ones are computed.
    """
    with Pair("pull-delay", sender=workers(2), receiver=ONE) as pair:
        tickets = [pair.ticket() for _ in PROMPTS[:6]]
        for prompt, ticket in zip(PROMPTS, tickets, strict=False):
            assert pair.prefill(prompt, ticket).status_code == 200
        kill_a_worker(pair.sender, 1)
        wait_until(lambda: pair.sender.http.get("/health").status_code == 503)
        for prompt, ticket, wanted in zip(PROMPTS, tickets, expected, strict=False):
            answer = pair.receiver.complete(prompt, kv_transfer_params={"do_remote_prefill": True, "ticket": ticket})
            assert tokens_of(answer) == wanted
        wait_until(lambda: pair.sender.http.get("/health").status_code == 200)
        assert [pair.answer(prompt) for prompt in PROMPTS] == expected
        assert pair.receiver.metric("recomputed_tokens_total") == 0 == pair.receiver.metric("digest_mismatches_total")
        wait_until(pair.nothing_pinned)
    assert pair.codes == [0, 0]


@pytest.mark.parametrize(
    "mode", ["push", pytest.param("pull-eager", marks=slow), pytest.param("pull-delay", marks=slow)]
)
def test_a_receiver_s_worker_that_is_killed_costs_nothing_but_time(expected: list[list[int]], mode: str) -> None:
    """Whatever had come is computed; while the worker is replaced nothing is taken in, and the sender is told so."""
    with Pair(mode, sender=ONE, receiver=workers(2)) as pair:
        tickets = [pair.ticket() for _ in PROMPTS[:6]]
        for prompt, ticket in zip(PROMPTS, tickets, strict=False):
            assert pair.prefill(prompt, ticket).status_code == 200
        kill_a_worker(pair.receiver, 0)
        wait_until(lambda: pair.receiver.http.get("/health").status_code == 503)
        if mode != "pull-delay":
            refused = pair.prefill(PROMPTS[8], pair.ticket())
            assert (
                refused.status_code == 200 or "workers of the engine were lost" in refused.json()["error"]["message"]
            )  # 200: they are back
        for prompt, ticket, wanted in zip(PROMPTS, tickets, expected, strict=False):
            answer = pair.receiver.complete(prompt, kv_transfer_params={"do_remote_prefill": True, "ticket": ticket})
            assert tokens_of(answer) == wanted
        wait_until(lambda: pair.receiver.http.get("/health").status_code == 200)
        # The sender leaves it alone for a while.
        wait_until(lambda: pair.prefill(PROMPTS[9], pair.ticket()).status_code == 200)
        wait_until(lambda: pair.receiver.metric("pinned_pages") > 0)
        assert [pair.answer(prompt) for prompt in PROMPTS] == expected
        assert pair.receiver.metric("digest_mismatches_total") == 0
    assert pair.codes == [0, 0]


@slow
@pytest.mark.parametrize("victim", ["receiver's worker", "sender's worker", "sender"])
def test_a_request_that_reads_in_place_goes_on(expected: list[list[int]], victim: str) -> None:
    """In the memory of a neighbour that has ended; or, where a worker of its own engine did, from the beginning."""
    prompt = PROMPTS[6]
    (wanted,) = one_engine_says([prompt], 200)
    with Pair("pull-delay", sender=workers(2), receiver=(*workers(2), *IN_PLACE)) as pair:
        ticket = pair.ticket()
        assert pair.prefill(prompt, ticket).status_code == 200
        with ThreadPoolExecutor(1) as pool:
            params = {"do_remote_prefill": True, "ticket": ticket}
            answer = pool.submit(pair.receiver.complete, prompt, 200, kv_transfer_params=params)
            wait_until(lambda: pair.receiver.metric("in_place_pages_total") > 0)
            if victim == "sender":
                os.kill(pair.sender.server.process.pid, signal.SIGKILL)
            else:
                kill_a_worker(pair.receiver if victim == "receiver's worker" else pair.sender, 1)
            assert tokens_of(answer.result()) == wanted
        if victim != "sender":
            for live in (pair.sender, pair.receiver):
                wait_until(lambda one=live: one.http.get("/health").status_code == 200)  # type: ignore[misc]
            before = pair.receiver.metric("in_place_pages_total")
            assert [pair.answer(prompt) for prompt in PROMPTS] == expected
            assert pair.receiver.metric("in_place_pages_total") > before
            wait_until(pair.nothing_pinned)
        else:
            wait_until(lambda: pair.receiver.metric("pinned_pages") == 0)
    assert pair.codes[1] == 0


@slow
@pytest.mark.parametrize(
    ("channel", "mode"), [("shm", "push"), ("tcp", "push"), ("shm", "pull-eager"), ("shm", "pull-delay")]
)
def test_workers_killed_on_both_sides_under_load(expected: list[list[int]], channel: str, mode: str) -> None:
    """Whatever a request was in the middle of: its tokens are those of one worker in the end, and nothing
    stays pinned.
    """
    chunks = ("--max-num-batched-tokens", "64", "--max-num-seqs", "8")
    with Pair(mode, channel, sender=(*workers(2), *chunks), receiver=(*workers(1, 2), *chunks)) as pair:

        def ask(number: int) -> None:
            prompt, wanted = PROMPTS[number % len(PROMPTS)], expected[number % len(PROMPTS)]
            ticket = pair.ticket()
            computed = pair.prefill([*prompt], ticket)
            assert computed.status_code in (200, 503), computed.text
            assert (
                tokens_of(
                    pair.receiver.complete(prompt, kv_transfer_params={"do_remote_prefill": True, "ticket": ticket})
                )
                == wanted
            )

        with ThreadPoolExecutor(16) as pool:
            asked = [pool.submit(ask, number) for number in range(60)]
            for kills, live in enumerate((pair.sender, pair.receiver, pair.sender), start=1):
                wait_until(lambda least=12 * kills: sum(one.done() for one in asked) >= least)  # type: ignore[misc]
                wait_until(lambda one=live: one.http.get("/health").status_code == 200)  # type: ignore[misc]
                kill_a_worker(live, kills % 2)
            for one in asked:
                one.result()
        for live in (pair.sender, pair.receiver):
            wait_until(lambda one=live: one.http.get("/health").status_code == 200)  # type: ignore[misc]
        assert pair.receiver.metric("digest_mismatches_total") == 0
        wait_until(pair.nothing_pinned)
        assert [pair.answer(prompt) for prompt in PROMPTS] == expected
    assert pair.codes == [0, 0]
