"""Fits the constants of the cost model to the published rows, and says how well it does on rows it was not fitted to:
`python -m benchmarks.numa_fit`.

The constants are three, their values are steps of a coarse grid (a finer one would fit noise), and the true test leaves
out one source at a time: all rows of it are predicted with constants fitted to the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from statistics import median

from benchmarks.numa_published import Constants, Published, Row, direction, error_of_gain, error_of_ratio

GRID: dict[str, tuple[float, ...]] = {
    "links": (0.5, 0.6, 0.7, 0.8),
    "straggling": (0.0, 0.05, 0.1, 0.15, 0.2, 0.25),
    "handover_us": (0, 5, 10, 15, 20, 25, 30, 40),
}
_MOST = (
    0.5  # a row that is off by more than a factor of 1.65 lacks something else, and must not bend the constants to it
)
_WRONG = 0.3  # what a wrong direction costs


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Errors of rows predicted with constants fitted to the rows of all other sources."""

    wrong: int
    ratio: float
    gain: float


@dataclass(frozen=True, slots=True)
class Tried:
    """Constants of the grid, and what each row costs under them."""

    constants: Constants
    costs: tuple[float, ...]

    def loss(self, rows: Sequence[int]) -> float:
        """The mean over some rows, by number."""
        return sum(self.costs[at] for at in rows) / len(rows)


def tried(published: Published) -> list[Tried]:
    """All constants of the grid; those that are not in the grid stay as they are."""
    found = []
    for values in product(*GRID.values()):
        constants = replace(published.constants, **dict(zip(GRID, values, strict=True)))
        under = published.with_constants(constants)
        found.append(Tried(constants, tuple(_cost(row, under.predicted(row)) for row in published.rows)))
    return found


def fit(published: Published) -> Constants:
    """The constants with the least loss over all rows."""
    every = range(len(published.rows))
    return min(tried(published), key=lambda one: one.loss(every)).constants


def held_out(published: Published) -> HeldOut:
    """Each source predicted by constants that never saw it."""
    grid = tried(published)
    rows = list(enumerate(published.rows))
    ratios, gains, wrong = [], [], 0
    for source in sorted({row.source for row in published.rows}):
        others = [at for at, row in rows if row.source != source]
        refitted = published.with_constants(min(grid, key=lambda one: one.loss(others)).constants)
        for row in (row for _, row in rows if row.source == source):
            ratio = refitted.predicted(row)
            wrong += direction(ratio) != direction(row.observed)
            ratios.append(error_of_ratio(row, ratio))
            if direction(row.observed):
                gains.append(error_of_gain(row, ratio))
    return HeldOut(wrong, median(ratios), median(gains))


def _cost(row: Row, ratio: float) -> float:
    """The error of the logarithm, bounded, and a charge for a wrong direction."""
    return min(abs(math.log(ratio / row.observed)), _MOST) + (
        _WRONG if direction(ratio) != direction(row.observed) else 0
    )


def main() -> None:
    """Print both."""
    published = Published.load()
    print("fitted:", asdict(fit(published)))
    print("kept:  ", asdict(published.constants))
    print("rows of sources left out:", held_out(published))


if __name__ == "__main__":
    main()
