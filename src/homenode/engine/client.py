"""The front's end of an engine process: starts it, talks to it, notices its death.

Everything here runs on one event loop. A request's outputs arrive through an `OutputStream`; leaving the stream early, by closing it or by
being cancelled while waiting on it, aborts the request in the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

from homenode.engine.config import EngineConfig
from homenode.engine.failures import named_error
from homenode.engine.messages import (
    Abort,
    Drain,
    EngineFigures,
    Fatal,
    Heartbeat,
    Loading,
    Output,
    Outputs,
    Ping,
    Ready,
    Release,
    Serving,
    Statistics,
    Submit,
    ToEngine,
    ToFront,
)
from homenode.engine.request import Request
from homenode.engine.wire import FrameDecoder, decode_body, encode_frame
from homenode.errors import HostError, InternalError, PeerError

_CHUNK = 256 * 1024
_START_TIMEOUT_S = 3600.0  # reading a large model from a slow disk takes its time; a dead process is noticed at once
_KILL_AFTER_S = 2.0  # an engine that was left by its front ends by itself well within this


class Forgets(Protocol):
    """Who is told that nobody listens to a request any more."""

    def forget(self, request_id: int) -> None: ...


class OutputStream:
    """The outputs of one request; the last one carries a finish reason."""

    def __init__(self, client: Forgets, request_id: int) -> None:
        self._client, self._id = client, request_id
        self._outputs: deque[Output] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._ended = False  # nothing more will be given out

    def put(self, output: Output) -> None:
        """For the client: an output came."""
        self._outputs.append(output)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def lost(self, reason: str) -> None:
        """For the client: the engine is gone, and nothing more will come."""
        self.put(Output(self._id, finish_reason="error", error=f"the engine is gone: {reason}", error_kind="PeerError"))

    def __aiter__(self) -> OutputStream:
        return self

    async def __anext__(self) -> Output:
        if self._ended:
            raise StopAsyncIteration
        try:
            while not self._outputs:
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
        except asyncio.CancelledError:
            self.close()
            raise
        output = self._outputs.popleft()
        self._ended = output.finish_reason is not None
        return output

    async def aclose(self) -> None:
        """Abort the request unless it has ended."""
        self.close()

    def close(self) -> None:
        """The same without waiting."""
        if not self._ended:
            self._ended = True
            self._client.forget(self._id)


class AsyncEngineClient:
    """An engine in a child process. `start` it before anything else; `close` it, or drain it, in the end.

    When the engine is lost every pending request gets an Output with finish reason `error` and error kind `PeerError`, and `on_engine_lost`
    is called once with the reason.
    """

    def __init__(
        self, config: EngineConfig, on_engine_lost: Callable[[str], None] | None = None, program: str = "homenode.engine.process"
    ) -> None:
        """`program`: the module that the child runs; it has to speak as homenode.engine.process does."""
        self.on_engine_lost = on_engine_lost
        self._config, self._program = config, program
        self._process: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[Ready] | None = None
        self._progress: Callable[[int, int], None] | None = None
        self._statistics = Statistics()
        self._serving = Serving(True)
        self._streams: dict[int, OutputStream] = {}
        self._pings: dict[int, asyncio.Future[float]] = {}
        self._num_pings = 0
        self._leaving = False  # the end of the engine is expected
        self._lost: str | None = None
        self._fatal: Fatal | None = None

    async def __aenter__(self) -> AsyncEngineClient:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    # Life

    async def start(self, progress: Callable[[int, int], None] | None = None, timeout: float = _START_TIMEOUT_S) -> Ready:
        """Start the process and wait until it is ready. `progress` is told (bytes done, bytes in all) while weights are read.

        To be called on the thread that lives as long as the engine should: the kernel ends the engine with it. Raises what the engine could
        not start for, under its own name, and PeerError when it dies or is not ready within `timeout` seconds.
        """
        if self._process is not None:
            raise InternalError("the engine was started already")
        loop = asyncio.get_running_loop()
        self._ready, self._progress = loop.create_future(), progress
        ours = self._spawn()
        reader, self._writer = await asyncio.open_unix_connection(sock=ours)
        self._reading = loop.create_task(self._read(reader))
        self._writer.write(encode_frame(self._config))
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
        """Start the process; our end of the connection. HostError when the machine refuses."""
        try:
            ours, theirs = socket.socketpair()
            name = [self._config.process_name] if self._config.process_name else []
            with theirs:
                descriptor = theirs.fileno()
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", self._program, str(descriptor), str(os.getpid()), *name],
                    pass_fds=(descriptor,),
                    stdin=subprocess.DEVNULL,
                    process_group=0,  # a terminal's Ctrl-C is for the front
                )
        except OSError as error:
            raise HostError(f"the engine process could not be started: {error.strerror}", errno=error.errno) from error
        return ours

    async def close(self, timeout: float = _KILL_AFTER_S) -> None:
        """End the engine: it goes when its stream does, or is killed after `timeout` seconds. Pending requests get an error."""
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
        """Take no more requests; returns when the engine has finished its own, at most `timeout_s` seconds from now, and ended."""
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
        """How the engine's process ended, negative for a signal; None while it runs."""
        return self._process.returncode if self._process else None

    @property
    def ready(self) -> Ready:
        """What the engine loaded and what fits. InternalError before it is ready."""
        if self._ready is None or not self._ready.done():
            raise InternalError("the engine is not ready yet")
        return self._ready.result()

    @property
    def statistics(self) -> Statistics:
        """The latest figures the engine sent."""
        return self._statistics

    @property
    def engines(self) -> tuple[EngineFigures, ...]:
        """Those of several engines, one by one; empty here, where there is one."""
        return ()

    @property
    def hindrance(self) -> str | None:
        """Why the engine computes nothing now although it takes requests, such as a worker that is being replaced; None: nothing hinders it."""
        return None if self._serving.serving else self._serving.reason

    @property
    def lost(self) -> str | None:
        """Why the engine is gone; None while it is not."""
        return self._lost

    def submit(self, request: Request, stream: OutputStream | None = None) -> OutputStream:
        """Start `request` at once; several may run. Closing the stream early aborts it. CapacityError when it is too large for a frame.

        `stream`: where its outputs go, in place of a new one.
        """
        if request.id in self._streams:
            raise InternalError(f"request id {request.id} is in use", id=request.id)
        stream = OutputStream(self, request.id) if stream is None else stream
        frame = encode_frame(Submit([request]))
        self._streams[request.id] = stream
        if self._lost is None and self._writer is not None:
            self._writer.write(frame)
        else:
            self._streams.pop(request.id).lost(self._lost or "the engine was not started")
        return stream

    async def abort(self, id: int, reason: str = "abort") -> None:
        """End request `id` with `reason` as its finish reason, in its last output; an unknown or finished one is ignored."""
        if id in self._streams:
            self._send(Abort([id], reason))

    async def release_kv(self, ticket: str, reason: str) -> None:
        """Give up the hand-over of KV under `ticket`; unknown and finished ones are ignored."""
        self._send(Release(ticket, reason))

    def forget(self, request_id: int) -> None:
        """Abort a request nobody listens to any more."""
        if self._streams.pop(request_id, None) is not None:
            self._send(Abort([request_id]))

    async def heartbeat(self, timeout: float) -> float:
        """Seconds the engine's loop took to answer. PeerError when it is gone or silent for `timeout` seconds."""
        if self._lost is not None:
            raise PeerError(self._lost)
        self._num_pings += 1
        number, begin = self._num_pings, time.monotonic()
        answer = self._pings[number] = asyncio.get_running_loop().create_future()
        self._send(Ping(number))
        try:
            async with asyncio.timeout(timeout):
                await answer
        except TimeoutError:
            raise PeerError(f"the engine's loop did not answer within {timeout:g} s") from None
        finally:
            self._pings.pop(number, None)
        return time.monotonic() - begin

    # Traffic

    def _send(self, message: ToEngine) -> None:
        if self._lost is None and self._writer is not None:
            self._writer.write(encode_frame(message))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Hand out what the engine sends until its stream ends."""
        decoder = FrameDecoder()
        reason = None
        try:
            while data := await reader.read(_CHUNK):
                for body in decoder.feed(data):
                    self._take(decode_body(body, ToFront))
        except PeerError as error:
            reason = error.message
        except OSError:
            pass  # a killed engine may leave a reset connection: how the process ended says more
        if self._fatal is not None:
            reason = self._fatal.message
        self._lose(reason or await self._how_it_ended())

    def _take(self, message: ToFront) -> None:
        match message:
            case Outputs(outputs):
                for output in outputs:
                    stream = self._streams.get(output.id)
                    if stream is not None:
                        if output.finish_reason is not None:
                            del self._streams[output.id]
                        stream.put(output)
            case Heartbeat(number, at):
                waiting = self._pings.get(number)
                if waiting is not None and not waiting.done():
                    waiting.set_result(at)
            case Statistics():
                self._statistics = message
            case Serving():
                self._serving = message
            case Loading(done, total):
                if self._progress is not None:
                    self._progress(done, total)
            case Ready():
                if self._ready is not None and not self._ready.done():
                    self._ready.set_result(message)
            case Fatal():
                self._fatal = message

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
        self._lost = reason
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.lost(reason)
        for waiting in self._pings.values():
            if not waiting.done():
                waiting.set_exception(PeerError(reason))
        starting = self._ready is not None and not self._ready.done()
        if starting and self._ready is not None:
            self._ready.set_exception(
                named_error(self._fatal.kind, self._fatal.message) if self._fatal else PeerError(f"the engine did not start: {reason}")
            )
            self._ready.exception()  # marks it as seen, should nobody wait any more
        if not self._leaving and not starting and self.on_engine_lost is not None:
            self.on_engine_lost(reason)
