"""The coordinator: starts the engines and the fronts, tells each of the others, replaces those that are lost, and ends them all.

No request passes through it. Fronts accept on one socket that it opened, and have streams of their own to every engine.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from homenode.engine.config import EngineConfig
from homenode.engine.fronts.client import LinkedSettings
from homenode.engine.fronts.elsewhere import Elsewhere
from homenode.engine.fronts.engine import SharedEngine
from homenode.engine.fronts.messages import (
    Began,
    Booked,
    Ended,
    EngineSeen,
    EnginesGone,
    FrontLeft,
    Held,
    LinkLost,
    Moved,
    TooMany,
    Unheld,
    Way,
)
from homenode.engine.messages import Ready
from homenode.engine.replicas.client import dispatch_settings
from homenode.engine.replicas.figures import all_ready
from homenode.engine.replicas.keeper import Keeper
from homenode.engine.replicas.patience import Patience
from homenode.engine.replicas.progress import Progress
from homenode.engine.replicas.router import Router
from homenode.engine.wire import encode_frame
from homenode.errors import HomenodeError, InternalError, PeerError
from homenode.model.tokenizer.config import TextConfig
from homenode.server.config import ServerConfig
from homenode.server.fronts.messages import Begin, FromFront, Prepare, Serve, Stop, ToFront
from homenode.server.fronts.process import FrontProcess
from homenode.server.listener import signals, url_of

_log = logging.getLogger(__name__)
_BACKLOG = 2048  # connections that wait to be accepted
_ENDING_S = 10.0  # for fronts to say their last words and to close connections
_AGAIN_S = 0.2  # until a stream that ended although its engine goes on is opened again


class Coordinator:
    """Engines, one for each config, and `count` fronts before them."""

    def __init__(
        self,
        configs: Sequence[EngineConfig],
        server: ServerConfig,
        text: TextConfig,
        count: int,
        *,
        patience: Patience | None = None,
        engine_program: str = "homenode.engine.process",
        front_program: str = "homenode.server.fronts.main",
    ) -> None:
        """`configs`: as `replica_configs` makes them. A single engine is not started again: whoever watches this process starts all anew."""
        self._configs, self._server, self._text = configs, server, text
        self._patience = patience or Patience()
        self._front_program = front_program
        of_engines = self._patience if len(configs) > 1 else replace(self._patience, tries=0)
        self._keepers = [Keeper(config, self, of_engines, self._maker(number, engine_program)) for number, config in enumerate(configs)]
        self._dispatch = dispatch_settings(configs[0])
        self._key, self._started = secrets.token_bytes(32), int(time.time())
        self._settings: LinkedSettings | None = None
        self._blocks: dict[int, int] = {}  # of each engine that was there
        self._numbers = itertools.count(1)
        self._slots: list[FrontProcess | None] = [None] * count  # the front in each, None while it is started again
        self._keeping: list[asyncio.Task[None]] = []
        self._members: dict[int, FrontProcess] = {}  # fronts that have begun, by number
        self._held: dict[int, set[int]] = {}  # requests that wait for an engine, by front
        self._listener: socket.socket | None = None
        self._metrics = tempfile.TemporaryDirectory(prefix="homenode-metrics-")
        self._books = Elsewhere(Router(self._dispatch.block_size, self._dispatch.prefix_caching, self._key))
        self._draining = False
        self._lost: str | None = None
        self._codes: list[int] = []  # of fronts that ended as they were asked to

    def _maker(self, number: int, program: str) -> Callable[[EngineConfig], SharedEngine]:
        return lambda config: SharedEngine(config, program, lambda: self._announce(self._keepers[number]))

    # Life

    async def start(self, listener: socket.socket, progress: Callable[[int, int], None] | None = None) -> Ready:
        """Start all at once and wait until every front could take connections. `listener` comes from `server.listener.bind`.

        Raises what an engine or a front could not start for; then nothing is left running.
        """
        self._listener = listener
        told = Progress(len(self._keepers), progress)
        engines = [asyncio.ensure_future(keeper.start(told.of(keeper.number))) for keeper in self._keepers]
        await asyncio.sleep(0)  # engines are started first: they have the longer way to go
        fronts = [asyncio.ensure_future(self._new_front(slot)) for slot in range(len(self._slots))]
        try:
            ready = self._all_ready(await asyncio.gather(*engines))
            self._settings = LinkedSettings(ready, len(self._keepers), self._dispatch, self._patience, self._key)
            begun = await asyncio.gather(*fronts)
            for front in begun:
                self._begin(front)
            listener.listen(_BACKLOG)
            for front in begun:
                front.send(Serve())
            await asyncio.gather(*(front.serving for front in begun))
        except BaseException:
            for task in (*engines, *fronts):
                task.cancel()
            await asyncio.gather(*engines, *fronts, return_exceptions=True)
            await self.close()
            raise
        self._keeping = [asyncio.ensure_future(self._keep(slot, front)) for slot, front in enumerate(begun)]
        return ready

    async def serve(self, on_listening: Callable[[str], None] | None = None) -> int:
        """Watch until a signal, or until nothing is left to watch; the exit code for the process, as `server.run.serve` gives it."""
        if self._listener is None:
            raise InternalError("the coordinator was not started")
        if on_listening is not None:
            on_listening(url_of(self._listener))
        with signals(self.signalled):
            for ended in await asyncio.gather(*self._keeping, return_exceptions=True):
                if isinstance(ended, Exception):
                    raise ended
        if self._draining:
            return max([0, *self._codes])
        if self._lost is None:
            _log.error("no front is left; the server ends")
        return 1

    async def close(self) -> None:
        """End everybody."""
        self._lost = self._lost or "the server is closed"
        for task in self._keeping:
            task.cancel()
        await asyncio.gather(*self._keeping, return_exceptions=True)
        await asyncio.gather(*(front.close() for front in self._slots if front is not None))
        await asyncio.gather(*(keeper.close() for keeper in self._keepers))
        if self._listener is not None:
            self._listener.close()
        self._metrics.cleanup()

    def signalled(self) -> None:
        """The first signal drains, the second ends at once."""
        if self._ending:
            _log.warning("second signal: ending at once")
            self._kill_fronts()
            return
        _log.warning("draining: requests in flight have up to %g s; signal again to end at once", self._server.shutdown_timeout)
        self._draining = True
        self._end_fronts(Stop(), self._server.shutdown_timeout + _ENDING_S)

    @property
    def _ending(self) -> bool:
        return self._draining or self._lost is not None

    def _end_fronts(self, last: Stop | EnginesGone, patience_s: float) -> None:
        """Fronts end by themselves; those that are just being started are not needed any more."""
        if self._listener is not None:
            self._listener.close()  # the last front to close it ends the listening
        self._tell_all(last)
        for slot, front in enumerate(self._slots):
            if front is None and self._keeping:
                self._keeping[slot].cancel()
        asyncio.get_running_loop().call_later(patience_s, self._kill_fronts)

    def _kill_fronts(self) -> None:
        for front in self._members.values():
            front.kill()

    # Fronts

    @property
    def fronts(self) -> tuple[FrontProcess | None, ...]:
        """Those there are; None for one that is being started again."""
        return tuple(self._slots)

    @property
    def engine_pids(self) -> tuple[int, ...]:
        """The processes of the engines that are there."""
        return tuple(keeper.client.pid for keeper in self._keepers if keeper.up and keeper.client.pid is not None)

    async def _new_front(self, slot: int) -> FrontProcess:
        """A front that has read the vocabulary. Raises what it could not do that for."""
        front = FrontProcess(next(self._numbers), f"homenode-front-{slot}", self._hear)
        assert self._listener is not None  # started
        path = str(self._configs[0].model.path)
        try:
            await front.start(self._front_program, self._listener, Prepare(self._server, self._text, path, self._metrics.name))
            await asyncio.shield(front.prepared)
        except BaseException:
            front.kill()
            await front.close()
            raise
        self._slots[slot] = front
        return front

    def _begin(self, front: FrontProcess) -> None:
        """Tell it all that the others know."""
        assert self._settings is not None  # the engines were ready
        front.send(Begin(front.number, len(self._slots), self._started, self._settings))
        self._members[front.number] = front
        for keeper in self._keepers:
            if keeper.up:
                self._connect(keeper, front)
            front.send(_seen(keeper))
        for told in self._books.all(len(self._keepers)):
            front.send(told)

    async def _keep(self, slot: int, front: FrontProcess) -> None:
        """Replace the front in this slot again and again, until all end or it is given up."""
        failures = 0
        while True:
            since = time.monotonic()
            watching = asyncio.ensure_future(self._watch(front))
            code = await asyncio.shield(front.left)
            watching.cancel()
            await self._front_left(slot, front)
            if self._ending:
                self._codes.append(max(0, code))  # killed ones were told to end before
                return
            failures = 0 if time.monotonic() - since >= self._patience.steady_s else failures
            reason = f"exit code {code}" if code >= 0 else f"signal {-code}"
            replaced = await self._replace(slot, front.name, reason, failures)
            if replaced is None:
                return
            front, failures = replaced

    async def _replace(self, slot: int, name: str, reason: str, failures: int) -> tuple[FrontProcess, int] | None:
        """The new front, and the failures in a row so far; None when there were too many."""
        while True:
            failures += 1
            delay = self._patience.delay(failures)
            if delay is None:
                _log.error("%s has ended (%s); it is not started again after %d tries", name, reason, self._patience.tries)
                return None
            _log.warning("%s has ended (%s); another one is started in %g s", name, reason, delay)
            await asyncio.sleep(delay)
            try:
                front = await self._new_front(slot)
            except (HomenodeError, OSError) as error:
                reason = str(error)
                continue
            self._begin(front)
            front.send(Serve())
            return front, failures

    async def _watch(self, front: FrontProcess) -> None:
        """End a front whose loop does not answer; what it took is lost then, and the others are not."""
        longest = self._patience.silent_after_s + self._patience.lost_after_s
        while True:
            await asyncio.sleep(self._patience.look_every_s)
            try:
                await front.heartbeat(longest)
            except PeerError:
                if not front.left.done():
                    _log.error("%s has been silent for %g s and is ended", front.name, longest)
                    front.kill()
                return

    async def _front_left(self, slot: int, front: FrontProcess) -> None:
        self._slots[slot] = None
        self._members.pop(front.number, None)
        self._held.pop(front.number, None)
        left = FrontLeft(front.number)
        self._books.take(left)
        self._tell_all(left)
        await front.close()

    def _tell_all(self, message: ToFront, but: FrontProcess | None = None) -> None:
        frame = encode_frame(message)
        for front in self._members.values():
            if front is not but:
                front.send_frame(frame)

    def _hear(self, front: FrontProcess, message: FromFront) -> None:
        match message:
            case Booked() | Began() | Ended():
                self._books.take(message)
                self._tell_all(message, but=front)
            case Held(request):
                self._hold(front, request)
            case Unheld(request):
                self._held.get(front.number, set()).discard(request)
            case Moved(engine):
                self._keepers[engine].moved += 1
                self._announce(self._keepers[engine])
            case LinkLost(engine, process):
                asyncio.get_running_loop().call_later(_AGAIN_S, self._connect_again, front, engine, process)

    def _hold(self, front: FrontProcess, request: int) -> None:
        """All fronts together have as many waiting as one has where it is alone."""
        waiting = sum(map(len, self._held.values()))
        if 0 < self._dispatch.max_num_queued_requests <= waiting:
            front.send(TooMany(request, waiting))
        else:
            self._held.setdefault(front.number, set()).add(request)

    # Engines

    def _connect(self, keeper: Keeper[SharedEngine], front: FrontProcess) -> None:
        """A stream between them. When one of them takes none it is about to end, and its successor gets another."""
        if (connected := keeper.client.connect(front.number)) is not None:
            with connected:
                front.hand(Way(keeper.number, keeper.restarts, self._blocks[keeper.number]), connected)

    def _connect_again(self, front: FrontProcess, engine: int, process: int) -> None:
        keeper = self._keepers[engine]
        if keeper.up and keeper.restarts == process and front.number in self._members and not self._ending:
            self._connect(keeper, front)

    def _announce(self, keeper: Keeper[Any]) -> None:
        self._tell_all(_seen(keeper))

    def engine_up(self, keeper: Keeper[Any], ready: Ready | None) -> None:
        """Every front gets a stream to it, if it is a new one."""
        if ready is not None:
            self._blocks[keeper.number] = ready.num_blocks
            self._books.add(keeper.number, ready.num_blocks)
            for front in self._members.values():
                self._connect(keeper, front)
        self._announce(keeper)

    def engine_silent(self, keeper: Keeper[Any]) -> None:
        """Fronts give it nothing."""
        self._announce(keeper)

    def engine_down(self, keeper: Keeper[Any]) -> None:
        """Fronts see their streams end; they are told why."""
        self._books.drop(keeper.number)
        self._announce(keeper)

    def engine_gone(self, keeper: Keeper[Any], reason: str) -> None:
        """The service goes on while there is another one, or one may come back."""
        self._announce(keeper)
        if self._lost is not None or not all(other.state == "gone" for other in self._keepers):
            return
        self._lost = reason if len(self._keepers) == 1 else f"no engine is left; the last was lost because {reason}"
        _log.error("the engine is gone: %s; the server ends", self._lost)
        self._end_fronts(EnginesGone(self._lost), _ENDING_S)

    def _all_ready(self, parts: Sequence[Ready]) -> Ready:
        places = [config.replica.place for config in self._configs if config.replica is not None]
        return all_ready(parts, places) if len(parts) > 1 else parts[0]


def _seen(keeper: Keeper[Any]) -> EngineSeen:
    return EngineSeen(keeper.figures, keeper.hindrance)
