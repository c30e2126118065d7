"""Where steps are computed: the seam between the engine's loop and its workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from homenode.engine.kv.chunks import PageChange
from homenode.engine.step import Step, StepResult, WorkerLimits


class Executor(Protocol):
    """Computes steps in the order they are submitted. All calls but those of the callback come from one thread."""

    @property
    def serving(self) -> bool:
        """Whether steps may be submitted: not from the loss of a worker until all are there again and `result` has
        raised the error, so that whoever submits cannot miss it. The callback of `on_result` is called when a worker is
        lost, whether or not a step is pending, and when all are back.
        """

    @property
    def pending(self) -> int:
        """Steps submitted whose result was not taken yet."""

    def limits(self) -> WorkerLimits:
        """What its workers can take."""

    def on_result(self, callback: Callable[[], None]) -> None:
        """Have `callback` called, on any thread, each time a result can be taken, and when figures have changed without
        one. To be set before the first step.
        """

    def submit(self, step: Step) -> None:
        """Hand over a step; returns at once. One that comes too late, when a worker has just been lost, is lost as
        well.
        """

    def change_pages(self, changes: Sequence[PageChange]) -> None:
        """Have pages of KV memory taken, or given back, after the steps submitted so far and before those that are
        submitted later; returns at once. What cannot be taken comes when it is first used.
        """

    def result(self, timeout: float | None = None) -> StepResult | None:
        """The result of the oldest pending step; None when there is none within `timeout` seconds (None: wait for it).

        Raises StepError when it failed; all pending steps are then gone. Raises StepsLostError once for each loss.
        """

    def statistics(self) -> dict[str, Any]:
        """Figures of the computing part, plain values."""

    def close(self) -> None:
        """Finish the step being computed, drop the others, give everything back. Calling it again does nothing."""
