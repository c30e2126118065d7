"""The coordinator: starts the engines and the fronts, tells each of the others, and ends them all.

No request passes through it. Fronts accept on one socket that it opened, and have streams of their own to every engine.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from homenode.engine.assignment import EngineAssignment
from homenode.engine.connection.early_start import ENGINE_PROGRAM
from homenode.engine.experts.memory_files import ExpertMemoryFiles
from homenode.engine.fronts.messages import (
    Began,
    Booked,
    EngineSeen,
    EnginesGone,
    FrontLeft,
    Held,
    LinkLost,
    Moved,
    RequestEnded,
    TicketGivenUp,
    TooMany,
    Unheld,
    Way,
)
from homenode.engine.messages import EngineReady, FreeCpusChanged
from homenode.engine.pinning import move_process_threads
from homenode.engine.router.client import dispatch_settings
from homenode.engine.router.linked_client import LinkedSettings, favourite_of
from homenode.engine.router.progress import Progress
from homenode.engine.router.remote_load import RemoteLoad
from homenode.engine.router.restart_policy import RestartPolicy
from homenode.engine.router.router import Router
from homenode.engine.router.shared_engine import SharedEngine
from homenode.engine.router.stats import all_ready
from homenode.engine.router.supervisor import EngineSupervisor
from homenode.errors import InternalError
from homenode.model.identity import CommonIdentity, refuse_other_texts
from homenode.model.tokenizer.config import TextConfig
from homenode.server.doors.unix_socket import remove_socket_file
from homenode.server.fronts.folder import MetricsFolder
from homenode.server.fronts.messages import Begin, FromFront, FrontModel, KeysChanged, Prepare, Stop
from homenode.server.fronts.process import FrontProcess
from homenode.server.fronts.supervisor import FrontSupervisor
from homenode.server.http.config import ServerConfig
from homenode.server.http.listener import url_of
from homenode.server.http.request_load import forget_load
from homenode.server.http.service_manager import ServiceManager
from homenode.server.http.stop_signals import StopSignals, signals
from homenode.server.keys.counts import KeyCounts
from homenode.server.keys.keyring import KeySource
from homenode.server.keys.named_key import NamedKey

_log = logging.getLogger(__name__)
_BACKLOG = 2048  # connections that wait to be accepted
_ENDING_S = 10.0  # for fronts to say their last words and to close connections
_AGAIN_S = 0.2  # until a stream that ended although its engine goes on is opened again


class Coordinator:
    """Engines, one for each config, and `count` fronts before them."""

    def __init__(
        self,
        assignments: Sequence[EngineAssignment],
        server: ServerConfig,
        text: TextConfig,
        count: int,
        *,
        restart_policy: RestartPolicy | None = None,
        engine_program: str = ENGINE_PROGRAM,
        front_program: str = "homenode.server.fronts.main",
    ) -> None:
        """`assignments`: as `replica_assignments` makes them. A single engine is not started again: whoever watches
        this process starts all anew.
        """
        self._assignments, self._text, self._count = assignments, text, count
        self._server = replace(server, thoughts_secret=server.thoughts_secret or secrets.token_hex(32))
        self._restart_policy = restart_policy or RestartPolicy()
        of_engines = self._restart_policy if len(assignments) > 1 else replace(self._restart_policy, tries=0)
        self._experts = ExpertMemoryFiles(assignments)
        identity = CommonIdentity(str(assignments[0].config.model.path))
        self.supervisors = [
            EngineSupervisor(assignment, self, of_engines, self._maker(number, engine_program), identity)
            for number, assignment in enumerate(assignments)
        ]
        self._blocks = [0] * len(assignments)  # of each engine's KV memory, while it is there
        self.fronts = FrontSupervisor(
            count, front_program, self._restart_policy, self.front_begins, self.front_says, self.front_left
        )
        self._waiting: dict[int, set[int]] = {}  # requests that wait for an engine, by front
        self._dispatch = dispatch_settings(assignments[0].config)
        self._key, self._started = secrets.token_bytes(32), int(time.time())
        self._loads = RemoteLoad(Router(self._dispatch.block_size, self._dispatch.prefix_caching, self._key))
        self._ready: EngineReady | None = None
        self._listener: socket.socket | None = None
        self._keys = KeySource(server.api_key, server.api_key_file)
        self._key_counts = KeyCounts.shared_memory(count) if self._keys.counts else -1
        self._watching: asyncio.Task[None] | None = None
        self.metrics_folder = MetricsFolder()
        self._manager = ServiceManager.of_process()
        self._draining = False
        self._lost: str | None = None

    def _maker(self, number: int, program: str) -> Callable[[EngineAssignment], SharedEngine]:
        def made(assignment: EngineAssignment) -> SharedEngine:
            engine = SharedEngine(
                assignment, program, lambda: self._announce(self.supervisors[number]), self._experts.descriptors
            )
            engine.on_free_cpus = self.move_fronts
            return engine

        return made

    # Life

    async def start(
        self,
        listener: socket.socket,
        progress: Callable[[int, int], None] | None = None,
        on_ready: Callable[[EngineReady], None] | None = None,
    ) -> EngineReady:
        """Start all at once, wait until all are ready, and let the fronts take connections. `listener` comes from
        `server.http.listener.bind`. `on_ready` is called before the first connection is taken.

        Raises what an engine or a front could not start for; then nothing is left running.
        """
        self._listener = listener
        told = Progress(len(self.supervisors), progress)
        model = FrontModel(str(self._assignments[0].config.model.path), self._text, self._server)
        prepare = Prepare(self._server, (model,), str(self.metrics_folder.path))
        starting = [
            asyncio.ensure_future(supervisor.start(told.of(supervisor.number))) for supervisor in self.supervisors
        ]
        await asyncio.sleep(0)  # engines are started first: they have the longer way to go
        fronts = asyncio.ensure_future(self.fronts.start(listener, prepare, self._key_counts))
        try:
            await asyncio.gather(fronts, *starting)
            self._ready = self._all_ready([task.result() for task in starting])
            if (identity := self._ready.identity) is not None:
                refuse_other_texts("the API servers", model.path, identity.texts, self.fronts.texts)
            if on_ready is not None:
                on_ready(self._ready)
            await self.fronts.begin()
            listener.listen(_BACKLOG)
            self.fronts.serve()
        except BaseException:
            for task in (fronts, *starting):
                task.cancel()
            await asyncio.gather(fronts, *starting, return_exceptions=True)
            await self.close()
            raise
        return self._ready

    async def serve(self, on_listening: Callable[[str], None] | None = None, stop: StopSignals | None = None) -> int:
        """Watch until a signal, or until nothing is left to watch; the exit code for the process, as `server.run.serve`
        gives it.
        """
        if self._listener is None:
            raise InternalError("the coordinator was not started")
        with signals(self.signalled, stop):
            if on_listening is not None:
                on_listening(url_of(self._listener, self._server.scheme))
            self._manager.ready()
            self._watching = asyncio.ensure_future(self._keys.watch(self._change_keys))
            async with self._manager.watched(self.is_alive):
                code = await self.fronts.kept()
        if self._draining and code is not None:
            return code
        if self._lost is None:
            _log.error("no front is left; the server ends")
        return 1

    async def is_alive(self, timeout_s: float) -> bool:
        """Return whether the loop of any engine answers in time, or none is up: those that come back are being started,
        and the last that does not ends the server. Raises PeerError otherwise.
        """
        asked = (each.client.heartbeat(timeout_s) for each in self.supervisors if each.up)
        seen = await asyncio.gather(*asked, return_exceptions=True)
        failed = [each for each in seen if isinstance(each, BaseException)]
        if failed and len(failed) == len(seen):
            raise failed[0]
        return True

    async def close(self) -> None:
        """End everybody."""
        self._lost = self._lost or "the server is closed"
        await self.fronts.close()
        await asyncio.gather(*(supervisor.close() for supervisor in self.supervisors))
        self._experts.close()
        if self._watching is not None:
            self._watching.cancel()
        if self._listener is not None:
            self._listener.close()
            remove_socket_file(self._listener)
        if self._key_counts >= 0:
            os.close(self._key_counts)
            self._key_counts = -1
        self.metrics_folder.remove()

    def signalled(self) -> None:
        """The first signal drains, the second ends at once."""
        if self._draining or self._lost is not None:
            _log.warning("second signal: ending at once")
            self.fronts.kill()
            return
        _log.warning(
            "draining: requests in flight have up to %g s; signal again to end at once", self._server.shutdown_timeout
        )
        self._draining = True
        self._manager.stopping()
        self._end_fronts(Stop(), self._server.shutdown_timeout + _ENDING_S)

    def _end_fronts(self, last: Stop | EnginesGone, patience_s: float) -> None:
        if self._listener is not None:
            self._listener.close()  # the last front to close it ends the listening
        self.fronts.end(last, patience_s)

    @property
    def front_pids(self) -> tuple[int, ...]:
        """The processes of the fronts that are there."""
        return tuple(front.pid for front in self.fronts.running if front.pid is not None)

    @property
    def engine_pids(self) -> tuple[int, ...]:
        """The processes of the engines that are there."""
        return tuple(
            supervisor.client.pid
            for supervisor in self.supervisors
            if supervisor.up and supervisor.client.pid is not None
        )

    # Fronts

    def front_begins(self, front: FrontProcess) -> None:
        """It is told all that the others know, in the order in which it would have heard it."""
        if self._ready is None:
            raise InternalError("a front begins before the engines are ready")
        count = len(self.supervisors)
        favourite = favourite_of(front.slot, self._count, count)
        engines = LinkedSettings(self._ready, count, self._dispatch, self._restart_policy, self._key, favourite)
        front.send(Begin(front.number, front.slot, self._count, self._started, engines, self._keys.keys))
        for supervisor in self.supervisors:
            if supervisor.up:
                self._connect(supervisor, front)
            front.send(self._seen(supervisor))
        for told in self._loads.all(count):
            front.send(told)

    def _change_keys(self, keys: tuple[NamedKey, ...]) -> None:
        """Every front takes these from now on."""
        self.fronts.broadcast(KeysChanged(keys))

    def move_fronts(self, cpus: tuple[int, ...]) -> None:
        """All, those that are started later and this process compute nothing, and disturb nobody there."""
        if self._ready is None:
            return
        self._ready = msgspec.structs.replace(self._ready, details={**self._ready.details, "free_cpus": list(cpus)})
        move_process_threads(cpus)
        self.fronts.broadcast(FreeCpusChanged(list(cpus)))

    def front_says(self, front: FrontProcess, message: FromFront) -> None:
        """What concerns the others is told to them."""
        match message:
            case Booked() | Began() | RequestEnded():
                self._loads.take(message)
                self.fronts.broadcast(message, except_for=front)
            case TicketGivenUp():
                self.fronts.broadcast(message, except_for=front)
            case Held(request):
                self._hold(front, request)
            case Unheld(request):
                self._waiting.get(front.number, set()).discard(request)
            case Moved(engine):
                self.supervisors[engine].moved += 1
                self._announce(self.supervisors[engine])
            case LinkLost(engine, process):
                asyncio.get_running_loop().call_later(_AGAIN_S, self._connect_again, front, engine, process)

    def front_left(self, front: FrontProcess) -> None:
        """Engines see its streams end; the other fronts are told."""
        self._waiting.pop(front.number, None)
        if front.pid is not None:
            forget_load(self.metrics_folder.path, front.pid)
        left = FrontLeft(front.number)
        self._loads.take(left)
        self.fronts.broadcast(left)

    def _hold(self, front: FrontProcess, request: int) -> None:
        """All fronts together have as many waiting as one has where it is alone."""
        waiting = sum(map(len, self._waiting.values()))
        if 0 < self._dispatch.max_num_queued_requests <= waiting:
            front.send(TooMany(request, waiting))
        else:
            self._waiting.setdefault(front.number, set()).add(request)

    # Engines

    def _connect(self, supervisor: EngineSupervisor[SharedEngine], front: FrontProcess) -> None:
        """A stream between them. When one of them takes none it is about to end, and its successor gets another."""
        if (connected := supervisor.client.connect(front.number)) is not None:
            with connected:
                front.send_stream(Way(supervisor.number, supervisor.restarts), connected)

    def _connect_again(self, front: FrontProcess, engine: int, process: int) -> None:
        supervisor = self.supervisors[engine]
        if supervisor.up and supervisor.restarts == process and self.fronts.has(front.number) and not self._draining:
            self._connect(supervisor, front)

    def _announce(self, supervisor: EngineSupervisor[Any]) -> None:
        self.fronts.broadcast(self._seen(supervisor))

    def _seen(self, supervisor: EngineSupervisor[Any]) -> EngineSeen:
        return EngineSeen(supervisor.stats, self._blocks[supervisor.number], supervisor.hindrance)

    def engine_up(self, supervisor: EngineSupervisor[Any], ready: EngineReady | None) -> None:
        """Every front gets a stream to it, if it is a new one."""
        if ready is not None:
            self._blocks[supervisor.number] = ready.num_blocks
            self._loads.add(supervisor.number, ready.num_blocks)
            for front in self.fronts.running:
                self._connect(supervisor, front)
        self._announce(supervisor)

    def engine_silent(self, supervisor: EngineSupervisor[Any]) -> None:
        """Fronts give it nothing."""
        self._announce(supervisor)

    def engine_down(self, supervisor: EngineSupervisor[Any]) -> None:
        """Fronts see their streams end; they are told why."""
        self._blocks[supervisor.number] = 0
        self._loads.drop(supervisor.number)
        self._announce(supervisor)

    def engine_gone(self, supervisor: EngineSupervisor[Any], reason: str) -> None:
        """The service goes on while there is another one, or one may come back."""
        self._announce(supervisor)
        if self._lost is not None or not all(other.state == "gone" for other in self.supervisors):
            return
        self._lost = reason if len(self.supervisors) == 1 else f"no engine is left; the last was lost because {reason}"
        _log.error("the engine is gone: %s; the server ends", self._lost)
        self._end_fronts(EnginesGone(self._lost), _ENDING_S)

    def _all_ready(self, parts: Sequence[EngineReady]) -> EngineReady:
        bindings = [each.replica.binding for each in self._assignments if each.replica is not None]
        return all_ready(parts, bindings) if len(parts) > 1 else parts[0]
