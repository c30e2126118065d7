"""One worker as its engine sees it, over all its processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from homenode.engine.channels.messages import Fits
from homenode.engine.executor.worker_process import StartedWorker
from homenode.engine.experts.usage import EXPERT_USES, Table, read_table
from homenode.engine.plan.worker_layout import WorkerPlan
from homenode.errors import PeerError
from homenode.model.spec import ModelSpec

State = Literal["starting", "fitted", "laying", "ready"]


@dataclass
class WorkerHandle:
    """`answers`: how many `Laid` are to come; what a worker says of steps before the last of them is of steps that are
    lost.

    `drawn`: (sequence, token) that it was not told yet. `asked_at`: when the oldest question was put that it has not
    answered, None: there is none. `told_at`: when its figures, `compute`, came. `uses`: how often experts were computed
    by it, and by those in whose place it is. `spoke`: whether it has said anything. `watched`: whether what it says is
    read. `loading`: bytes of files taken in, and in all.
    """

    plan: WorkerPlan
    process: StartedWorker
    state: State = "starting"
    answers: int = 0
    fits: Fits | None = None
    compute: dict[str, object] = field(default_factory=dict)
    told_at: float = 0.0
    uses: Table | None = None
    uses_before: Table | None = None
    drawn: list[tuple[int, int]] = field(default_factory=list)
    loading: tuple[int, int] = (0, 0)
    asked_at: float | None = None
    heard_at: float = 0.0
    spoke: bool = False
    watched: bool = True

    def record_stats(self, compute: dict[str, object], spec: ModelSpec | None, now: float) -> bool:
        """It tells its figures; whether experts were used, or pages of KV memory taken or given back, since it last
        did. PeerError when what it says of experts makes no sense. `spec`: of the model, where experts are counted.
        """
        told = compute.pop(EXPERT_USES, None)
        pages_changed = self.compute.get("kv_pages") != compute.get("kv_pages")
        self.compute, self.told_at = compute, now
        if told is None or spec is None:
            return pages_changed
        own = read_table(told, self.plan.part.layers.count, spec)
        if own is None:
            raise PeerError(f"its counts of experts are not those of {self.plan.part.name}")
        before, self.uses = self.uses, own if self.uses_before is None else own + self.uses_before
        return pages_changed or before is None or not np.array_equal(before, self.uses)

    @property
    def known_at(self) -> float:
        """Return when it last told its figures, or while it starts anything at all."""
        return self.told_at if self.state == "ready" else self.heard_at

    @property
    def word(self) -> str:
        """Return what becomes of it, for people: starting, ready, or waiting for others that were lost."""
        return "starting" if self.state != "ready" else "ready" if self.is_ready else "waiting"

    @property
    def is_ready(self) -> bool:
        """Return whether it takes steps."""
        return self.state == "ready" and not self.answers
