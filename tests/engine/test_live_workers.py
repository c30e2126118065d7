"""`homenode serve --pipeline-parallel-size 2` as a user starts it: names, metrics, health while a worker is replaced,
and nothing left behind.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import httpx
import pytest

from tests.engine.live import LiveServer, workers
from tests.waiting import PATIENCE_S, wait_until

pytest.importorskip("homenode._native", reason="needs the compiled core")
pytestmark = [pytest.mark.alone, pytest.mark.skipif(not LiveServer.possible(), reason="needs a model")]


def test_a_service_with_stages() -> None:
    server = LiveServer("--pipeline-parallel-size", "2", "--stage-devices", "cpu,cpu", "--kv-cache-memory", "16MiB")
    try:
        with httpx.Client(base_url=server.url, timeout=PATIENCE_S) as http:
            ask = {
                "model": "live",
                "prompt": [1, 5, 9],
                "max_tokens": 20,
                "temperature": 0,
                "ignore_eos": True,
                "return_token_ids": True,
            }
            first = http.post("/v1/completions", json=ask).json()["choices"][0]["token_ids"]
            before = workers(server)
            assert sorted(before) == ["homenode-worker-0", "homenode-worker-1"]
            assert all(Path(f"/proc/{pid}/comm").read_text().strip() == "homenode-worker" for pid in before.values())
            text = http.get("/metrics").text
            assert all(f'stage_busy_seconds_total{{model_name="live",stage="{stage}"}}' in text for stage in "01")
            os.kill(before["homenode-worker-1"], signal.SIGKILL)
            again = http.post("/v1/completions", json=ask)
            assert again.status_code == 200 and again.json()["choices"][0]["token_ids"] == first
            wait_until(lambda: http.get("/health").status_code == 200, "healthy again")
            after = workers(server)
            assert (
                after["homenode-worker-0"] == before["homenode-worker-0"]
                and after["homenode-worker-1"] != before["homenode-worker-1"]
            )
            os.kill(after["homenode-worker-1"], signal.SIGKILL)  # at rest
            wait_until(lambda: http.get("/health").status_code == 503, "health tells of a worker that is lost")
            wait_until(lambda: http.get("/health").status_code == 200, "healthy again")
            assert "homenode:worker_restarts_total" in http.get("/metrics").text
    finally:
        pids = workers(server).values()
        code, log = server.close(), b"".join(server.log)
    assert code == 0 and b"Traceback" not in log, log.decode()[-6000:]
    wait_until(lambda: not [pid for pid in pids if Path(f"/proc/{pid}").exists()], "workers are left behind")


def test_workers_do_not_outlive_a_front_that_is_killed() -> None:
    server = LiveServer("--pipeline-parallel-size", "2", "--stage-devices", "cpu,cpu", "--kv-cache-memory", "16MiB")
    pids = workers(server).values()
    assert len(pids) == 2
    server.process.kill()
    server.close()
    wait_until(lambda: not [pid for pid in pids if Path(f"/proc/{pid}").exists()], "workers are left behind")
