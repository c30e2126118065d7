"""The seam between the engine's loop and the agent that hands KV over to other engines, or takes it from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from homenode.engine.messages import Output
from homenode.engine.request import Request
from homenode.transfer.scheduler_events import ToAgent, TransferStats


class Agent(Protocol):
    """Works on threads of its own. Its `scheduler_events.ToScheduler` events come through the loop's inbox, or
    `AgentLost`, once, when it cannot go on.
    """

    def tell(self, message: ToAgent) -> None:
        """Give it a message from the scheduler; returns at once."""

    def promise(self, tickets: Sequence[str]) -> None:
        """Pages of these will be told of in a moment, probably. From any thread; returns at once."""

    def figures(self) -> TransferStats:
        """Counters and gauges of now; called from the loop's thread."""


class AgentLost(msgspec.Struct, frozen=True):
    """The agent has failed. KV that it was to bring, or to say of when it is free, is waited for in vain: the engine
    ends.
    """

    reason: str


class StatsChanged(msgspec.Struct, frozen=True):
    """The agent's figures are others than those of a moment ago, though nothing else has happened: they are
    to be told.
    """


def without_agent(request: Request) -> Output | None:
    """Return what a request is answered with that has KV to be handed over, by an engine that hands none over; None for
    all other requests.
    """
    if request.kv is None:
        return None
    text = (
        f"ticket {request.kv.ticket}: this engine hands no KV over; start it with --pd-role sender or receiver, or "
        "leave the ticket out"
    )
    return Output(request.id, finish_reason="error", error=text, error_kind="UserError")
