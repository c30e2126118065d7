"""The places of a sequence's pictures: by which positions rope with axes turns, and which rows see each other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from homenode.compute.ops import IntArray
from homenode.engine.inputs import PictureGrid
from homenode.engine.step import StartSequence


@dataclass(frozen=True)
class PicturePlaces:
    """The pictures of one sequence, in the order of positions. `spans`: positions first .. past - 1 that see each
    other.
    """

    grids: tuple[PictureGrid, ...] = ()
    spans: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, start: StartSequence) -> PicturePlaces:
        """Return those that a sequence is started with."""
        return cls(
            tuple(PictureGrid(*grid) for grid in start.grids), tuple((first, past) for first, past in start.spans)
        )

    def turn(self, positions: IntArray, start: int) -> None:
        """Put into [3, n] positions from `start` on those of the places: a row of a picture has the time of its
        beginning, and its row and column behind that; what follows goes on behind the longer side.
        """
        end = start + positions.shape[1]
        for grid in self.grids:
            if grid.first >= end:
                break
            behind = max(grid.past - start, 0)
            positions[:, behind:] -= grid.saved
            first, past = max(grid.first, start), min(grid.past, end)
            if first < past:
                number = np.arange(first - grid.first, past - grid.first, dtype=np.int32)
                begin = positions[0, first - start] - number[0]  # moved by the pictures before
                inside = positions[:, first - start : past - start]
                inside[0], inside[1], inside[2] = begin, begin + number // grid.columns, begin + number % grid.columns

    def see(self, spans: IntArray, start: int) -> None:
        """Put into [n, 2] the first and past position that each of the positions from `start` on sees besides."""
        end = start + len(spans)
        for first, past in self.spans:
            if first < end and past > start:
                spans[max(first - start, 0) : past - start] = first, past
