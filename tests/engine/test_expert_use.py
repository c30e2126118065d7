"""Experts chosen by a real model are counted alike by every backend and under every split, and counting survives the
loss of a worker.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from homenode.engine.api.local import LocalEngine
from homenode.engine.executor.expert_usage import CountingExecutor
from homenode.engine.executor.processes import ProcessExecutor
from homenode.engine.executor.worker_process import WorkerProcess
from homenode.engine.messages import Output
from homenode.engine.request import Request
from homenode.engine.scheduler.drafts.drafter import Drafter
from homenode.engine.scheduler.steps.step_costs import StepCosts
from homenode.engine.scheduler.steps.step_load import MeasuredStep
from tests.engine.engines import config_for, greedy, run_all
from tests.engine.test_golden import golden
from tests.paths import STORIES_MIXTURE, needs_data
from tests.waiting import PATIENCE_S, wait_until

pytestmark = needs_data

TOKENS, CHOSEN, EXPERTS, LAYERS = 40, 2, 4, 5
SPLITS: dict[str, dict[str, Any]] = {
    "reference": {"backend": "reference"},
    "torch": {"backend": "torch"},
    "two ranks": {"tensor_parallel_size": 2},
    "experts over two ranks": {"tensor_parallel_size": 2, "enable_expert_parallel": True},
    "a stage of each kind": {"pipeline_parallel_size": 2, "stage_devices": "cpu,torch:cpu"},
}


def counts_of(path: Path, **settings: Any) -> list[list[int]]:
    if "torch:cpu" in settings.get("stage_devices", ""):
        pytest.importorskip("torch", reason="needs torch, which the extra `torch` installs")
    engine = LocalEngine(
        config_for(STORIES_MIXTURE, **{"stage_devices": "cpu", "expert_counts": str(path), **settings})
    )
    try:
        run_all(engine, [golden()[0]["prompt_ids"]], [greedy(TOKENS)])
    finally:
        engine.close()
    counts: list[list[int]] = json.loads(path.read_text())
    path.unlink()
    return counts


@pytest.mark.parametrize("split", SPLITS)
def test_every_split_counts_the_same(split: str, tmp_path: Path) -> None:
    whole = counts_of(tmp_path / "counts.json")
    computed = len(golden()[0]["prompt_ids"]) + TOKENS - 1  # the last token is not
    assert [sum(layer) for layer in whole] == [CHOSEN * computed] * LAYERS
    found = counts_of(tmp_path / "counts.json", **SPLITS[split])
    assert [sum(layer) for layer in found] == [CHOSEN * computed] * LAYERS
    # Four equal experts give all routers' rounding the same text; near ties may go to another expert.
    off = sum(abs(a - b) for one, other in zip(found, whole, strict=True) for a, b in zip(one, other, strict=True))
    assert off <= 0.05 * CHOSEN * computed * LAYERS


class _Listener(Drafter):
    """Drafts nothing, and hears what steps read."""

    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs
        self.shares: list[tuple[int, float]] = []  # of tokens that decode, and of experts

    @property
    def max_drafted(self) -> int:
        return 0

    def awaits(self, running: object) -> bool:
        return False

    def drafts(self, decoding: object, load: object, room: int) -> dict[int, tuple[int, ...]]:
        return {}

    def measured(self, step: MeasuredStep) -> None:
        self.shares.append((step.answers.tokens, self._costs.experts))


@pytest.mark.parametrize("split", ["one rank", "experts over two ranks"])
def test_a_step_tells_how_many_experts_it_read(split: str) -> None:
    made: list[_Listener] = []

    def make(speculation: object, costs: StepCosts, most: int) -> _Listener:
        made.append(_Listener(costs))
        return made[0]

    config = config_for(STORIES_MIXTURE, stage_devices="cpu", **SPLITS.get(split, {}))
    engine = LocalEngine(config, make_drafter=make)
    try:
        run_all(engine, [[*range(10, 50)]], [greedy(8)])
    finally:
        engine.close()
    of_tokens = [share for tokens, share in made[0].shares if tokens == 1]
    assert len(of_tokens) >= 7
    # Two of four experts; of a rank that has two of them those that are there.
    if split == "one rank":
        assert set(of_tokens) == {CHOSEN / EXPERTS}
    assert all(0.0 < share <= 1.0 for share in of_tokens)
    assert next(share for tokens, share in made[0].shares if not tokens) > CHOSEN / EXPERTS


def test_figures_come_in_when_nothing_else_happens() -> None:
    """A worker tells its figures every now and then: also those of its last step, after which it rests."""
    engine = LocalEngine(config_for(STORIES_MIXTURE, stage_devices="cpu", tensor_parallel_size=2, worker_timeout=20.0))
    try:
        prompt = golden()[0]["prompt_ids"]
        run_all(engine, [prompt], [greedy(TOKENS)])
        wanted = CHOSEN * LAYERS * (len(prompt) + TOKENS - 1)
        wait_until(lambda: sum(engine.statistics.compute["experts"]["tokens"]) >= wanted)  # type: ignore[index]
    finally:
        engine.close()


def test_a_server_at_rest_has_everything_in_its_file(tmp_path: Path) -> None:
    """Whoever ends a server lets its engine end in whatever it is doing."""
    path, prompt = tmp_path / "counts.json", golden()[0]["prompt_ids"]
    engine = LocalEngine(config_for(STORIES_MIXTURE, stage_devices="cpu", expert_counts=str(path)))
    try:
        run_all(engine, [prompt], [greedy(TOKENS)])
        wanted = [CHOSEN * (len(prompt) + TOKENS - 1)] * LAYERS
        wait_until(lambda: path.exists() and [sum(layer) for layer in json.loads(path.read_text())] == wanted)
    finally:
        engine.close()


def test_counts_only_grow_when_a_worker_is_lost(tmp_path: Path) -> None:
    settings = {
        "stage_devices": "cpu,cpu",
        "pipeline_parallel_size": 2,
        "worker_timeout": 30.0,
        "expert_counts": str(tmp_path / "counts.json"),
    }
    engine = LocalEngine(config_for(STORIES_MIXTURE, **settings))
    try:
        executor = engine.executor
        assert isinstance(executor, CountingExecutor) and isinstance(executor.inner, ProcessExecutor)
        victim = executor.inner.handles[0].process
        assert isinstance(victim, WorkerProcess)
        sink: SimpleQueue[Output] = SimpleQueue()
        engine.submit([Request(id=1, prompt_ids=golden()[0]["prompt_ids"], params=greedy(120))], sink)
        seen: list[list[int]] = []
        finished = False
        while not finished:
            output = sink.get(timeout=PATIENCE_S)
            finished = output.finish_reason is not None
            seen.append(executor.statistics()["experts"]["tokens"])
            if len(seen) == 10:
                os.kill(victim.pid, signal.SIGKILL)
        assert executor.statistics()["restarts"] == 1
    finally:
        engine.close()
    seen.append(executor.statistics()["experts"]["tokens"])
    assert all(
        now >= before
        for one, other in zip(seen[1:], seen, strict=False)
        for now, before in zip(one, other, strict=True)
    )
    assert sum(seen[-1]) >= CHOSEN * 3 * 119 and seen[-1] == [
        sum(layer) for layer in zip(*json.loads((tmp_path / "counts.json").read_text()), strict=True)
    ]
