"""An engine that is ready to run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from homenode.engine.executor.base import Executor
from homenode.engine.memory.headroom import Headroom
from homenode.engine.messages import EngineReady
from homenode.engine.scheduler.scheduler import Scheduler

if TYPE_CHECKING:
    from homenode.engine.kv_transfer.setup import KvTransferLink

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Engine:
    """The parts of an engine that is ready to run; `loop.EngineCore` runs it."""

    scheduler: Scheduler
    executor: Executor
    ready: EngineReady
    kv_transfer: KvTransferLink | None = None
    headroom: Callable[[], Headroom] | None = (
        None  # what the machine can give to KV memory that grows; None: it does not
    )
