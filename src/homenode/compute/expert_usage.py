"""Counts of the tokens that each expert of a program's MoE layers was computed for, for backends that call the forward
function at every step.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.uint64]


class ExpertUsage:
    """Tokens that each expert was computed for, by MoE layer in the order of calls. One thread adds; others
    may read.
    """

    def __init__(self) -> None:
        self._layers: list[Counts] = []

    def add(self, layer: int, tokens: npt.NDArray[np.integer]) -> None:
        """`tokens`: for each expert of MoE layer number `layer` how many tokens it is computed for in this step."""
        if layer == len(self._layers):
            self._layers.append(np.zeros(len(tokens), np.uint64))
        self._layers[layer] += tokens.astype(np.uint64)

    def table(self) -> Counts:
        """uint64 [MoE layers, experts]."""
        rows = self._layers.copy()
        widest = max((len(row) for row in rows), default=0)
        table = np.zeros((len(rows), widest), np.uint64)
        for into, row in zip(table, rows, strict=True):
            into[: len(row)] = row
        return table
