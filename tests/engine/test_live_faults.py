"""A sender, a receiver and proxies as users start them, under load: killed, restarted, and asked for more than their
buffers hold.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import httpx
import pytest

from tests.engine.live import LiveServer
from tests.engine.test_live_transfer import block_bytes
from tests.engine.transfer_pair import MODES, Live, Pair, one_engine_says, tokens_of
from tests.paths import ROOT
from tests.waiting import PATIENCE_S, wait_until

pytest.importorskip("homenode._native", reason="needs the compiled core")
pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(
        not LiveServer.possible(),
        reason="needs the built-in model or the data folder ../shared/data, and this clone has neither",
    ),
]
_TOKENS = 12
_LISTENING = re.compile(rb"listening\S*\s+\S*?(http://[\d.:]+)")


def _prompt(group: int, own: int) -> list[int]:
    """Of 100 to 150 tokens; those of a group begin with the same 96."""
    return [5 + (group * 37 + 11 * k) % 300 for k in range(96)] + [
        5 + (own * 53 + 7 * k) % 300 for k in range(4 + own * 6)
    ]


PROMPTS = [_prompt(group, own) for own in range(8) for group in range(8)]


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    """What one engine says."""
    return one_engine_says(PROMPTS, _TOKENS)


class Proxy:
    """`homenode proxy` in front of a pair."""

    def __init__(self, pair: Pair) -> None:
        urls = ["--prefill", pair.sender.server.url, "--decode", pair.receiver.server.url]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "homenode.cli.main", "proxy", *urls, "--port", "0"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        self.http: httpx.Client | None = None
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        assert self._ready.wait(PATIENCE_S) and self.http is not None, "the proxy did not say where it listens"
        wait_until(self.healthy)

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                if (found := _LISTENING.search(line)) and self.http is None:
                    self.http = httpx.Client(
                        base_url=found[1].decode(), timeout=PATIENCE_S, limits=httpx.Limits(max_connections=128)
                    )
                    self._ready.set()
        self._ready.set()

    def healthy(self) -> bool:
        assert self.http is not None and self.process.poll() is None
        return self.http.get("/health").status_code == 200

    def answer(self, prompt: Sequence[int], max_tokens: int = _TOKENS) -> list[int]:
        body = {
            "prompt": list(prompt),
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        assert self.http is not None
        return tokens_of(self.http.post("/v1/completions", json=body))

    def close(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        self.process.wait(PATIENCE_S)
        self._reader.join()
        if self.http is not None and number == signal.SIGTERM:  # a killed one's clients are still waiting
            self.http.close()
        return self.process.returncode


@pytest.mark.parametrize(
    ("channel", "mode", "ours", "theirs"),
    [pytest.param("shm", "pull-delay", 64, 32, marks=pytest.mark.slow), ("tcp", "push", 32, 64)],
)
def test_sixty_four_at_once_through_buffers_of_a_few(
    expected: list[list[int]], channel: str, mode: str, ours: int, theirs: int
) -> None:
    """Prompts with shared beginnings, blocks of different sizes, and room for about two prompts at a time."""
    small = ("--pd-buffer-size", str(6 * block_bytes()), "--pd-pull-backpressure-reserve-pct", "0")
    with Pair(
        mode, channel, both=small, sender=("--block-size", str(ours)), receiver=("--block-size", str(theirs))
    ) as pair:
        proxy = Proxy(pair)
        with ThreadPoolExecutor(64) as pool:
            assert list(pool.map(proxy.answer, PROMPTS)) == expected
        assert pair.receiver.metric("bytes_total") > 0
        assert pair.sender.metric("waits_total") + pair.receiver.metric("waits_total") > 0
        wait_until(pair.nothing_pinned)
        assert proxy.close() == 0
    assert pair.codes == [0, 0]


def free_ports(count: int) -> list[str]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [str(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


def test_a_receiver_killed_under_load_comes_back_on_its_ports(expected: list[list[int]]) -> None:
    """Those who were asked before wait for it, and what the sender still says to the one that was is not taken for
    news.
    """
    http, alloc, init = free_ports(3)
    flags = ("--port", http, "--pd-peer-alloc-port", alloc, "--pd-peer-init-port", init)
    with Pair("pull-eager", "tcp", receiver=flags) as pair:
        proxy = Proxy(pair)
        with ThreadPoolExecutor(64) as pool:
            answers = [pool.submit(proxy.answer, prompt) for prompt in PROMPTS]
            wait_until(lambda: pair.receiver.metric("bytes_total") > 0)
            os.kill(pair.receiver.server.process.pid, signal.SIGKILL)
            pair.receiver.close()
            pair.receiver = Live("--pd-role", "receiver", "--transfer-channel", "tcp", *MODES["pull-eager"], *flags)
            assert [answer.result(PATIENCE_S) for answer in answers] == expected
        before = pair.receiver.metric("bytes_total")
        wait_until(lambda: proxy.answer(_prompt(11, 7)) is not None and pair.receiver.metric("bytes_total") > before)
        wait_until(pair.nothing_pinned)
        assert proxy.close() == 0
    assert pair.codes == [0, 0]


def test_two_proxies_and_one_that_is_killed_and_started_again(expected: list[list[int]]) -> None:
    """Neither takes the other's tickets for its own, nor one that is new those of the one before; what is orphaned is
    let go.
    """
    ttl = ("--pd-pull-pending-ttl", "5")
    with Pair("pull-eager", both=ttl) as pair:
        first, second = Proxy(pair), Proxy(pair)
        with ThreadPoolExecutor(64) as pool:
            lost = [pool.submit(first.answer, prompt) for prompt in PROMPTS[:32]]
            kept = [pool.submit(second.answer, prompt) for prompt in PROMPTS]
            wait_until(lambda: pair.sender.metric("completed_total") + pair.sender.metric("pinned_pages") > 0)
            assert first.close(signal.SIGKILL) == -signal.SIGKILL
            again = Proxy(pair)
            anew = [pool.submit(again.answer, prompt) for prompt in PROMPTS[:32]]
            assert [answer.result(PATIENCE_S) for answer in kept] == expected
            assert [answer.result(PATIENCE_S) for answer in anew] == expected[:32]
            ended = [_tokens_or_none(answer) for answer in lost]
        assert any(answer is None for answer in ended), "it was killed too late"
        assert all(answer in (None, wanted) for answer, wanted in zip(ended, expected, strict=False))
        wait_until(pair.nothing_pinned)
        assert [proxy.close() for proxy in (second, again)] == [0, 0]
    assert pair.codes == [0, 0]


def _tokens_or_none(answer: Future[list[int]]) -> list[int] | None:
    try:
        return answer.result(PATIENCE_S)
    except httpx.TransportError:
        return None


@pytest.mark.parametrize("role", ["sender", "receiver"])
def test_memory_over_the_limit_is_an_error_at_the_start(role: str) -> None:
    """Not a signal in the middle of a request."""
    command = [sys.executable, "-m", "homenode.cli.main", "serve", "--port", "0", "--threads", "1", "--pd-role", role]
    ended = subprocess.run(
        ["bash", "-c", 'ulimit -f 64; exec "$@"', "-", *command],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True, text=True,
        timeout=PATIENCE_S,
    )  # fmt: skip
    assert ended.returncode not in (0, -signal.SIGXFSZ) and "memfd" in ended.stderr, ended.stderr
    assert "Traceback" not in ended.stderr and "ready" not in ended.stderr
