"""Engines of several workers on real weights: the golden text under every split, with little memory, and whatever
becomes of a worker.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from homenode.engine.api.local import LocalEngine
from homenode.engine.backend import make_backend
from homenode.engine.binding import EngineBinding
from homenode.engine.executor.expert_usage import CountingExecutor
from homenode.engine.executor.processes import ProcessExecutor
from homenode.engine.executor.worker_process import WorkerProcess
from homenode.engine.messages import Output
from homenode.engine.plan.placement import UNPINNED
from homenode.engine.plan.worker_layout import WorkerPlan
from homenode.engine.request import Request
from homenode.engine.runtime.calibration import layer_seconds
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.part import ModelPart
from tests.engine.engines import config_for, greedy, run_all, tokens_of
from tests.engine.test_golden import check_golden, golden
from tests.paths import STORIES, STORIES_MIXTURE, needs_data
from tests.waiting import PATIENCE_S

pytestmark = needs_data

TIGHT: dict[str, Any] = {"max_num_batched_tokens": 48}
SPLITS: dict[str, tuple[Path, dict[str, Any]]] = {
    "two stages": (STORIES, {"pipeline_parallel_size": 2, "layer_split": "2,3"}),
    "three stages": (STORIES, {"pipeline_parallel_size": 3}),
    "two ranks": (STORIES, {"tensor_parallel_size": 2}),
    "two stages under a policy": (STORIES, {"pipeline_parallel_size": 2, "numa": "auto"}),
    "three uneven ranks": (STORIES, {"tensor_parallel_size": 3}),
    "two stages of two ranks": (STORIES, {"pipeline_parallel_size": 2, "tensor_parallel_size": 2}),
    "experts over two ranks": (STORIES_MIXTURE, {"tensor_parallel_size": 2, "enable_expert_parallel": True}),
}


@contextmanager
def engine_of(model: Path = STORIES, **settings: Any) -> Iterator[LocalEngine]:
    """An engine whose workers and shared memory are gone in the end."""
    settings.setdefault("stage_devices", ",".join(["cpu"] * settings.get("pipeline_parallel_size", 1)))
    others = shared_memories()  # of tests before, which a traceback may keep
    engine = LocalEngine(config_for(model, **settings))
    pids = worker_pids(engine)
    try:
        yield engine
        pids = worker_pids(engine)
    finally:
        engine.close()
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()], "workers are left behind"
    assert shared_memories() <= others, "shared memory is left behind"


def shared_memories() -> set[int]:
    """The inodes of the memory between ranks and for rows that this process has open."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of the folder itself
            if "memfd:homenode r" in str(descriptor.readlink()):
                found.add(descriptor.stat().st_ino)
    return found


def executor_of(engine: LocalEngine) -> ProcessExecutor:
    executor = engine.executor
    if isinstance(executor, CountingExecutor):  # of a model with experts
        executor = executor.inner
    assert isinstance(executor, ProcessExecutor)
    return executor


def worker_pids(engine: LocalEngine) -> list[int]:
    processes = [member.process for member in executor_of(engine).handles]
    return [process.pid for process in processes if isinstance(process, WorkerProcess)]


@pytest.mark.parametrize("stages", [1, 2])
def test_what_workers_tell_is_among_the_limits_of_the_engine(stages: int) -> None:
    config = config_for(STORIES, pipeline_parallel_size=stages, stage_devices=",".join(["cpu"] * stages))
    with closing(LocalEngine(config)) as engine:
        limits = engine.executor.limits()
        assert limits.tile_tokens == make_backend(config.compute, (UNPINNED,)).tile_tokens
        assert limits.weight_bytes == engine.ready.details["weight_bytes"] > 0
        assert limits.num_blocks == engine.ready.num_blocks


@pytest.mark.parametrize("split", SPLITS)
def test_golden_text_under_memory_pressure(split: str) -> None:
    """Few sequences fit: requests are preempted, begun again, and cut into parts."""
    model, settings = SPLITS[split]
    entries = golden()
    with engine_of(model, kv_cache_memory="256KiB", max_model_len=256, **TIGHT, **settings) as engine:
        outputs = run_all(engine, [e["prompt_ids"] for e in entries] * 2, [greedy(120)] * 2 * len(entries))
        check_golden(outputs, entries * 2, 120)
        assert sum(output.num_preemptions for found in outputs for output in found) > 0


def sink_of(engine: LocalEngine, first_id: int, tokens: int) -> tuple[SimpleQueue[Output], list[dict[str, Any]]]:
    entries = golden()
    sink: SimpleQueue[Output] = SimpleQueue()
    requests = [
        Request(id=first_id + n, prompt_ids=e["prompt_ids"], params=greedy(tokens)) for n, e in enumerate(entries)
    ]
    engine.submit(requests, sink)
    return sink, entries


def collect(sink: SimpleQueue[Output], first_id: int, count: int, found: list[list[Output]]) -> None:
    """The rest of all outputs."""
    left = count - sum(bool(outputs and outputs[-1].finish_reason) for outputs in found)
    while left:
        output = sink.get(timeout=PATIENCE_S)
        found[output.id - first_id].append(output)
        left -= output.finish_reason is not None


@pytest.mark.parametrize(
    "settings", [{"pipeline_parallel_size": 2}, {"tensor_parallel_size": 2}], ids=["stages", "ranks"]
)
def test_a_killed_worker_costs_no_token(settings: dict[str, Any]) -> None:
    with engine_of(STORIES, worker_timeout=30.0, **TIGHT, **settings) as engine:
        losses: list[tuple[int, int | None]] = [(0, 0), (1, 10), (0, 60), (1, None)]
        for number, (victim, after) in enumerate(losses):
            first_id = 100 * number + 1
            found: list[list[Output]] = [[] for _ in golden()]
            if after is None:  # at rest
                os.kill(worker_pids(engine)[victim], signal.SIGKILL)
            sink, entries = sink_of(engine, first_id, 120)
            for _ in range(after or 0):
                output = sink.get(timeout=PATIENCE_S)
                found[output.id - first_id].append(output)
            if after is not None:
                os.kill(worker_pids(engine)[victim], signal.SIGKILL)
            begin = time.monotonic()
            collect(sink, first_id, len(entries), found)
            check_golden(found, entries, 120)
            assert time.monotonic() - begin < PATIENCE_S
        assert executor_of(engine).statistics()["restarts"] == 4


@pytest.mark.alone
@pytest.mark.parametrize(
    ("settings", "victim"),
    [
        pytest.param({"pipeline_parallel_size": 2}, 0, id="stages"),
        pytest.param({"tensor_parallel_size": 2}, 1, id="ranks", marks=pytest.mark.slow),
    ],
)
def test_a_worker_that_stands_still_is_replaced(settings: dict[str, Any], victim: int) -> None:
    with engine_of(STORIES, worker_timeout=5.0, **TIGHT, **settings) as engine:
        sink, entries = sink_of(engine, 1, 120)
        found: list[list[Output]] = [[] for _ in entries]
        output = sink.get(timeout=PATIENCE_S)
        found[output.id - 1].append(output)
        os.kill(worker_pids(engine)[victim], signal.SIGSTOP)
        collect(sink, 1, len(entries), found)
        check_golden(found, entries, 120)


def test_log_probabilities_come_from_the_last_stage() -> None:
    entry = golden()[0]
    with engine_of(pipeline_parallel_size=2, tensor_parallel_size=2) as engine:
        [outputs] = run_all(engine, [entry["prompt_ids"]], [greedy(20, logprobs=2, prompt_logprobs=1)])
    assert tokens_of(outputs) == entry["greedy_ids"][:20]
    values = [one.logprob for output in outputs for one in output.logprobs]
    assert values == pytest.approx(entry["logprobs"][:20], abs=2e-3)
    scores = outputs[0].prompt_logprobs
    assert scores is not None and len(scores) == len(entry["prompt_ids"])


def test_the_time_of_a_layer_is_measured() -> None:
    config = config_for(STORIES, pipeline_parallel_size=2)
    spec = open_checkpoint(STORIES).spec
    worker = WorkerPlan(
        0, "homenode-worker-0", "cpu", ModelPart.whole(spec), EngineBinding((min(os.sched_getaffinity(0)),))
    )
    seconds = layer_seconds(config, spec, worker)
    assert seconds is not None and 0 < seconds < 1
    gone = replace(config, model=replace(config.model, path="/nowhere"))
    assert layer_seconds(gone, spec, worker) is None, "said in the log, and bytes count"
