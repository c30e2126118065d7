"""Clients that leave, drains, second signals, engines that die, and what /health and /metrics say meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from homenode.engine.messages import EngineStats, Output, ReplicaStats
from homenode.errors import UserError
from homenode.server.http.config import ServerConfig
from homenode.server.run import bind, url_of
from tests.paths import ROOT
from tests.server.conftest import Start
from tests.server.fakes import ByteTokenizer, ScriptedClient
from tests.waiting import wait_until


def send_raw(url: str, body: dict[str, Any]) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=20)
    data = json.dumps(body).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: "
        f"{len(data)}\r\n\r\n"
    )
    connection.sendall(head.encode() + data)
    return connection


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_aborts_its_requests(start: Start, stream: bool, n: int) -> None:
    client = ScriptedClient(hold_after=2)
    server = start(client)
    with send_raw(server.url, {"prompt": "x", "stream": stream, "n": n}) as connection:
        assert client.held.wait(20)
        if stream:
            assert connection.recv(10).startswith(b"HTTP/1.1 2")
    wait_until(lambda: len(client.aborts) >= n)
    assert sorted(id for id, _ in client.aborts) == [request.id for request in client.requests]
    assert server.metric("homenode:request_success_total") == n
    assert 'finished_reason="abort"' in server.http.get("/metrics").text


class LongWords(ByteTokenizer):
    """Every token is 50 000 characters long."""

    def stream(self, context: Sequence[int] = (), skip_special_tokens: bool = True, shown: Any = ()) -> Any:
        return SimpleNamespace(push=lambda ids: "x" * 50_000, flush=lambda: "")


def test_a_reader_that_stops_reading_is_let_go(start: Start) -> None:
    # 20 MB, more than the buffers of both ends hold.
    client = ScriptedClient(lambda request: [Output(id=request.id, tokens=[1])] * 400)
    server = start(client, LongWords(), write_timeout=0.2)
    with send_raw(server.url, {"prompt": "x", "stream": True}):  # and read nothing
        assert client.closed.wait(30)


def test_silence_is_broken_by_comments(start: Start) -> None:
    client = ScriptedClient(hold_after=2)
    server = start(client, sse_keep_alive=0.05)
    with server.http.stream("POST", "/v1/completions", json={"prompt": "x", "stream": True}) as response:
        lines = response.iter_lines()
        seen = [next(line for line in lines if line.startswith(":"))]
        server.call(client.release)
        seen += list(lines)
    assert seen[0] == ": keep-alive" and "data: [DONE]" in seen


def test_health_is_the_heartbeat(start: Start) -> None:
    client = ScriptedClient()
    server = start(client)
    assert server.http.get("/health").json()["status"] == "ok"
    client.silent = True
    silent = server.http.get("/health")
    assert (
        silent.status_code == 503
        and silent.json()["error"]["code"] == "engine_silent"
        and silent.headers["retry-after"]
    )


def test_health_tells_of_a_worker_that_is_being_replaced(start: Start) -> None:
    client = ScriptedClient()
    server = start(client)
    client.hindrance = "worker 1 of 2 is being replaced"
    unwell = server.http.get("/health")
    assert unwell.status_code == 503 and unwell.headers["retry-after"]
    assert (unwell.json()["error"]["code"], unwell.json()["error"]["message"]) == ("worker_lost", client.hindrance)
    assert server.complete(max_tokens=5).status_code == 200  # requests are taken all the same
    client.hindrance = None
    assert server.http.get("/health").status_code == 200


def test_metrics(start: Start) -> None:
    client = ScriptedClient()
    client.statistics = EngineStats(num_running=2, num_waiting=1, kv_usage=0.25, prefix_queries=10, prefix_hits=4,
        preemptions=3,
                                   prompt_tokens=50, generation_tokens=70, rejected={"queue_full": 5})  # fmt: skip
    server = start(client)
    assert server.complete(max_tokens=5).status_code == server.complete(prompt="end", n=2).status_code == 200
    expected = {
        "num_requests_running": 2, "num_requests_waiting": 1, "kv_cache_usage_perc": 0.25,
        "prefix_cache_queries_total": 10,
        "prefix_cache_hits_total": 4, "num_preemptions_total": 3, "prompt_tokens_total": 50,
        "generation_tokens_total": 70,
        "request_success_total": 3, "time_to_first_token_seconds_count": 3,
        "request_queue_time_seconds_count": 3, "inter_token_latency_seconds_count": 14,
        "e2e_request_latency_seconds_count": 3, "admission_rejections_total": 5,
    }  # fmt: skip
    assert {name: server.metric(f"homenode:{name}") for name in expected} == expected
    text = server.http.get("/metrics").text
    assert 'homenode:request_success_total{finished_reason="length",model_name="story-teller"} 1.0' in text
    assert 'homenode:admission_rejections_total{model_name="story-teller",reason="queue_full"} 5.0' in text


def test_figures_of_stages_and_workers(start: Start) -> None:
    client = ScriptedClient()
    stages = [{"stage": 0, "busy_s": 1.5, "wait_s": 0.5}, {"stage": 1, "busy_s": 1.0, "wait_s": 1.0}]
    client.statistics = EngineStats(
        compute={"stages": stages, "workers": [{"state": "ready"}, {"state": "starting"}], "restarts": 2}
    )
    text = start(client).http.get("/metrics").text
    assert 'homenode:stage_busy_seconds_total{model_name="story-teller",stage="0"} 1.5' in text
    assert 'homenode:stage_wait_seconds_total{model_name="story-teller",stage="1"} 1.0' in text
    assert 'homenode:workers{model_name="story-teller",state="starting"} 1.0' in text
    assert 'homenode:worker_restarts_total{model_name="story-teller"} 2.0' in text


def test_figures_of_experts(start: Start) -> None:
    client = ScriptedClient()
    client.statistics = EngineStats(compute={"experts": {"tokens": [5, 7], "imbalance": [[1, 1.2]]}})
    server = start(client)
    text = server.http.get("/metrics").text
    assert 'homenode:expert_tokens_total{expert="1",model_name="story-teller"} 7.0' in text
    assert 'homenode:expert_imbalance{layer="1",model_name="story-teller"} 1.2' in text
    assert "expert_layer_tokens" not in text
    client.statistics = EngineStats(
        compute={"experts": {"tokens": [5, 7], "imbalance": [[1, 1.2]], "layers": [[0, 0], [5, 7]]}}
    )
    text = server.http.get("/metrics").text
    assert 'homenode:expert_layer_tokens_total{expert="0",layer="1",model_name="story-teller"} 5.0' in text
    assert 'layer="0"' not in text


def test_figures_of_several_engines_and_what_became_of_them(start: Start) -> None:
    client = ScriptedClient()
    figures = [
        EngineStats(num_running=2, prefix_hits=4, rejected={"queue_full": 5}),
        EngineStats(num_running=3, prefix_hits=5),
    ]
    client.engines = (
        ReplicaStats(0, None, "ready", 0, 0, figures[0]),
        ReplicaStats(1, 1, "restarting", 3, 7, figures[1]),
    )
    server = start(client)
    text = server.http.get("/metrics").text
    assert 'homenode:num_requests_running{engine="1",model_name="story-teller"} 3.0' in text
    assert (server.metric("homenode:num_requests_running"), server.metric("homenode:prefix_cache_hits_total")) == (5, 9)
    assert server.metric("homenode:admission_rejections_total") == 5
    assert 'homenode:engine_state{engine="1",model_name="story-teller",state="restarting"} 1.0' in text
    assert server.metric("homenode:engine_state") == 2
    assert 'homenode:engine_restarts_total{engine="1",model_name="story-teller"} 3.0' in text
    assert 'homenode:requests_moved_total{engine="1",model_name="story-teller"} 7.0' in text
    engines = server.http.get("/health").json()["engines"]
    assert engines == [
        {"engine": 0, "state": "ready", "restarts": 0},
        {"engine": 1, "state": "restarting", "restarts": 3},
    ]
    client.engines = tuple(ReplicaStats(n, node, "ready", 0, 0, figures[n]) for n, node in ((0, 4), (1, 6)))
    assert (
        'homenode:prefix_cache_hits_total{engine="1",model_name="story-teller",node="6"} 5.0'
        in server.http.get("/metrics").text
    )


def test_one_engine_has_no_number(start: Start) -> None:
    server = start(ScriptedClient())
    text = server.http.get("/metrics").text
    assert 'homenode:num_requests_running{model_name="story-teller"} 2.0' in text and "engine" not in text.replace(
        "the engine", ""
    )
    assert server.http.get("/health").json().keys() == {"status", "heartbeat_seconds"}


def test_names_the_model_answers_to(start: Start) -> None:
    server = start(served_model_name=("big", "org/small"))
    assert [model["id"] for model in server.http.get("/v1/models").json()["data"]] == ["big", "org/small"]
    assert server.http.get("/v1/models/org/small").json()["id"] == "org/small"
    assert server.complete(model="org/small").json()["model"] == "org/small"
    assert server.complete(model="story-teller").status_code == 404
    assert 'model_name="big"' in server.http.get("/metrics").text


def test_an_address_that_cannot_be_had() -> None:
    with bind(ServerConfig(port=0)) as taken:
        port = taken.getsockname()[1]
        taken.listen()
        assert url_of(taken) == f"http://127.0.0.1:{port}"
        with pytest.raises(UserError, match=f"port {port}"):
            bind(ServerConfig(port=port))
    with pytest.raises(UserError, match="--host"):
        bind(ServerConfig(host="no such host.invalid", port=0))


class Process:
    """`held_server` in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.process = process
        self.http = httpx.Client(base_url=process.stdout.readline().strip(), timeout=20)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def until_unhealthy(self) -> httpx.Response:
        def health() -> httpx.Response | None:
            answer = self.http.get("/health")
            return answer if answer.status_code != 200 else None

        found = wait_until(health, "/health is not 200")
        assert found is not None
        return found

    @contextlib.contextmanager
    def stream(self) -> Iterator[Iterator[str]]:
        """The lines of a stream that waits after three tokens."""
        with httpx.Client(base_url=self.http.base_url, timeout=20) as http, http.stream(
            "POST", "/v1/completions", json={"prompt": "x", "stream": True, "max_tokens": 6}
        ) as response:  # fmt: skip
            lines = (line for line in response.iter_lines() if line)
            for _ in range(3):
                assert next(lines).startswith("data: {")
            yield lines


@pytest.fixture
def held(request: pytest.FixtureRequest) -> Iterator[Process]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.server.held_server", str(getattr(request, "param", 30))],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    running = Process(process)
    yield running
    running.http.close()
    process.kill()
    process.communicate()


def test_a_drain_finishes_what_runs_and_takes_nothing_new(held: Process) -> None:
    with held.stream() as lines:
        held.signal(signal.SIGTERM)
        health = held.until_unhealthy()
        refused = held.http.post("/v1/completions", json={"prompt": "x"})
        for response in (health, refused):
            assert response.status_code == 503 and response.json()["error"]["code"] == "draining"
            assert 1 <= int(response.headers["retry-after"]) <= 30 and response.headers["connection"] == "close"
        assert held.http.get("/metrics").status_code == 200
        held.signal(signal.SIGUSR1)
        assert list(lines)[-1] == "data: [DONE]"
    assert held.process.wait(20) == 0


def test_a_second_signal_ends_at_once(held: Process) -> None:
    with held.stream() as lines:
        held.signal(signal.SIGTERM)
        held.until_unhealthy()
        held.signal(signal.SIGINT)
        with pytest.raises(httpx.HTTPError):
            list(lines)
    assert held.process.wait(20) == 0


@pytest.mark.parametrize("held", [0.2], indirect=True)
def test_what_does_not_finish_in_time_is_told_so(held: Process) -> None:
    with held.stream() as lines:
        held.signal(signal.SIGTERM)
        rest = list(lines)
    assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "aborted"
    assert held.process.wait(20) == 0


def test_an_idle_server_ends_on_a_signal(held: Process) -> None:
    assert held.http.get("/health").status_code == 200  # leaves an idle connection open
    held.signal(signal.SIGINT)
    assert held.process.wait(20) == 0


def test_a_lost_engine_ends_the_process_after_the_answers(held: Process) -> None:
    with held.stream() as lines:
        held.signal(signal.SIGUSR2)
        rest = list(lines)
    assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "engine_lost"
    assert held.process.wait(20) == 1
    assert held.process.stderr is not None and "the engine is gone" in held.process.stderr.read()
