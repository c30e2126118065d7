"""The seconds of a step by its rows, measured in steps that only decode. Pure.

Kernels take some numbers of rows at nearly the price of fewer, and in mixtures of experts a row costs what its experts
were not read for already: both show in what steps took, and in no line through it. What was never measured is expected
to lie between its neighbours, and beyond them as `StepCosts` says. Measurements that nobody repeats fade, so that one
that was unlucky is tried again.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Final

from homenode.engine.scheduler.step_costs import StepCosts
from homenode.engine.scheduler.step_load import NO_LOAD, StepLoad

_EXACT: Final = 16  # rows that are told apart; of more, groups
_GROUP: Final = 8
_MEMORY: Final = 12.0  # steps that count
_BELIEF: Final = 0.5  # steps that count for what is expected
_OUTLIER: Final = 1.25  # times what is expected, beyond which a step is no further news
_SPEED: Final = 0.15  # of a deviation, what is put down to the machine as a whole
_FADING: Final = 0.99


class _Measured:
    """The seconds of one number of rows, in units of the machine's speed, and how many steps they follow from."""

    __slots__ = ("count", "seconds")

    def __init__(self) -> None:
        self.seconds = self.count = 0.0


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
        """Take in that a step which only decodes took so long."""
        self._told.clear()
        rows = _grouped(load.tokens)
        bare = max(0.2 * seconds, seconds - self._costs.of_position * load.read)
        known = self._measured.get(rows)
        if known is None:
            known = self._measured[rows] = _Measured()
            insort(self._rows, rows)
        elif known.count >= 3.0:
            expected = self._speed * known.seconds
            bare = min(max(bare, expected / _OUTLIER), expected * _OUTLIER)
            self._speed *= (bare / expected) ** _SPEED
        known.count = min(_MEMORY, known.count + 1.0)
        known.seconds += (bare / self._speed - known.seconds) / known.count

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
            return self._speed * known.seconds
        expected = self._expected(rows)
        if known is None or not expected:
            return expected or (self._speed * known.seconds if known is not None else 0.0)
        return (known.count * self._speed * known.seconds + _BELIEF * expected) / (known.count + _BELIEF)

    def fade(self, rows: int) -> None:
        """These rows were looked at and not taken."""
        if (known := self._measured.get(_grouped(rows))) is not None:
            known.count *= _FADING
            self._told.clear()

    def _expected(self, rows: int) -> float:
        """Return what follows from other numbers of rows."""
        each = self._costs.of_row
        place = bisect_left(self._rows, rows)
        below = next((r for r in reversed(self._rows[:place]) if self._measured[r].count >= 2.0), 0)
        above = next((r for r in self._rows[place:] if r > rows and self._measured[r].count >= 2.0), 0)
        if below and above:
            low, high = self._measured[below].seconds, self._measured[above].seconds
            return self._speed * (low + (high - low) * (rows - below) / (above - below))
        if below:
            return self._speed * self._measured[below].seconds + each * (rows - below)
        if above:
            return max(
                0.5 * self._speed * self._measured[above].seconds,
                self._speed * self._measured[above].seconds - each * (above - rows),
            )
        return self._costs.seconds(StepLoad(rows, rows, 0, 0, 1), NO_LOAD)


def _grouped(rows: int) -> int:
    """Return the number of rows for which all of a group are taken."""
    return rows if rows <= _EXACT else -(-rows // _GROUP) * _GROUP
