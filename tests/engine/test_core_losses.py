"""The loop when workers are lost: nobody is told anything twice, the front hears of it, and everything ends."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import pytest

from homenode.engine.messages import Drain, ServingChanged, Submit, ToFront
from homenode.engine.runtime.loop import EngineCore
from homenode.engine.scheduler.scheduler import Scheduler
from homenode.engine.scheduler_config import KvConfig, SchedulerConfig
from homenode.engine.step import Step
from homenode.errors import InternalError
from homenode.testing.scripted_executor import ScriptedExecutor
from tests.engine.test_core import EOS, LIMITS, Front, ScriptedRunner, expected, request
from tests.waiting import PATIENCE_S

REASON = "worker 1 of 2 was killed (signal 9); it is being replaced"


class LosingExecutor(ScriptedExecutor):
    """Loses a worker instead of computing certain steps. `at_once`: it is replaced before anybody hears of it."""

    def __init__(self, losses: set[int], *, stages: int, at_once: bool = False, fatal: bool = False) -> None:
        super().__init__(LIMITS, stages=stages)
        self._losses, self._at_once, self._fatal = losses, at_once, fatal

    def submit(self, step: Step) -> None:
        if step.number not in self._losses:
            super().submit(step)
            return
        self.lose(REASON, fatal=self._fatal)
        if self._at_once:
            self.restore()


@contextmanager
def running(executor: LosingExecutor, stages: int = 2) -> Iterator[Front]:
    config = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=64)
    scheduler = Scheduler(config, KvConfig(block_size=32), LIMITS, {EOS}, b"k" * 32, 1, stages=stages)
    sent: SimpleQueue[ToFront] = SimpleQueue()
    core = EngineCore(scheduler, executor, sent.put)
    front = Front(core, sent, ScriptedRunner())

    def run() -> None:
        try:
            core.run()
        except Exception as error:
            front.failure = error
        front.ended.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield front
    finally:
        core.stop()
        thread.join(PATIENCE_S)
    assert not thread.is_alive()


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.CRITICAL)


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_the_lost_go_on_when_the_workers_are_back(stages: int) -> None:
    executor = LosingExecutor({7}, stages=stages)
    with running(executor, stages) as front:
        front.core.post(Submit([request(i, [5, i], 30) for i in range(6)]))
        lost = front.next(ServingChanged)
        assert (lost.serving, lost.reason) == (False, REASON)
        front.core.post(Submit([request(9, [6], 4)]))  # taken, and waits
        executor.restore()
        assert front.next(ServingChanged) == ServingChanged(True)
        front.finish(*range(6), 9)
        for i in range(6):
            assert front.tokens(i) == expected([5, i], 30)
        assert front.tokens(9) == expected([6], 4)


def test_a_loss_at_rest_is_told_as_well() -> None:
    executor = LosingExecutor(set(), stages=2)
    with running(executor) as front:
        front.core.post(Submit([request(1, [5], 3)]))
        front.finish(1)
        executor.lose(REASON)
        assert not front.next(ServingChanged).serving
        executor.restore()
        assert front.next(ServingChanged).serving
        front.core.post(Submit([request(2, [6], 3)]))
        front.finish(2)
        assert front.tokens(2) == expected([6], 3)


def test_workers_replaced_before_anybody_looked_are_lost_all_the_same() -> None:
    with running(LosingExecutor({3, 8}, stages=2, at_once=True)) as front:
        front.core.post(Submit([request(i, [5, i], 20) for i in range(4)]))
        assert [front.next(ServingChanged).serving for _ in range(4)] == [False, True, False, True]
        front.finish(*range(4))
        for i in range(4):
            assert front.tokens(i) == expected([5, i], 20)


def test_a_request_under_which_workers_keep_dying_ends_by_name() -> None:
    with running(LosingExecutor({0, 1, 2, 3}, stages=2, at_once=True)) as front:
        front.core.post(Submit([request(1, [5], 20)]))
        front.finish(1)
        last = front.outputs[1][-1]
        assert last.error_kind == "WorkerLostError" and str(last.error).startswith("worker_lost")
        front.core.post(Submit([request(2, [6], 5)]))
        front.finish(2)
        assert front.tokens(2) == expected([6], 5)


def test_a_worker_lost_for_good_ends_the_engine() -> None:
    with running(LosingExecutor({2}, stages=2, fatal=True)) as front:
        front.core.post(Submit([request(1, [5], 20)]))
        assert front.ended.wait(PATIENCE_S)
    assert isinstance(front.failure, InternalError) and REASON in str(front.failure)


def test_a_drain_while_workers_are_away_ends_in_time() -> None:
    with running(LosingExecutor({2}, stages=2)) as front:
        front.core.post(Submit([request(1, [5], 20)]))
        assert not front.next(ServingChanged).serving
        begin = time.monotonic()
        front.core.post(Drain(0.1))
        front.finish(1)
        assert front.outputs[1][-1].finish_reason == "abort"
        assert front.ended.wait(PATIENCE_S)
        assert time.monotonic() - begin < PATIENCE_S / 2
    assert front.failure is None


def test_deadlines_hold_while_workers_are_away() -> None:
    with running(LosingExecutor({0}, stages=2)) as front:
        front.core.post(Submit([request(1, [5], 20, deadline=time.monotonic() + 0.2)]))
        front.finish(1)
        assert "deadline" in str(front.outputs[1][-1].error)
