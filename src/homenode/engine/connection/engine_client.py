"""The front's end of an engine process: starts it, talks to it, notices its death.

Everything here runs on one event loop. What is said over the stream, and who waits for it, is `link.EngineLink`.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from types import TracebackType

from homenode.engine.assignment import EngineAssignment
from homenode.engine.binding import EngineBinding
from homenode.engine.connection.early_start import ENGINE_PROGRAM, StartedEngine, run_program
from homenode.engine.connection.link import EngineLink
from homenode.engine.errors import named_error
from homenode.engine.messages import Drain, EngineLoading, EngineReady, Fatal, MoveEngine, ReplicaStats, ToFront
from homenode.errors import HostError, InternalError, PeerError
from homenode.host.refusals import reason_of
from homenode.host.socket_pair import open_socket_pair
from homenode.net.message_frames import encode_frame

START_TIMEOUT_S = 3600.0  # reading a large model from a slow disk takes its time; a dead process is noticed at once
_KILL_AFTER_S = 2.0  # an engine that was left by its front ends by itself well within this


class AsyncEngineClient(EngineLink):
    """An engine in a child process. `start` it before anything else; `close` it, or drain it, in the end.

    When the engine is lost every pending request gets an Output with finish reason `error` and error kind `PeerError`,
    and `on_engine_lost` is called once with the reason.
    """

    def __init__(
        self,
        assignment: EngineAssignment,
        on_engine_lost: Callable[[str], None] | None = None,
        program: str = ENGINE_PROGRAM,
        memories: Callable[[], Sequence[int]] = tuple,
        started: StartedEngine | None = None,
    ) -> None:
        """`program`: the module that the child runs; it has to speak as homenode.engine.runtime.process does.
        `memories`: descriptors that it is given as well, of memory for experts in common; asked for when it starts,
        they stay the caller's. `started`: the child, where it runs already.
        """
        super().__init__()
        self.on_engine_lost = on_engine_lost
        self._assignment, self._program, self._memories = assignment, program, memories
        self._started = started
        self._process: subprocess.Popen[bytes] | None = None
        self._ready: asyncio.Future[EngineReady] | None = None
        self._progress: Callable[[int, int], None] | None = None
        self._leaving = False  # the end of the engine is expected
        self._fatal: Fatal | None = None

    async def __aenter__(self) -> AsyncEngineClient:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # Life

    async def start(
        self, progress: Callable[[int, int], None] | None = None, timeout: float = START_TIMEOUT_S
    ) -> EngineReady:
        """Start the process and wait until it is ready. `progress` is told (bytes done, bytes in all) while weights are
        read.

        To be called on the thread that lives as long as the engine should: the kernel ends the engine with it. Raises
        what the engine could not start for, under its own name, and PeerError when it dies or is not ready within
        `timeout` seconds.
        """
        if self._process is not None:
            raise InternalError("the engine was started already")
        self._ready, self._progress = asyncio.get_running_loop().create_future(), progress
        await self.attach(self._spawn())
        assert self._writer is not None  # attached
        self._writer.write(encode_frame(self._assignment))
        try:
            async with asyncio.timeout(timeout):
                return await asyncio.shield(self._ready)
        except TimeoutError:
            await self.close()
            raise PeerError(f"the engine was not ready within {timeout:g} s") from None
        except BaseException:
            await self.close()
            raise

    def _spawn(self) -> socket.socket:
        """Start the process unless it runs already; our end of the connection. HostError when the machine refuses."""
        if self._started is not None:
            self._process, stream = self._started
            return stream
        try:
            ours, theirs = open_socket_pair()
            with theirs:
                self._process = self._run_program(theirs.fileno())
        except OSError as error:
            raise HostError(
                f"the engine process could not be started: {reason_of(error)}", errno=error.errno
            ) from error
        return ours

    def _run_program(self, *descriptors: int) -> subprocess.Popen[bytes]:
        """Start it with these descriptors, named by its first argument."""
        return run_program(self._program, descriptors, self._memories(), self._assignment.process_name)

    def move(self, place: EngineBinding) -> None:
        """Have the engine go on in another place, if it is there."""
        self._send(MoveEngine(place))

    async def close(self, timeout: float = _KILL_AFTER_S) -> None:
        """End the engine: it goes when its stream does, or is killed after `timeout` seconds. Pending requests get an
        error.
        """
        self._leaving = True
        if self._writer is not None:
            self._writer.close()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()
        await self._reap(timeout)
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        self._lose("the engine was closed")

    def kill(self) -> None:
        """End the process at once, as if it had died."""
        if self._process is not None:
            self._process.kill()

    async def drain(self, timeout_s: float) -> None:
        """Take no more requests; returns when the engine has finished its own, at most `timeout_s` seconds from now,
        and ended.
        """
        self._leaving = True
        self._send(Drain(timeout_s))
        if self._reading is not None:
            await asyncio.wait({self._reading}, timeout=timeout_s + _KILL_AFTER_S)
        await self.close()

    async def _reap(self, timeout: float) -> None:
        process = self._process
        if process is None:
            return
        try:
            await asyncio.to_thread(process.wait, timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            await asyncio.to_thread(process.wait)

    # Use

    @property
    def pid(self) -> int | None:
        """The engine's process id; None before the start."""
        return self._process.pid if self._process else None

    @property
    def exit_code(self) -> int | None:
        """Return how the engine's process ended, negative for a signal; None while it runs."""
        return self._process.returncode if self._process else None

    @property
    def ready(self) -> EngineReady:
        """Return what the engine loaded and what fits. InternalError before it is ready."""
        if self._ready is None or not self._ready.done():
            raise InternalError("the engine is not ready yet")
        return self._ready.result()

    @property
    def engines(self) -> tuple[ReplicaStats, ...]:
        """Return those of several engines, one by one; empty here, where there is one."""
        return ()

    # Traffic

    def _take(self, message: ToFront) -> None:
        match message:
            case EngineLoading(done, total):
                if self._progress is not None:
                    self._progress(done, total)
            case EngineReady():
                if self._ready is not None and not self._ready.done():
                    self._ready.set_result(message)
            case Fatal():
                self._fatal = message
            case _:
                super()._take(message)

    async def _why_it_ended(self, reason: str | None) -> str:
        if self._fatal is not None:
            return self._fatal.message
        return reason or await self._how_it_ended()

    async def _how_it_ended(self) -> str:
        """The end of the stream in words; the process's own end follows within moments."""
        process = self._process
        assert process is not None  # there is a stream
        try:
            code = await asyncio.to_thread(process.wait, _KILL_AFTER_S)
        except subprocess.TimeoutExpired:
            return "the engine process closed its connection"
        if code == -signal.SIGKILL:
            return "the engine process was killed (signal 9); the kernel does that when memory runs out"
        if code < 0:
            return f"the engine process was ended by signal {-code}"
        return f"the engine process ended with exit code {code}"

    def _lose(self, reason: str) -> None:
        """The engine is gone: nobody waits for it any longer."""
        if self._lost is not None:
            return
        super()._lose(reason)
        starting = self._ready is not None and not self._ready.done()
        if starting and self._ready is not None:
            self._ready.set_exception(
                named_error(self._fatal.kind, self._fatal.message)
                if self._fatal
                else PeerError(f"the engine did not start: {reason}")
            )
            self._ready.exception()  # marks it as seen, should nobody wait any more
        if not self._leaving and not starting and self.on_engine_lost is not None:
            self.on_engine_lost(reason)
