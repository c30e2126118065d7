"""Fits the constants of the cost model to the published rows, and says how well it does on rows it was not fitted to: `python -m benchmarks.numa_fit`.

The constants are three, their values are steps of a coarse grid (a finer one would fit noise), and the true test leaves out one source at a time:
all rows of it are predicted with constants fitted to the others.
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
_MOST = 0.5  # a row that is off by more than a factor of 1.65 lacks something else, and must not bend the constants to it
_WRONG = 0.3  # what a wrong direction costs


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Errors of rows predicted with constants fitted to the rows of all other sources."""

    wrong: int
    ratio: float
    gain: float


def fit(published: Published, rows: Sequence[Row]) -> Constants:
    """The constants of the grid with the least loss; those that are not in the grid stay as they are."""
    names = tuple(GRID)
    tried = (replace(published.constants, **dict(zip(names, values, strict=True))) for values in product(*GRID.values()))
    return min(tried, key=lambda constants: loss(published.with_constants(constants), rows))


def loss(published: Published, rows: Sequence[Row]) -> float:
    """The mean error of the logarithms, bounded, and a charge for each wrong direction."""
    total = 0.0
    for row in rows:
        ratio = published.predicted(row)
        total += min(abs(math.log(ratio / row.observed)), _MOST) + (_WRONG if direction(ratio) != direction(row.observed) else 0)
    return total / len(rows)


def held_out(published: Published) -> HeldOut:
    """Each source predicted by constants that never saw it."""
    ratios, gains, wrong = [], [], 0
    for source in sorted({row.source for row in published.rows}):
        others = [row for row in published.rows if row.source != source]
        refitted = published.with_constants(fit(published, others))
        for row in (row for row in published.rows if row.source == source):
            ratio = refitted.predicted(row)
            wrong += direction(ratio) != direction(row.observed)
            ratios.append(error_of_ratio(row, ratio))
            if direction(row.observed):
                gains.append(error_of_gain(row, ratio))
    return HeldOut(wrong, median(ratios), median(gains))


def main() -> None:
    """Print both."""
    published = Published.load()
    print("fitted:", asdict(fit(published, published.rows)))
    print("kept:  ", asdict(published.constants))
    print("rows of sources left out:", held_out(published))


if __name__ == "__main__":
    main()
