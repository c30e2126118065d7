"""Bound answers wherever they are computed: by several engines of which one is killed, behind several fronts, by a
sender and a receiver of KV, and through the proxy. The tokens are those of one engine alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from homenode.host.topology.allowance import Allowance
from tests.engine.live import LiveServer
from tests.engine.test_live_fronts import fronts, of_fronts, running_at
from tests.engine.transfer_pair import Pair, prompts
from tests.paths import ROOT, STORIES, needs_data
from tests.waiting import wait_until

pytest.importorskip("homenode._native", reason="needs the compiled core")
pytestmark = [pytest.mark.alone, needs_data]
two_cores = pytest.mark.skipif(len(Allowance.of_process().physical_cpus) < 2, reason="two engines need two cores")
FORM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{2,6}$"}, "minItems": 2, "maxItems": 9},
    },
    "required": ["name", "tags"],
    "additionalProperties": False,
}
BOUNDS: list[dict[str, Any]] = [
    {"response_format": {"type": "json_schema", "json_schema": {"name": "form", "schema": FORM}}},
    {"structured_outputs": {"regex": "([a-z]{1,3} ){1,200}!"}},
    {"structured_outputs": {"choice": ["crimson", "burnt umber", "cat"]}},
    {},
]
PROMPTS = prompts(12)


def bodies() -> list[dict[str, Any]]:
    fixed = {"max_tokens": 60, "temperature": 1.2, "return_token_ids": True}
    return [{"prompt": p, "seed": i, **fixed, **BOUNDS[i % len(BOUNDS)]} for i, p in enumerate(PROMPTS)]


def ids(answer: httpx.Response) -> list[int]:
    assert answer.status_code == 200, answer.text
    found: list[int] = answer.json()["choices"][0]["token_ids"]
    return found


def streamed(http: httpx.Client, body: dict[str, Any]) -> list[int]:
    found: list[int] = []
    with http.stream("POST", "/v1/completions", json={**body, "stream": True}) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                found += json.loads(line.removeprefix("data: "))["choices"][0]["token_ids"]
    return found


@pytest.fixture(scope="module")
def alone() -> Iterator[list[list[int]]]:
    """What one engine says to one after another; every bound answer ends in time."""
    server = LiveServer("--threads", "1", "--kv-cache-memory", "2MiB", model=STORIES)
    with httpx.Client(base_url=server.url, timeout=120) as http:
        answers = [http.post("/v1/completions", json=body) for body in bodies()]
    assert server.close() == 0
    forms = [json.loads(answer.json()["choices"][0]["text"]) for answer in answers[:: len(BOUNDS)]]
    assert all(len(form["tags"]) >= 2 for form in forms)
    assert all(answer.json()["choices"][0]["text"].endswith("!") for answer in answers[1 :: len(BOUNDS)])
    yield [ids(answer) for answer in answers]


@two_cores
def test_an_engine_killed_behind_two_fronts(alone: list[list[int]]) -> None:
    flags = (
        "--data-parallel-size",
        "2",
        "--api-server-count",
        "2",
        "--kv-cache-memory",
        "2MiB",
        "--max-num-seqs",
        "16",
    )
    server = LiveServer(*flags, model=STORIES)
    try:
        assert len(fronts(server)) == 2
        limits = httpx.Limits(max_connections=12)
        with httpx.Client(base_url=server.url, timeout=120, limits=limits) as http, ThreadPoolExecutor(12) as pool:
            jobs = [pool.submit(streamed, http, body) for body in bodies() * 12]
            engine = server.children("homenode-worker")["homenode-worker-1"]
            server.wait_for(lambda: running_at(server, 1) > 0)
            os.kill(engine, signal.SIGKILL)
            assert [job.result(120) for job in jobs] == alone * 12
        server.wait_for(lambda: of_fronts(server, "engine_restarts_total") == {1})
    finally:
        server.close()


@pytest.mark.parametrize("mode", ["push", "pull-delay"])
def test_a_sender_a_receiver_and_the_proxy(alone: list[list[int]], mode: str) -> None:
    with Pair(mode, model=STORIES) as pair:

        def answer(body: dict[str, Any]) -> list[int]:
            ticket = pair.ticket()
            params = {"do_remote_decode": True, "ticket": ticket, "peer": pair.receiver.published()}
            computed = pair.sender.http.post("/v1/completions", json={**body, "kv_transfer_params": params})
            assert computed.status_code == 200, computed.text
            params = {"do_remote_prefill": True, "ticket": ticket}
            return ids(pair.receiver.http.post("/v1/completions", json={**body, "kv_transfer_params": params}))

        with ThreadPoolExecutor(6) as pool:
            assert list(pool.map(answer, bodies())) == alone
        assert pair.receiver.metric("recomputed_tokens_total") == 0
        with proxied(pair) as http, ThreadPoolExecutor(6) as pool:
            assert list(pool.map(lambda body: ids(http.post("/v1/completions", json=body)), bodies())) == alone
            assert list(pool.map(lambda body: streamed(http, body), bodies())) == alone
            broken = http.post("/v1/completions", json={"prompt": "x", "structured_outputs": {"regex": "([a-z"}})
            assert broken.status_code == 400 and broken.json()["error"]["param"] == "structured_outputs.regex"
        wait_until(pair.nothing_pinned)


@contextlib.contextmanager
def proxied(pair: Pair) -> Iterator[httpx.Client]:
    servers = ["--prefill", pair.sender.server.url, "--decode", pair.receiver.server.url]
    command = [sys.executable, "-m", "homenode.cli.main", "proxy", "--port", "0", *servers]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True) as proxy:
        assert proxy.stderr is not None
        try:
            line = next(line for line in proxy.stderr if "listening http" in line)
            url = next(word for word in line.split() if word.startswith("http://"))
            with httpx.Client(base_url=url, timeout=120) as http:
                wait_until(lambda: http.get("/health").status_code == 200)
                yield http
        finally:
            proxy.terminate()
            proxy.communicate()
