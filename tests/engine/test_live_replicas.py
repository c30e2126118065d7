"""`homenode serve --data-parallel-size 2` with the native engine and one front: the golden text of a real model,
whatever happens to either engine.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from homenode.host.topology.allowance import Allowance
from tests.engine.live import LiveServer
from tests.paths import STORIES, needs_data

pytest.importorskip("homenode._native", reason="needs the compiled core")
pytestmark = [
    pytest.mark.alone,
    needs_data,
    pytest.mark.skipif(len(Allowance.of_process().physical_cpus) < 2, reason="two engines need two cores"),
]
FLAGS = (
    "--data-parallel-size",
    "2",
    "--api-server-count",
    "1",
    "--kv-cache-memory",
    "2MiB",
    "--max-num-batched-tokens",
    "48",
    "--max-num-seqs",
    "16",
)
LENGTH = 160


def golden() -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads((STORIES / "golden.json").read_text())
    return entries


@contextlib.contextmanager
def serving(*flags: str) -> Iterator[LiveServer]:
    server = LiveServer(*FLAGS, *flags, model=STORIES)
    try:
        yield server
    finally:
        code, log = server.close(), b"".join(server.log)
    assert code == 0 and b"Traceback" not in log, log.decode()[-6000:]


def engines(server: LiveServer) -> list[int]:
    """Process ids by the number in their names."""
    found = server.children("homenode-worker")
    assert list(found) == ["homenode-worker-0", "homenode-worker-1"]
    return list(found.values())


def body(entry: dict[str, Any], cut: int = 0, **more: Any) -> dict[str, Any]:
    """A golden prompt, with some of its golden tokens already in it."""
    prompt = [*entry["prompt_ids"], *entry["greedy_ids"][:cut]]
    return {
        "prompt": prompt,
        "max_tokens": LENGTH - cut,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        **more,
    }


def is_golden(answer: httpx.Response, entry: dict[str, Any], cut: int = 0) -> bool:
    return answer.status_code == 200 and answer.json()["choices"][0]["token_ids"] == entry["greedy_ids"][cut:LENGTH]


def metrics(server: LiveServer, name: str) -> dict[str, float]:
    """Values by engine."""
    lines = httpx.get(f"{server.url}/metrics", timeout=60).text.splitlines()
    found = [line for line in lines if line.startswith(f"homenode:{name}{{")]
    return {line.partition('engine="')[2].partition('"')[0]: float(line.rsplit(" ", 1)[1]) for line in found}


def health(server: LiveServer) -> list[dict[str, Any]]:
    answer = httpx.get(f"{server.url}/health", timeout=60)
    assert answer.status_code == 200, answer.text
    states: list[dict[str, Any]] = answer.json()["engines"]
    return states


def wait_for_states(server: LiveServer, holds: Callable[[list[dict[str, Any]]], bool]) -> None:
    """Returns when the health of the engines is so."""

    def looks() -> bool:
        with contextlib.suppress(AssertionError):  # while the whole machine is held up no engine answers in time
            return holds(health(server))
        return False

    server.wait_for(looks)


def test_golden_text_under_memory_pressure_and_figures_of_each_engine() -> None:
    entries = golden()
    cases = [(entry, cut) for cut in (0, 31, 32, 33, 64, 97) for entry in entries]
    with serving() as server, httpx.Client(base_url=server.url, timeout=120) as http:
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            answers = list(pool.map(lambda case: http.post("/v1/completions", json=body(*case)), cases))
        assert all(is_golden(answer, *case) for answer, case in zip(answers, cases, strict=True))
        tokens = metrics(server, "generation_tokens_total")
        assert tokens.keys() == {"0", "1"} and min(tokens.values()) > 0.2 * sum(tokens.values())
        assert sum(tokens.values()) == sum(LENGTH - cut for _, cut in cases)
        assert sum(metrics(server, "prefix_cache_hits_total").values()) > 0
        assert [(state["engine"], state["state"]) for state in health(server)] == [(0, "ready"), (1, "ready")]


def test_engines_compute_on_cpus_of_their_own() -> None:
    with serving() as server:
        masks = []
        for pid in engines(server):
            masks.append(
                {cpu for task in Path(f"/proc/{pid}/task").iterdir() for cpu in os.sched_getaffinity(int(task.name))}
            )
        if len(Allowance.of_process().physical_cpus) == 2:
            assert not masks[0] & masks[1]


def streamed(http: httpx.Client, entry: dict[str, Any]) -> list[int]:
    """The tokens of a stream, as they came."""
    tokens: list[int] = []
    with http.stream("POST", "/v1/completions", json=body(entry, stream=True)) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                tokens += json.loads(line.removeprefix("data: "))["choices"][0]["token_ids"]
    return tokens


def test_kills_under_load_cost_no_token() -> None:
    """Both engines are killed, one after the other, under streams: each is golden to its end, and soon there are two
    engines again.
    """
    entries = golden()
    chosen = entries * 20
    with (
        serving() as server,
        httpx.Client(base_url=server.url, timeout=120, limits=httpx.Limits(max_connections=16)) as http,
    ):
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            jobs = [pool.submit(streamed, http, entry) for entry in chosen]
            for number, done in ((1, 8), (0, 30)):
                jobs[done].result(120)
                os.kill(engines(server)[number], signal.SIGKILL)
                wait_for_states(
                    server,
                    lambda states, number=number: states[number] == {"engine": number, "state": "ready", "restarts": 1},
                )
            found = [job.result(120) for job in jobs]
        assert found == [entry["greedy_ids"][:LENGTH] for entry in chosen]
        assert metrics(server, "engine_restarts_total") == {"0": 1, "1": 1}
        assert sum(metrics(server, "requests_moved_total").values()) > 0


def test_a_frozen_engine_is_passed_by() -> None:
    entries = golden()
    with serving() as server, httpx.Client(base_url=server.url, timeout=120) as http:
        frozen = engines(server)[0]
        os.kill(frozen, signal.SIGSTOP)
        try:
            wait_for_states(server, lambda states: states[0]["state"] == "silent")
            answers = [http.post("/v1/completions", json=body(entry)) for entry in entries * 2]
            assert all(map(is_golden, answers, entries * 2))
        finally:
            os.kill(frozen, signal.SIGCONT)
        wait_for_states(server, lambda states: states[0]["state"] == "ready")


def test_sigterm_lets_all_engines_finish() -> None:
    entries = golden()
    with serving() as server, httpx.Client(base_url=server.url, timeout=120) as http:
        with contextlib.ExitStack() as stack:
            streams = [
                stack.enter_context(http.stream("POST", "/v1/completions", json=body(entry, stream=True))).iter_lines()
                for entry in entries
            ]
            for lines in streams:
                assert "token_ids" in next(lines)
            server.process.send_signal(signal.SIGTERM)
            for lines in streams:
                assert [line for line in lines if line][-1] == "data: [DONE]"
        assert server.process.wait(60) == 0
