"""The times that steps took, by kind, as a histogram that is still counted. Pure."""

from __future__ import annotations

import bisect

from homenode.engine.messages import STEP_TIME_BOUNDS as BOUNDS
from homenode.engine.scheduler.step_costs import STEP_KINDS, StepKind


class StepTimes:
    """Counts of the steps of each kind within each bound, those beyond the last, and the seconds of all."""

    def __init__(self) -> None:
        self._counts = {kind: [0.0] * (len(BOUNDS) + 2) for kind in STEP_KINDS}

    def add(self, kind: StepKind, seconds: float) -> None:
        """A step has come back."""
        counts = self._counts[kind]
        counts[bisect.bisect_left(BOUNDS, seconds)] += 1
        counts[-1] += seconds

    def figures(self) -> dict[str, list[float]]:
        """Return the figures by kind, fit for a message."""
        return {kind: counts.copy() for kind, counts in self._counts.items()}
