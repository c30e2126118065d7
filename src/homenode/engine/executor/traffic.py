"""Steps on their way to the workers and back: who is told what, what comes of it, and who is to blame where workers
waited in vain.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from homenode.engine.channels.messages import RunStep, WorkerStepDone, WorkerStepFailed
from homenode.engine.errors import StepError
from homenode.engine.executor.in_flight import StepsInFlight
from homenode.engine.executor.worker_handle import WorkerHandle
from homenode.engine.plan.worker_layout import WorkerPlan
from homenode.engine.step import Step, StepResult
from homenode.errors import PeerError
from homenode.net.message_frames import encode_frame

_BLAME_AFTER_S = 1.0  # those who waited for the same worker give up within this of each other


class StepTraffic:
    """`now` is the time of one clock everywhere."""

    def __init__(self, plans: Sequence[WorkerPlan], all_done: bool = False) -> None:
        """`all_done`: as `StepsInFlight`."""
        self._last_stage = plans[-1].stage
        self._in_flight = StepsInFlight([plan.stage for plan in plans], all_done)
        self._blame: tuple[float, WorkerStepFailed] | None = (
            None  # when to look who kept the others waiting, and what was said of it
        )

    def submit(self, step: Step, handles: Sequence[WorkerHandle], now: float) -> bool:
        """Give a step to all; whether some of it has to wait for room."""
        self._in_flight.submit(step.number, now)
        behind, frames = False, {}  # whoever draws is told nothing, and all others the same
        for handle in handles:
            drawn, handle.drawn = handle.drawn, []
            if bool(drawn) not in frames:
                frames[bool(drawn)] = encode_frame(RunStep(step, drawn))
            behind |= not handle.process.socket.send_frame(frames[bool(drawn)])
        return behind

    def done(
        self, handle: WorkerHandle, done: WorkerStepDone, handles: Sequence[WorkerHandle], now: float
    ) -> StepResult | None:
        """A worker is done with a step; its result if that is there with this."""
        result = self._in_flight.done(handle.plan.number, done, now)
        if result is not None:
            drawn = [(one.seq, token) for one in result.advances for token in one.tokens]
            for other in handles:
                if other.plan.stage != self._last_stage:
                    other.drawn += drawn
        return result

    def failed(self, handle: WorkerHandle, failed: WorkerStepFailed, now: float) -> StepError | None:
        """A worker could not compute a step. None where it waited in vain for another: which one, the others will have
        said in a moment (`guilty`).
        """
        self._in_flight.answered(handle.plan.number, failed.number)
        if failed.kind != PeerError.__name__:
            return StepError(failed.message, kind=failed.kind, fatal=failed.fatal)
        if self._blame is None:
            self._blame = (now + _BLAME_AFTER_S, failed)
        return None

    def time_left(self, now: float) -> float | None:
        """Seconds until it is to be looked who is guilty; None: nobody waited in vain."""
        return None if self._blame is None else max(0.0, self._blame[0] - now)

    def guilty(self, now: float) -> tuple[dict[int, str], StepError] | None:
        """Return, when it is time, the workers that kept others waiting, each with what it did, none if that cannot be
        said; and how the step failed.
        """
        if self._blame is None or self._blame[0] > now:
            return None
        failed = self._blame[1]
        self._blame = None
        silent = dict.fromkeys(self._in_flight.silent(failed.number), f"kept others waiting in step {failed.number}")
        return silent, StepError(failed.message, kind=failed.kind)

    def clear(self, now: float) -> None:
        """All steps in flight are lost."""
        self._blame = None
        self._in_flight.clear(now)

    def stages(self, now: float) -> list[dict[str, Any]]:
        """Return of each stage the seconds it computed, and those it did not while steps were in flight."""
        active = self._in_flight.active(now)
        return [
            {"stage": s, "busy_s": busy, "wait_s": max(0.0, active - busy)}
            for s, busy in enumerate(self._in_flight.busy)
        ]
