"""One worker as its engine sees it, over all its processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from homenode.engine.executor.worker_process import StartedWorker
from homenode.engine.workers.layout import WorkerPlan
from homenode.engine.workers.messages import Fits

State = Literal["starting", "fitted", "laying", "ready"]


@dataclass
class Member:
    """`answers`: how many `Laid` are to come; what a worker says of steps before the last of them is of steps that are lost.

    `drawn`: (sequence, token) that it was not told yet. `asked_at`: when the oldest question was put that it has not answered, None: there is none.
    `spoke`: whether it has said anything. `watched`: whether what it says is read. `loading`: bytes of files taken in, and in all.
    """

    plan: WorkerPlan
    process: StartedWorker
    state: State = "starting"
    answers: int = 0
    fits: Fits | None = None
    compute: dict[str, object] = field(default_factory=dict)
    drawn: list[tuple[int, int]] = field(default_factory=list)
    loading: tuple[int, int] = (0, 0)
    asked_at: float | None = None
    heard_at: float = 0.0
    spoke: bool = False
    watched: bool = True

    @property
    def word(self) -> str:
        """What becomes of it, for people: starting, ready, or waiting for others that were lost."""
        return "starting" if self.state != "ready" else "ready" if self.there else "waiting"

    @property
    def there(self) -> bool:
        """Whether it takes steps."""
        return self.state == "ready" and not self.answers
