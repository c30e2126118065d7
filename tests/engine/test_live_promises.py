"""What docs/kv-transfer-faults.md promises of real engines: prompts larger than a buffer, a reader that goes, clocks
that jump, ends in the midst of it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.engine.live import LiveServer
from tests.engine.test_live_transfer import block_bytes
from tests.engine.transfer_pair import MODES, Live, Pair, one_engine_says, prompts, tokens_of
from tests.paths import ROOT
from tests.waiting import wait_until

pytest.importorskip("homenode._native", reason="needs the compiled core")
pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(
        not LiveServer.possible(),
        reason="needs the built-in model or the data folder ../shared/data, and this clone has neither",
    ),
]
slow = pytest.mark.slow
PROMPTS = prompts(8)
LARGE = PROMPTS[6]  # 200 tokens: four blocks


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    """What one engine says."""
    return one_engine_says(PROMPTS)


def at_the_receiver(server: Live, prompt: list[int], ticket: str) -> list[int]:
    return tokens_of(server.complete(prompt, kv_transfer_params={"do_remote_prefill": True, "ticket": ticket}))


@pytest.mark.parametrize(
    ("mode", "who"),
    [
        ("push", "sender"),
        pytest.param("pull-eager", "receiver", marks=slow),
        pytest.param("pull-delay", "sender", marks=slow),
    ],
)
def test_a_prompt_larger_than_the_buffer_is_refused_at_once(expected: list[list[int]], mode: str, who: str) -> None:
    """Nobody waits for room that will never be there, and nobody behind it either."""
    small = ("--pd-buffer-size", str(2 * block_bytes()))
    with Pair(mode, **{who: small}) as pair:  # type: ignore[arg-type]
        assert pair.answer(PROMPTS[2]) == expected[2]
        begun, ticket = time.monotonic(), pair.ticket()
        refused = pair.prefill(LARGE, ticket)
        took = time.monotonic() - begun
        error = refused.json()["error"]
        assert (
            refused.status_code == 503
            and error["code"] == "kv_transfer_refused"
            and "pd_buffer_size" in error["message"]
        ), error
        assert took < 5  # a hand-over waits ten seconds for room
        assert at_the_receiver(pair.receiver, LARGE, ticket) == expected[6]  # computed there
        assert pair.answer(PROMPTS[3]) == expected[3]
        assert pair.sender.metric("waits_total") == pair.receiver.metric("waits_total") == 0
        wait_until(pair.nothing_pinned)


def test_pages_that_two_receivers_share_outlive_one_of_them(expected: list[list[int]]) -> None:
    """The same prompt is lent to two. One is killed; what else the sender computes then takes none of the pages the
    other is to read.
    """
    with Pair("pull-delay", sender=("--kv-cache-memory", str(12 * block_bytes()))) as pair:
        other = Live("--pd-role", "receiver", *MODES["pull-delay"])
        try:
            first, second = pair.ticket(), pair.ticket()
            assert pair.prefill(LARGE, first).status_code == 200
            wait_until(lambda: pair.sender.metric("pinned_pages") == 4)
            params = {"do_remote_decode": True, "ticket": second, "peer": other.published()}
            assert pair.sender.complete(LARGE, kv_transfer_params=params).status_code == 200
            # The full pages of the beginning are there once.
            wait_until(lambda: 4 < pair.sender.metric("pinned_pages") < 8)
            both = pair.sender.metric("pinned_pages")
            os.kill(pair.receiver.server.process.pid, signal.SIGKILL)
            wait_until(lambda: pair.sender.metric("pinned_pages") < both)
            assert pair.sender.metric("pinned_pages") == 4
            for shift in range(12):  # all other blocks are used again
                tokens_of(pair.sender.complete([7 + (shift * 17 + 3 * k) % 300 for k in range(130)], max_tokens=2))
            assert at_the_receiver(other, LARGE, second) == expected[6]
            assert other.metric("recomputed_tokens_total") == 0 and other.metric("bytes_total") > 0
            wait_until(lambda: pair.sender.metric("pinned_pages") == 0)
        finally:
            assert other.close() == 0


# Replaces what the C library says of the wall clock, for every language in the process; each call finds itself in
# another year.
_JUMPING = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>

static long jumped(void) {
    static unsigned calls;
    return (long)(__sync_add_and_fetch(&calls, 1) * 2654435761u % 1000000000u) * (calls & 1 ? 1 : -1);
}

int clock_gettime(clockid_t id, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(id, at);
    if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) at->tv_sec += jumped();
    return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
"""


@pytest.fixture
def jumping_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that are started from here on have a wall clock that jumps by up to thirty years, back and forth."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler, to put another wall clock under the engines")
    source, library = tmp_path / "jumping.c", tmp_path / "jumping.so"
    source.write_text(_JUMPING)
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True, timeout=60)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    code = "import time; print(max(abs(time.time() - time.time()) for _ in range(9)) > 1e6)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert found.stdout == "True\n", found.stderr


@slow  # the transfer itself with such a clock: tests/host/transfer/test_faults.py
@pytest.mark.parametrize("channel", ["shm", "tcp"])
@pytest.mark.usefixtures("jumping_clock")
def test_a_wall_clock_that_jumps_under_the_engines_changes_nothing(expected: list[list[int]], channel: str) -> None:
    """No lease ends early for it, and one whose reader is frozen ends in its time."""
    ttl = 3.0
    with Pair("pull-delay", channel, both=("--pd-pull-pending-ttl", str(ttl))) as pair:
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(pair.answer, PROMPTS)) == expected
        assert pair.sender.metric("lease_expiries_total") == 0 == pair.receiver.metric("recomputed_tokens_total")
        assert pair.prefill(LARGE, pair.ticket()).status_code == 200
        wait_until(lambda: pair.sender.metric("pinned_pages") > 0)
        begun = time.monotonic()
        with frozen(pair.receiver):
            wait_until(lambda: pair.sender.metric("pinned_pages") == 0)
            took = time.monotonic() - begun
        assert ttl - 1.5 < took < ttl + 3, took
        assert pair.sender.metric("lease_expiries_total") == 1
    assert pair.codes == [0, 0]


@contextlib.contextmanager
def frozen(live: Live) -> Iterator[None]:
    """None of a server's processes runs within the block."""
    front = live.server.process.pid
    tasks = Path(f"/proc/{front}/task").iterdir()
    pids = [front, *(int(pid) for task in tasks for pid in (task / "children").read_text().split())]
    assert len(pids) > 1, "the engine is a process of its own"
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize(
    ("mode", "channel"),
    [("pull-delay", "shm"), pytest.param("push", "shm", marks=slow), pytest.param("pull-eager", "tcp", marks=slow)],
)
@pytest.mark.parametrize("ending", ["sender", "receiver"])
def test_a_server_that_is_to_end_does_so_beside_a_frozen_one(
    expected: list[list[int]], mode: str, channel: str, ending: str
) -> None:
    """Pages are lent and nobody has come for them. The one that stood still finds out by itself, and keeps nothing."""
    with Pair(mode, channel, both=("--pd-pull-pending-ttl", "3")) as pair:
        ticket = pair.ticket()
        assert pair.prefill(LARGE, ticket).status_code == 200
        ends, stands = (pair.sender, pair.receiver) if ending == "sender" else (pair.receiver, pair.sender)
        with frozen(stands):
            begun = time.monotonic()
            assert ends.server.close() == 0
            assert time.monotonic() - begun < 15  # three seconds for what is handed over, and the server's own end
        if ending == "sender":
            assert at_the_receiver(stands, LARGE, ticket) == expected[6]
        wait_until(lambda: stands.metric("pinned_pages") == 0)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--data-parallel-size", "2", "--pd-peer-alloc-port", "7400"), ["pd_peer_alloc_port", "2"]),
        (
            ("--tensor-parallel-size", "2", "--pd-peer-alloc-port", "7400,7500"),
            ["pd_pull_done_port", "pd_peer_alloc_port", "7500"],
        ),
    ],
)
@pytest.mark.parametrize("role", ["sender", "receiver"])
def test_ranks_and_ports_that_cannot_be_are_refused_before_anything_is_loaded(
    role: str, flags: tuple[str, ...], words: list[str]
) -> None:
    command = [
        sys.executable,
        "-m",
        "homenode.cli.main",
        "serve",
        "--pd-role",
        role,
        "--transfer-channel",
        "tcp",
        "--pd-pull-mode",
        *flags,
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for more in ([], ["--check-config"]):
        ended = subprocess.run([*command, *more], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
        assert ended.returncode == 2 and "Traceback" not in ended.stderr
        assert all(word in ended.stderr for word in words), ended.stderr
