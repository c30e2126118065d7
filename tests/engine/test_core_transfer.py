"""The loop and its transfer agent: figures reach the front whenever they change, and tickets that are given up reach
the agent.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from queue import SimpleQueue

from homenode.engine.executor.inline import InlineExecutor
from homenode.engine.kv_transfer.agent import StatsChanged
from homenode.engine.messages import EngineStats, ReleaseKv, ToFront
from homenode.engine.runtime.loop import EngineCore
from homenode.engine.scheduler.scheduler import Scheduler
from homenode.engine.scheduler_config import KvConfig, SchedulerConfig
from homenode.transfer.scheduler_events import Released, ToAgent, TransferStats
from tests.engine.test_core import EOS, LIMITS, ScriptedRunner
from tests.waiting import PATIENCE_S


class Told:
    """An agent that only listens."""

    def __init__(self) -> None:
        self.messages: SimpleQueue[ToAgent] = SimpleQueue()
        self.promised: list[tuple[str, list[str]]] = []
        self.now = TransferStats(pinned_pages=3)

    def tell(self, message: ToAgent) -> None:
        self.messages.put(message)

    def promise(self, tickets: Sequence[str]) -> None:
        self.promised.append((threading.current_thread().name, list(tickets)))

    def figures(self) -> TransferStats:
        return self.now


def test_figures_and_tickets() -> None:
    sent: SimpleQueue[ToFront] = SimpleQueue()
    inbox: SimpleQueue[object] = SimpleQueue()
    agent = Told()
    executor = InlineExecutor(ScriptedRunner(), LIMITS)
    core = EngineCore(
        Scheduler(SchedulerConfig(), KvConfig(block_size=32), LIMITS, [EOS]),
        executor,
        sent.put,
        inbox=inbox,
        agent=agent,
    )
    thread = threading.Thread(target=core.run)
    thread.start()
    try:
        assert pinned(sent) == 3
        agent.now = TransferStats(pinned_pages=0)
        inbox.put(StatsChanged())
        assert pinned(sent) == 0
        core.post(ReleaseKv("t-1", "the client left"))
        assert agent.messages.get(timeout=PATIENCE_S) == Released("t-1", "the client left")
    finally:
        core.stop()
        thread.join(PATIENCE_S)
        executor.close()


def pinned(sent: SimpleQueue[ToFront]) -> int:
    """Of the next statistics."""
    message = sent.get(timeout=PATIENCE_S)
    assert isinstance(message, EngineStats) and message.transfer is not None
    return message.transfer.pinned_pages
