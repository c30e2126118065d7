"""What readers and newcomers saw of a server that computed somebody's long prompt: figures, and their table. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Beside:
    """One round. Seconds: `gaps` between tokens of the readers while the long prompt was computed, `reader_alone` their
    median gap before; first tokens of the `short` prompts, of one before all others (`short_alone`), and of the long
    one.
    """

    gaps: tuple[float, ...]
    reader_alone: float
    short: tuple[float, ...]
    short_alone: float
    long: float

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


@dataclass(frozen=True)
class Figures:
    """Of all rounds of a server: the longest of everybody's waits; medians of the rest. Seconds."""

    silence: float
    nine_of_ten: float
    reader_alone: float
    short: float
    short_alone: float
    long: float


def gaps_within(moments: Sequence[float], begin: float, end: float) -> list[float]:
    """Gaps between successive tokens of a reader, of which any part lies between the two times."""
    return [b - a for a, b in pairwise(moments) if b > begin and a < end]


def figures_of(rounds: Sequence[Beside]) -> Figures:
    """ValueError where some round has no gap, or no short prompt was answered."""
    if not rounds or any(not each.gaps or not each.short for each in rounds):
        raise ValueError("a round without a reader's gap or a short prompt")
    gaps = sorted(gap for each in rounds for gap in each.gaps)
    return Figures(
        silence=gaps[-1],
        nine_of_ten=gaps[int(len(gaps) * 0.9)],
        reader_alone=median(each.reader_alone for each in rounds),
        short=median(seconds for each in rounds for seconds in each.short),
        short_alone=median(each.short_alone for each in rounds),
        long=median(each.long for each in rounds),
    )


def table(figures: dict[str, Figures]) -> str:
    """A line for each server, the first of which the others are compared with."""
    lines = [
        "| | longest silence of a reader | nine of ten gaps within | alone | first token of a short prompt | alone | "
        "first token of the long prompt |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, own in figures.items():
        waits = (own.silence, own.nine_of_ten, own.reader_alone, own.short, own.short_alone, own.long)
        lines.append(f"| {name} | {' | '.join(f'{seconds:.2f} s' for seconds in waits)} |")
    return "\n".join([*lines, "", *_compared(figures)])


def _compared(figures: dict[str, Figures]) -> Iterable[str]:
    names = list(figures)
    for other in names[1:]:
        first, own = figures[names[0]], figures[other]
        yield (
            f"{names[0]}, of what {other} takes: silence 1/{own.silence / first.silence:.1f}, short prompt "
            f"1/{own.short / first.short:.1f}, long prompt {first.long / own.long:.2f}"
        )
