"""Clients that do not read, that close half of a connection, and more of them than there are descriptors."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import http.client
import json
import os
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from homenode.engine.messages import Output
from homenode.server.http.acceptor import Acceptor, DescriptorBudget
from homenode.server.http.idle import IdleConnections
from tests.paths import ROOT
from tests.server.conftest import Running, Start
from tests.server.fakes import ScriptedClient
from tests.server.test_life import LongWords, send_raw
from tests.waiting import PATIENCE_S, wait_until

_VERSION = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"


def address(url: str) -> tuple[str, int]:
    host, port = url.removeprefix("http://").split(":")
    return host, int(port)


def unread_bytes(connection: socket.socket) -> int:
    (count,) = struct.unpack("i", fcntl.ioctl(connection, termios.FIONREAD, bytes(4)))
    return int(count)


def sockets_here() -> int:
    found = 0
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found += str(entry.readlink()).startswith("socket:")
    return found


def large(start: Start, **settings: Any) -> Running:
    """A server whose answers have 20 MB, more than the buffers of both ends hold."""
    client = ScriptedClient(
        lambda request: [
            Output(id=request.id, tokens=[1], finish_reason="length" if n == 399 else None) for n in range(400)
        ]
    )
    return start(client, LongWords(), **settings)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_nobody_reads_is_given_up_with_its_connection(
    start: Start, stream: bool, last: bool, caplog: pytest.LogCaptureFixture
) -> None:
    server = large(start, write_timeout=0.4)
    assert server.http.get("/health").status_code == 200  # this connection stays open
    before = sockets_here()
    body = json.dumps({"prompt": "x", "stream": stream}).encode()
    close = b"Connection: close\r\n" if last else b""
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" + close
    with socket.create_connection(address(server.url), timeout=PATIENCE_S) as connection:
        connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        wait_until(lambda: unread_bytes(connection) > 0)
        wait_until(lambda: sockets_here() == before + 1)  # ours, without the server's end
    assert "took nothing of its answer for 0.4 s" in caplog.text


def test_a_client_that_reads_slowly_gets_all_of_it(start: Start) -> None:
    server = large(start, write_timeout=0.4)
    began, pause, size = time.monotonic(), threading.Event(), 0
    with send_raw(server.url, {"prompt": "x"}) as connection:
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        while piece := answer.read(1 << 20):
            size += len(piece)
            pause.wait(0.06)
    assert size > 20_000_000 and time.monotonic() - began > 0.8


def half_closed(url: str, data: bytes) -> bytes:
    """Everything that comes back to a client that has nothing more to say."""
    with socket.create_connection(address(url), timeout=PATIENCE_S) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        got = b""
        while piece := connection.recv(1 << 16):
            got += piece
    return got


def request_for(body: dict[str, Any], version: str = "1.1") -> bytes:
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/{version}\r\nHost: x\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_half_closes_gets_its_answer_and_then_the_end(start: Start, stream: bool, version: str) -> None:
    client = ScriptedClient(hold_after=2)
    server = start(client)
    answers: list[bytes] = []
    asking = threading.Thread(
        target=lambda: answers.append(half_closed(server.url, request_for({"prompt": "x", "stream": stream}, version)))
    )
    asking.start()
    assert client.held.wait(PATIENCE_S)
    assert not client.closed.wait(2.6)  # longer than it takes to find out who has left
    server.call(client.release)
    asking.join(PATIENCE_S)
    kinds = re.findall(rb"HTTP/1.1 (\d+)", answers[0])
    assert kinds[-1] == b"200" and set(kinds[:-1]) <= ({b"100"} if version == "1.1" and not stream else set())
    assert (b"[DONE]" if stream else b'"finish_reason":"length"') in answers[0] and not client.aborts


def test_all_of_a_pipeline_is_answered_to_a_client_that_half_closes(server: Running) -> None:
    assert half_closed(server.url, _VERSION * 3).count(b"HTTP/1.1 200") == 3


@pytest.mark.parametrize(
    "data", [b"", b"GET /vers", request_for({"prompt": "x"})[:-1], request_for({"prompt": "x"})[:40]]
)
def test_half_a_request_and_the_end_is_the_end(server: Running, data: bytes) -> None:
    assert not half_closed(server.url, data)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /version HTTP/2.0\r\nHost: x\r\n\r\n", 505),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (
            b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
        ),
        (b"GET /version HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"GET /version HTTP/1.1\r\n\r\n", 400),
        (b"GET http://x/version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 200),
        (b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: upgrade, close\r\nUpgrade: websocket\r\n\r\n", 200),
    ],
)
def test_what_is_no_request_here_is_answered_once_and_closed(server: Running, data: bytes, status: int) -> None:
    with socket.create_connection(address(server.url), timeout=PATIENCE_S) as connection:
        connection.sendall(data + _VERSION)
        got = b""
        with contextlib.suppress(ConnectionResetError):  # what was sent behind it is not read
            while piece := connection.recv(1 << 16):
                got += piece
    assert re.findall(rb"HTTP/1.1 (\d+)", got) == [b"%d" % status]
    if status != 200:
        assert json.loads(got.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_http"


class Process:
    """`held_server` in a process of its own, which may have this many descriptors."""

    def __init__(self, limit: int, log: Path) -> None:
        self.log = log
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.server.held_server", "30"],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)),
            )
        assert self.process.stdout is not None
        self.address = address(self.process.stdout.readline().strip())

    def ask(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(*self.address, timeout=PATIENCE_S)
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()


@pytest.fixture
def limited(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Process]:
    running = Process(request.param, tmp_path / "log")
    yield running
    running.process.kill()
    running.process.communicate()


@pytest.mark.parametrize("limited", [64, 100], indirect=True)
def test_the_connection_that_is_idle_longest_goes_when_descriptors_run_out(limited: Process) -> None:
    with contextlib.ExitStack() as stack:
        crowd = []
        for _ in range(200):
            crowd.append(stack.enter_context(socket.create_connection(limited.address, timeout=PATIENCE_S)))
        for _ in range(20):
            assert limited.ask("/health")[0] == limited.ask("/version")[0] == 200
        crowd[-1].sendall(_VERSION)  # the youngest is still there, the oldest is not
        assert crowd[-1].recv(100).startswith(b"HTTP/1.1 200")
        assert crowd[0].recv(100) == b""
    assert limited.ask("/version")[0] == 200
    log = limited.log.read_text()
    assert "idle longest is closed" in log and "503" not in log and "Traceback" not in log


@pytest.mark.parametrize("limited", [64], indirect=True)
def test_health_is_answered_while_every_connection_is_at_work(limited: Process) -> None:
    with contextlib.ExitStack() as stack:
        at_work, refused = 0, b""
        while not refused and at_work < 64:
            client = stack.enter_context(socket.create_connection(limited.address, timeout=PATIENCE_S))
            client.sendall(request_for({"prompt": "x", "stream": True}))
            head = client.recv(1 << 16)
            while head.startswith(b"HTTP/1.1 503") and (piece := client.recv(1 << 16)):
                head += piece
            refused = head if head.startswith(b"HTTP/1.1 503") else b""
            at_work += not refused
        assert at_work > 20 and b"connection: close" in refused.lower() and b"overloaded" in refused
        for _ in range(30):
            assert limited.ask("/health")[0] == 200
        assert limited.ask("/version")[0] == 503
        limited.process.send_signal(signal.SIGUSR1)  # lets them go on
    wait_until(lambda: limited.ask("/version")[0] == 200)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("limited", [1024], indirect=True)
def test_a_drain_does_not_wait_for_an_answer_that_nobody_reads(limited: Process, stream: bool) -> None:
    limited.process.send_signal(signal.SIGUSR1)
    body = {"prompt": "x", "stream": stream, "max_tokens": 200, "logprobs": 20, "n": 40, "ignore_eos": True}
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(limited.address)
        connection.sendall(request_for(body))
        wait_until(lambda: unread_bytes(connection) > 0)
        began = time.monotonic()
        limited.process.send_signal(signal.SIGTERM)
        assert limited.process.wait(PATIENCE_S) == 0
    assert time.monotonic() - began < 15  # of the 30 that it may take, and of the 60 that a client may leave it unread


class Refusing(socket.socket):
    """A listening socket for whose connections the system has no room."""

    asked = 0

    def accept(self) -> tuple[socket.socket, Any]:
        self.asked += 1
        raise OSError(errno.EMFILE, "Too many open files")


def test_a_system_without_descriptors_is_asked_a_few_times_a_second_and_idle_connections_go() -> None:
    closed: list[int] = []

    async def test() -> int:
        idle = IdleConnections()
        for number in range(100):
            idle.add(number, lambda number=number: closed.append(number))  # type: ignore[misc]
        with Refusing() as listener:
            listener.bind(("127.0.0.1", 0))
            acceptor = Acceptor(
                listener,
                lambda _: asyncio.Protocol(),
                idle,
                lambda: 0,
                at_once=64,
                limits=DescriptorBudget(1000, 1000, 1024),
            )
            acceptor.start(10)
            with socket.create_connection(listener.getsockname()):
                await asyncio.sleep(0.6)
            acceptor.close()
            await acceptor.wait_closed()
            return listener.asked

    assert 2 <= asyncio.run(test()) <= 3
    assert closed == list(range(len(closed))) and len(closed) >= 16


def test_idle_connections_go_in_the_order_in_which_they_became_idle() -> None:
    idle, closed = IdleConnections(), list[str]()
    for name in "abcab":
        idle.add(name, lambda name=name: closed.append(name))  # type: ignore[misc]
    idle.remove("a")  # a request, and its answer
    idle.add("a", lambda: closed.append("a"))
    while idle.close_oldest():
        pass
    assert closed == ["b", "c", "a"] and not len(idle)
