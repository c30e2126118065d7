"""Requests of one event loop, divided among several engines and taken over from those that are lost.

No task stands between an engine and who waits for its outputs: an engine's link puts them straight into the request's
`RoutedStream`.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from homenode.engine.connection.link import EngineLink
from homenode.engine.messages import EngineState, Output, ReplicaStats, RequestList
from homenode.engine.request import Request
from homenode.engine.router.restart_policy import RestartPolicy
from homenode.engine.router.routed_stream import RoutedStream
from homenode.engine.router.router import Router
from homenode.errors import CapacityError, InternalError, PeerError
from homenode.sampling import is_open_seed
from homenode.units import format_count


class RoutedEngine(Protocol):
    """One of several engines, as who divides requests among them sees it. `client`: the way to its present process."""

    @property
    def number(self) -> int: ...

    @property
    def state(self) -> EngineState: ...

    @property
    def client(self) -> EngineLink: ...

    @property
    def takes(self) -> bool:
        """Return whether it may be given requests."""

    @property
    def up(self) -> bool:
        """Return whether there is an engine, answering or not."""

    @property
    def hindrance(self) -> str | None:
        """Return why it computes nothing now although it takes requests."""

    @property
    def kv_usage(self) -> float:
        """The share of its KV memory in use."""

    @property
    def stats(self) -> ReplicaStats:
        """Return what is to be known of it."""


@dataclass(frozen=True)
class DispatchSettings:
    """Settings of the engines, as far as it matters to who gives them requests. `seed`: of the seeds of requests that
    bring none, None: at random.
    """

    block_size: int
    prefix_caching: bool
    max_num_queued_requests: int
    seed: int | str | None = None


class Dispatcher:
    """Gives every request to an engine, and to another one when that is lost.

    A request whose engine is lost goes on after the tokens it had; when it cannot its last output has the error kind
    `WorkerLostError`.
    """

    def __init__(self, settings: DispatchSettings, restart_policy: RestartPolicy, router: Router) -> None:
        self._settings, self._restart_policy, self._router = settings, restart_policy, router
        self._engines: Sequence[RoutedEngine] = ()
        self._seeds = random.Random(secrets.randbits(128) if is_open_seed(settings.seed) else settings.seed)
        self._streams: dict[int, RoutedStream] = {}
        self._unrouted: dict[int, RoutedStream] = {}  # those of them that wait for an engine, oldest first
        self._ending: str | None = None  # why nothing is given to an engine any more
        self._draining = False

    # Use

    @property
    def engines(self) -> tuple[ReplicaStats, ...]:
        """Return the figures of each engine."""
        return tuple(engine.stats for engine in self._engines)

    @property
    def hindrance(self) -> str | None:
        """Return why none of the engines that run computes anything now; None as long as one does, or none runs."""
        reasons = [engine.hindrance for engine in self._engines if engine.up]
        return None if None in reasons else next(iter(reasons), None)

    def submit(self, request: Request) -> RoutedStream:
        """Start `request` with the engine that will have the least to do. Closing the stream early aborts it."""
        if request.id in self._streams:
            raise InternalError(f"request id {request.id} is in use", id=request.id)
        if request.params.leaves_seed_open:  # known here, so that another engine can draw what this one would have
            params = msgspec.structs.replace(request.params, seed=self._seeds.getrandbits(63))
            request = msgspec.structs.replace(request, params=params)
        routed = self._router.new_request(request.prompt_ids, request.kv_scope, request.rows)
        stream = RoutedStream(self, request, routed)
        self._streams[request.id] = stream
        if self._ending is None:
            self._send(stream)
        elif self._draining:
            stream.fail("OverloadedError", f"{self._ending} and takes no new requests", retry_after_s=1.0)
        else:
            self._fail(stream, self._ending)
        return stream

    def abort(self, id: int, reason: str = "abort") -> None:
        """End request `id` with `reason` as its finish reason, in its last output; an unknown or finished one is
        ignored.
        """
        if (stream := self._unrouted.get(id)) is not None:
            stream.put(Output(id, finish_reason=reason))
        elif (stream := self._streams.get(id)) is not None and (engine := self._engine_of(stream)) is not None:
            engine.client.abort(id, reason)

    async def release_kv(self, ticket: str, reason: str) -> None:
        """Give up the hand-over of KV under `ticket`, whichever engine has it, and the request that came with it."""
        self._end_ticket(ticket)
        for engine in self._engines:
            if engine.up:
                await engine.client.release_kv(ticket, reason)

    async def reset_prefix_cache(self) -> None:
        """Have all engines forget what their prefix caches hold."""
        for engine in self._engines:
            if engine.up:
                await engine.client.reset_prefix_cache()
            if self._router.has(engine.number):
                self._router.forget(engine.number)

    def _end_ticket(self, ticket: str) -> None:
        """End the request that came with this ticket, if it is one of these."""
        for stream in [
            each for each in self._streams.values() if each.request.kv is not None and each.request.kv.ticket == ticket
        ]:
            self.abort(stream.request.id)

    def abort_unheard(self, request_id: int) -> None:
        """Abort a request nobody listens to any more."""
        if (stream := self._streams.get(request_id)) is not None:
            engine = self._engine_of(stream)
            self.ended(stream)
            if engine is not None:
                engine.client.abort_unheard(request_id)

    async def heartbeat(self, timeout: float) -> float:
        """Seconds the fastest loop took to answer: nobody waits for a slow one. PeerError when none answers within
        `timeout` seconds.
        """
        asked = [asyncio.ensure_future(engine.client.heartbeat(timeout)) for engine in self._engines if engine.up]
        try:
            for answer in asyncio.as_completed(asked):
                try:
                    return await answer
                except PeerError:
                    continue
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        states = ", ".join(f"engine {each.number} is {each.state}" for each in self._engines)
        raise PeerError(f"no engine answered within {timeout:g} s: {states}")

    async def list_requests(self, most: int, timeout: float) -> RequestList:
        """The requests of all engines, those first that run; of engines that do not answer within `timeout` seconds
        nothing.
        """
        asked = [engine.client.list_requests(most, timeout) for engine in self._engines if engine.up]
        lists = [each for each in await asyncio.gather(*asked, return_exceptions=True) if isinstance(each, RequestList)]
        rows = [row for each in lists for row in each.rows]
        running, waiting = ([row for row in rows if (row.waits_for is None) == runs][:most] for runs in (True, False))
        left_out = sum(each.left_out + len(each.rows) for each in lists) - len(running) - len(waiting)
        return RequestList(0, [*running, *waiting], left_out)

    # Routing

    def _send(self, stream: RoutedStream) -> None:
        """Give it to an engine, or hold it until one takes requests."""
        takers = [engine for engine in self._engines if engine.takes]
        computing = [engine for engine in takers if engine.hindrance is None]
        at_home = [engine for engine in takers if _holds_kv_of(engine, stream.request)]
        able = {engine.number: engine.kv_usage for engine in at_home or computing or takers}
        if (route := self._router.route(stream.routed, able)) is None:
            return self._hold(stream)
        self.booked(stream)
        try:
            self._engines[route.number].client.submit(stream.rest, stream)
        except CapacityError as error:
            stream.fail("CapacityError", error.message)

    def _hold(self, stream: RoutedStream) -> None:
        limit = self._settings.max_num_queued_requests
        if all(engine.state == "gone" for engine in self._engines):
            self._fail(stream, "no engine is left")
        elif 0 < limit <= len(self._unrouted):
            self._refuse(stream, len(self._unrouted))
        else:
            self._unrouted[stream.request.id] = stream

    def _send_held(self) -> None:
        """An engine takes requests: first those that wait for one."""
        held, self._unrouted = self._unrouted, {}
        for stream in held.values():
            self._send(stream)

    def _engine_of(self, stream: RoutedStream) -> RoutedEngine | None:
        return None if stream.routed.route is None else self._engines[stream.routed.route.number]

    def _refuse(self, stream: RoutedStream, waiting: int) -> None:
        text = (
            f"{format_count(waiting, 'request waits', 'requests wait')} for an engine that takes them; try again later"
        )
        stream.fail("OverloadedError", text, retry_after_s=self._restart_policy.silent_after_s)

    def _fail(self, stream: RoutedStream, reason: str) -> None:
        stream.fail("WorkerLostError", f"this request cannot be finished: {reason}")

    def _end(self, reason: str) -> None:
        """No engine is left, nor will be: whoever waits for one hears it."""
        self._ending = reason
        for stream in tuple(self._unrouted.values()):
            self._fail(stream, reason)

    # What becomes of requests

    def booked(self, stream: RoutedStream) -> None:
        """An engine is about to get it; `Router.route` said which."""

    def began(self, stream: RoutedStream) -> None:
        """Its first output came."""
        self._router.began(stream.routed)

    def ended(self, stream: RoutedStream) -> None:
        """Its last output came, or nobody waits for it."""
        self._streams.pop(stream.request.id, None)
        self._unrouted.pop(stream.request.id, None)
        self._router.ended(stream.routed, stream.tokens if stream.given else None)

    def taken_back(self, stream: RoutedStream) -> None:
        """Its engine was lost."""
        self._router.ended(stream.routed)

    def moving_from(self, engine: int) -> None:
        """Another one goes on with a request of this engine."""

    def engine_lost_under(self, stream: RoutedStream, reason: str) -> None:
        """Let another engine go on with it, unless engines keep dying of it."""
        engine = self._engine_of(stream)
        self.taken_back(stream)
        stream.routed.tokens = stream.tokens  # all of them are to be computed again
        stream.losses += 1
        if self._ending is not None:
            self._fail(stream, self._ending)
        elif stream.losses >= self._restart_policy.losses:
            self._fail(
                stream,
                f"{format_count(stream.losses, 'engine was', 'engines were')} lost under it, the last because {reason}",
            )
        else:
            if engine is not None:
                self.moving_from(engine.number)
            self._send(stream)


def _holds_kv_of(engine: RoutedEngine, request: Request) -> bool:
    """The KV of this request was handed over to that process of the engine."""
    if request.kv is None or not request.kv.engine:
        return False
    published = engine.stats.published
    return published is not None and published.incarnation == request.kv.engine
