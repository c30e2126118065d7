"""Messages by which fronts before the same engines let each other know of their requests, by way of the coordinator
that started them all.

Frames as in engine/messages.py.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from homenode.engine.messages import ReplicaStats


class Booked(msgspec.Struct, frozen=True, tag=True):
    """Message of a front to all others: `engine` is given request `id`, `work` tokens to compute. `digests`: of the
    blocks of its prompt.
    """

    id: int
    engine: int
    work: int
    digests: list[bytes]


class Began(msgspec.Struct, frozen=True, tag=True):
    """Message of a front to all others: the request had its first output."""

    id: int


class RequestEnded(msgspec.Struct, frozen=True, tag=True):
    """Message of a front to all others: the request is with no engine any more. `digests`: of the blocks that its
    answer added; None when nothing is cached of it, as its engine was lost.
    """

    id: int
    digests: list[bytes] | None = None


class Known(msgspec.Struct, frozen=True, tag=True):
    """Message to a front that has just begun: blocks that `engine` probably has in its cache, those used longest ago
    first.
    """

    engine: int
    digests: list[bytes]


class FrontLeft(msgspec.Struct, frozen=True, tag=True):
    """A front has ended; so have its requests."""

    front: int


class Held(msgspec.Struct, frozen=True, tag=True):
    """Front to coordinator: the request waits for an engine that takes it."""

    id: int


class Unheld(msgspec.Struct, frozen=True, tag=True):
    """Front to coordinator: it does not wait any more."""

    id: int


class TooMany(msgspec.Struct, frozen=True, tag=True):
    """Coordinator to front: the request is not to wait, as `waiting` of all fronts do already."""

    id: int
    waiting: int


class Moved(msgspec.Struct, frozen=True, tag=True):
    """Front to coordinator: a request went on with another engine when this one was lost."""

    engine: int


class TicketGivenUp(msgspec.Struct, frozen=True, tag=True):
    """Message of a front to all others: nobody wants the KV of this ticket, nor the request that came with it."""

    ticket: str


class LinkLost(msgspec.Struct, frozen=True, tag=True):
    """Front to coordinator: the stream to this process of the engine has ended."""

    engine: int
    process: int


class EngineSeen(msgspec.Struct, frozen=True, tag=True):
    """Coordinator to all fronts: what is to be known of an engine now.

    `num_blocks` of the KV memory of its present process, 0 when there is none. `hindrance`: why it computes nothing
    although it takes requests.
    """

    stats: ReplicaStats
    num_blocks: int
    hindrance: str | None = None


class EnginesGone(msgspec.Struct, frozen=True, tag=True):
    """Coordinator to all fronts: no engine is left, nor will be."""

    reason: str


class FrontHello(msgspec.Struct, frozen=True):
    """Comes to an engine with a socket: the front at the other end."""

    front: int


class Way(msgspec.Struct, frozen=True):
    """Comes to a front with a socket: the engine at the other end. `process`: which of its processes, by the restarts
    before it.
    """

    engine: int
    process: int


class AbortFront(NamedTuple):
    """Message in the inbox of an engine's loop: nobody waits any longer for the requests of this front."""

    front: int


OfOthers = Booked | Began | RequestEnded | Known | FrontLeft
ToLinked = OfOthers | TooMany | EngineSeen | EnginesGone | TicketGivenUp
FromLinked = Booked | Began | RequestEnded | Held | Unheld | Moved | LinkLost | TicketGivenUp
