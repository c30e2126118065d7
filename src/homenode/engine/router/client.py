"""Several engines as one: the same interface as `AsyncEngineClient`, requests routed among them and taken over from
those that are lost.

Everything here runs on one event loop. No task stands between an engine and who waits for its outputs: an engine's
client puts them straight into the request's `RoutedStream`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType

from homenode.engine.assignment import EngineAssignment
from homenode.engine.config import EngineConfig
from homenode.engine.connection.early_start import ENGINE_PROGRAM
from homenode.engine.connection.engine_client import AsyncEngineClient
from homenode.engine.experts.memory_files import ExpertMemoryFiles
from homenode.engine.messages import EngineReady, EngineStats
from homenode.engine.router.dispatch import Dispatcher, DispatchSettings
from homenode.engine.router.progress import Progress
from homenode.engine.router.restart_policy import RestartPolicy
from homenode.engine.router.router import Router
from homenode.engine.router.stats import all_ready, total
from homenode.engine.router.supervisor import EngineSupervisor
from homenode.errors import InternalError
from homenode.model.identity import CommonIdentity


def dispatch_settings(config: EngineConfig) -> DispatchSettings:
    """Return what who gives requests to engines of these settings has to know of them."""
    return DispatchSettings(
        config.kv.block_size,
        config.kv.enable_prefix_caching,
        config.scheduler.max_num_queued_requests,
        config.model.seed,
    )


class ReplicasClient(Dispatcher):
    """Engines in child processes, one for each assignment. `start` before anything else; `close`, or drain, in the end.

    A request whose engine is lost goes on with another one, after the tokens it had; when it cannot its last output has
    the error kind `WorkerLostError`. A lost engine is started again; once that has been given up for all of them,
    `on_engine_lost` is called with the reason.
    """

    def __init__(
        self,
        assignments: Sequence[EngineAssignment],
        on_engine_lost: Callable[[str], None] | None = None,
        *,
        restart_policy: RestartPolicy | None = None,
        program: str = ENGINE_PROGRAM,
    ) -> None:
        """`assignments`: as `plan.replica_assignments` makes them; `program`: as in `AsyncEngineClient`."""
        settings, restart_policy = dispatch_settings(assignments[0].config), restart_policy or RestartPolicy()
        super().__init__(settings, restart_policy, Router(settings.block_size, settings.prefix_caching))
        self.on_engine_lost = on_engine_lost
        self._bindings = [each.replica.binding for each in assignments if each.replica is not None]
        self.expert_files = ExpertMemoryFiles(assignments)
        identity = CommonIdentity(str(assignments[0].config.model.path))
        self._supervisors = [
            EngineSupervisor(assignment, self, restart_policy, lambda each: self._client_of(each, program), identity)
            for assignment in assignments
        ]
        self._engines = self._supervisors
        self._ready: EngineReady | None = None

    def _client_of(self, assignment: EngineAssignment, program: str) -> AsyncEngineClient:
        return AsyncEngineClient(assignment, program=program, memories=self.expert_files.descriptors)

    async def __aenter__(self) -> ReplicasClient:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # Life

    async def start(self, progress: Callable[[int, int], None] | None = None) -> EngineReady:
        """Start all of them at once and wait until each is ready. `progress` is told (bytes done, bytes in all) of all
        together.

        Raises what the first one of them that fails could not start for; the others are ended then.
        """
        told = Progress(len(self._supervisors), progress)
        starts = [
            asyncio.ensure_future(supervisor.start(told.of(supervisor.number))) for supervisor in self._supervisors
        ]
        try:
            parts = await asyncio.gather(*starts)
        except BaseException:
            for start in starts:
                start.cancel()
            await asyncio.gather(*starts, return_exceptions=True)
            await self.close()
            raise
        self._ready = all_ready(parts, self._bindings)
        return self._ready

    async def close(self) -> None:
        """End all engines. Pending requests get an error."""
        self._ending = self._ending or "the engines were closed"
        await asyncio.gather(*(supervisor.close() for supervisor in self._supervisors))
        self.expert_files.close()
        for stream in tuple(self._streams.values()):
            self._fail(stream, self._ending)

    async def drain(self, timeout_s: float) -> None:
        """Take no more requests; returns when all engines have finished theirs, at most `timeout_s` seconds from now,
        and ended.
        """
        self._ending, self._draining = "the server is shutting down", True
        for stream in tuple(self._unrouted.values()):
            self._fail(stream, self._ending)
        await asyncio.gather(*(supervisor.drain(timeout_s) for supervisor in self._supervisors))
        await self.close()

    # Use

    @property
    def supervisors(self) -> Sequence[EngineSupervisor[AsyncEngineClient]]:
        """Return what keeps each engine."""
        return self._supervisors

    @property
    def ready(self) -> EngineReady:
        """Return what all engines loaded and what fits each. InternalError before they are ready."""
        if self._ready is None:
            raise InternalError("the engines are not ready yet")
        return self._ready

    @property
    def statistics(self) -> EngineStats:
        """Return the figures of all engines together."""
        return total([supervisor.stats.statistics for supervisor in self._supervisors])

    @property
    def pids(self) -> tuple[int | None, ...]:
        """The process of each engine."""
        return tuple(supervisor.client.pid for supervisor in self._supervisors)

    def moving_from(self, engine: int) -> None:
        """Another one goes on with a request of this engine."""
        self._supervisors[engine].moved += 1

    # What becomes of engines

    def engine_up(self, supervisor: EngineSupervisor[AsyncEngineClient], ready: EngineReady | None) -> None:
        """Note that it takes requests: first those that wait for one."""
        if ready is not None:
            self._router.add(supervisor.number, ready.num_blocks)
        self._send_held()

    def engine_silent(self, supervisor: EngineSupervisor[AsyncEngineClient]) -> None:
        """`EngineSupervisor.takes` says so already."""

    def engine_down(self, supervisor: EngineSupervisor[AsyncEngineClient]) -> None:
        """Nothing is cached there any more."""
        self._router.forget(supervisor.number)

    def engine_gone(self, supervisor: EngineSupervisor[AsyncEngineClient], reason: str) -> None:
        """The service goes on while there is another one, or one may come back."""
        if self._ending is not None or not all(other.state == "gone" for other in self._supervisors):
            return
        reason = f"no engine is left; the last was lost because {reason}"
        self._end(reason)
        if self.on_engine_lost is not None:
            self.on_engine_lost(reason)
