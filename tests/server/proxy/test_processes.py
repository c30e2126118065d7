"""The command itself, in front of processes that are really frozen and killed under load."""

from __future__ import annotations

import concurrent.futures as futures
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.paths import ROOT
from tests.waiting import wait_until

ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts Python modules; all end with the test."""
    processes: list[subprocess.Popen[str]] = []

    def begin(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", *arguments]
        processes.append(
            subprocess.Popen(
                command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
        return processes[-1]

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def scripted(start: Start, role: str, port: int = 0) -> tuple[subprocess.Popen[str], str]:
    process = start("tests.server.proxy.scripted_process", role, str(port))
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def proxy(start: Start, *arguments: str) -> tuple[subprocess.Popen[str], httpx.Client]:
    port = free_port()
    process = start("homenode.cli.main", "proxy", "--port", str(port), *arguments)
    http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120)

    def healthy() -> bool:
        assert process.poll() is None, process.communicate()
        try:
            return http.get("/health").status_code == 200
        except httpx.TransportError:
            return False

    wait_until(healthy)
    return process, http


def ask(http: httpx.Client, number: int) -> dict[str, Any]:
    answer = http.post("/v1/completions", json={"prompt": [number, 1, 2], "max_tokens": 9})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_prefill_server_frozen_or_killed_under_load_and_back_again(start: Start, number: signal.Signals) -> None:
    prefiller, prefill_url = scripted(start, "sender")
    _, decode_url = scripted(start, "receiver")
    process, http = proxy(start, "--prefill", prefill_url, "--decode", decode_url)
    with futures.ThreadPoolExecutor(16) as pool:
        jobs = [pool.submit(ask, http, n) for n in range(64)]
        assert jobs[0].result(120)["ticket"]
        prefiller.send_signal(number)
        began = time.monotonic()
        answers = [job.result(120) for job in jobs]
    assert [answer["prompt"][0] for answer in answers] == list(range(64))
    assert not answers[-1]["ticket"] and time.monotonic() - began < 60
    prefiller.kill()
    prefiller.wait()
    assert ask(http, 1)["ticket"] is None
    scripted(start, "sender", int(prefill_url.rsplit(":", 1)[1]))
    wait_until(lambda: ask(http, 2)["ticket"] is not None)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    assert "Traceback" not in process.communicate()[1]


def test_settings_that_cannot_be_end_with_2(start: Start) -> None:
    for arguments, word in (
        (["--prefill", "http://127.0.0.1:1"], "--decode"),
        (["--decode", "127.0.0.1:1"], "http://"),
        (["--decode", "http://127.0.0.1:1", "--prefill", "http://127.0.0.1:1"], "twice"),
    ):
        process = start("homenode.cli.main", "proxy", *arguments)
        _, words = process.communicate(timeout=60)
        assert process.returncode == 2 and word in words and "Traceback" not in words


def test_a_port_that_is_taken_ends_with_2(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = start("homenode.cli.main", "proxy", "--decode", "http://127.0.0.1:1", "--port", str(port))
        _, words = process.communicate(timeout=60)
        assert process.returncode == 2 and str(port) in words
