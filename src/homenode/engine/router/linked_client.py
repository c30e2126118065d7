"""Engines that another process started, as one: what a front is to its server when it is one of several.

Requests are routed and taken over as by `router.client.ReplicasClient`, over streams that the coordinator hands in.
Everything here runs on one event loop.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass, replace

from homenode.engine.connection.link import EngineLink
from homenode.engine.fronts.messages import (
    Began,
    Booked,
    EngineSeen,
    EnginesGone,
    FromLinked,
    Held,
    LinkLost,
    Moved,
    RequestEnded,
    TicketGivenUp,
    ToLinked,
    TooMany,
    Unheld,
    Way,
)
from homenode.engine.fronts.numbers import first_number
from homenode.engine.messages import EngineReady, EngineState, EngineStats, ReplicaStats
from homenode.engine.router.dispatch import Dispatcher, DispatchSettings
from homenode.engine.router.prefixes import cacheable
from homenode.engine.router.remote_load import RemoteLoad
from homenode.engine.router.restart_policy import RestartPolicy
from homenode.engine.router.routed_stream import RoutedStream
from homenode.engine.router.router import Router
from homenode.engine.router.stats import total


@dataclass(frozen=True)
class LinkedSettings:
    """Facts that a front is told of the engines. `engines`: how many. `key`: of the hashes of prompts, which all fronts
    have in common.

    `favourite`: as of the router.
    """

    ready: EngineReady
    engines: int
    dispatch: DispatchSettings
    restart_policy: RestartPolicy
    key: bytes
    favourite: int = 0

    def router(self) -> Router:
        """Empty books of these engines."""
        return Router(self.dispatch.block_size, self.dispatch.prefix_caching, self.key, self.favourite)


def favourite_of(slot: int, fronts: int, engines: int) -> int:
    """The engine that the front in this slot favours: all fronts together favour as many as they can, evenly."""
    return slot * engines // fronts if fronts <= engines else slot % engines


class _Link(EngineLink):
    """The stream to one process of an engine."""

    def __init__(self, front: int, way: Way, on_lost: Callable[[_Link], None]) -> None:
        super().__init__(first_number(front))
        self.way, self._on_lost = way, on_lost

    def _lose(self, reason: str) -> None:
        if self._lost is None:
            super()._lose(reason)
            self._on_lost(self)


class _NotYet(EngineLink):
    """Before there is a stream."""

    def __init__(self) -> None:
        super().__init__()
        self._lost = "it is not connected yet"


class LinkedEngine:
    """An engine as a front sees it: a stream to one of its processes, and what the coordinator says of its present one,
    which may be another.

    Processes are counted by the restarts before them.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.stats = ReplicaStats(number, None, "loading", 0, 0, EngineStats())
        self.hindrance: str | None = None
        self.client: EngineLink = _NotYet()
        # The process that `client` leads to, and the one that the router's books are of.
        self.connected_process = self.booked = -1

    @property
    def state(self) -> EngineState:
        """Return the state as the coordinator last said."""
        return self.stats.state

    @property
    def takes(self) -> bool:
        """Return whether it may be given requests."""
        return self.state == "ready" and self.in_touch

    @property
    def up(self) -> bool:
        """Return whether there is an engine, answering or not."""
        return self.state in ("ready", "silent") and self.in_touch

    @property
    def in_touch(self) -> bool:
        """Return whether the stream leads to the process that there is, and the books are of it."""
        return self.client.lost is None and self.connected_process == self.booked == self.stats.restarts

    @property
    def kv_usage(self) -> float:
        """The share of its KV memory in use."""
        return self.stats.statistics.kv_usage


class LinkedClient(Dispatcher):
    """All engines, for the requests of this front. `on_engine_lost` is called with the reason when no engine is left
    nor will be.
    """

    def __init__(self, front: int, settings: LinkedSettings, notify: Callable[[FromLinked], None]) -> None:
        """`front`: the number of this process. `notify`: takes what the coordinator, or other fronts, are to know."""
        dispatch, router = settings.dispatch, settings.router()
        if dispatch.seed is not None:  # fronts that draw alike would give equal prompts equal answers
            dispatch = replace(dispatch, seed=f"{dispatch.seed}/{front}")
        super().__init__(dispatch, settings.restart_policy, router)
        self.on_engine_lost: Callable[[str], None] | None = None
        self.ready = settings.ready
        self._front, self._notify = front, notify
        self._remote_load = RemoteLoad(router)
        self._linked = [LinkedEngine(number) for number in range(settings.engines)]
        self._engines = self._linked
        self._waiting: set[int] = set()  # requests of which the coordinator knows that they wait

    # Use

    @property
    def statistics(self) -> EngineStats:
        """Return the figures of all engines together."""
        return (
            total([stats.statistics for stats in super().engines])
            if len(self._linked) > 1
            else self._linked[0].stats.statistics
        )

    @property
    def engines(self) -> tuple[ReplicaStats, ...]:
        """Return the figures of each of several engines; empty where there is one."""
        return super().engines if len(self._linked) > 1 else ()

    # What the coordinator says

    async def connect(self, way: Way, connected: socket.socket) -> None:
        """A stream to an engine, perhaps in place of another one."""
        engine, link = self._linked[way.engine], _Link(self._front, way, self._link_lost)
        await link.attach(connected)
        if way.process < engine.connected_process:  # streams may be ready in another order than they came
            link.abandon("there is a newer process of it")
            return
        engine.client.abandon("there is another stream to it")
        engine.client, engine.connected_process = link, way.process
        self._let_go(engine)

    def _let_go(self, engine: LinkedEngine) -> None:
        """Let go those that wait for an engine, if this one takes any."""
        if self._unrouted and engine.takes:
            self._send_held()

    async def release_kv(self, ticket: str, reason: str) -> None:
        """Release the KV as every client does; the request that came with the ticket may be another front's."""
        self._notify(TicketGivenUp(ticket))
        await super().release_kv(ticket, reason)

    def take(self, message: ToLinked) -> None:
        """The coordinator said this."""
        match message:
            case EngineSeen():
                self._see(message)
            case TicketGivenUp(ticket):
                self._end_ticket(ticket)
            case TooMany(request, waiting):
                self._waiting.discard(request)
                if (stream := self._unrouted.get(request)) is not None:
                    self._refuse(stream, waiting)
            case EnginesGone(reason):
                self._end(reason)
                if self.on_engine_lost is not None:
                    self.on_engine_lost(reason)
            case _:
                self._remote_load.take(message)

    def _see(self, message: EngineSeen) -> None:
        engine, process = self._linked[message.stats.number], message.stats.restarts
        engine.stats, engine.hindrance = message.stats, message.hindrance
        if message.num_blocks and engine.booked != process:  # what follows of others' requests is about this process
            if engine.connected_process < process:
                engine.client.abandon("the engine was started again")
            self._remote_load.add(engine.number, message.num_blocks)
            engine.booked = process
        self._let_go(engine)

    def _link_lost(self, link: _Link) -> None:
        self._remote_load.drop(link.way.engine)
        self._notify(LinkLost(link.way.engine, link.way.process))

    # What the coordinator is told

    def booked(self, stream: RoutedStream) -> None:
        """An engine is about to get it."""
        self._waits_no_more(stream.request.id)
        routed = stream.routed
        assert routed.route is not None  # booked
        self._notify(
            Booked(stream.request.id, routed.route.number, routed.route.work, self._digests(stream, routed.tokens))
        )

    def began(self, stream: RoutedStream) -> None:
        """Its first output came."""
        super().began(stream)
        self._notify(Began(stream.request.id))

    def ended(self, stream: RoutedStream) -> None:
        """Its last output came, or nobody waits for it."""
        self._waits_no_more(stream.request.id)
        had_engine, known = stream.routed.route is not None, len(self._digests(stream, stream.routed.tokens))
        super().ended(stream)
        if had_engine:
            self._notify(RequestEnded(stream.request.id, self._digests(stream, stream.tokens)[known:]))

    def taken_back(self, stream: RoutedStream) -> None:
        """Its engine was lost."""
        super().taken_back(stream)
        self._notify(RequestEnded(stream.request.id))

    def moving_from(self, engine: int) -> None:
        """Another one goes on with a request of this engine."""
        self._notify(Moved(engine))

    def _hold(self, stream: RoutedStream) -> None:
        super()._hold(stream)
        if stream.request.id in self._unrouted and stream.request.id not in self._waiting:
            self._waiting.add(stream.request.id)
            self._notify(Held(stream.request.id))

    def _waits_no_more(self, request: int) -> None:
        if request in self._waiting:
            self._waiting.discard(request)
            self._notify(Unheld(request))

    def _digests(self, stream: RoutedStream, tokens: list[int]) -> list[bytes]:
        return (
            cacheable(stream.routed.chain, tokens, self._settings.block_size) if self._settings.prefix_caching else []
        )

    def _fail(self, stream: RoutedStream, reason: str) -> None:
        if len(self._linked) > 1:
            super()._fail(stream, reason)
        else:
            stream.fail("PeerError", f"the engine is gone: {reason}")
