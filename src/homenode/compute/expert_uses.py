"""Counting how often the experts of a program's mixtures are computed, for backends that call their forward function at every step."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.uint64]


class ExpertUses:
    """Tokens that each expert was computed for, by mixture in the order of calls. One thread counts; others may read."""

    def __init__(self) -> None:
        self._of: list[Counts] = []

    def add(self, mixture: int, tokens: npt.NDArray[np.integer]) -> None:
        """`tokens`: for each expert of mixture number `mixture` those it is computed for in this step."""
        if mixture == len(self._of):
            self._of.append(np.zeros(len(tokens), np.uint64))
        self._of[mixture] += tokens.astype(np.uint64)

    def table(self) -> Counts:
        """[mixtures, experts]."""
        rows = self._of.copy()
        widest = max((len(row) for row in rows), default=0)
        table = np.zeros((len(rows), widest), np.uint64)
        for into, row in zip(table, rows, strict=True):
            into[: len(row)] = row
        return table
