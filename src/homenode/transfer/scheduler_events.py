"""Messages and counters between an engine's scheduler and its transfer agent, about KV blocks. Plain values; both ends
are state machines.

A *ticket* names one hand-over: the proxy draws it, the sender (prefill) and the receiver (decode) see the same one. Of
a prompt of n tokens the KV of the first n - 1 positions is handed over; the receiver computes the last one itself, to
draw from its logits.

Positions lie in *pages*: the sender's KV blocks. A page is known by its identity: the keyed hash of all tokens up to
its end (`kv.prefix.HashChain`), for the last, partly filled one of all tokens up to position n - 2. Identities can be
told before anything is computed.

Sender                                              Receiver
  scheduler: SendWanted    (nothing computed yet)     agent: Offered        (what will come; `reserve`: take blocks
                                                                             for it now)
  agent:     SendAdmitted | SendRefused               scheduler: Reserved | ReservationFailed
  scheduler: Computed...   (as chunks are computed)   agent: Arrived...     (verified, in the blocks)
  scheduler: Abandoned     (the request ended early)  scheduler: Fetch      (the request is here; pull-delay: it
                                                                             runs now, fill these blocks)
  agent:     Returned      (the blocks are free)      agent: Failed         (no more will come, and nobody writes
                                                                             any more)
                                                             or Quarantined (push: no more will come, but somebody may
                                                                             still write)
                                                      scheduler: Claimed | Stopped
                                                      agent: Forgotten      (the blocks of a ticket no request came
                                                                             for are free)

Pages that are read in place, where the sender has them: the table of Reserved or Fetch names no block for them (-1),
`Arrived` lists their foreign blocks, and `Unused` follows in the end, once for each ticket with such an `Arrived`,
whatever else becomes of the ticket.

How a ticket ends. Sender: with exactly one of SendRefused (only in the place of SendAdmitted) and Returned; Abandoned
is always answered by one of the two. Receiver: with Claimed, with the Failed that answers Stopped, or with Forgotten.
Claimed follows the last Arrived, Failed or Quarantined, never earlier. Messages about a ticket that has ended cross the
news of its end; they are ignored, but for Fetch and Stopped, which are answered Failed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import msgspec


class KvTicket(msgspec.Struct, frozen=True, omit_defaults=True):
    """The part of a request that says its KV is handed over. `peer`: what the other side publishes (see
    `published.Published`), as JSON. `engine`: of several engines at the receiver, the incarnation of the one that the
    KV goes to; empty: there is but one."""

    ticket: str
    sends: bool  # True at the sender, False at the receiver
    peer: bytes = b""
    engine: str = ""


# From the scheduler to the agent


class SendWanted(msgspec.Struct, frozen=True, tag=True):
    """Sender: a request came whose first `tokens` positions are to be handed over. It is not computed before the agent
    has answered. `compute_s`: what computing them would take, by what steps took of late; 0: nobody knows."""

    ticket: str
    peer: bytes
    tokens: int
    identities: list[bytes]  # of each page
    compute_s: float = 0.0


class Computed(msgspec.Struct, frozen=True, tag=True):
    """Sender: pages first, first + 1, ... of the ticket lie in these KV blocks, complete, and stay there until
    `Returned`.

    Contiguous: `first` is one past the last page told of, at the beginning `held` of SendAdmitted or 0. Once with
    `last`, if need be without blocks.
    """

    ticket: str
    first: int
    blocks: list[int]
    last: bool  # these are the last ones


class Abandoned(msgspec.Struct, frozen=True, tag=True):
    """Sender: the request ended before all its pages were computed. The blocks told of stay until `Returned`."""

    ticket: str
    reason: str


class Reserved(msgspec.Struct, frozen=True, tag=True):
    """Receiver: the answer to `Offered` with `reserve`. Position p belongs into blocks[p // block size]; the first
    `held` pages are there already and must not be written. -1, only with `in_place`: that page is to be read where it
    is."""

    ticket: str
    blocks: list[int]
    held: int  # pages


class ReservationFailed(msgspec.Struct, frozen=True, tag=True):
    """Receiver: the other answer: nothing was taken."""

    ticket: str
    free_blocks: int
    reason: str


class Fetch(msgspec.Struct, frozen=True, tag=True):
    """Receiver: the ticket's request is to run. Without a reservation: fill these blocks, apart from the first `held`
    pages.

    With one: told as soon as the request is here, and no more than that; it ends the time limit of a ticket that no
    request came for.
    """

    ticket: str
    blocks: list[int]
    held: int  # pages


class Claimed(msgspec.Struct, frozen=True, tag=True):
    """Receiver: the request has taken over the first `tokens` positions; the ticket is done with. 0: all was there, or
    over, but nobody wants it any more. Comes without `Fetch` where everything was found in the prefix cache
    meanwhile."""

    ticket: str
    tokens: int


class Unused(msgspec.Struct, frozen=True, tag=True):
    """Receiver: no step names the foreign blocks of this ticket, and none will. Comes once if an `Arrived` listed
    foreign blocks, with the end of the ticket or long after it; and for such an `Arrived` of a ticket that is not known
    any more."""

    ticket: str


class Stopped(msgspec.Struct, frozen=True, tag=True):
    """Receiver: the request ended before its KV had arrived, or the blocks of a reservation without a request are
    needed elsewhere. To be answered with `Failed` when nobody writes to its blocks any more."""

    ticket: str


class Released(msgspec.Struct, frozen=True, tag=True):
    """Either side: whoever drew the ticket has given it up. Ignored for one that is unknown or done with; at the
    receiver, for one whose request is here (that is ended by the request's own end). A ticket that is released before
    it is offered is refused when it comes."""

    ticket: str
    reason: str


# From the agent to the scheduler (events; the loop adds the time)


class SendAdmitted(msgspec.Struct, frozen=True, tag=True):
    """Sender: there is room for the pages; compute. The first `held` pages are at the receiver already and need not be
    told as computed."""

    now: float
    ticket: str
    held: int = 0


class SendRefused(msgspec.Struct, frozen=True, tag=True):
    """Sender: the request is to end with this reason; another sender, or the receiver itself, may compute it."""

    now: float
    ticket: str
    reason: str
    retry_after_s: float | None = None


class Returned(msgspec.Struct, frozen=True, tag=True):
    """Sender: nobody reads the ticket's blocks any more."""

    now: float
    ticket: str


class Offered(msgspec.Struct, frozen=True, tag=True):
    """Receiver: the KV of `tokens` positions will come, in pages of `page_tokens`. With `reserve` blocks are wanted
    now, else at `Fetch`."""

    now: float
    ticket: str
    tokens: int
    page_tokens: int
    identities: list[bytes]
    reserve: bool
    in_place: bool = (
        False  # full pages can be read where they are: they want no blocks. Pages are then as large as blocks
    )


class Arrived(msgspec.Struct, frozen=True, tag=True):
    """Receiver: the first `tokens` positions (counted from the beginning, held ones included) lie verified in the
    ticket's blocks, or in place: of those that were not told of before, pages first, first + 1, ... lie in these
    foreign `blocks`, numbered behind the engine's own, to be read until `Unused`, never to be written."""

    now: float
    ticket: str
    tokens: int
    first: int = 0
    blocks: list[int] = []


class Failed(msgspec.Struct, frozen=True, tag=True):
    """Receiver: no more will come, and nobody writes to the ticket's blocks from here on. What arrived stays good."""

    now: float
    ticket: str
    reason: str


class Quarantined(msgspec.Struct, frozen=True, tag=True):
    """Receiver, push into shared memory: no more will come, but the sender, silent or out of reach, may still write to
    the ticket's blocks from `tokens` (those that arrived) on. They must be neither used nor given away before
    `Forgotten`, which may never come; the request goes on in others."""

    now: float
    ticket: str
    tokens: int
    reason: str


class Forgotten(msgspec.Struct, frozen=True, tag=True):
    """Receiver: the ticket is over and its blocks are free: no request came for it in time, it was called off before
    `Reserved`, or nobody can write any more after `Quarantined`. As `Failed`, nobody writes any more."""

    now: float
    ticket: str


ToAgent = (
    SendWanted | Computed | Abandoned | Reserved | ReservationFailed | Fetch | Claimed | Stopped | Unused | Released
)
ToScheduler = SendAdmitted | SendRefused | Returned | Offered | Arrived | Failed | Quarantined | Forgotten


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
    """Return what a process that is no more had counted."""
    return msgspec.structs.replace(last, **dict.fromkeys(_GAUGES, 0))


def _sum(before: Any, now: Any) -> Any:
    """The sum of numbers, of lists number by number, of dictionaries name by name."""
    if isinstance(now, dict):
        return {
            name: before.get(name, 0) + now.get(name, 0)
            for name in (*now, *(each for each in before if each not in now))
        }
    return [a + b for a, b in zip(before, now, strict=True)] if isinstance(now, list) else before + now


def duration_class(seconds: float) -> int:
    """Return which class of `durations` this one falls into."""
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
