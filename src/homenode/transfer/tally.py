"""What a machine counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from homenode.transfer.figures import BOUNDS_S, TransferFigures, duration_class


@dataclass
class Tally:
    """Names and meanings as in `figures.TransferFigures`. Reasons are words for programs."""

    bytes: int = 0
    pages: int = 0
    in_place_pages: int = 0
    held_pages: int = 0
    completed: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    violations: Counter[str] = field(default_factory=Counter)
    expired: int = 0
    late: int = 0
    early: int = 0
    unknown: int = 0
    forged: int = 0
    duplicates: int = 0
    digest_mismatches: int = 0
    poisoned: int = 0
    quarantined: int = 0
    forgotten: int = 0
    breaker_opens: int = 0
    durations: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    seconds: float = 0.0

    def complete(self, seconds: float, pages: int, held: int, nbytes: int) -> None:
        """A hand-over ended well."""
        self.completed += 1
        self.pages += pages
        self.held_pages += held
        self.bytes += nbytes
        self.durations[duration_class(seconds)] += 1
        self.seconds += seconds

    def figures(self, *, pinned: int, waiting: int, waits: int, peers: int) -> TransferFigures:
        return TransferFigures(
            bytes=self.bytes,
            pages=self.pages,
            in_place_pages=self.in_place_pages,
            held_pages=self.held_pages,
            completed=self.completed,
            pinned_pages=pinned,
            waiting=waiting,
            waits=waits,
            refused=dict(self.refused),
            failed=dict(self.failed),
            expired=self.expired,
            late=self.late,
            duplicates=self.duplicates,
            bad_frames=dict(self.violations),
            early=self.early,
            unknown=self.unknown,
            forged=self.forged,
            poisoned_pages=self.poisoned,
            quarantined=self.quarantined,
            forgotten=self.forgotten,
            breaker_opens=self.breaker_opens,
            digest_mismatches=self.digest_mismatches,
            peers=peers,
            durations=list(self.durations),
            seconds=self.seconds,
        )
