"""The seconds of a step by its rows, measured in steps that only decode. Pure.

Kernels take some numbers of rows at nearly the price of fewer: that shows in what steps took, and in no line through
it. What was never measured is expected to lie between its neighbours, and beyond them as `StepCosts` says. In mixtures
of experts a row costs what its experts are not read for already: what was measured holds for the experts that those
steps read, and what more or fewer of them cost is added. Measurements that nobody repeats fade, so that one that was
unlucky is tried again.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Final

from homenode.engine.scheduler.steps.step_costs import StepCosts
from homenode.engine.scheduler.steps.step_load import NO_LOAD, StepLoad

_EXACT: Final = 16  # rows that are told apart; of more, groups
_GROUP: Final = 8
_MEMORY: Final = 12.0  # steps that count
_BELIEF: Final = 0.5  # steps that count for what is expected
_OUTLIER: Final = 1.25  # times what is expected, beyond which a step is no further news
_SPEED: Final = 0.15  # of a deviation, what is put down to the machine as a whole
_FADING: Final = 0.99
_LEAST_RISE: Final = 0.25  # of what rows take in all steps


class _Measured:
    """The seconds of one number of rows, in units of the machine's speed, the share of the experts that was read, and
    how many steps they follow from.
    """

    __slots__ = ("count", "experts", "seconds")

    def __init__(self) -> None:
        self.seconds = self.count = self.experts = 0.0


class RowCosts:
    """Seconds by rows, but for what reading keys and values takes, which `StepCosts` knows."""

    def __init__(self, costs: StepCosts) -> None:
        self._costs = costs
        self._measured: dict[int, _Measured] = {}
        self._rows: list[int] = []  # of those, ascending
        self._speed = 1.0
        self._told: dict[int, float] = {}  # what was said since anything was learned, by rows...
        self._told_of = -1  # ...under this revision of the costs

    @property
    def known(self) -> bool:
        """Return whether anything was measured."""
        return bool(self._rows)

    def learn(self, load: StepLoad, seconds: float) -> None:
        """Take in that a step which only decodes, the last one that `StepCosts` has learned from, took so long."""
        self._told.clear()
        rows = _grouped(load.tokens)
        bare = max(0.2 * seconds, seconds - self._costs.of_position * load.read)
        known = self._measured.get(rows)
        if known is None:
            known = self._measured[rows] = _Measured()
            insort(self._rows, rows)
        elif known.count >= 3.0:
            expected = self._of(rows, known, self._costs.experts)
            bare = min(max(bare, expected / _OUTLIER), expected * _OUTLIER)
            self._speed *= (bare / expected) ** _SPEED
        known.count = min(_MEMORY, known.count + 1.0)
        known.seconds += (bare / self._speed - known.seconds) / known.count
        known.experts += (self._costs.experts - known.experts) / known.count

    def seconds(self, rows: int) -> float:
        """Return what so many rows take beside what they read; 0 while nothing is known. Whoever looks for the best
        number asks for all of them, again and again before the next step tells more.
        """
        rows = _grouped(rows)
        if self._told_of != self._costs.revision:
            self._told.clear()
            self._told_of = self._costs.revision
        if (told := self._told.get(rows)) is None:
            told = self._told[rows] = self._seconds(rows)
        return told

    def _seconds(self, rows: int) -> float:
        known = self._measured.get(rows)
        if known is not None and known.count >= 2.0:
            return self._of(rows, known)
        expected = self._expected(rows)
        if known is None or not expected:
            return expected or (self._of(rows, known) if known is not None else 0.0)
        return (known.count * self._of(rows, known) + _BELIEF * expected) / (known.count + _BELIEF)

    def fade(self, rows: int) -> None:
        """These rows were looked at and not taken."""
        if (known := self._measured.get(_grouped(rows))) is not None:
            known.count *= _FADING
            self._told.clear()

    def _of(self, rows: int, known: _Measured, experts: float | None = None) -> float:
        """Return what these rows take if they read this share of the experts; None: as many as they should."""
        seconds = self._speed * known.seconds
        if (of_experts := self._costs.of_experts) and known.experts:
            share = self._costs.expert_share(rows) if experts is None else experts
            seconds = max(0.5 * seconds, seconds + of_experts * (share - known.experts))
        return seconds

    def _step(self, fewer: int, rows: int) -> float:
        """Return what so many rows should take more than fewer, by all steps."""
        costs = self._costs
        return costs.of_row * (rows - fewer) + costs.of_experts * (costs.expert_share(rows) - costs.expert_share(fewer))

    def _beyond(self, most: int, rows: int) -> float:
        """Return what rows beyond the `most` that were measured should take more: as much as those up to there did, or
        as rows do in all steps, whichever is less. Whoever tries learns.
        """
        more = self._step(most, rows)
        place = bisect_left(self._rows, most)
        fewer = next((r for r in reversed(self._rows[:place]) if self._measured[r].count >= 2.0), 0)
        if not fewer:
            return more
        rise = self._of(most, self._measured[most]) - self._of(fewer, self._measured[fewer])
        return min(more, max(_LEAST_RISE * more, rise * (rows - most) / (most - fewer)))

    def _expected(self, rows: int) -> float:
        """Return what follows from other numbers of rows."""
        place = bisect_left(self._rows, rows)
        below = next((r for r in reversed(self._rows[:place]) if self._measured[r].count >= 2.0), 0)
        above = next((r for r in self._rows[place:] if r > rows and self._measured[r].count >= 2.0), 0)
        if below and above:
            low, high = self._of(below, self._measured[below]), self._of(above, self._measured[above])
            return low + (high - low) * (rows - below) / (above - below)
        if below:
            return self._of(below, self._measured[below]) + self._beyond(below, rows)
        if above:
            seconds = self._of(above, self._measured[above])
            return max(0.5 * seconds, seconds - self._step(rows, above))
        return self._costs.seconds(StepLoad(rows, rows, 0, 0, 1), NO_LOAD)


def _grouped(rows: int) -> int:
    """Return the number of rows for which all of a group are taken."""
    return rows if rows <= _EXACT else -(-rows // _GROUP) * _GROUP
