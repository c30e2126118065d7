"""How many of its experts a worker reads in a step: those that any of its tokens chose, counted as they were chosen."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from homenode.engine.experts.usage import Table
from homenode.model.part import ModelPart


class ExpertReads:
    """Counts by what the program counts, from one step to the next. For one thread."""

    def __init__(self, uses: Callable[[], Table], part: ModelPart) -> None:
        """`uses`: see `Program.expert_usage`. `part`: of a mixture of experts."""
        self._uses, self._experts = uses, max(1, sum(map(len, part.experts)))
        self._columns = 1 + max((max(experts) for experts in part.experts if experts), default=-1)
        self._before = uses()

    def take(self) -> float:
        """Return the share of the experts that were read since this was asked last; 0: it is not known."""
        now = self._uses()
        if now.shape != self._before.shape:  # the first step of a program that finds its mixtures as it runs
            self._before = now
            return 0.0
        # What returns a row as it is stands behind the experts, and nothing is read for it.
        read = int(np.count_nonzero(now[:, : self._columns] != self._before[:, : self._columns]))
        self._before = now
        return min(1.0, read / self._experts)
