"""`homenode serve --enable-expert-parallel` with two engines behind several fronts: one copy of the experts, which
outlives whoever read them.
"""

from __future__ import annotations

import concurrent.futures
import os
import signal
from typing import Any

import httpx
import pytest

from homenode.host.topology.allowance import Allowance
from tests.engine.live import LiveServer
from tests.engine.test_experts_in_common import bytes_of
from tests.engine.test_live_fronts import ask, fresh, fronts, of_fronts
from tests.engine.test_live_replicas import body, golden, is_golden, metrics
from tests.paths import STORIES_MIXTURE, needs_data

pytest.importorskip("homenode._native", reason="needs the compiled core")
pytestmark = [
    pytest.mark.alone,
    needs_data,
    pytest.mark.skipif(len(Allowance.of_process().physical_cpus) < 2, reason="two engines need two cores"),
]
FLAGS = (
    "--data-parallel-size",
    "2",
    "--enable-expert-parallel",
    "--kv-cache-memory",
    "2MiB",
    "--max-num-batched-tokens",
    "48",
)


def server_has(server: LiveServer, words: str) -> bool:
    return words in fresh(server, "/metrics").text


def test_a_killed_engine_leaves_the_others_alone_and_comes_back() -> None:
    entries: list[dict[str, Any]] = golden()
    weights = bytes_of(STORIES_MIXTURE)
    server = LiveServer(*FLAGS, model=STORIES_MIXTURE)
    try:
        assert len(fronts(server)) == 2 and b"(experts once)" in b"".join(server.log)
        for name, wanted in (
            ("weight_bytes", weights["experts"] + 2 * weights["rest"]),
            ("shared_weight_bytes", weights["experts"]),
        ):
            server.wait_for(
                lambda name=name: set(metrics(server, name)) == {"0", "1"} and min(metrics(server, name).values()) > 0,
            )
            assert sum(metrics(server, name).values()) == pytest.approx(wanted, rel=0.2), "groups of rows are filled up"
        assert server_has(server, 'use="shared"')
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            jobs = [pool.submit(ask, server, entry) for entry in entries * 20]
            jobs[8].result(120)
            os.kill(server.children("homenode-worker")["homenode-worker-0"], signal.SIGKILL)
            assert all(job.result(120) for job in jobs)
        server.wait_for(lambda: of_fronts(server, "engine_restarts_total") == {1})
        server.wait_for(lambda: all(state["state"] == "ready" for state in fresh(server, "/health").json()["engines"]))
        before = metrics(server, "generation_tokens_total")
        cases = [(entry, cut) for cut in (7, 31, 33, 64, 97) for entry in entries]
        with httpx.Client(base_url=server.url, timeout=120) as http, concurrent.futures.ThreadPoolExecutor(12) as pool:
            answers = list(pool.map(lambda case: http.post("/v1/completions", json=body(*case)), cases))
        assert all(is_golden(answer, *case) for answer, case in zip(answers, cases, strict=True))
        server.wait_for(
            lambda: all(after > before[engine] for engine, after in metrics(server, "generation_tokens_total").items()),
        )
    finally:
        code, log = server.close(), b"".join(server.log)
    assert code == 0 and b"Traceback" not in log, log.decode()[-6000:]
