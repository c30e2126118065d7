"""An engine that is ready to run, as every program that runs one has it. It imports no more than the loop needs:
engines of tests, which compute nothing, start in half the time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from homenode.engine.binding import EngineBinding
from homenode.engine.cpu_claims import CpuClaim
from homenode.engine.executor.base import Executor
from homenode.engine.messages import EngineReady
from homenode.engine.scheduler.drafts.drafter import Drafter
from homenode.engine.scheduler.scheduler import Scheduler
from homenode.engine.scheduler.steps.step_costs import StepCosts
from homenode.engine.speculation.config import Speculation

if TYPE_CHECKING:
    from homenode.engine.kv_disk.setup import KvDiskLink
    from homenode.engine.kv_events.link import KvEventsLink
    from homenode.engine.kv_transfer.setup import KvTransferLink
    from homenode.engine.memory.headroom import Headroom
    from homenode.engine.runtime.neighbour_watch import NeighbourWatch

Progress = Callable[[int, int], None]
MakeDrafter = Callable[[Speculation, StepCosts, int], Drafter]


@dataclass(frozen=True)
class Engine:
    """The parts of an engine that is ready to run; `loop.EngineCore` runs it."""

    scheduler: Scheduler
    executor: Executor
    ready: EngineReady
    kv_transfer: KvTransferLink | None = None
    disk: KvDiskLink | None = None  # to be closed before the executor
    events: KvEventsLink | None = None  # to be closed before that one
    headroom: Callable[[], Headroom] | None = (
        None  # what the machine can give to KV memory that grows; None: it does not
    )
    claim: CpuClaim = field(default_factory=lambda: CpuClaim(""))  # to be released when the executor is closed
    move: Callable[[EngineBinding], None] = lambda place: None  # of one of several engines: to where its front says
    watch: NeighbourWatch | None = None  # to be stopped before that; None: the engine stays on its CPUs
