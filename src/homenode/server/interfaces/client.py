"""The interface that the server needs of the engine. `homenode.engine.connection.engine_client.AsyncEngineClient` and
`homenode.engine.router.client.ReplicasClient` fulfil it; tests use a scripted one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Protocol

from homenode.engine.messages import EngineReady, EngineStats, Output, ReplicaStats, RequestList
from homenode.engine.request import Request


class RequestOutputs(Protocol):
    """The outputs of one request; the last one carries a finish reason."""

    def __aiter__(self) -> AsyncIterator[Output]: ...

    async def aclose(self) -> None:
        """Abort the request unless it has ended."""


class EngineClient(Protocol):
    """The front's end of the connection to an engine process, or to several of them
    (`homenode.engine.router.client.ReplicasClient`).

    When the engine is lost every pending request gets an Output with a finish reason of `error` and the error kind
    `PeerError`, and `on_engine_lost` is called once with the reason; of several engines, when the last of them is lost
    for good.
    """

    on_engine_lost: Callable[[str], None] | None

    @property
    def ready(self) -> EngineReady:
        """Return what the engine loaded and what fits."""

    @property
    def statistics(self) -> EngineStats:
        """The latest figures the engine sent."""

    @property
    def engines(self) -> tuple[ReplicaStats, ...]:
        """The statistics of each of several engines; empty where there is one."""

    @property
    def hindrance(self) -> str | None:
        """Return why nothing is computed now although requests are taken, such as a worker that is being replaced;
        None: nothing hinders.
        """

    def submit(self, request: Request) -> RequestOutputs:
        """Start `request`. Closing the stream early aborts it. Raises CapacityError when it is too large to be sent."""

    def abort(self, id: int, reason: str = "abort") -> None:
        """Forget request `id`; an unknown or finished one is ignored."""

    async def release_kv(self, ticket: str, reason: str) -> None:
        """Give up the hand-over of KV under `ticket`; unknown and finished ones are ignored."""

    async def reset_prefix_cache(self) -> None:
        """Forget all that the prefix cache holds in KV memory, of all engines."""

    async def list_requests(self, most: int, timeout: float) -> RequestList:
        """The requests that the engines have, at most `most` that run and as many that wait. Raises PeerError when
        nobody answers within `timeout` seconds.
        """

    async def heartbeat(self, timeout: float) -> float:
        """Seconds the engine loop took to answer. Raises PeerError when it is gone or silent for `timeout` seconds."""
