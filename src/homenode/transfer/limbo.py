"""The tickets in hand, and how they end when the agent itself has failed: nobody waits for ever, and no block is free
that somebody may write to."""

from __future__ import annotations

from collections.abc import Container
from typing import Literal

from homenode.transfer.seam import (
    Abandoned,
    Claimed,
    Computed,
    Failed,
    Fetch,
    Forgotten,
    Offered,
    Quarantined,
    Released,
    ReservationFailed,
    Reserved,
    Returned,
    SendAdmitted,
    SendRefused,
    SendWanted,
    Stopped,
    ToAgent,
    ToScheduler,
    Unused,
)

State = Literal["wanted", "admitted", "receiving"]


class Tickets:
    """Follows both directions of the seam. A ticket costs a dictionary entry while it is in hand."""

    def __init__(self) -> None:
        self._open: dict[str, State] = {}

    def __len__(self) -> int:
        return len(self._open)

    def told(self, message: ToAgent) -> None:
        """From the scheduler."""
        match message:
            case SendWanted(ticket):
                self._open[ticket] = "wanted"
            case ReservationFailed(ticket) | Claimed(ticket):
                self._open.pop(ticket, None)

    def tells(self, event: ToScheduler) -> None:
        """To the scheduler."""
        match event:
            case SendAdmitted(_, ticket):
                self._open[ticket] = "admitted"
            case Offered(_, ticket):
                self._open[ticket] = "receiving"
            case SendRefused(_, ticket) | Returned(_, ticket) | Forgotten(_, ticket):
                self._open.pop(ticket, None)

    def endings(
        self, now: float, reason: str, *, written_by_others: bool, kept: Container[str] = ()
    ) -> list[ToScheduler]:
        """What ends every ticket in hand. `written_by_others`: processes that are not known to be dead can write to
        blocks (push into shared memory). `kept`: sent ones that others read in place, whose blocks never come back."""
        events: list[ToScheduler] = []
        for ticket, state in self._open.items():
            match state:
                case "wanted":
                    events.append(SendRefused(now, ticket, reason))
                case "admitted" if ticket not in kept:
                    events.append(Returned(now, ticket))
                case "receiving":
                    events.append(Quarantined(now, ticket, 0, reason) if written_by_others else Forgotten(now, ticket))
        self._open.clear()
        return events


def answer_without_agent(message: ToAgent, now: float, reason: str) -> ToScheduler | None:
    """What the scheduler is answered when there is no agent any more; its tickets have all been ended before."""
    match message:
        case SendWanted(ticket):
            return SendRefused(now, ticket, reason)
        case Fetch(ticket) | Stopped(ticket):
            return Failed(now, ticket, reason)
        case Reserved(ticket):
            return Forgotten(now, ticket)
        case Computed() | Abandoned() | ReservationFailed() | Claimed() | Released() | Unused():
            return None
    return None
