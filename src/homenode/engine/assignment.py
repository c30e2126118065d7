"""The assignment that one engine is started with: its settings, and what was decided about it before its process was
there.
"""

from __future__ import annotations

from dataclasses import dataclass

from homenode.engine.binding import Replica
from homenode.engine.config import EngineConfig
from homenode.host.plan.numa.demand import Decision


@dataclass(frozen=True)
class EngineAssignment:
    """Fit for msgpack: the front sends it to the engine's process as its first frame.

    `replica`: which of several engines of a service it is, and its place; None for an engine that is alone.
    `numa_decision`: what --numa auto has come to, for it to be decided once; None: not yet. `name`: of the process,
    where it is one of several models.
    """

    config: EngineConfig
    replica: Replica | None = None
    numa_decision: Decision | None = None
    name: str | None = None

    @property
    def number(self) -> int:
        """Return which engine of the service it is; 0 for one that is alone."""
        return self.replica.number if self.replica else 0

    @property
    def memory_share(self) -> int | None:
        """Bytes it may take for weights, buffers and KV memory, so that the engines of a service do not count the same
        memory; None: whatever is free.
        """
        return self.replica.memory if self.replica else None

    @property
    def process_name(self) -> str | None:
        """Return what the engine's process is called; None for one that is alone. One of several with one worker is
        that worker (see `plan.worker_layout`).
        """
        if self.replica is None:
            return None
        if self.name is not None:
            return self.name if self.replica.count == 1 else f"{self.name}-{self.number}"
        return self.replica.name if self.config.parallel.workers == 1 else f"homenode-engine-{self.number}"
