"""The fronts of a coordinator: all are started together, each is replaced when it is lost, and all end together."""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import time
from collections.abc import Callable

from homenode.engine.router.restart_policy import RestartPolicy
from homenode.errors import HomenodeError, InternalError, PeerError
from homenode.model.identity import refuse_other_texts
from homenode.net.message_frames import encode_frame
from homenode.server.fronts.messages import FromFront, Prepare, Serve, ToFront
from homenode.server.fronts.process import FrontProcess

_log = logging.getLogger(__name__)
_STOOD_STILL_S = 0.5


Heard = Callable[[FrontProcess], None]


class FrontSupervisor:
    """`count` of them. Those that have begun hear what is told to all."""

    def __init__(
        self,
        count: int,
        program: str,
        restart_policy: RestartPolicy,
        begins: Heard,
        says: Callable[[FrontProcess, FromFront], None],
        left: Heard,
    ) -> None:
        """`program`: the module that each runs. `begins` hears of a front that has read the vocabulary, and sends it
        all that the other fronts know; `says`, of what a front says; `left`, of one that has ended, and its requests
        with it.
        """
        self._program, self._restart_policy = program, restart_policy
        self._begins, self._says, self._left = begins, says, left
        self._numbers = itertools.count(1)
        self._slots: list[FrontProcess | None] = [None] * count  # None while it is started again
        self._running: dict[int, FrontProcess] = {}  # by number
        self._keeping: list[asyncio.Task[None]] = []
        self._first: tuple[socket.socket, Prepare, int] | None = None
        self.texts: dict[str, str] = {}  # what the first of them has read: digests by paths
        self._ending = False
        self._codes: list[int] = []  # of those that ended as they were told to

    # Life

    async def start(self, listener: socket.socket, prepare: Prepare, key_counts: int = -1) -> None:
        """Start all, and wait until each has read the vocabulary. `listener`: that they accept on. `key_counts`: the
        descriptor of what keys use, -1: that is not counted. Raises what one could not do that for.
        """
        self._first = (listener, prepare, key_counts)
        starting = [asyncio.ensure_future(self._new(slot)) for slot in range(len(self._slots))]
        try:
            await asyncio.gather(*starting)
        except BaseException:
            for task in starting:
                task.cancel()
            await asyncio.gather(*starting, return_exceptions=True)
            raise

    async def begin(self) -> None:
        """Tell all what they begin with, and wait until each is ready. None takes connections before: until then the
        loss of one ends the start, which raises what one could not be ready for.
        """
        for front in self._started():
            self._begin(front)
        await asyncio.gather(*(front.ready for front in self._started()))

    def serve(self) -> None:
        """Let all take connections, and replace each that is lost from now on."""
        self._keeping = [asyncio.ensure_future(self._keep(slot, front)) for slot, front in enumerate(self._started())]
        self.broadcast(Serve())

    async def kept(self) -> int | None:
        """Waits until none is left: the largest exit code of those that ended as they were told to, None when all were
        given up.
        """
        for ended in await asyncio.gather(*self._keeping, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended
        return max([0, *self._codes]) if self._ending else None

    def end(self, last: ToFront, patience_s: float) -> None:
        """Tell all to end by themselves; who has not within `patience_s` seconds is killed, as is who is just being
        started.
        """
        self._ending = True
        self.broadcast(last)
        for slot, front in enumerate(self._slots):
            if front is None and self._keeping:
                self._keeping[slot].cancel()
        asyncio.get_running_loop().call_later(patience_s, self.kill)

    def kill(self) -> None:
        """End all at once."""
        for front in self._running.values():
            front.kill()

    async def close(self) -> None:
        """End whoever is left."""
        self._ending = True
        for task in self._keeping:
            task.cancel()
        await asyncio.gather(*self._keeping, return_exceptions=True)
        await asyncio.gather(*(front.close() for front in self._slots if front is not None))

    # Use

    @property
    def running(self) -> tuple[FrontProcess, ...]:
        """The front processes that have begun."""
        return tuple(self._running.values())

    def has(self, number: int) -> bool:
        """Return whether this process is there."""
        return number in self._running

    def broadcast(self, message: ToFront, except_for: FrontProcess | None = None) -> None:
        """Say this to all that have begun."""
        frame = encode_frame(message)
        for front in self._running.values():
            if front is not except_for:
                front.send_frame(frame)

    # Keeping

    async def _new(self, slot: int) -> FrontProcess:
        """A front that has read the vocabulary. Raises what it could not do that for; CheckpointError for one that has
        read other files than those that are there.
        """
        if self._first is None:
            raise InternalError("the fronts were not started")
        front = FrontProcess(next(self._numbers), slot, self._says)
        try:
            await front.start(self._program, *self._first)
            read = await asyncio.shield(front.prepared)
            self.texts = self.texts or read
            refuse_other_texts(front.name, self._first[1].paths, self.texts, read)
        except BaseException:
            front.kill()
            await front.close()
            raise
        self._slots[slot] = front
        return front

    def _started(self) -> list[FrontProcess]:
        return [front for front in self._slots if front is not None]

    def _begin(self, front: FrontProcess) -> None:
        self._begins(front)
        self._running[front.number] = front

    async def _keep(self, slot: int, front: FrontProcess) -> None:
        """Replace the front in this slot again and again, until all end or it is given up."""
        failures = 0
        while True:
            since = time.monotonic()
            watching = asyncio.ensure_future(self._watch(front))
            code = await asyncio.shield(front.left)
            watching.cancel()
            self._slots[slot] = None
            del self._running[front.number]
            self._left(front)
            await front.close()
            if self._ending:
                self._codes.append(max(0, code))  # a killed one did what it was told
                return
            failures = 0 if time.monotonic() - since >= self._restart_policy.steady_s else failures
            reason = f"exit code {code}" if code >= 0 else f"signal {-code}"
            replaced = await self._replace(slot, front.name, reason, failures)
            if replaced is None:
                return
            front, failures = replaced

    async def _replace(self, slot: int, name: str, reason: str, failures: int) -> tuple[FrontProcess, int] | None:
        """The new front, and the failures in a row so far; None when there were too many."""
        while True:
            failures += 1
            delay = self._restart_policy.delay(failures)
            if delay is None:
                _log.error(
                    "%s has ended (%s); it is not started again after %d tries",
                    name,
                    reason,
                    self._restart_policy.tries,
                )
                return None
            _log.warning("%s has ended (%s); another one is started in %g s", name, reason, delay)
            await asyncio.sleep(delay)
            try:
                front = await self._new(slot)
            except (HomenodeError, OSError) as error:
                reason = str(error)
                continue
            self._begin(front)
            front.send(Serve())
            return front, failures

    async def _watch(self, front: FrontProcess) -> None:
        """End a front whose loop does not answer; what it took is lost then, and the others are not."""
        longest = self._restart_policy.silent_after_s + self._restart_policy.lost_after_s
        asked_again = False
        while True:
            await asyncio.sleep(self._restart_policy.look_every_s)
            asked = time.monotonic()
            try:
                await front.heartbeat(longest)
                asked_again = False
            except PeerError:
                if not asked_again and time.monotonic() - asked > longest + _STOOD_STILL_S:
                    asked_again = True  # this process itself stood still: nobody's silence counts, once
                    continue
                if not front.left.done():
                    _log.error("%s has been silent for %g s and is ended", front.name, longest)
                    front.kill()
                return
