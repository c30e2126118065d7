"""Real engines on two hosts, one of them a network namespace: what prefill and decode servers and their proxy, and the
workers of two stages and of two ranks say to each other is read off the wire. With keys nothing that was said is in it;
with the flag that says so it is. `tests/host/net/test_nothing_in_clear.py` has the parts of it, in less time."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import httpx
import msgspec
import pytest

from homenode.engine.api.local import LocalEngine
from homenode.engine.executor import ray
from homenode.engine.executor.rendezvous import Rendezvous
from homenode.net.keys import AUTHORITY, CERTIFICATE, KEY
from homenode.net.queued_frames import QueuedFrameSocket
from tests.engine.engines import config_for, greedy, run_all, tokens_of
from tests.engine.live import BUILTIN, LiveServer
from tests.host.net.namespaces import Capture, FarHost, far_host
from tests.peer_keys import shared_keys
from tests.waiting import PATIENCE_S, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.alone,
    pytest.mark.skipif(not BUILTIN.is_file(), reason="needs the built-in model"),
]
TEXT = "the quokka on the windowsill said nothing at all, " * 8
IDS = random.Random(4).sample(range(300, 1000), 40)
PIECE = 40  # bytes that are looked for
SECRET = "a secret of these engines"


@pytest.fixture(scope="module")
def far() -> Iterator[FarHost]:
    with far_host() as host:
        yield host


def settings_of(encrypted: bool) -> dict[str, Any]:
    return {"peer_keys": str(shared_keys())} if encrypted else {"peer_plain_text": True}


def captured(far: FarHost, talk: Callable[[bool], Any], encrypted: bool) -> tuple[list[bytes], Any]:
    capture = Capture(far.device)
    try:
        said = talk(encrypted)
    finally:
        streams = capture.close()
    assert sum(map(len, streams)) > 5000, "the capture has nothing"
    return streams, said


def pieces_of(streams: Sequence[bytes]) -> list[bytes]:
    """Of what went over in clear: those that say nothing by chance, none of them new in each run."""
    draw, found = random.Random(5), []
    for stream in streams:
        for _ in range(200 if len(stream) > 4096 else 0):
            at = draw.randrange(len(stream) - PIECE)
            piece = stream[at : at + PIECE]
            if len(set(piece)) > PIECE // 2:
                found.append(piece)
    return found


def require_hidden(far: FarHost, talk: Callable[[bool], Any], known: Sequence[bytes]) -> None:
    clear, said = captured(far, talk, False)
    for piece in known:
        assert any(piece in stream for stream in clear), "the capture does not see what it should"
    hidden, again = captured(far, talk, True)
    assert again == said
    for piece in [*known, *pieces_of(clear)]:
        assert not any(piece in stream for stream in hidden)


class FarWorker:
    """What `RayWorker` is, without Ray."""

    def __init__(self, name: str, process: subprocess.Popen[str], sock: socket.socket) -> None:
        self.name, self._process, self.socket = name, process, QueuedFrameSocket(sock)

    def end(self, patience_s: float) -> None:
        self.socket.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience_s)
        self._process.kill()
        self._process.wait(PATIENCE_S)

    def how_it_ended(self, patience_s: float) -> str:
        return f"ended with {self._process.wait(patience_s)}"


def launcher_of(far: FarHost) -> type[Any]:
    """`RayLauncher` for two hosts of which no cluster knows: every other worker is there."""

    class Launcher:
        def __init__(self, workers: Any, parallel: Any, net: Any, replica: Any = None) -> None:
            self.rendezvous = Rendezvous(far.here, parallel.worker_timeout, net)

        def __call__(self, plan: Any) -> FarWorker:
            sock, there = self.rendezvous.expect(plan.number, 0), plan.number % 2
            words = [self.rendezvous.address, str(plan.number), "0", f"host{there}", "given", plan.name]
            before = ["ip", "netns", "exec", far.name] if there else []
            process = subprocess.Popen(
                [*before, sys.executable, "-P", "-m", "homenode.engine.worker.remote", *words],
                stdin=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
            assert process.stdin
            process.stdin.write(self.rendezvous.credentials.line() + "\n")
            process.stdin.flush()
            return FarWorker(plan.name, process, sock)

        def close(self) -> None:
            self.rendezvous.close()

    return Launcher


@pytest.mark.parametrize(
    "split",
    [{"pipeline_parallel_size": 2, "stage_devices": "cpu,cpu"}, {"tensor_parallel_size": 2}],
    ids=["two stages", "two ranks"],
)
def test_workers_of_two_hosts_say_nothing_in_clear(
    far: FarHost, monkeypatch: pytest.MonkeyPatch, split: dict[str, Any]
) -> None:
    monkeypatch.setattr(ray, "RayLauncher", launcher_of(far))

    def generate(encrypted: bool) -> list[int]:
        settings = {"executor": "ray", "threads": 1, "kv_cache_memory": "4MiB", **split, **settings_of(encrypted)}
        engine = LocalEngine(config_for(BUILTIN.parent, **settings))
        try:
            (outputs,) = run_all(engine, [IDS], [greedy(8)])
            return tokens_of(outputs)
        finally:
            engine.close()

    path = str(BUILTIN.parent).encode()
    require_hidden(far, generate, [path, msgspec.msgpack.encode(IDS)[5:-5]])


def test_prefill_decode_and_their_proxy_say_nothing_in_clear(far: FarHost) -> None:
    keys = shared_keys()
    tls = ["--ssl-certfile", str(keys / CERTIFICATE), "--ssl-keyfile", str(keys / KEY)]
    tls += ["--ssl-ca-certs", str(keys / AUTHORITY)]

    def ask(encrypted: bool) -> str:
        peer = ["--peer-keys", str(keys)] if encrypted else ["--peer-plain-text"]
        secret = [] if encrypted else ["--pd-secret", SECRET]
        of_all = ["--transfer-channel", "tcp", "--pd-pull-mode", "--pd-buffer-size", "8MiB", *peer, *secret]
        sender = LiveServer(
            *("--pd-role", "sender", "--pd-peer-host", far.there, "--host", far.there, *of_all),
            *(tls if encrypted else []),
            before=["ip", "netns", "exec", far.name],
        )
        with contextlib.closing(sender):
            receiver = LiveServer("--pd-role", "receiver", "--pd-peer-host", far.here, *of_all)
            with contextlib.closing(receiver), _proxy(sender.url, receiver.url, peer) as url:
                return _answer_of(url)

    require_hidden(far, ask, [TEXT[:100].encode()])


@contextlib.contextmanager
def _proxy(prefill: str, decode: str, peer: Sequence[str]) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "homenode.cli.main", "proxy", "--prefill", prefill, "--decode", decode]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([*command, "--port", str(port), *peer], env=environment)
    try:
        url = f"http://127.0.0.1:{port}"

        def ready() -> bool:
            with contextlib.suppress(httpx.HTTPError):
                return bool(httpx.get(f"{url}/health").status_code == 200)
            return False

        wait_until(ready, "the proxy answers")
        yield url
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def _answer_of(url: str) -> str:
    body = {"model": "live", "prompt": TEXT, "max_tokens": 6, "temperature": 0}
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=PATIENCE_S)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


@contextlib.contextmanager
def ray_of_two_hosts(far: FarHost) -> Iterator[str]:
    """A cluster of this host and the other one, a CPU each; its address."""
    port = 20_000 + os.getpid() % 10_000
    memory = ["--object-store-memory", str(100 << 20)]
    start = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus", "1", *memory]
    head = [*start, "--head", "--node-ip-address", far.here, "--port", str(port), "--include-dashboard", "false"]
    other = [*start, "--node-ip-address", far.there, "--address", f"{far.here}:{port}"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUNBUFFERED": "1"}
    environment["RAY_USAGE_STATS_ENABLED"] = "0"
    nodes, logs = list[subprocess.Popen[bytes]](), contextlib.ExitStack()
    try:
        for command in (head, ["ip", "netns", "exec", far.name, *other]):
            said = logs.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
            nodes.append(subprocess.Popen(command, env=environment, stdout=said))
            wait_until(lambda said=said: b"Ray runtime started" in os.pread(said.fileno(), 1 << 20, 0))
        yield f"{far.here}:{port}"
    finally:
        for node in nodes[::-1]:
            node.terminate()
            node.wait(PATIENCE_S)
        logs.close()


def test_a_ray_worker_says_nothing_in_clear(far: FarHost) -> None:
    """What Ray itself says is its own affair: it has no text, ids or rows."""
    pytest.importorskip("ray", reason="needs ray, which the extra `ray` installs")
    with ray_of_two_hosts(far) as address:

        def generate(encrypted: bool) -> list[int]:
            settings = {"executor": "ray", "ray_address": address, "ray_placement": "STRICT_SPREAD", "threads": 1}
            settings |= {"kv_cache_memory": "4MiB", "pipeline_parallel_size": 2, "stage_devices": "cpu,cpu"}
            engine = LocalEngine(config_for(BUILTIN.parent, **settings, **settings_of(encrypted)))
            try:
                (outputs,) = run_all(engine, [IDS], [greedy(8)])
                return tokens_of(outputs)
            finally:
                engine.close()

        clear, said = captured(far, generate, False)
        ids = msgspec.msgpack.encode(IDS)[5:-5]
        assert any(ids in stream for stream in clear), "the capture does not see what it should"
        hidden, again = captured(far, generate, True)
        assert again == said and not any(ids in stream for stream in hidden)
