"""The loop with an agent: what it passes on in both directions, and what happens when the agent is lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import pytest

from homenode.engine.executor.inline import InlineExecutor
from homenode.engine.kv_transfer.agent import AgentLost
from homenode.engine.messages import Drain, EngineStats, Output, Outputs, ReleaseKv, Submit, ToFront
from homenode.engine.request import Request
from homenode.engine.runtime.loop import EngineCore
from homenode.engine.scheduler.scheduler import Scheduler
from homenode.engine.scheduler_config import KvConfig, SchedulerConfig
from homenode.errors import InternalError
from homenode.sampling import SamplingParams
from homenode.transfer import scheduler_events
from homenode.transfer.scheduler_events import TransferStats
from tests.engine.test_core import LIMITS, ScriptedRunner
from tests.waiting import PATIENCE_S


class NotingAgent:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: SimpleQueue[Any] = SimpleQueue()
        self.promised: list[tuple[str, list[str]]] = []

    def tell(self, message: scheduler_events.ToAgent) -> None:
        self.told.put(message)

    def promise(self, tickets: Sequence[str]) -> None:
        self.promised.append((threading.current_thread().name, list(tickets)))

    def figures(self) -> TransferStats:
        return TransferStats(pinned_pages=3)

    def close(self, timeout_s: float) -> None:
        pass

    def next(self) -> Any:
        return self.told.get(timeout=PATIENCE_S)


class Loop:
    """An engine with that agent."""

    def __init__(self) -> None:
        self.agent, self.inbox, self.sent = NotingAgent(), SimpleQueue[object](), SimpleQueue[ToFront]()
        self.statistics: list[EngineStats] = []
        self.failure: Exception | None = None
        self._executor = InlineExecutor(ScriptedRunner(), LIMITS, dict)
        config = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=64)
        scheduler = Scheduler(config, KvConfig(block_size=32), LIMITS, (), b"k" * 32, 1)
        self.core = EngineCore(scheduler, self._executor, self.sent.put, inbox=self.inbox, agent=self.agent)
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.core.run()
        except Exception as error:
            self.failure = error

    def submit(self, number: int, sends: bool) -> None:
        kv = scheduler_events.KvTicket(f"t{number}", sends, b"peer")
        params = SamplingParams(max_tokens=0 if sends else 1)
        self.core.post(Submit([Request(id=number, prompt_ids=[5] * 40, params=params, kv=kv)]))

    def output(self) -> Output:
        while True:
            message = self.sent.get(timeout=PATIENCE_S)
            if isinstance(message, EngineStats):
                self.statistics.append(message)
            if isinstance(message, Outputs):
                return message.outputs[0]

    def end(self) -> None:
        self.core.stop()
        self.thread.join(PATIENCE_S)
        self._executor.close()
        assert not self.thread.is_alive()


@contextmanager
def loop() -> Iterator[Loop]:
    engine = Loop()
    try:
        yield engine
    finally:
        engine.end()


def test_a_sent_request_goes_through_the_agent_and_back() -> None:
    with loop() as engine:
        engine.submit(1, sends=True)
        wanted = engine.agent.next()
        assert (type(wanted), wanted.ticket, wanted.peer, wanted.tokens) == (
            scheduler_events.SendWanted,
            "t1",
            b"peer",
            39,
        )
        engine.inbox.put(scheduler_events.SendAdmitted(0.0, "t1"))
        told = engine.agent.next()
        assert isinstance(told, scheduler_events.Computed) and told.last and len(told.blocks) == 2
        assert engine.output().finish_reason == "length"
        # By who computes, before the loop has heard of the result.
        assert engine.agent.promised == [("homenode-steps", ["t1"])]


def test_only_the_step_that_ends_a_prompt_promises_pages() -> None:
    with loop() as engine:
        kv = scheduler_events.KvTicket("long", True, b"peer")
        engine.core.post(Submit([Request(id=1, prompt_ids=[5] * 150, params=SamplingParams(max_tokens=0), kv=kv)]))
        assert isinstance(engine.agent.next(), scheduler_events.SendWanted)
        engine.inbox.put(scheduler_events.SendAdmitted(0.0, "long"))
        told = [engine.agent.next() for _ in range(3)]  # 64 tokens at a time
        assert [one.last for one in told] == [False, False, True]
        engine.output()
        assert [tickets for _, tickets in engine.agent.promised] == [["long"]]


def test_a_fetch_is_told_though_nothing_else_happens() -> None:
    """It comes of planning a step, not of an event: nothing is to lie in the loop until the next one."""
    with loop() as engine:
        identities = [b"1" * 16, b"2" * 16]
        engine.inbox.put(scheduler_events.Offered(0.0, "t2", 39, 32, identities, True))
        assert isinstance(engine.agent.next(), scheduler_events.Reserved)
        wanted = Scheduler(SchedulerConfig(), KvConfig(block_size=32), LIMITS, (), b"k" * 32).allocator.cache.chain("")
        engine.inbox.put(scheduler_events.Offered(0.0, "t3", 39, 32, wanted.identities([5] * 40, 39), False))
        engine.submit(3, sends=False)
        fetch = engine.agent.next()
        assert isinstance(fetch, scheduler_events.Fetch) and len(fetch.blocks) == 2
        engine.inbox.put(scheduler_events.Failed(0.0, "t3", "the sender is gone"))
        assert engine.agent.next() == scheduler_events.Claimed("t3", 0)
        assert engine.output().finish_reason == "length"


def test_figures_and_releases_are_passed_on() -> None:
    with loop() as engine:
        engine.core.post(ReleaseKv("t9", "nobody wants it"))
        assert engine.agent.next() == scheduler_events.Released("t9", "nobody wants it")
        engine.submit(3, sends=False)
        engine.output()
        engine.core.post(Drain(PATIENCE_S))
        engine.thread.join(PATIENCE_S)
        while not engine.sent.empty():
            message = engine.sent.get()
            engine.statistics += [message] if isinstance(message, EngineStats) else []
        last = engine.statistics[-1]
        assert last.transfer == TransferStats(pinned_pages=3)
        assert last.recomputed_tokens == 39


def test_a_lost_agent_ends_the_engine() -> None:
    with loop() as engine:
        engine.submit(1, sends=True)
        engine.agent.next()
        engine.inbox.put(AgentLost("its thread fell over"))
        engine.thread.join(PATIENCE_S)
        assert isinstance(engine.failure, InternalError) and "fell over" in engine.failure.message


@pytest.mark.parametrize("sends", [False, True])
def test_a_drain_waits_until_the_agent_has_given_all_back(sends: bool) -> None:
    with loop() as engine:
        if sends:
            engine.submit(1, sends=True)
            engine.agent.next()
            engine.inbox.put(scheduler_events.SendAdmitted(0.0, "t1"))
            engine.agent.next()
            engine.output()
        else:
            engine.inbox.put(scheduler_events.Offered(0.0, "t1", 39, 32, [b"1" * 16, b"2" * 16], True))
            engine.agent.next()
        engine.core.post(Drain(PATIENCE_S))
        if not sends:
            assert engine.agent.next() == scheduler_events.Stopped("t1")
        engine.submit(2, sends=False)  # taken in, and refused: the drain has begun, and the loop is still there
        assert engine.output().error_kind == "OverloadedError"
        engine.inbox.put(
            scheduler_events.Returned(0.0, "t1") if sends else scheduler_events.Failed(0.0, "t1", "stopped")
        )
        engine.thread.join(PATIENCE_S)
        assert not engine.thread.is_alive() and engine.failure is None
