"""Several engine processes behind one client: nothing they give differs from what one gives, whatever becomes of them
meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from homenode.engine.assignment import EngineAssignment
from homenode.engine.binding import EngineBinding, Replica
from homenode.engine.messages import Output, ReplicaStats
from homenode.engine.request import Request
from homenode.engine.router.client import ReplicasClient
from homenode.engine.router.restart_policy import RestartPolicy
from homenode.engine.router.routed_stream import RoutedStream
from homenode.errors import CheckpointError, HostError, PeerError
from tests.engine.engines import config_for, greedy
from tests.engine.scripted_process import LIMITS
from tests.engine.test_client import collect, sync
from tests.paths import ROOT
from tests.pure.schedule_bench import expected
from tests.waiting import PATIENCE_S, shown, wait_in_loop

pytestmark = pytest.mark.alone

QUICK = RestartPolicy(
    look_every_s=0.05, silent_after_s=0.5, lost_after_s=4 * PATIENCE_S, first_delay_s=0.01, longest_delay_s=0.05
)
LONG = 2000  # tokens of a request that is there for a while
FOREVER = 8000  # and of one that will not end by itself during its test


@pytest.fixture(autouse=True)
def _programs_of_the_tests_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engine processes run a module of the tests, and do not look for modules where they are started."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]))


def configs(folder: Path, count: int, **settings: Any) -> list[EngineAssignment]:
    config = config_for(folder, block_size=LIMITS.block_size, max_num_seqs=16, **settings)
    return [EngineAssignment(config, Replica(number, count, EngineBinding((number,)))) for number in range(count)]


@contextlib.asynccontextmanager
async def started(
    folder: Path,
    count: int,
    restart_policy: RestartPolicy = QUICK,
    lost: Callable[[str], None] | None = None,
    **settings: Any,
) -> AsyncIterator[ReplicasClient]:
    client = ReplicasClient(
        configs(folder, count, **settings), lost, restart_policy=restart_policy, program="tests.engine.scripted_process"
    )
    async with asyncio.timeout(4 * PATIENCE_S), client:
        yield client


def request(number: int, max_tokens: int = 8, prompt: list[int] | None = None, **params: Any) -> Request:
    return Request(id=number, prompt_ids=prompt or [1, 5, number], params=greedy(max_tokens, **params))


def tokens_of(outputs: list[Output]) -> list[int]:
    return [token for output in outputs for token in output.tokens]


def is_right(asked: Request, outputs: list[Output]) -> bool:
    """Every token, in order, once; and a proper end."""
    return outputs[-1].error is None and (tokens_of(outputs), outputs[-1].finish_reason) == expected(asked, LIMITS)[:2]


async def wait_for_engines(client: ReplicasClient, holds: Callable[[tuple[ReplicaStats, ...]], bool]) -> None:
    """Looks as often as an engine answers, or at least as time passes."""

    async def looks() -> bool:
        if holds(client.engines):
            return True
        with contextlib.suppress(PeerError):
            await client.heartbeat(0.1)
        return False

    await wait_in_loop(looks, lambda: f"{shown(holds)}: {client.engines}", 4 * PATIENCE_S, 0.0)


def at_engine(streams: list[RoutedStream], number: int) -> int:
    """How many of these requests it has."""
    return sum(stream.routed.route is not None and stream.routed.route.number == number for stream in streams)


def stop(client: ReplicasClient, number: int, how: int) -> None:
    pid = client.pids[number]
    assert pid is not None
    os.kill(pid, how)


@pytest.mark.parametrize("count", [2, 3])
def test_they_start_together_share_the_work_and_end(tmp_path: Path, count: int) -> None:
    async def run() -> None:
        seen: list[tuple[int, int]] = []
        client = ReplicasClient(configs(tmp_path, count), program="tests.engine.scripted_process")
        async with asyncio.timeout(4 * PATIENCE_S):
            ready = await client.start(lambda done, total: seen.append((done, total)))
            try:
                assert seen[-1] == (100 * count, 100 * count) and all(done <= total for done, total in seen)
                assert (ready.num_blocks, ready.max_model_len) == (512 * count, 8192)
                asked = [request(number, 10 + number) for number in range(4 * count)]
                found = await asyncio.gather(*(collect(client.submit(one)) for one in asked))
                assert all(map(is_right, asked, found))
                wanted = sum(10 + number for number in range(4 * count))
                await wait_for_engines(
                    client, lambda engines: sum(engine.statistics.generation_tokens for engine in engines) >= wanted
                )
                given = [engine.statistics.generation_tokens for engine in client.engines]
                assert min(given) > 0 and sum(given) == wanted
                assert client.statistics.generation_tokens == sum(given)
                assert await client.heartbeat(4 * PATIENCE_S) < 4 * PATIENCE_S
                assert [(e.number, e.state, e.restarts) for e in client.engines] == [
                    (n, "ready", 0) for n in range(count)
                ]
            finally:
                await client.close()
        with pytest.raises(PeerError):
            await client.heartbeat(0.1)
        late = await collect(client.submit(request(99)))
        assert late[-1].error_kind == "WorkerLostError"

    asyncio.run(run())


@pytest.mark.parametrize("count", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_a_killed_engine_costs_nobody_a_token(tmp_path: Path, count: int) -> None:
    async def run() -> None:
        lost: list[str] = []
        async with started(tmp_path, count, lost=lost.append) as client:
            asked = [request(number, LONG, logprobs=0) for number in range(2 * count)]
            streams = [client.submit(one) for one in asked]
            firsts = [await anext(stream) for stream in streams]
            await wait_for_engines(client, lambda engines: engines[0].statistics.generation_tokens > 0)
            before, there = client.engines[0].statistics.generation_tokens, at_engine(streams, 0)
            stop(client, 0, signal.SIGKILL)
            rests = await asyncio.gather(*(collect(stream) for stream in streams))
            for one, first, rest in zip(asked, firsts, rests, strict=True):
                outputs = [first, *rest]
                assert is_right(one, outputs)
                assert [len(o.logprobs) for o in outputs] == [len(o.tokens) for o in outputs]
            await wait_for_engines(client, lambda engines: engines[0].state == "ready")
            assert (client.engines[0].restarts, lost) == (1, [])
            assert 0 < client.engines[0].moved <= there
            again = [request(100 + number, 20) for number in range(2 * count)]
            found = await asyncio.gather(*(collect(client.submit(one)) for one in again))
            assert all(map(is_right, again, found))
            assert client.engines[0].statistics.generation_tokens >= before, "counters go on over the restart"

    asyncio.run(run())


@sync
async def test_sampled_requests_go_on_as_they_would_have(tmp_path: Path) -> None:
    """Whatever has no seed is given one by the front: another engine could not draw the same otherwise."""
    async with started(tmp_path, 2, seed=7) as client:
        streams = [client.submit(request(number)) for number in range(2)]
        seeds = [stream.request.params.seed for stream in streams]
        own = client.submit(request(5, seed=123))
        assert own.request.params.seed == 123
        await asyncio.gather(*map(collect, [*streams, own]))
    async with started(tmp_path, 2, seed=7) as client:
        assert [client.submit(request(number)).request.params.seed for number in range(2)] == seeds
    assert None not in seeds and len(set(seeds)) == 2


@sync
async def test_a_frozen_engine_gets_nothing_new_and_holds_up_nobody_else(tmp_path: Path) -> None:
    async with started(tmp_path, 2) as client:
        asked = [request(number, LONG) for number in range(2)]
        streams = [client.submit(one) for one in asked]
        for stream in streams:
            await anext(stream)
        stop(client, 0, signal.SIGSTOP)
        await wait_for_engines(client, lambda engines: engines[0].state == "silent")
        assert await client.heartbeat(4 * PATIENCE_S) < 4 * PATIENCE_S, "a probe is answered by the other one"
        news = [request(10 + number) for number in range(6)]
        found = await asyncio.gather(*(collect(client.submit(one)) for one in news))
        assert all(map(is_right, news, found))
        stop(client, 0, signal.SIGCONT)
        for one, stream in zip(asked, streams, strict=True):
            assert tokens_of(await collect(stream)) == expected(one, LIMITS)[0][1:]
        await wait_for_engines(client, lambda engines: engines[0].state == "ready")
        assert [engine.restarts for engine in client.engines] == [0, 0]


@sync
async def test_one_that_stays_frozen_is_ended_and_its_requests_go_on(tmp_path: Path) -> None:
    async with started(tmp_path, 2, replace(QUICK, lost_after_s=1.5)) as client:
        asked = [request(number, LONG) for number in range(2)]
        streams = [client.submit(one) for one in asked]
        for stream in streams:
            await anext(stream)
        stop(client, 1, signal.SIGSTOP)
        there = at_engine(streams, 1)
        for one, stream in zip(asked, streams, strict=True):
            assert tokens_of(await collect(stream)) == expected(one, LIMITS)[0][1:]
        await wait_for_engines(client, lambda engines: engines[1].state == "ready")
        assert (client.engines[1].restarts, client.engines[1].moved) == (1, there) and there > 0


@sync
async def test_requests_wait_while_no_engine_takes_any(tmp_path: Path) -> None:
    async with started(tmp_path, 2, max_num_queued_requests=3) as client:
        running = client.submit(request(1, LONG))
        await anext(running)
        for number in range(2):
            stop(client, number, signal.SIGKILL)
        await wait_for_engines(client, lambda engines: not any(engine.state == "ready" for engine in engines))
        with pytest.raises(PeerError, match="restarting"):
            await client.heartbeat(0.1)
        held = [request(10 + number) for number in range(4)]
        streams = [client.submit(one) for one in held]
        refused = await collect(streams.pop())
        client.abort(10, "stop")
        await streams[1].aclose()
        assert refused[-1].error_kind == "OverloadedError", "as many as may wait, the moved one included, are waiting"
        assert (await collect(streams[0]))[-1].finish_reason == "stop"
        assert len(await collect(running)) > 0
        assert await collect(streams[1]) == []


@sync
async def test_a_request_that_engines_die_of_ends_and_they_go_on(tmp_path: Path) -> None:
    async with started(tmp_path, 2) as client:
        poison = client.submit(request(1, FOREVER))
        for restarts in (1, 2):
            await wait_for_engines(client, lambda engines: any(engine.statistics.num_running for engine in engines))
            at = next(engine.number for engine in client.engines if engine.statistics.num_running)
            stop(client, at, signal.SIGKILL)
            await wait_for_engines(
                client,
                lambda engines, n=restarts: (
                    sum(e.restarts for e in engines) == n and all(e.state == "ready" for e in engines)
                ),
            )
        end = (await collect(poison))[-1]
        assert (end.finish_reason, end.error_kind) == ("error", "WorkerLostError")
        assert "2 engines were lost under it" in str(end.error)
        assert is_right(request(2), await collect(client.submit(request(2))))


@sync
async def test_the_service_ends_when_no_engine_can_be_had(tmp_path: Path) -> None:
    lost: list[str] = []
    async with started(tmp_path, 2, replace(QUICK, tries=2), lost.append) as client:
        (tmp_path / "broken").touch()
        stop(client, 1, signal.SIGKILL)
        await wait_for_engines(client, lambda engines: engines[1].state == "gone")
        assert is_right(request(2), await collect(client.submit(request(2)))) and lost == [], "the other one serves on"
        running = client.submit(request(1, FOREVER))
        await anext(running)
        stop(client, 0, signal.SIGKILL)
        end = (await collect(running))[-1]
        assert end.error_kind == "WorkerLostError" and "this machine is broken" in str(end.error)
        assert len(lost) == 1 and "this machine is broken" in lost[0]
        assert (await collect(client.submit(request(3))))[-1].error_kind == "WorkerLostError"


@sync
async def test_what_keeps_one_from_starting_ends_all_and_comes_back_by_name(tmp_path: Path) -> None:
    (tmp_path / "broken").touch()
    client = ReplicasClient(configs(tmp_path, 3), program="tests.engine.scripted_process")
    with pytest.raises(HostError, match="this machine is broken"):
        await client.start()
    for pid in client.pids:
        assert pid is not None
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@sync
async def test_engines_that_have_read_several_models_do_not_start(tmp_path: Path) -> None:
    (tmp_path / "weights").write_text("before")
    (tmp_path / "weights-1").write_text("after")
    with pytest.raises(CheckpointError, match=r"engine [01] .* model\.safetensors holds other weights"):
        async with started(tmp_path, 2):
            raise AssertionError("this one starts")


@sync
async def test_an_engine_that_reads_another_model_gets_no_requests_and_the_others_serve_on(tmp_path: Path) -> None:
    (tmp_path / "weights").write_text("before")
    lost: list[str] = []
    async with started(tmp_path, 2, lost=lost.append) as client:
        stop(client, 0, signal.SIGKILL)
        await wait_for_engines(client, lambda engines: engines[0].restarts == 1 and engines[0].state == "ready")
        (tmp_path / "weights").write_text("after")
        stop(client, 0, signal.SIGKILL)
        await wait_for_engines(client, lambda engines: engines[0].state == "gone")
        assert client.engines[0].restarts == 2, "it would read the same again"
        assert is_right(request(1), await collect(client.submit(request(1)))) and lost == [], "the other one serves on"
        running = client.submit(request(2, FOREVER))
        await anext(running)
        stop(client, 1, signal.SIGKILL)
        assert (await collect(running))[-1].error_kind == "WorkerLostError"
    assert len(lost) == 1 and "model.safetensors holds other weights" in lost[0]


@sync
async def test_a_drain_finishes_what_runs_on_all_of_them(tmp_path: Path) -> None:
    lost: list[str] = []
    async with started(tmp_path, 2, lost=lost.append) as client:
        asked = [request(number, 500) for number in range(4)]
        streams = [client.submit(one) for one in asked]
        for stream in streams:
            await anext(stream)
        drain = asyncio.create_task(client.drain(4 * PATIENCE_S))
        await asyncio.sleep(0)
        refused = await collect(client.submit(request(9)))
        assert refused[-1].error_kind == "OverloadedError"
        for one, stream in zip(asked, streams, strict=True):
            assert tokens_of(await collect(stream)) == expected(one, LIMITS)[0][1:]
        await drain
    assert lost == []


@sync
async def test_leaving_and_aborting_reach_the_engine_that_computes(tmp_path: Path) -> None:
    async with started(tmp_path, 2) as client:
        streams = [client.submit(request(number, LONG)) for number in range(4)]
        for stream in streams:
            await anext(stream)
        await wait_for_engines(client, lambda engines: client.statistics.num_running == 4)
        client.abort(0, "stop")
        client.abort(1, "stop")
        client.abort(999)
        for stream in streams[:2]:
            assert (await collect(stream))[-1].finish_reason == "stop"
        await streams[2].aclose()
        reader = asyncio.create_task(collect(streams[3]))
        await asyncio.sleep(0)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        await wait_for_engines(
            client, lambda engines: all((e.statistics.num_running, e.statistics.kv_usage) == (0, 0) for e in engines)
        )
        assert client.statistics.generation_tokens < 4 * LONG


@sync
async def test_prompts_find_the_engine_that_knows_their_beginning(tmp_path: Path) -> None:
    async with started(tmp_path, 3) as client:
        beginnings = [[100 * which + i for i in range(96)] for which in range(1, 4)]
        number = 0
        for _ in range(3):
            for beginning in beginnings:
                number += 1
                outputs = await collect(client.submit(request(number, 4, [*beginning, number])))
                assert outputs[0].cached_tokens == (96 if number > 3 else 0)
        await wait_for_engines(client, lambda engines: client.statistics.generation_tokens == 36)
        assert [engine.statistics.prefix_hits for engine in client.engines] == [192, 192, 192]


async def _start_counting(folder: Path, **settings: Any) -> tuple[tuple[int, ...], list[bytes]]:
    """Start three engines; how often each was started again, and what they left in the memory they were given."""
    async with started(folder, 3, **settings) as client:
        asked = [request(number) for number in range(6)]
        found = await asyncio.gather(*(collect(client.submit(one)) for one in asked))
        assert all(map(is_right, asked, found))
        memories = [os.pread(each, 3, 0) for each in client.expert_files.descriptors()]
        return tuple(engine.restarts for engine in client.engines), memories


def test_engines_that_keep_experts_in_common_are_given_the_same_memory(tmp_path: Path) -> None:
    """One for each worker of an engine; it is gone with the client."""
    alone = asyncio.run(_start_counting(tmp_path))
    assert alone == ((0, 0, 0), [])
    together = asyncio.run(_start_counting(tmp_path, enable_expert_parallel=True, tensor_parallel_size=2))
    assert together == ((0, 0, 0), [b"\1\2\3"] * 2)
    assert not [name for entry in Path("/proc/self/fd").iterdir() if "homenode experts" in (name := _target(entry))]


def _target(entry: Path) -> str:
    try:
        return str(entry.readlink())
    except FileNotFoundError:  # that of the folder itself
        return ""


def test_an_engine_that_others_wait_for_may_die_while_it_loads(tmp_path: Path) -> None:
    (tmp_path / "dies-1").write_text("2")
    assert asyncio.run(_start_counting(tmp_path, enable_expert_parallel=True))[0] == (0, 2, 0)
    for settings, left in (({"enable_expert_parallel": True}, 96), ({}, 98)):  # three starts, or one where nobody waits
        (tmp_path / "dies-1").write_text("99")
        with pytest.raises(PeerError, match="killed"):
            asyncio.run(_start_counting(tmp_path, **settings))
        assert (tmp_path / "dies-1").read_text() == str(left)
