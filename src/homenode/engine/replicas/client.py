"""Several engines as one: the same interface as `AsyncEngineClient`, requests routed among them and taken over from those that are lost.

Everything here runs on one event loop. No task stands between an engine and who waits for its outputs: an engine's client puts them straight
into the request's `Journey`.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Callable, Sequence
from types import TracebackType

import msgspec

from homenode.engine.config import EngineConfig
from homenode.engine.messages import EngineFigures, Output, Ready, Statistics
from homenode.engine.replicas.figures import all_ready, total
from homenode.engine.replicas.journey import Journey
from homenode.engine.replicas.keeper import Keeper
from homenode.engine.replicas.patience import Patience
from homenode.engine.replicas.progress import Progress
from homenode.engine.replicas.router import Router
from homenode.engine.request import Request
from homenode.errors import CapacityError, InternalError, PeerError

_PROGRAM = "homenode.engine.process"


class ReplicasClient:
    """Engines in child processes, one for each config. `start` before anything else; `close`, or drain, in the end.

    A request whose engine is lost goes on with another one, after the tokens it had; when it cannot its last output has the error kind
    `WorkerLostError`. A lost engine is started again; once that has been given up for all of them, `on_engine_lost` is called with the reason.
    """

    def __init__(
        self,
        configs: Sequence[EngineConfig],
        on_engine_lost: Callable[[str], None] | None = None,
        *,
        patience: Patience | None = None,
        program: str = _PROGRAM,
    ) -> None:
        """`configs`: as `configs.replica_configs` makes them; `program`: as in `AsyncEngineClient`."""
        self.on_engine_lost = on_engine_lost
        self._patience = patience or Patience()
        self._keepers = [Keeper(config, self, self._patience, program) for config in configs]
        self._config = configs[0]
        self._router = Router(self._config.kv.block_size, self._config.kv.enable_prefix_caching)
        seed = self._config.model.seed
        self._seeds = random.Random(secrets.randbits(128) if seed is None else seed)
        self._journeys: dict[int, Journey] = {}
        self._held: dict[int, Journey] = {}  # those of them that wait for an engine, oldest first
        self._ready: Ready | None = None
        self._ending: str | None = None  # why nothing is given to an engine any more
        self._draining = False

    async def __aenter__(self) -> ReplicasClient:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    # Life

    async def start(self, progress: Callable[[int, int], None] | None = None) -> Ready:
        """Start all of them at once and wait until each is ready. `progress` is told (bytes done, bytes in all) of all together.

        Raises what the first one of them that fails could not start for; the others are ended then.
        """
        told = Progress(len(self._keepers), progress)
        starts = [asyncio.ensure_future(keeper.start(told.of(keeper.number))) for keeper in self._keepers]
        try:
            parts = await asyncio.gather(*starts)
        except BaseException:
            for start in starts:
                start.cancel()
            await asyncio.gather(*starts, return_exceptions=True)
            await self.close()
            raise
        self._ready = all_ready(parts, [keeper.replica.place for keeper in self._keepers])
        return self._ready

    async def close(self) -> None:
        """End all engines. Pending requests get an error."""
        self._ending = self._ending or "the engines were closed"
        await asyncio.gather(*(keeper.close() for keeper in self._keepers))
        for journey in tuple(self._journeys.values()):
            self._fail(journey, self._ending)

    async def drain(self, timeout_s: float) -> None:
        """Take no more requests; returns when all engines have finished theirs, at most `timeout_s` seconds from now, and ended."""
        self._ending, self._draining = "the server is shutting down", True
        for journey in tuple(self._held.values()):
            self._fail(journey, self._ending)
        await asyncio.gather(*(keeper.drain(timeout_s) for keeper in self._keepers))
        await self.close()

    # Use

    @property
    def ready(self) -> Ready:
        """What all engines loaded and what fits each. InternalError before they are ready."""
        if self._ready is None:
            raise InternalError("the engines are not ready yet")
        return self._ready

    @property
    def statistics(self) -> Statistics:
        """Of all engines together."""
        return total([keeper.figures.statistics for keeper in self._keepers])

    @property
    def engines(self) -> tuple[EngineFigures, ...]:
        """Of each engine."""
        return tuple(keeper.figures for keeper in self._keepers)

    @property
    def hindrance(self) -> str | None:
        """Why none of the engines that run computes anything now; None as long as one does, or none runs."""
        reasons = [keeper.client.hindrance for keeper in self._keepers if keeper.up]
        return None if None in reasons else next(iter(reasons), None)

    @property
    def pids(self) -> tuple[int | None, ...]:
        """The process of each engine."""
        return tuple(keeper.client.pid for keeper in self._keepers)

    def submit(self, request: Request) -> Journey:
        """Start `request` with the engine that will have the least to do. Closing the stream early aborts it."""
        if request.id in self._journeys:
            raise InternalError(f"request id {request.id} is in use", id=request.id)
        if request.params.seed is None:  # known here, so that another engine can draw what this one would have
            params = msgspec.structs.replace(request.params, seed=self._seeds.getrandbits(63))
            request = msgspec.structs.replace(request, params=params)
        journey = Journey(self, request, self._router.ticket(request.prompt_ids, request.cache_salt))
        self._journeys[request.id] = journey
        if self._ending is None:
            self._send(journey)
        elif self._draining:
            journey.fail("OverloadedError", f"{self._ending} and takes no new requests", retry_after_s=1.0)
        else:
            self._fail(journey, self._ending)
        return journey

    async def abort(self, id: int, reason: str = "abort") -> None:
        """End request `id` with `reason` as its finish reason, in its last output; an unknown or finished one is ignored."""
        if (journey := self._held.get(id)) is not None:
            journey.put(Output(id, finish_reason=reason))
        elif (journey := self._journeys.get(id)) is not None and (keeper := self._keeper_of(journey)) is not None:
            await keeper.client.abort(id, reason)

    async def release_kv(self, ticket: str, reason: str) -> None:
        """Nothing: KV is handed over by engines that are alone behind their port."""

    def forget(self, request_id: int) -> None:
        """Abort a request nobody listens to any more."""
        if (journey := self._journeys.get(request_id)) is not None:
            keeper = self._keeper_of(journey)
            self.ended(journey)
            if keeper is not None:
                keeper.client.forget(request_id)

    async def heartbeat(self, timeout: float) -> float:
        """Seconds the fastest loop took to answer: nobody waits for a slow one. PeerError when none answers within `timeout` seconds."""
        asked = [asyncio.ensure_future(keeper.client.heartbeat(timeout)) for keeper in self._keepers if keeper.up]
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
        states = ", ".join(f"engine {each.number} is {each.state}" for each in self._keepers)
        raise PeerError(f"no engine answered within {timeout:g} s: {states}")

    # Routing

    def _send(self, journey: Journey) -> None:
        """Give it to an engine, or hold it until one takes requests."""
        takers = [keeper for keeper in self._keepers if keeper.takes]
        computing = [keeper for keeper in takers if keeper.client.hindrance is None]
        able = {keeper.number: keeper.client.statistics.kv_usage for keeper in computing or takers}
        if (route := self._router.route(journey.ticket, able)) is None:
            return self._hold(journey)
        try:
            self._keepers[route.number].client.submit(journey.rest, journey)
        except CapacityError as error:
            journey.fail("CapacityError", error.message)

    def _hold(self, journey: Journey) -> None:
        limit = self._config.scheduler.max_num_queued_requests
        if all(keeper.state == "gone" for keeper in self._keepers):
            self._fail(journey, "no engine is left")
        elif 0 < limit <= len(self._held):
            text = f"{len(self._held)} requests wait for an engine that takes them; try again later"
            journey.fail("OverloadedError", text, retry_after_s=self._patience.silent_after_s)
        else:
            self._held[journey.request.id] = journey

    def _keeper_of(self, journey: Journey) -> Keeper | None:
        return None if journey.ticket.route is None else self._keepers[journey.ticket.route.number]

    def _fail(self, journey: Journey, reason: str) -> None:
        journey.fail("WorkerLostError", f"this request cannot be finished: {reason}")

    # What becomes of requests

    def began(self, journey: Journey) -> None:
        """Its first output came."""
        self._router.began(journey.ticket)

    def ended(self, journey: Journey) -> None:
        """Its last output came, or nobody waits for it."""
        self._journeys.pop(journey.request.id, None)
        self._held.pop(journey.request.id, None)
        self._router.ended(journey.ticket, journey.tokens if journey.given else None)

    def engine_lost_under(self, journey: Journey, reason: str) -> None:
        """Let another engine go on with it, unless engines keep dying of it."""
        keeper = self._keeper_of(journey)
        self._router.ended(journey.ticket)
        journey.ticket.tokens = journey.tokens  # all of them are to be computed again
        journey.losses += 1
        if self._ending is not None:
            self._fail(journey, self._ending)
        elif journey.losses >= self._patience.losses:
            self._fail(journey, f"{journey.losses} engines were lost under it, the last because {reason}")
        else:
            if keeper is not None:
                keeper.moved += 1
            self._send(journey)

    # What becomes of engines

    def engine_up(self, keeper: Keeper, ready: Ready | None) -> None:
        """It takes requests: first those that wait for one."""
        if ready is not None:
            self._router.add(keeper.number, ready.num_blocks)
        held, self._held = self._held, {}
        for journey in held.values():
            self._send(journey)

    def engine_down(self, keeper: Keeper) -> None:
        """Nothing is cached there any more."""
        self._router.forget(keeper.number)

    def engine_gone(self, keeper: Keeper, reason: str) -> None:
        """The service goes on while there is another one, or one may come back."""
        if self._ending is not None or not all(other.state == "gone" for other in self._keepers):
            return
        self._ending = f"no engine is left; the last was lost because {reason}"
        for journey in tuple(self._held.values()):
            self._fail(journey, self._ending)
        if self.on_engine_lost is not None:
            self.on_engine_lost(self._ending)
