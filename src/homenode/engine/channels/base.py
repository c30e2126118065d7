"""Channels between the workers of one engine, whatever carries them: what a worker is handed, and what the engine
makes and ends.

An engine makes the channels of all its workers anew for each generation; after the loss of a worker, or a step that
failed, nothing of an earlier one is of use. A worker opens its own from what came with `Join` or `Forget`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from homenode.compute.ops import FloatArray
from homenode.compute.ranks import RankGroup
from homenode.engine.channels.messages import Channel


class Inlet(Protocol):
    """Rows of the stage before, step after step."""

    def take(self, number: int, rows: int, columns: int) -> FloatArray:
        """The [rows, columns] of step `number`, the next one, to be read until `free`. PeerError when they do not come
        in time, when others come, or after `leave`.
        """

    def free(self) -> None:
        """Give back what was taken last, which is not read any more."""


class Outlet(Protocol):
    """Rows for the stage after."""

    def put(self, number: int, rows: Any) -> None:
        """Hand step `number`'s [rows, hidden] on, what a program's run gave; they may change afterwards. PeerError when
        there is no room for them in time, or after `leave`.
        """


@dataclass
class WorkerChannels:
    """A worker's channels; None for what it has not: the first stage no inlet, the last no outlet (nor has any rank but
    the first), one rank no group.
    """

    inlet: Inlet | None = None
    outlet: Outlet | None = None
    group: RankGroup | None = None
    leave: Callable[[], None] = lambda: None  # ends all waiting in them, now and later; for any thread
    close: Callable[[], None] = lambda: None  # gives them back; nobody may use them any more


class Channels(Protocol):
    """The channels of one generation, in the engine."""

    def of(self, worker: int) -> tuple[list[Channel], list[int]]:
        """Return what worker number `worker` is told, and the descriptors for it, which stay ours."""

    def leave(self) -> None:
        """Everybody who waits in any of them, now or later, gets PeerError. Calling it again does nothing."""

    def close(self) -> None:
        """Give back what this process holds; `leave` comes first."""


MakeChannels = Callable[[int], Channels]  # for a generation
OpenChannels = Callable[[Sequence[Channel], Sequence[int]], WorkerChannels]  # takes the descriptors over


class NoChannels:
    """`Channels` of a worker that is alone."""

    def of(self, worker: int) -> tuple[list[Channel], list[int]]:
        """See `Channels.of`."""
        return [], []

    def leave(self) -> None:
        """See `Channels.leave`."""

    def close(self) -> None:
        """See `Channels.close`."""
