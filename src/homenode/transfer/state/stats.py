"""Counters of one engine's part in handing KV over, as the machines keep them and /metrics shows them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import msgspec

# Upper bounds of the histogram of durations, in seconds; the last class is what took longer.
BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class TransferStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counters since the start, but for the gauges `pinned_pages` and `waiting`, which are of now.

    Reasons are words for programs, few in number: they become label values.
    """

    bytes: int = 0  # of KV handed over, copied or not: at the sender what was taken, at the receiver what arrived
    pages: int = 0
    in_place_pages: int = 0  # of these, read where the sender has them, without a copy
    held_pages: int = 0  # not handed over, as the receiver had them
    completed: int = 0  # hand-overs that ended well
    pinned_pages: int = (
        0  # gauge: pages kept for the other side (sender), or for a ticket that nobody took over yet (receiver)
    )
    waiting: int = 0  # gauge: hand-overs that wait for room (sender), tickets whose KV is not complete (receiver)
    waits: int = 0  # hand-overs that had to wait for room
    refused: dict[str, int] = {}  # hand-overs that were not begun, by reason
    failed: dict[str, int] = {}  # hand-overs that were begun and ended badly, by reason
    expired: int = 0  # leases that ran out
    late: int = 0  # done signals after that
    duplicates: int = 0  # signals that said nothing new
    bad_frames: dict[str, int] = {}  # dropped, by what was wrong with them
    early: int = 0  # done signals that came before all pages were announced
    unknown: int = 0  # done signals about hand-overs that were never heard of, or long ago
    forged: int = 0  # frames about somebody else's hand-over
    poisoned_pages: int = 0  # given up after they had been wrong twice
    quarantined: int = 0  # hand-overs whose blocks a sender that does not answer may still write
    forgotten: int = 0  # tickets that no request came for
    breaker_opens: int = 0  # times nothing was offered to a receiver for a while
    digest_mismatches: int = 0  # pages that were not what had been promised
    peers: int = 0  # gauge: connected processes
    # Hand-overs that ended well, by the class of their duration.
    durations: list[int] = msgspec.field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    seconds: float = 0.0  # of all these


_GAUGES = ("pinned_pages", "waiting", "peers")


def over_restart(before: TransferStats | None, now: TransferStats | None) -> TransferStats | None:
    """Counters of a process that was lost and of its successor; gauges are of now."""
    if before is None or now is None:
        return now or (None if before is None else at_rest(before))
    was, fields = before, msgspec.structs.asdict(now)
    return TransferStats(
        **{name: value if name in _GAUGES else _sum(getattr(was, name), value) for name, value in fields.items()}
    )


def at_rest(last: TransferStats) -> TransferStats:
    """Of a process that is no more: what it had counted."""
    return msgspec.structs.replace(last, **dict.fromkeys(_GAUGES, 0))


def _sum(before: Any, now: Any) -> Any:
    """Of numbers, of lists number by number, of dictionaries name by name."""
    if isinstance(now, dict):
        return {
            name: before.get(name, 0) + now.get(name, 0)
            for name in (*now, *(each for each in before if each not in now))
        }
    return [a + b for a, b in zip(before, now, strict=True)] if isinstance(now, list) else before + now


@dataclass(frozen=True)
class AgentStats:
    """What the agent itself counts; the machine's figures are `TransferStats`."""

    connections: int
    frames_in: int
    frames_out: int
    bytes_copied: int
    bytes_digested: int  # read for their digests alone
    copy_seconds: float
    refused: dict[str, int]  # connections and frames, by code
    failures: int  # of our own
    broken: str  # why the agent has ended, if it has


def duration_class(seconds: float) -> int:
    """Which class of `durations` this one falls into."""
    return next((i for i, bound in enumerate(BOUNDS_S) if seconds <= bound), len(BOUNDS_S))


@dataclass
class StatsCounter:
    """Names and meanings as in `stats.TransferStats`. Reasons are words for programs."""

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

    def figures(self, *, pinned: int, waiting: int, waits: int, peers: int) -> TransferStats:
        return TransferStats(
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
