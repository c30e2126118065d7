"""The times that steps took, by kind, and the tokens that they computed, as histograms still counted. Pure."""

from __future__ import annotations

import bisect

from homenode.engine.messages import STEP_TIME_BOUNDS as BOUNDS
from homenode.engine.messages import STEP_TOKEN_BOUNDS
from homenode.engine.scheduler.steps.step_costs import STEP_KINDS, StepKind


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


class StepSizes:
    """Counts of the steps that computed so many tokens, within each bound and beyond the last."""

    def __init__(self) -> None:
        self._counts = [0.0] * (len(STEP_TOKEN_BOUNDS) + 1)

    def add(self, tokens: int) -> None:
        """A step has come back."""
        self._counts[bisect.bisect_left(STEP_TOKEN_BOUNDS, tokens)] += 1

    def figures(self) -> list[float]:
        """Return the counts, fit for a message."""
        return self._counts.copy()
