"""Prefill and decode apart, with real engines: the same tokens as one engine's, in every mode; and what happens when
things go wrong.
"""

from __future__ import annotations

import importlib.util
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from homenode.transfer.carriers.nixl import BUILDS
from tests.engine.live import LiveServer
from tests.engine.transfer_pair import MODES, Live, Pair, one_engine_says, prompts, tokens_of
from tests.waiting import wait_until

pytest.importorskip("homenode._native", reason="needs the compiled core")
pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(
        not LiveServer.possible(),
        reason="needs the built-in model or the data folder ../shared/data, and this clone has neither",
    ),
]

PROMPTS = prompts(20)
slow = pytest.mark.slow  # each starts two servers; the others show the same on the way
nixl = [  # the real library, with nothing in its place
    slow,
    pytest.mark.skipif(
        all(importlib.util.find_spec(name) is None for name in BUILDS),
        reason="nixl is not installed (the extra nixl)",
    ),
]
CASES = [
    ("shm", "push", False),
    ("shm", "pull-eager", False),
    ("shm", "pull-delay", False),
    pytest.param("tcp", "push", False, marks=slow),
    pytest.param("tcp", "pull-eager", False, marks=slow),
    pytest.param("tcp", "pull-delay", False, marks=slow),
    pytest.param("shm", "pull-eager", True, marks=slow),
    ("tcp", "pull-delay", True),
    pytest.param("nixl", "push", False, marks=nixl),
    pytest.param("nixl", "pull-eager", False, marks=nixl),
    pytest.param("nixl", "pull-delay", False, marks=nixl),
    pytest.param("nixl", "pull-eager", True, marks=nixl),
    pytest.param("nixl", "pull-delay", True, marks=nixl),
]
OFFLOAD = ("--pd-use-cpu-offload", "--pd-cpu-buffer-size", "8MiB")


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    """What one engine says."""
    return one_engine_says(PROMPTS)


@pytest.mark.parametrize(("channel", "mode", "offload"), CASES)
def test_the_tokens_of_one_engine(expected: list[list[int]], channel: str, mode: str, offload: bool) -> None:
    with Pair(mode, channel, sender=OFFLOAD if offload else ()) as pair:
        with ThreadPoolExecutor(16) as pool:
            assert list(pool.map(pair.answer, PROMPTS)) == expected
        assert pair.receiver.metric("bytes_total") > 0
        assert pair.receiver.metric("recomputed_tokens_total") == 0
        wait_until(pair.nothing_pinned)
        wait_until(lambda: pair.sender.metric("completed_total") == len(PROMPTS))
    if channel != "nixl":  # a library that its wheels bring crashes in an exit handler, after everything is done
        assert pair.codes == [0, 0]


@pytest.mark.parametrize(
    ("channel", "mode", "ours", "theirs"),
    [
        ("shm", "push", "32", "128"),
        pytest.param("shm", "pull-delay", "128", "32", marks=slow),
        pytest.param("tcp", "pull-eager", "32", "128", marks=slow),
        ("tcp", "push", "128", "32"),
        pytest.param("nixl", "push", "32", "128", marks=nixl),
        pytest.param("nixl", "pull-eager", "128", "32", marks=nixl),
    ],
)
def test_blocks_of_different_sizes(expected: list[list[int]], channel: str, mode: str, ours: str, theirs: str) -> None:
    with Pair(mode, channel, sender=("--block-size", ours), receiver=("--block-size", theirs)) as pair:
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(pair.answer, PROMPTS)) == expected
        assert pair.receiver.metric("recomputed_tokens_total") == 0
        wait_until(pair.nothing_pinned)


@pytest.mark.parametrize(
    ("channel", "mode"),
    [
        ("shm", "push"),
        pytest.param("shm", "pull-eager", marks=slow),
        ("shm", "pull-delay"),
        pytest.param("nixl", "push", marks=nixl),
        pytest.param("nixl", "pull-eager", marks=nixl),
        pytest.param("nixl", "pull-delay", marks=nixl),
    ],
)
def test_buffers_far_smaller_than_the_load(expected: list[list[int]], channel: str, mode: str) -> None:
    """Room for about one prompt at a time: hand-overs wait for it as long as they may, and all come through."""
    blocks = -(-max(len(prompt) for prompt in PROMPTS) // 64)
    small = ("--pd-buffer-size", str(blocks * block_bytes()), "--pd-pull-backpressure-reserve-pct", "0")
    with Pair(mode, channel, both=small, sender=("--pd-room-wait", "30s")) as pair:
        with ThreadPoolExecutor(16) as pool:
            assert list(pool.map(pair.answer, PROMPTS)) == expected
        assert pair.sender.metric("waits_total") + pair.receiver.metric("waits_total") > 0
        wait_until(pair.nothing_pinned)


def block_bytes() -> int:
    """Of a block of 64 tokens of the model that is served."""
    from homenode.compute.reference import ReferenceBackend
    from homenode.model.checkpoint.index import open_checkpoint
    from homenode.model.weights.load import kv_geometry_of, plan_model
    from tests.engine.live import BUILTIN
    from tests.paths import STORIES

    checkpoint = open_checkpoint(BUILTIN.parent if BUILTIN.is_file() else STORIES)
    layout = plan_model(checkpoint, ReferenceBackend())
    return kv_geometry_of(checkpoint.spec, layout, 64, "auto").block_bytes


def test_a_ticket_nobody_knows_is_computed_at_once(expected: list[list[int]]) -> None:
    with Pair("pull-eager") as pair:
        answer = pair.receiver.complete(
            PROMPTS[4], kv_transfer_params={"do_remote_prefill": True, "ticket": "never-seen"}
        )
        assert tokens_of(answer) == expected[4]


def test_what_the_receiver_has_is_not_sent_again(expected: list[list[int]]) -> None:
    with Pair("pull-eager") as pair:
        assert pair.answer(PROMPTS[5]) == expected[5]
        # Figures come a little later.
        wait_until(lambda: pair.receiver.metric("bytes_total") > 0 and pair.sender.metric("completed_total") == 1)
        wait_until(pair.nothing_pinned)
        before = pair.receiver.metric("bytes_total")
        assert pair.answer(PROMPTS[5]) == expected[5]
        wait_until(lambda: pair.sender.metric("completed_total") == 2)
        wait_until(lambda: pair.sender.metric("held_pages_total") >= 2)
        sent = pair.receiver.metric("bytes_total") - before
        assert sent <= before / 2


def test_a_ticket_that_is_given_up_frees_the_sender() -> None:
    with Pair("pull-delay") as pair:
        ticket = pair.ticket()
        assert pair.prefill(PROMPTS[6], ticket).status_code == 200
        wait_until(lambda: pair.sender.metric("pinned_pages") > 0)
        for server in (pair.receiver, pair.sender, pair.sender):
            assert (
                server.http.post("/kv_transfer/release", json={"ticket": ticket, "reason": "a test"}).status_code == 200
            )
        wait_until(pair.nothing_pinned)


def test_engines_that_do_not_fit_say_what_differs(expected: list[list[int]]) -> None:
    with Pair("push", receiver=("--kv-cache-dtype", "int8")) as pair:
        refused = pair.prefill(PROMPTS[4], pair.ticket())
        assert refused.status_code == 503
        error = refused.json()["error"]
        assert error["code"] == "kv_transfer_refused" and "kv_dtype" in error["message"], error
        assert tokens_of(pair.sender.complete(PROMPTS[4])) == expected[4]  # goes on by itself
        assert pair.receiver.complete(PROMPTS[4]).status_code == 200


def test_another_secret_is_no_way_in() -> None:
    with Pair("pull-eager", "tcp", sender=("--pd-secret", "a" * 20), receiver=("--pd-secret", "b" * 20)) as pair:
        refused = pair.prefill(PROMPTS[4], pair.ticket())
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "kv_transfer_refused"
        assert pair.receiver.metric("bytes_total") == 0


def test_with_the_same_secret(expected: list[list[int]]) -> None:
    with Pair("pull-eager", "tcp", both=("--pd-secret", "s" * 20)) as pair:
        assert [pair.answer(prompt) for prompt in PROMPTS[:6]] == expected[:6]


@pytest.mark.parametrize("mode", ["push", pytest.param("pull-eager", marks=slow), "pull-delay"])
def test_a_sender_that_is_killed_costs_nothing_but_time(expected: list[list[int]], mode: str) -> None:
    with Pair(mode) as pair:
        tickets = [pair.ticket() for _ in PROMPTS[:6]]
        for prompt, ticket in zip(PROMPTS, tickets, strict=False):
            assert pair.prefill(prompt, ticket).status_code == 200
        os.kill(pair.sender.server.process.pid, signal.SIGKILL)
        for prompt, ticket, wanted in zip(PROMPTS, tickets, expected, strict=False):
            answer = pair.receiver.complete(prompt, kv_transfer_params={"do_remote_prefill": True, "ticket": ticket})
            assert tokens_of(answer) == wanted
        wait_until(lambda: pair.receiver.metric("pinned_pages") == 0)
    assert pair.codes[1] == 0


@pytest.mark.parametrize("channel", ["shm", pytest.param("tcp", marks=slow)])
def test_a_receiver_that_is_killed_frees_the_sender_and_the_next_one_is_served(
    expected: list[list[int]], channel: str
) -> None:
    with Pair("pull-delay", channel) as pair:
        for prompt in PROMPTS[:6]:
            assert pair.prefill(prompt, pair.ticket()).status_code == 200
        wait_until(lambda: pair.sender.metric("pinned_pages") > 0)
        os.kill(pair.receiver.server.process.pid, signal.SIGKILL)
        wait_until(lambda: pair.sender.metric("pinned_pages") == 0)
        pair.receiver.close()
        pair.receiver = Live("--pd-role", "receiver", "--transfer-channel", channel, *MODES["pull-delay"])
        assert [pair.answer(prompt) for prompt in PROMPTS[:6]] == expected[:6]
    assert pair.codes == [0, 0]


def test_the_field_s_file_is_taken_as_it_is(tmp_path: object) -> None:
    """All that keeps it from working here is said at once, and nothing is loaded."""
    import subprocess
    import sys
    from pathlib import Path

    from tests.pure.transfer.test_settings import SENDER

    file = Path(str(tmp_path)) / "prefiller.yaml"
    file.write_text(SENDER)
    command = [
        sys.executable,
        "-m",
        "homenode.cli.main",
        "serve",
        "--kv-transfer-config",
        str(file),
        "--tensor-parallel-size",
        "2",
    ]
    for more in (["--check-config"], []):
        result = subprocess.run(
            [*command, *more],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert result.returncode == 2 and "Traceback" not in result.stderr
        for word in ("hccl", "npu", "pd_peer_host"):
            assert word in result.stderr, result.stderr


IN_PLACE = [("pull-eager", ()), ("pull-delay", ()), ("pull-delay", OFFLOAD)]


@pytest.mark.parametrize(("mode", "offload"), IN_PLACE, ids=["eager", "delay", "delay-offload"])
def test_pages_are_read_in_place(expected: list[list[int]], mode: str, offload: tuple[str, ...]) -> None:
    """Whoever has to give way gives the pages back and computes them itself."""
    with Pair(mode, sender=offload, receiver=("--pd-in-place",)) as pair:
        with ThreadPoolExecutor(16) as pool:
            assert list(pool.map(pair.answer, PROMPTS)) == expected
        assert pair.receiver.metric("in_place_pages_total") > 0
        assert pair.receiver.metric("recomputed_tokens_total") == 0
        wait_until(pair.nothing_pinned)
    assert pair.codes == [0, 0]


def test_a_request_goes_on_in_the_memory_of_a_sender_that_was_killed(expected: list[list[int]]) -> None:
    prompt = PROMPTS[6]
    (wanted,) = one_engine_says([prompt], 200)
    with Pair("pull-delay", receiver=("--pd-in-place",)) as pair:
        ticket = pair.ticket()
        assert pair.prefill(prompt, ticket).status_code == 200
        with ThreadPoolExecutor(1) as pool:
            params = {"do_remote_prefill": True, "ticket": ticket}
            answer = pool.submit(pair.receiver.complete, prompt, 200, kv_transfer_params=params)
            wait_until(lambda: pair.receiver.metric("in_place_pages_total") > 0)
            os.kill(pair.sender.server.process.pid, signal.SIGKILL)
            assert tokens_of(answer.result()) == wanted
        assert pair.receiver.metric("recomputed_tokens_total") == 0
        wait_until(lambda: pair.receiver.metric("pinned_pages") == 0)
