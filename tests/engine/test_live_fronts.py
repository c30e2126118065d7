"""`homenode serve` with several processes that answer HTTP: one service, whichever of them is asked and whatever
becomes of it.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import select
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from homenode.host.topology.allowance import Allowance
from tests.engine.live import LiveServer, connections
from tests.engine.test_live_replicas import LENGTH, body, golden, is_golden
from tests.paths import STORIES, needs_data

pytest.importorskip("homenode._native", reason="needs the compiled core")
pytestmark = [pytest.mark.alone, needs_data]
two_cores = pytest.mark.skipif(len(Allowance.of_process().physical_cpus) < 2, reason="two engines need two cores")
FLAGS = ("--kv-cache-memory", "2MiB", "--max-num-batched-tokens", "48", "--max-num-seqs", "16")
SHAPES = [
    pytest.param(("--api-server-count", "3"), id="one engine"),
    pytest.param(("--data-parallel-size", "2", "--api-server-count", "2"), id="two engines", marks=two_cores),
]


@contextlib.contextmanager
def serving(*flags: str, code: int = 0) -> Iterator[LiveServer]:
    server = LiveServer(*FLAGS, *flags, model=STORIES)
    try:
        yield server
    finally:
        found, log = server.close(), b"".join(server.log)
    assert found == code and b"Traceback" not in log, log.decode()[-6000:]


def fronts(server: LiveServer) -> dict[str, int]:
    return server.children("homenode-front")


def fresh(server: LiveServer, path: str, timeout: float = 60) -> httpx.Response:
    """The answer over a connection of its own, which any front may take."""
    return httpx.get(f"{server.url}{path}", timeout=timeout)


def of_fronts(server: LiveServer, name: str) -> set[float]:
    """What several scrapes said of a metric, added up over its labels."""
    totals = set()
    for _ in range(8):
        lines = fresh(server, "/metrics").text.splitlines()
        totals.add(sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"homenode:{name}{{")))
    return totals


def running_at(server: LiveServer, engine: int) -> float:
    """Requests that an engine computes, as it said last."""
    lines = fresh(server, "/metrics").text.splitlines()
    found = [
        line for line in lines if line.startswith("homenode:num_requests_running{") and f'engine="{engine}"' in line
    ]
    return sum(float(line.rsplit(" ", 1)[1]) for line in found)


@pytest.mark.parametrize("flags", SHAPES)
def test_all_of_them_give_the_golden_text_and_count_together(flags: tuple[str, ...]) -> None:
    entries = golden()
    cases = [(entry, cut) for cut in (0, 31, 32, 33, 64) for entry in entries]
    with serving(*flags) as server, contextlib.ExitStack() as stack:
        assert list(fronts(server)) == [f"homenode-front-{n}" for n in range(int(flags[-1]))]
        https = [stack.enter_context(httpx.Client(base_url=server.url, timeout=120)) for _ in range(24)]
        port = httpx.URL(server.url).port or 0

        def everybody_has_one() -> bool:
            """All call together, and anew each time: one front may have taken all that came one after the other."""
            for number, http in enumerate(https):
                http.close()
                https[number] = stack.enter_context(httpx.Client(base_url=server.url, timeout=120))
            with concurrent.futures.ThreadPoolExecutor(24) as pool:
                assert {answer.status_code for answer in pool.map(lambda http: http.get("/health"), https)} == {200}
            return all(connections(pid, port) for pid in fronts(server).values())

        server.wait_for(everybody_has_one)
        with concurrent.futures.ThreadPoolExecutor(24) as pool:
            answers = list(
                pool.map(lambda job: https[job[0] % 24].post("/v1/completions", json=body(*job[1])), enumerate(cases))
            )
        assert all(is_golden(answer, *case) for answer, case in zip(answers, cases, strict=True))
        tokens = sum(LENGTH - cut for _, cut in cases)
        server.wait_for(lambda: of_fronts(server, "generation_tokens_total") == {tokens})
        assert (
            of_fronts(server, "request_success_total")
            == {len(cases)}
            == of_fronts(server, "e2e_request_latency_seconds_count")
        )
        assert of_fronts(server, "inter_token_latency_seconds_count") == {tokens - len(cases)}
        created = {fresh(server, "/v1/models").json()["data"][0]["created"] for _ in range(6)}
        assert len(created) == 1


def ask(server: LiveServer, entry: dict[str, Any]) -> bool | None:
    """Whether the answer is golden; None when the connection was lost under it."""
    try:
        answer = httpx.post(f"{server.url}/v1/completions", json=body(entry), timeout=120)
    except httpx.TransportError:
        return None
    return is_golden(answer, entry)


@pytest.mark.parametrize("flags", [SHAPES[1]])
def test_a_killed_front_costs_its_own_connections_only(flags: tuple[str, ...]) -> None:
    entries = golden()
    with serving(*flags) as server:
        before = fronts(server)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            jobs = [pool.submit(ask, server, entry) for entry in entries * 16]
            jobs[8].result(120)
            os.kill(before["homenode-front-1"], signal.SIGKILL)
            found = [job.result(120) for job in jobs]
        assert False not in found and found.count(None) <= 8 and all(found[-8:])
        server.wait_for(lambda: list(fronts(server)) == list(before) and fronts(server) != before)
        server.wait_for(lambda: of_fronts(server, "num_requests_running") == {0})
        server.wait_for(lambda: of_fronts(server, "front_restarts_total") == {1})  # each front hears of it by itself
        assert of_fronts(server, "request_success_total") <= {
            float(n) for n in range(found.count(True), len(found) + 1)
        }
        assert all(ask(server, entry) for entry in entries)


def test_a_frozen_front_is_passed_by() -> None:
    entries = golden()
    with serving("--api-server-count", "2") as server:
        frozen = os.pidfd_open(fronts(server)["homenode-front-0"])
        signal.pidfd_send_signal(frozen, signal.SIGSTOP)
        try:
            assert all(ask(server, entry) for entry in entries)
            assert fresh(server, "/health").status_code == 200
        finally:
            # Frozen for so long, where all is slow, that another one was started.
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(frozen, signal.SIGCONT)
            os.close(frozen)


@two_cores
def test_a_killed_engine_costs_no_token_at_any_front() -> None:
    entries = golden()
    with serving("--data-parallel-size", "2") as server:
        assert len(fronts(server)) == 2, "as many as engines unless told otherwise"
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            jobs = [pool.submit(ask, server, entry) for entry in entries * 20]
            engine = server.children("homenode-worker")["homenode-worker-1"]
            server.wait_for(lambda: running_at(server, 1) > 0)
            os.kill(engine, signal.SIGKILL)
            assert all(job.result(120) for job in jobs)
        server.wait_for(lambda: of_fronts(server, "engine_restarts_total") == {1})
        server.wait_for(lambda: all(state["state"] == "ready" for state in fresh(server, "/health").json()["engines"]))
        assert min(of_fronts(server, "requests_moved_total")) > 0


def test_the_loss_of_the_only_engine_ends_the_server() -> None:
    entry = golden()[0]
    with serving("--api-server-count", "2", code=1) as server, httpx.Client(base_url=server.url, timeout=120) as http:
        with http.stream("POST", "/v1/completions", json=body(entry, stream=True)) as response:
            lines = response.iter_lines()
            assert "token_ids" in next(lines)
            (engine,) = server.engines()
            os.kill(engine, signal.SIGKILL)
            assert any("engine_lost" in line for line in lines)
        assert server.process.wait(60) == 1


@pytest.mark.parametrize("to_all", [False, True], ids=["to the server", "to all its processes"])
def test_sigterm_drains_all_fronts(to_all: bool) -> None:
    """Service managers send it to every process of a service, a shell's Ctrl-C goes to the server alone."""
    entries = golden()
    with serving("--api-server-count", "3") as server, contextlib.ExitStack() as stack:
        streams = []
        for entry in entries * 3:
            http = stack.enter_context(httpx.Client(base_url=server.url, timeout=120))
            streams.append(
                stack.enter_context(http.stream("POST", "/v1/completions", json=body(entry, stream=True))).iter_lines()
            )
        for lines in streams:
            assert "token_ids" in next(lines)
        for pid in (*fronts(server).values(), *server.engines()) if to_all else ():
            os.kill(pid, signal.SIGTERM)
        server.process.send_signal(signal.SIGTERM)
        for lines in streams:
            assert [line for line in lines if line][-1] == "data: [DONE]"
        assert server.process.wait(60) == 0
        address = httpx.URL(server.url)
        with pytest.raises(OSError), socket.create_connection((address.host, address.port or 0), timeout=5):
            pass


def test_fronts_do_not_outlive_the_coordinator() -> None:
    with serving("--api-server-count", "2", code=-9) as server:
        children = [os.pidfd_open(pid) for pid in (*fronts(server).values(), *server.engines())]
        assert len(children) == 3
        server.process.kill()
        server.process.wait(60)
        for child in children:
            assert select.select([child], [], [], 60)[0], "it is still there"
            os.close(child)


def test_limits_of_keys_hold_over_all_fronts(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(
        '[keys.few]\nkey = "sk-few"\nrequests_per_minute = 7\n\n[keys.one]\nkey = "sk-one"\nconcurrent_requests = 1\n'
        '\n[keys.short]\nkey = "sk-short"\ntokens_per_minute = 40\n'
    )
    keys.chmod(0o600)

    def ask(secret: str, **more: Any) -> int:
        body = {"prompt": [1, 5, 9], "max_tokens": 2, "ignore_eos": True, **more}
        headers = {"authorization": f"Bearer {secret}"}
        return httpx.post(f"{server.url}/v1/completions", json=body, headers=headers, timeout=60).status_code

    with serving("--api-server-count", "2", "--api-key-file", str(keys)) as server:
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            asked = list(pool.map(lambda _: ask("sk-few"), range(30)))
            assert asked.count(200) == 7 and set(asked) == {200, 429}
            asked = list(pool.map(lambda _: ask("sk-one", max_tokens=60), range(12)))
            assert 1 <= asked.count(200) < 12 and set(asked) == {200, 429}
            assert ask("sk-one") == 200
        asked = [ask("sk-short") for _ in range(20)]  # five tokens each
        assert set(asked) == {200, 429} and 7 <= asked.count(200) <= 8 and ask("nobody") == 401
