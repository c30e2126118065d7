"""A coordinator with fronts and engines that compute nothing: who is replaced, who is refused, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from homenode.engine.assignment import EngineAssignment
from homenode.engine.router.restart_policy import RestartPolicy
from homenode.errors import CheckpointError, HostError
from homenode.model.tokenizer.config import TextConfig
from homenode.server.fronts.coordinator import Coordinator
from homenode.server.fronts.folder import MetricsFolder
from homenode.server.http.config import ServerConfig
from homenode.server.http.listener import bind
from homenode.server.monitoring.files import FILE_BYTES
from tests.engine.engines import config_for
from tests.engine.live import connections
from tests.engine.scripted_process import LIMITS
from tests.engine.test_client import sync
from tests.engine.test_replicas import FOREVER, LONG, configs
from tests.paths import ROOT
from tests.server.test_metrics_files import has_all_blocks
from tests.waiting import PATIENCE_S, shown, wait_in_loop

pytestmark = pytest.mark.alone

QUICK = RestartPolicy(
    look_every_s=0.05, lost_after_s=4 * PATIENCE_S, tries=1000, first_delay_s=0.01, longest_delay_s=0.05
)
Answer = Awaitable[httpx.Response]


@pytest.fixture(autouse=True)
def _programs_of_the_tests_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes run modules of the tests, and do not look for modules where they are started."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]))


def coordinator(
    folder: Path, engines: int, fronts: int, patience: RestartPolicy = QUICK, **settings: Any
) -> tuple[Coordinator, ServerConfig]:
    server = ServerConfig(port=0, served_model_name=("scripted",), shutdown_timeout=4 * PATIENCE_S)
    several = (
        configs(folder, engines, **settings)
        if engines > 1
        else [EngineAssignment(config_for(folder, block_size=LIMITS.block_size, max_num_seqs=16, **settings))]
    )
    programs = {"engine_program": "tests.engine.scripted_process", "front_program": "tests.server.scripted_front"}
    return Coordinator(several, server, TextConfig(), fronts, restart_policy=patience, **programs), server


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
        async with httpx.AsyncClient(base_url=self.url, timeout=4 * PATIENCE_S) as http:
            return await http.get(path)

    async def metric(self, name: str) -> float:
        lines = (await self.get("/metrics")).text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"homenode:{name}{{"))

    async def wait_for(self, holds: Callable[[], Awaitable[bool]]) -> None:
        """Asks again and again."""

        async def looks() -> bool:
            with contextlib.suppress(httpx.TransportError):  # of a front that was just killed
                return await holds()
            return False

        await wait_in_loop(looks, shown(holds), 4 * PATIENCE_S)


@contextlib.asynccontextmanager
async def service(made: Coordinator, server: ServerConfig) -> AsyncIterator[Service]:
    await made.start(bind(server))
    async with running(made) as to:
        yield to


@contextlib.asynccontextmanager
async def running(made: Coordinator) -> AsyncIterator[Service]:
    """A coordinator that was started, until it has ended."""
    urls: list[str] = []
    serving = asyncio.create_task(made.serve(urls.append))
    try:
        await asyncio.sleep(0)
        yield Service(made, urls[0], serving)
    finally:
        made.signalled()
        made.signalled()
        async with asyncio.timeout(4 * PATIENCE_S):
            await serving
            await made.close()


@contextlib.asynccontextmanager
async def spread(to: Service, each: int) -> AsyncIterator[list[httpx.AsyncClient]]:
    """Clients with a connection open, at least `each` of them with every front."""
    async with contextlib.AsyncExitStack() as stack:
        https: list[httpx.AsyncClient] = []

        async def enough() -> bool:
            https.append(await stack.enter_async_context(httpx.AsyncClient(base_url=to.url, timeout=4 * PATIENCE_S)))
            assert (await https[-1].get("/version")).status_code == 200
            return all(connections(pid, to.port) >= each for pid in to.pids)

        await to.wait_for(enough)
        yield https


def complete(http: httpx.AsyncClient, max_tokens: int = 4) -> asyncio.Task[httpx.Response]:
    return asyncio.create_task(
        http.post("/v1/completions", json={"prompt": "hi", "max_tokens": max_tokens, "ignore_eos": True})
    )


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

        await to.wait_for(all_down)
        asked = [complete(http) for http in https]
        done = 0
        async with asyncio.timeout(4 * PATIENCE_S):
            while done < len(asked) - limit:
                finished, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
                done = len(finished)
                await asyncio.sleep(0.01)
        refused = [task.result() for task in asked if task.done()]
        assert {(answer.status_code, answer.json()["error"]["code"]) for answer in refused} == {(503, "overloaded")}
        assert len(refused) == len(asked) - limit
        (tmp_path / "broken").unlink()
        async with asyncio.timeout(4 * PATIENCE_S):
            answers = await asyncio.gather(*asked)
        assert sorted(answer.status_code for answer in answers) == [200] * limit + [503] * len(refused)


@sync
async def test_a_killed_front_leaves_nothing_running_and_is_replaced(tmp_path: Path) -> None:
    made, server = coordinator(tmp_path, 2, 2)
    async with service(made, server) as to, spread(to, 2) as https:
        endless = [complete(http, FOREVER) for http in https]

        async def all_run() -> bool:
            return await to.metric("num_requests_running") == len(https)

        await to.wait_for(all_run)
        killed, other = to.pids
        there = connections(killed, to.port)
        os.kill(killed, signal.SIGKILL)

        async def replaced() -> bool:
            return len(to.pids) == 2 and killed not in to.pids

        await to.wait_for(replaced)
        lost = [task for task in endless if task.done()]
        assert (
            other in to.pids
            and 2 <= len(lost) <= there
            and all(isinstance(task.exception(), httpx.TransportError) for task in lost)
        )

        async def only_theirs_run() -> bool:
            return await to.metric("num_requests_running") == len(https) - len(lost)

        await to.wait_for(only_theirs_run)
        async with spread(to, 1) as again:
            assert [(await complete(http)).status_code for http in again] == [200] * len(again)
        for task in endless:
            task.cancel()
        await asyncio.gather(*endless, return_exceptions=True)

        async def none_runs() -> bool:
            return await to.metric("num_requests_running") == 0

        await to.wait_for(none_runs)


@sync
async def test_nobody_is_answered_before_the_loss_of_any_front_is_borne(tmp_path: Path) -> None:
    late = tmp_path / "late"
    late.touch()
    made, server = coordinator(tmp_path, 1, 2)
    listener = bind(server)
    starting = asyncio.create_task(made.start(listener))
    await wait_in_loop(
        lambda: [front.ready.done() for front in made.fronts.running] == [False, True],
        "the second front to be ready",
        4 * PATIENCE_S,
    )
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*listener.getsockname()[:2])
    late.unlink()
    async with asyncio.timeout(4 * PATIENCE_S):
        await starting
    async with running(made) as to:
        killed = to.pids[0]
        os.kill(killed, signal.SIGKILL)

        async def replaced() -> bool:
            return len(to.pids) == 2 and killed not in to.pids and (await to.get("/health")).status_code == 200

        await to.wait_for(replaced)


@pytest.mark.parametrize(
    ("obstacle", "error"), [("unreadable", CheckpointError), ("broken", HostError), ("unmade", HostError)]
)
@sync
async def test_what_keeps_a_front_or_an_engine_from_starting_is_named(
    tmp_path: Path, obstacle: str, error: type[Exception]
) -> None:
    (tmp_path / obstacle).touch()
    made, server = coordinator(tmp_path, 1, 2)
    async with asyncio.timeout(4 * PATIENCE_S):
        with pytest.raises(error, match=r"cannot be read|is broken"):
            await made.start(bind(server))
    assert made.engine_pids == ()


@sync
async def test_fronts_that_cannot_be_replaced_are_given_up(tmp_path: Path) -> None:
    made, server = coordinator(tmp_path, 1, 2, RestartPolicy(tries=2, first_delay_s=0.01, lost_after_s=4 * PATIENCE_S))
    async with service(made, server) as to:
        (tmp_path / "unreadable").touch()
        first, second = to.pids
        os.kill(first, signal.SIGKILL)

        async def one_is_left() -> bool:
            return to.pids == [second] and (await to.get("/health")).status_code == 200

        await to.wait_for(one_is_left)
        os.kill(second, signal.SIGKILL)
        async with asyncio.timeout(4 * PATIENCE_S):
            assert await to.serving == 1


@sync
async def test_a_front_that_reads_another_vocabulary_is_not_let_in(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("before")
    made, server = coordinator(tmp_path, 1, 2, RestartPolicy(tries=2, first_delay_s=0.01, lost_after_s=4 * PATIENCE_S))
    async with service(made, server) as to:
        (tmp_path / "tokenizer.json").write_text("after")
        first, second = to.pids
        os.kill(first, signal.SIGKILL)

        async def one_is_left() -> bool:
            return to.pids == [second] and (await to.get("/health")).status_code == 200

        await to.wait_for(one_is_left)
        os.kill(second, signal.SIGKILL)
        async with asyncio.timeout(4 * PATIENCE_S):
            assert await to.serving == 1


@sync
async def test_fronts_and_engines_that_have_read_several_vocabularies_do_not_start(tmp_path: Path) -> None:
    (tmp_path / "weights").write_text("before")
    (tmp_path / "tokenizer.json").write_text("before")
    made, server = coordinator(tmp_path, 1, 2)
    made.fronts.texts[str(tmp_path / "tokenizer.json")] = "of another file"
    async with asyncio.timeout(4 * PATIENCE_S):
        with pytest.raises(CheckpointError, match=r"tokenizer\.json holds another text"):
            await made.start(bind(server))
    assert made.engine_pids == ()


@sync
async def test_a_silent_front_is_ended_and_replaced(tmp_path: Path) -> None:
    made, server = coordinator(
        tmp_path, 1, 2, RestartPolicy(look_every_s=0.05, silent_after_s=0.5, lost_after_s=1.5, first_delay_s=0.01)
    )
    async with service(made, server) as to:
        silent = to.pids[0]
        os.kill(silent, signal.SIGSTOP)

        async def replaced() -> bool:
            return len(to.pids) == 2 and silent not in to.pids

        await to.wait_for(replaced)

        async def all_answer() -> bool:
            """Also where a front has had no CPU for so long that it was taken for silent, and was replaced as well."""
            async with spread(to, 1) as https:
                return [(await complete(http)).status_code for http in https] == [200] * len(https)

        await to.wait_for(all_answer)
        assert silent not in to.pids


@sync
async def test_nobody_was_silent_while_the_coordinator_itself_stood_still(tmp_path: Path) -> None:
    made, server = coordinator(tmp_path, 1, 2, RestartPolicy(look_every_s=0.05, silent_after_s=1.0, lost_after_s=1.0))
    async with service(made, server) as to:
        before, fronts = to.pids, made.fronts.running
        for pid in before:
            os.kill(pid, signal.SIGSTOP)

        async def asked() -> bool:
            return all(front.pings for front in fronts)

        await to.wait_for(asked)
        time.sleep(3.0)  # as if all had been stopped together
        for pid in before:
            os.kill(pid, signal.SIGCONT)
        numbers = [front.num_pings for front in fronts]

        async def answered() -> bool:
            return all(front.num_pings > number + 2 for front, number in zip(fronts, numbers, strict=True))

        await to.wait_for(answered)
        assert to.pids == before


@sync
async def test_a_silent_engine_holds_up_no_front_and_no_probe(tmp_path: Path) -> None:
    made, server = coordinator(
        tmp_path, 2, 2, RestartPolicy(look_every_s=0.05, silent_after_s=0.5, lost_after_s=4 * PATIENCE_S)
    )
    async with service(made, server) as to, spread(to, 2) as https:
        silent = made.engine_pids[0]

        async def seen(state: str) -> bool:
            answers = [await http.get("/health") for http in https]
            assert {answer.status_code for answer in answers} == {200}
            return all(answer.json()["engines"][0]["state"] == state for answer in answers)

        os.kill(silent, signal.SIGSTOP)
        try:
            await to.wait_for(lambda: seen("silent"))
            answers = await asyncio.gather(*(complete(http) for http in https))
            assert {answer.status_code for answer in answers} == {200}
        finally:
            os.kill(silent, signal.SIGCONT)
        await to.wait_for(lambda: seen("ready"))


@sync
async def test_a_stream_that_breaks_is_made_anew_and_costs_no_token(tmp_path: Path) -> None:
    made, server = coordinator(tmp_path, 1, 2)
    async with service(made, server) as to, spread(to, 1) as https:
        asked = [complete(http, LONG) for http in https]

        async def all_run() -> bool:
            return await to.metric("num_requests_running") == len(https)

        await to.wait_for(all_run)
        for front in made.fronts.running:  # the engine hangs up on a front when another stream comes in its name
            stray = made.supervisors[0].client.connect(front.number)
            assert stray is not None
            stray.close()
        async with asyncio.timeout(4 * PATIENCE_S):
            answers = await asyncio.gather(*asked)
        assert [answer.json()["usage"]["completion_tokens"] for answer in answers] == [LONG] * len(https)


@sync
async def test_refusals_of_all_fronts_are_counted_together(tmp_path: Path) -> None:
    made, server = coordinator(tmp_path, 1, 2)
    async with service(made, server) as to, spread(to, 1) as https:
        endless = [complete(http, FOREVER) for http in https]

        async def all_run() -> bool:
            return await to.metric("num_requests_running") == len(https)

        await to.wait_for(all_run)
        made.signalled()
        refusals = 0
        async with asyncio.timeout(4 * PATIENCE_S):
            while refusals < 4:
                answer = await to.get("/health")
                assert answer.status_code == 503
                async with httpx.AsyncClient(base_url=to.url, timeout=4 * PATIENCE_S) as http:
                    refusals += (await complete(http)).json()["error"]["code"] == "draining"
        assert {await to.metric("admission_rejections_total") for _ in range(6)} == {4}
        for task in endless:
            task.cancel()
        await asyncio.gather(*endless, return_exceptions=True)
        async with asyncio.timeout(4 * PATIENCE_S):
            assert await to.serving == 0


@sync
async def test_no_file_in_which_a_front_counts_can_find_the_disk_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one of a front that takes the place of another."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    made, server = coordinator(tmp_path, engines=1, fronts=2)
    async with service(made, server) as to:
        first = to.pids
        os.kill(first[0], signal.SIGKILL)

        async def is_replaced() -> bool:
            return len(to.pids) == 2 and to.pids != first and (await to.get("/health")).status_code == 200

        await to.wait_for(is_replaced)
        (folder,) = (tmp_path / "temporary").iterdir()
        files = {path.name: path for path in folder.glob("*.db")}
        assert {f"{kind}_{pid}.db" for kind in FILE_BYTES for pid in {*first, *to.pids}} <= set(files)
        assert [name for name, path in files.items() if not has_all_blocks(path)] == []


@sync
async def test_a_response_is_kept_for_all_fronts(tmp_path: Path) -> None:
    """Whichever front made it; a front that is gone leaves it to the others."""
    made, server = coordinator(tmp_path, 1, 2)
    async with service(made, server) as to, spread(to, 1) as https:
        asked = {"input": "hi", "max_output_tokens": 3}
        kept = [(await http.post("/v1/responses", json=asked)).json() for http in https]
        for response in kept:
            for http in https:
                assert (await http.get(f"/v1/responses/{response['id']}")).json() == response
        more = {**asked, "previous_response_id": kept[0]["id"]}
        answers = [await http.post("/v1/responses", json=more) for http in https]
        assert [answer.status_code for answer in answers] == [200] * len(https)
        os.kill(to.pids[0], signal.SIGKILL)

        async def is_there() -> bool:
            answer = await to.get(f"/v1/responses/{kept[-1]['id']}")
            return answer.status_code == 200 and answer.json() == kept[-1]

        await to.wait_for(is_there)
        folder = Path(made.metrics_folder.path) / "responses"
        assert len(list(folder.iterdir())) == len(kept) + len(answers)
    assert not folder.exists()


def test_the_folder_of_a_coordinator_that_was_killed_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    living = MetricsFolder()
    script = (
        "from homenode.server.fronts.folder import MetricsFolder\nimport os\nprint(MetricsFolder().path, "
        "flush=True)\nos.abort()"
    )
    killed = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True, text=True
    )
    assert Path(killed.stdout.strip()).is_dir()
    unlocked = tmp_path / "homenode-metrics-new"
    unlocked.mkdir()
    another = MetricsFolder()
    assert sorted(tmp_path.iterdir()) == sorted([living.path, another.path, unlocked])
    for folder in (living, another):
        folder.remove()
        folder.remove()
    assert list(tmp_path.iterdir()) == [unlocked]


def test_a_folder_that_another_removes_before_it_is_locked_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another coordinator starts between the making of the folder and its lock, and takes it for one that was left."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    lock, first, others = fcntl.flock, list[Path](), list[MetricsFolder]()

    def lock_late(fd: int, how: int) -> None:
        if not first:
            first.extend(tmp_path.iterdir())
            others.append(MetricsFolder())
        lock(fd, how)

    monkeypatch.setattr(fcntl, "flock", lock_late)
    others.append(MetricsFolder())
    others.append(MetricsFolder())  # removes no folder that is locked
    assert len(first) == 1 and not first[0].exists()
    assert sorted(tmp_path.iterdir()) == sorted(folder.path for folder in others)
    for folder in others:
        folder.remove()


def test_a_folder_that_another_is_about_to_remove_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    lock, taken = fcntl.flock, list[int]()

    def lock_second(fd: int, how: int) -> None:
        if not taken:
            (folder,) = tmp_path.iterdir()
            taken.append(os.open(folder / "coordinator", os.O_RDWR))
            lock(taken[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
        lock(fd, how)

    monkeypatch.setattr(fcntl, "flock", lock_second)
    mine = MetricsFolder()
    assert len(list(tmp_path.iterdir())) == 2 and mine.path.is_dir()
    os.close(taken[0])
    another = MetricsFolder()  # finds the first one left, and mine in use
    assert sorted(tmp_path.iterdir()) == sorted([mine.path, another.path])
    for folder in (mine, another):
        folder.remove()
