"""The engine as a child process: starting, streaming, aborting, draining, and every way either side can die."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from homenode.engine.assignment import EngineAssignment
from homenode.engine.config import EngineConfig
from homenode.engine.connection.engine_client import AsyncEngineClient
from homenode.engine.messages import Output, ServingChanged
from homenode.engine.request import Request
from homenode.errors import CapacityError, PeerError, UserError
from tests.checkpoints import make_folder
from tests.engine.engines import config_for, greedy
from tests.paths import ROOT
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.alone


def sync(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A coroutine as a test, on an event loop of its own."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(test(**fixtures))

    return run


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("toy") / "model", max_position_embeddings=4096)


def request(number: int, max_tokens: int = 5, prompt: list[int] | None = None) -> Request:
    return Request(id=number, prompt_ids=prompt or [1, 5, number % 100], params=greedy(max_tokens))


@contextlib.asynccontextmanager
async def started(config: EngineConfig, lost: Callable[[str], None] | None = None) -> AsyncIterator[AsyncEngineClient]:
    async with asyncio.timeout(PATIENCE_S), AsyncEngineClient(EngineAssignment(config), on_engine_lost=lost) as client:
        yield client


async def collect(stream: Any) -> list[Output]:
    return [output async for output in stream]


def gone(pid: int, within: float) -> bool:
    """Whether a process that is not our child ends in time."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        ended = select.poll()
        ended.register(fd, select.POLLIN)
        return bool(ended.poll(1000 * within))
    finally:
        os.close(fd)


@sync
async def test_start_stream_and_figures(toy: Path) -> None:
    seen: list[tuple[int, int]] = []
    client = AsyncEngineClient(EngineAssignment(config_for(toy)))
    async with asyncio.timeout(PATIENCE_S):
        ready = await client.start(progress=lambda done, total: seen.append((done, total)))
        try:
            assert (ready.max_model_len, ready.vocab_size, ready.model) == (4096, 128, str(toy))
            assert seen[-1][0] == seen[-1][1] > 0
            streams = [collect(client.submit(request(i, 10 + i))) for i in range(8)]
            for i, outputs in enumerate(await asyncio.gather(*streams)):
                assert sum(len(o.tokens) for o in outputs) == 10 + i
                assert [o.finish_reason for o in outputs if o.finish_reason] == ["length"]
            await client.heartbeat(PATIENCE_S)
            assert client.statistics.generation_tokens == sum(range(10, 18))
        finally:
            await client.close(timeout=PATIENCE_S)
        assert client.exit_code == 0  # it went by itself when its stream ended


def test_a_client_knows_what_hinders_its_engine(toy: Path) -> None:
    client = AsyncEngineClient(EngineAssignment(config_for(toy)))
    assert client.hindrance is None
    client._take(ServingChanged(False, "worker 1 of 2 is being replaced"))
    assert client.hindrance == "worker 1 of 2 is being replaced"
    client._take(ServingChanged(True))
    assert client.hindrance is None


@sync
async def test_leaving_a_stream_aborts(toy: Path) -> None:
    """By closing, by cancelling the reader, by abort with a reason; afterwards everything was given back."""
    async with started(config_for(toy)) as client:
        closed = client.submit(request(1, 4000))
        await anext(closed)
        await closed.aclose()
        assert [o async for o in closed] == []
        reader = asyncio.create_task(collect(client.submit(request(2, 4000))))
        await asyncio.sleep(0)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        stopped = client.submit(request(3, 4000))
        await anext(stopped)
        client.abort(3, "stop")
        client.abort(999)
        assert (await collect(stopped))[-1].finish_reason == "stop"
        await collect(client.submit(request(4, 1)))
        while client.statistics.num_running or not client.statistics.generation_tokens:
            await client.heartbeat(PATIENCE_S)
        assert (client.statistics.num_waiting, client.statistics.kv_usage) == (0, 0)
        assert client.statistics.generation_tokens < 4000


@sync
async def test_a_killed_engine_is_noticed_at_once(toy: Path) -> None:
    lost: list[str] = []
    async with started(config_for(toy), lost.append) as client:
        streams = [client.submit(request(i, 4000)) for i in range(3)]
        for stream in streams:
            await anext(stream)
        assert client.pid is not None
        os.kill(client.pid, signal.SIGKILL)
        begin = time.monotonic()
        ends = [(await collect(stream))[-1] for stream in streams]
        assert time.monotonic() - begin < 10
        assert {o.error_kind for o in ends} == {"PeerError"}
        assert "killed (signal 9)" in str(ends[0].error)
        assert len(lost) == 1
        with pytest.raises(PeerError, match="killed"):
            await client.heartbeat(1)
        late = await collect(client.submit(request(9)))
        assert late[-1].error_kind == "PeerError"


@sync
async def test_a_drain_finishes_what_runs(toy: Path) -> None:
    lost: list[str] = []
    async with started(config_for(toy), lost.append) as client:
        running = client.submit(request(1, 300))
        await anext(running)
        drain = asyncio.create_task(client.drain(PATIENCE_S))
        await asyncio.sleep(0)
        refused = await collect(client.submit(request(2)))
        assert refused[-1].error_kind in ("OverloadedError", "PeerError")
        assert sum(len(o.tokens) for o in await collect(running)) == 299
        await drain
    assert lost == []


@sync
async def test_a_stopped_engine_fails_the_heartbeat_and_is_killed_in_the_end(toy: Path) -> None:
    async with started(config_for(toy)) as client:
        assert client.pid is not None
        os.kill(client.pid, signal.SIGSTOP)
        with pytest.raises(PeerError, match=r"did not answer within 0\.05 s"):
            await client.heartbeat(0.05)
        waiting = client.submit(request(1))
        await client.close(timeout=0.1)
        assert (await collect(waiting))[-1].error_kind == "PeerError"
        assert client.exit_code == -signal.SIGKILL


@sync
async def test_what_keeps_it_from_starting_comes_back_by_name(toy: Path, tmp_path: Path) -> None:
    with pytest.raises(CapacityError, match="--kv-cache-memory"):
        await AsyncEngineClient(EngineAssignment(config_for(toy, kv_cache_memory=1))).start()
    with pytest.raises(UserError, match="no model in this folder"):
        await AsyncEngineClient(EngineAssignment(config_for(tmp_path))).start()
    with pytest.raises(PeerError, match="not ready within 0 s"):
        await AsyncEngineClient(EngineAssignment(config_for(toy))).start(timeout=0)


@sync
async def test_signals_are_for_the_front(toy: Path) -> None:
    async with started(config_for(toy)) as client:
        assert client.pid is not None
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(client.pid, number)
        assert len(await collect(client.submit(request(1)))) == 5


@sync
async def test_a_request_that_cannot_fit_is_refused(toy: Path) -> None:
    async with started(config_for(toy)) as client:
        refused = await collect(client.submit(request(1, prompt=[7] * 100_000)))
        assert refused[-1].error_kind == "ContextLengthError"
        assert len(await collect(client.submit(request(2)))) == 5


@sync
async def test_an_idle_engine_uses_no_processor_and_wakes_fast(toy: Path) -> None:
    """CPU time of the engine over a second of rest; then the way from submit to the first token, printed."""
    async with started(config_for(toy)) as client:
        assert client.pid is not None
        await collect(client.submit(request(1, 20)))
        await client.heartbeat(PATIENCE_S)
        before = cpu_seconds(client.pid)
        await asyncio.sleep(1.0)
        spent = cpu_seconds(client.pid) - before
        waits, beats = [], []
        for number in range(10, 60):
            begin = time.monotonic()
            await collect(client.submit(request(number, 1)))
            waits.append(time.monotonic() - begin)
            beats.append(await client.heartbeat(PATIENCE_S))
        print(
            (
                f"\nidle: {spent:.3f} CPU s in 1 s; submit to last output of one token: median "
                f"{1e6 * sorted(waits)[25]:.0f} us;"
            ),
            end=" ",
        )
        print(f"heartbeat: median {1e6 * sorted(beats)[25]:.0f} us")
        assert spent <= 0.05


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / float(os.sysconf("SC_CLK_TCK"))


FRONT = """
import asyncio, sys
from tests.engine.engines import config_for, greedy
from homenode.engine.assignment import EngineAssignment
from homenode.engine.connection.engine_client import AsyncEngineClient
from homenode.engine.request import Request
from pathlib import Path

async def main():
    client = AsyncEngineClient(EngineAssignment(config_for(Path(sys.argv[1]))))
    await client.start()
    stream = client.submit(Request(id=1, prompt_ids=[1, 2], params=greedy(4000)))
    await anext(stream)
    print(client.pid, flush=True)
    async for output in stream:
        pass
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_an_engine_ends_within_a_second_of_its_front(toy: Path, number: int) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    front = subprocess.Popen([sys.executable, "-c", FRONT, str(toy)], stdout=subprocess.PIPE, env=environment, cwd=ROOT)
    try:
        assert front.stdout is not None
        pid = int(front.stdout.readline())
        front.send_signal(number)
        assert gone(pid, 1.0)
    finally:
        front.kill()
        front.communicate()


SILENT = """
import os, sys
from homenode.engine.child_process import die_with_parent
parent = os.getppid()
die_with_parent(parent)
print("ready", flush=True)
sys.stdin.read(1)  # held open by others: only the kernel can end this
"""
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
sys.exit(0)
"""


def test_the_kernel_ends_a_child_whose_parent_went(tmp_path: Path) -> None:
    """Without any stream to notice it by."""
    reading, writing = os.pipe()
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, SILENT], stdin=reading, stdout=subprocess.PIPE, env=environment
    )
    try:
        pid = int(parent.communicate(timeout=PATIENCE_S)[0])
        assert gone(pid, 1.0)
    finally:
        os.close(reading)
        os.close(writing)
