"""A coordinator with fronts and engines that compute nothing: who is replaced, who is refused, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from homenode.engine.replicas.patience import Patience
from homenode.errors import CheckpointError, HostError
from homenode.model.tokenizer.config import TextConfig
from homenode.server.config import ServerConfig
from homenode.server.fronts.coordinator import Coordinator
from homenode.server.fronts.folder import MetricsFolder
from homenode.server.listener import bind
from tests.engine.engines import config_for
from tests.engine.live import connections
from tests.engine.scripted_process import LIMITS
from tests.engine.test_client import sync
from tests.engine.test_replicas import FOREVER, configs
from tests.paths import ROOT

pytestmark = pytest.mark.alone

PATIENCE_S = 240.0
QUICK = Patience(look_every_s=0.05, lost_after_s=PATIENCE_S, tries=1000, first_delay_s=0.01, longest_delay_s=0.05)
Answer = Awaitable[httpx.Response]


@pytest.fixture(autouse=True)
def _programs_of_the_tests_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes run modules of the tests, and do not look for modules where they are started."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]))


def coordinator(folder: Path, engines: int, fronts: int, patience: Patience = QUICK, **settings: Any) -> tuple[Coordinator, ServerConfig]:
    server = ServerConfig(port=0, served_model_name=("scripted",), shutdown_timeout=5.0)
    several = (
        configs(folder, engines, **settings)
        if engines > 1
        else [config_for(folder, block_size=LIMITS.block_size, max_num_seqs=16, **settings)]
    )
    programs = {"engine_program": "tests.engine.scripted_process", "front_program": "tests.server.scripted_front"}
    return Coordinator(several, server, TextConfig(), fronts, patience=patience, **programs), server


class Service:
    """A coordinator that serves. `code`: the exit code that it came to."""

    def __init__(self, made: Coordinator, url: str, serving: asyncio.Task[int]) -> None:
        self.made, self.url, self.serving = made, url, serving
        self.port = httpx.URL(url).port or 0

    @property
    def pids(self) -> list[int]:
        return list(self.made.front_pids)

    async def get(self, path: str) -> httpx.Response:
        """Over a connection of its own, which any front may take."""
        async with httpx.AsyncClient(base_url=self.url, timeout=PATIENCE_S) as http:
            return await http.get(path)

    async def metric(self, name: str) -> float:
        lines = (await self.get("/metrics")).text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"homenode:{name}{{"))

    async def until(self, holds: Callable[[], Awaitable[bool]]) -> None:
        """Asks again and again."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with contextlib.suppress(httpx.TransportError):  # of a front that was just killed
                    if await holds():
                        return
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def service(made: Coordinator, server: ServerConfig) -> AsyncIterator[Service]:
    await made.start(bind(server))
    urls: list[str] = []
    serving = asyncio.create_task(made.serve(urls.append))
    try:
        await asyncio.sleep(0)
        yield Service(made, urls[0], serving)
    finally:
        made.signalled()
        made.signalled()
        async with asyncio.timeout(PATIENCE_S):
            await serving
            await made.close()


@contextlib.asynccontextmanager
async def spread(to: Service, each: int) -> AsyncIterator[list[httpx.AsyncClient]]:
    """Clients with a connection open, at least `each` of them with every front."""
    async with contextlib.AsyncExitStack() as stack:
        https: list[httpx.AsyncClient] = []

        async def enough() -> bool:
            https.append(await stack.enter_async_context(httpx.AsyncClient(base_url=to.url, timeout=PATIENCE_S)))
            assert (await https[-1].get("/version")).status_code == 200
            return all(connections(pid, to.port) >= each for pid in to.pids)

        await to.until(enough)
        yield https


def complete(http: httpx.AsyncClient, max_tokens: int = 4) -> asyncio.Task[httpx.Response]:
    return asyncio.create_task(http.post("/v1/completions", json={"prompt": "hi", "max_tokens": max_tokens, "ignore_eos": True}))


@sync
async def test_as_many_wait_as_are_allowed_at_all_fronts_together(tmp_path: Path) -> None:
    limit = 3
    made, server = coordinator(tmp_path, 2, 2, max_num_queued_requests=limit)
    async with service(made, server) as to, spread(to, limit + 1) as https:
        (tmp_path / "broken").touch()
        for pid in made.engine_pids:
            os.kill(pid, signal.SIGKILL)

        async def all_down() -> bool:
            lines = (await to.get("/metrics")).text.splitlines()
            return sum('state="restarting"} 1' in line for line in lines) == 2

        await to.until(all_down)
        asked = [complete(http) for http in https]
        done = 0
        async with asyncio.timeout(PATIENCE_S):
            while done < len(asked) - limit:
                finished, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
                done = len(finished)
                await asyncio.sleep(0.01)
        refused = [task.result() for task in asked if task.done()]
        assert {(answer.status_code, answer.json()["error"]["code"]) for answer in refused} == {(503, "overloaded")}
        assert len(refused) == len(asked) - limit
        (tmp_path / "broken").unlink()
        async with asyncio.timeout(PATIENCE_S):
            answers = await asyncio.gather(*asked)
        assert sorted(answer.status_code for answer in answers) == [200] * limit + [503] * len(refused)


@sync
async def test_a_killed_front_leaves_nothing_running_and_is_replaced(tmp_path: Path) -> None:
    made, server = coordinator(tmp_path, 2, 2)
    async with service(made, server) as to, spread(to, 2) as https:
        endless = [complete(http, FOREVER) for http in https]

        async def all_run() -> bool:
            return await to.metric("num_requests_running") == len(https)

        await to.until(all_run)
        killed, other = to.pids
        there = connections(killed, to.port)
        os.kill(killed, signal.SIGKILL)

        async def replaced() -> bool:
            return len(to.pids) == 2 and killed not in to.pids

        await to.until(replaced)
        lost = [task for task in endless if task.done()]
        assert other in to.pids and 2 <= len(lost) <= there and all(isinstance(task.exception(), httpx.TransportError) for task in lost)

        async def only_theirs_run() -> bool:
            return await to.metric("num_requests_running") == len(https) - len(lost)

        await to.until(only_theirs_run)
        async with spread(to, 1) as again:
            assert [(await complete(http)).status_code for http in again] == [200] * len(again)
        for task in endless:
            task.cancel()
        await asyncio.gather(*endless, return_exceptions=True)

        async def none_runs() -> bool:
            return await to.metric("num_requests_running") == 0

        await to.until(none_runs)


@pytest.mark.parametrize(("obstacle", "error"), [("unreadable", CheckpointError), ("broken", HostError)])
@sync
async def test_what_keeps_a_front_or_an_engine_from_starting_is_named(tmp_path: Path, obstacle: str, error: type[Exception]) -> None:
    (tmp_path / obstacle).touch()
    made, server = coordinator(tmp_path, 1, 2)
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(error, match=r"cannot be read|is broken"):
            await made.start(bind(server))
    assert made.engine_pids == ()


@sync
async def test_fronts_that_cannot_be_replaced_are_given_up(tmp_path: Path) -> None:
    made, server = coordinator(tmp_path, 1, 2, Patience(tries=2, first_delay_s=0.01, lost_after_s=PATIENCE_S))
    async with service(made, server) as to:
        (tmp_path / "unreadable").touch()
        first, second = to.pids
        os.kill(first, signal.SIGKILL)

        async def one_is_left() -> bool:
            return to.pids == [second] and (await to.get("/health")).status_code == 200

        await to.until(one_is_left)
        os.kill(second, signal.SIGKILL)
        async with asyncio.timeout(PATIENCE_S):
            assert await to.serving == 1


@sync
async def test_a_silent_front_is_ended_and_replaced(tmp_path: Path) -> None:
    made, server = coordinator(tmp_path, 1, 2, Patience(look_every_s=0.05, silent_after_s=0.2, lost_after_s=0.2, first_delay_s=0.01))
    async with service(made, server) as to:
        silent = to.pids[0]
        os.kill(silent, signal.SIGSTOP)

        async def replaced() -> bool:
            return len(to.pids) == 2 and silent not in to.pids

        await to.until(replaced)
        async with spread(to, 1) as https:
            assert [(await complete(http)).status_code for http in https] == [200] * len(https)


@sync
async def test_refusals_of_all_fronts_are_counted_together(tmp_path: Path) -> None:
    made, server = coordinator(tmp_path, 1, 2)
    async with service(made, server) as to, spread(to, 1) as https:
        endless = [complete(http, FOREVER) for http in https]

        async def all_run() -> bool:
            return await to.metric("num_requests_running") == len(https)

        await to.until(all_run)
        made.signalled()
        refusals = 0
        async with asyncio.timeout(PATIENCE_S):
            while refusals < 4:
                answer = await to.get("/health")
                assert answer.status_code == 503
                async with httpx.AsyncClient(base_url=to.url, timeout=PATIENCE_S) as http:
                    refusals += (await complete(http)).json()["error"]["code"] == "draining"
        assert {await to.metric("admission_rejections_total") for _ in range(6)} == {4}
        for task in endless:
            task.cancel()
        await asyncio.gather(*endless, return_exceptions=True)
        async with asyncio.timeout(PATIENCE_S):
            assert await to.serving == 0


def test_the_folder_of_a_coordinator_that_was_killed_is_removed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    living = MetricsFolder()
    script = "from homenode.server.fronts.folder import MetricsFolder\nimport os\nprint(MetricsFolder().path, flush=True)\nos.abort()"
    killed = subprocess.run([sys.executable, "-c", script], env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True, text=True)
    assert Path(killed.stdout.strip()).is_dir()
    unlocked = tmp_path / "homenode-metrics-new"
    unlocked.mkdir()
    another = MetricsFolder()
    assert sorted(tmp_path.iterdir()) == sorted([living.path, another.path, unlocked])
    for folder in (living, another):
        folder.remove()
        folder.remove()
    assert list(tmp_path.iterdir()) == [unlocked]
