"""Keeps one of several engines: starts it, looks whether its loop answers, and starts it again when it is lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from homenode.engine.assignment import EngineAssignment
from homenode.engine.binding import EngineBinding
from homenode.engine.connection.engine_client import START_TIMEOUT_S, AsyncEngineClient
from homenode.engine.experts.group import wants_shared_experts
from homenode.engine.messages import EngineReady, EngineState, EngineStats, ReplicaStats
from homenode.engine.router.restart_policy import RestartPolicy
from homenode.engine.router.stats import at_rest, since_start
from homenode.errors import CheckpointError, HomenodeError, PeerError
from homenode.model.identity import CommonIdentity
from homenode.transfer.wire.message import Published

_log = logging.getLogger(__name__)
_NO_FIGURES = EngineStats()


class Watcher(Protocol):
    """A listener that hears what becomes of an engine: `client.ReplicasClient`."""

    def engine_up(self, supervisor: EngineSupervisor[Any], ready: EngineReady | None) -> None:
        """Note that it takes requests: started anew (`ready`), or answering again (None)."""

    def engine_silent(self, supervisor: EngineSupervisor[Any]) -> None:
        """Its loop does not answer."""

    def engine_down(self, supervisor: EngineSupervisor[Any]) -> None:
        """Note that it was lost, and its memory with it."""

    def engine_gone(self, supervisor: EngineSupervisor[Any], reason: str) -> None:
        """Note that it was lost and is not started any more."""


Client = TypeVar("Client", bound=AsyncEngineClient)


class EngineSupervisor(Generic[Client]):
    """One engine over all its processes. `client`: the present one. `number`: which of several engines it is, `node`:
    the one its memory is on.
    """

    def __init__(
        self,
        assignment: EngineAssignment,
        watcher: Watcher,
        restart_policy: RestartPolicy,
        make: Callable[[EngineAssignment], Client],
        identity: CommonIdentity | None = None,
    ) -> None:
        """`make` makes the engine's client, for each of its processes. `identity`: that of the model of all engines:
        one that has read another model takes no requests.
        """
        self.number, self.node = (assignment.number, assignment.replica.node if assignment.replica else None)
        self._assignment, self._watcher, self._restart_policy, self._make = assignment, watcher, restart_policy, make
        self._identity = identity or CommonIdentity(str(assignment.config.model.path))
        self.client = self._new_client()
        self.state: EngineState = "loading"
        self.restarts, self.moved = 0, 0
        self._published: Published | None = None  # by the present process
        self._before = _NO_FIGURES  # of the processes that were lost
        self._failures = 0
        self._up_since = 0.0
        self._place: EngineBinding | None = None  # where it was moved to
        self._closing = False
        self._looking: asyncio.Task[None] | None = None
        self._restarting: asyncio.Task[None] | None = None

    @property
    def takes(self) -> bool:
        """Return whether it may be given requests."""
        return self.state == "ready" and self.client.lost is None

    @property
    def up(self) -> bool:
        """Return whether there is an engine, answering or not."""
        return self.state in ("ready", "silent") and self.client.lost is None

    @property
    def hindrance(self) -> str | None:
        """Return why it computes nothing now although it takes requests."""
        return self.client.hindrance

    @property
    def kv_usage(self) -> float:
        """The share of its KV memory in use."""
        return self.client.statistics.kv_usage

    @property
    def stats(self) -> ReplicaStats:
        """Return what is to be known of it."""
        now = since_start(self._before, self.client.statistics if self.up else at_rest(self.client.statistics))
        return ReplicaStats(
            self.number, self.node, self.state, self.restarts, self.moved, now, self._published if self.up else None
        )

    # Life

    async def start(self, progress: Callable[[int, int], None] | None = None) -> EngineReady:
        """Start it for the first time. Raises as `AsyncEngineClient.start`; then it is not tried again, but for an
        engine of those that keep experts in common: where it dies, or one of them has died and another not yet come
        back, the others wait for it.
        """
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                ready = await self.client.start(progress, max(0.0, deadline - time.monotonic()))
                break
            except PeerError as error:
                await self._before_another_try(error, deadline)
        if self.client.lost is not None:
            raise PeerError(f"engine {self.number} was lost as soon as it was ready: {self.client.lost}")
        if (objection := self._objection(ready)) is not None:
            raise CheckpointError(objection)
        self._is_up(ready)
        return ready

    async def _before_another_try(self, error: PeerError, deadline: float) -> None:
        """Wait, and have a new client; raises the error where there is no other try."""
        self._failures += 1
        if (
            not wants_shared_experts(self._assignment)
            or self._failures > self._restart_policy.first_tries
            or time.monotonic() >= deadline
        ):
            raise error
        delay = self._restart_policy.delay(self._failures) or 0.0
        _log.warning("engine %d did not start: %s; it is started again in %g s", self.number, error.message, delay)
        await asyncio.sleep(delay)
        self.client = self._new_client()
        self.restarts += 1

    def move(self, place: EngineBinding) -> None:
        """Have it compute there, now and when it is started again."""
        if (replica := self._assignment.replica) is not None:
            self._assignment = replace(self._assignment, replica=replace(replica, binding=place))
            self._place = place
            if self.up:
                self.client.move(place)

    async def close(self) -> None:
        """End it, whatever it is doing."""
        await self._rest()
        await self.client.close()

    async def drain(self, timeout_s: float) -> None:
        """Let it finish what it has; an engine that is not there is not started again."""
        await self._rest()
        if self.client.lost is None:
            await self.client.drain(timeout_s)

    async def _rest(self) -> None:
        self._closing = True
        tasks = [task for task in (self._looking, self._restarting) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _new_client(self) -> Client:
        client = self._make(self._assignment)
        client.on_engine_lost = lambda reason: self._lost(client, reason)
        return client

    def _is_up(self, ready: EngineReady) -> None:
        self.state, self._up_since = "ready", time.monotonic()
        self._published = _published(ready)
        if self._place is not None:  # it may have begun elsewhere
            self.client.move(self._place)
        self._looking = asyncio.ensure_future(self._look(self.client))
        self._watcher.engine_up(self, ready)

    # Loss

    def _lost(self, client: Client, reason: str) -> None:
        """Of one that never came to be used its starter hears."""
        if self._closing or client is not self.client or self.state not in ("ready", "silent"):
            return
        self.state = "restarting"
        if self._looking is not None:
            self._looking.cancel()
        if time.monotonic() - self._up_since >= self._restart_policy.steady_s:
            self._failures = 0
        self._watcher.engine_down(self)
        self._restarting = asyncio.ensure_future(self._restart(reason))

    async def _restart(self, reason: str) -> None:
        while True:
            self._failures += 1
            delay = self._restart_policy.delay(self._failures)
            if delay is None:
                self._give_up(reason, f"after {self._restart_policy.tries} tries")
                return
            _log.warning("engine %d is gone: %s; it is started again in %g s", self.number, reason, delay)
            await asyncio.sleep(delay)
            self._before = since_start(self._before, self.client.statistics)
            await self.client.close()
            self.client = self._new_client()
            self.restarts += 1
            try:
                ready = await self.client.start()
            except (HomenodeError, OSError) as error:
                reason = str(error)
                continue
            if (objection := self._objection(ready)) is not None:
                await self.client.close()
                self._give_up(objection, "as it would read the same again")
                return
            if self.client.lost is None:
                _log.info("engine %d serves again", self.number)
                self._is_up(ready)
                return
            reason = self.client.lost

    def _objection(self, ready: EngineReady) -> str | None:
        """Return why it may not work beside the other engines."""
        return self._identity.objection(f"engine {self.number}", ready.identity)

    def _give_up(self, reason: str, why: str) -> None:
        self.state = "gone"
        _log.error("engine %d is gone: %s; it is not started again, %s", self.number, reason, why)
        self._watcher.engine_gone(self, reason)

    # Silence

    async def _look(self, client: Client) -> None:
        """Ask the loop again and again; what it has while it is silent stays with it, until it is ended."""
        restart_policy, silent_since = self._restart_policy, 0.0
        while client.lost is None:
            await asyncio.sleep(restart_policy.look_every_s)
            with contextlib.suppress(PeerError):
                await client.heartbeat(restart_policy.silent_after_s)
                if self.state == "silent":
                    self.state = "ready"
                    _log.info("engine %d answers again", self.number)
                    self._watcher.engine_up(self, None)
                continue
            if client.lost is not None:
                return
            now = time.monotonic()
            if self.state == "ready":
                self.state, silent_since = "silent", now
                self._watcher.engine_silent(self)
                _log.warning(
                    "engine %d has not answered for %g s; it gets no requests",
                    self.number,
                    restart_policy.silent_after_s,
                )
            elif now - silent_since >= restart_policy.lost_after_s:
                _log.error("engine %d has been silent for %g s and is ended", self.number, now - silent_since)
                client.kill()
                return


def _published(ready: EngineReady) -> Published | None:
    """Return what the engine said of its part in handing KV over."""
    document = ready.details.get("kv_transfer")
    return None if document is None else msgspec.convert(document, Published)
