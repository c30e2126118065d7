"""The talk between a front and an engine, over a connected stream; whoever started the engine.

Everything here runs on one event loop. A request's outputs arrive through an `OutputStream`; leaving the stream early,
by closing it or by being cancelled while waiting on it, aborts the request in the engine.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from homenode.engine.connection.large_frames import LARGE_FRAME, decode_large_body
from homenode.engine.messages import (
    Abort,
    EngineStats,
    FreeCpusChanged,
    Heartbeat,
    ListRequests,
    Output,
    Outputs,
    Ping,
    ReleaseKv,
    RequestList,
    ResetPrefixCache,
    ServingChanged,
    Submit,
    ToEngine,
    ToFront,
)
from homenode.engine.request import Request
from homenode.errors import InternalError, PeerError
from homenode.net.message_frames import FrameDecoder, decode_body, encode_frame

_CHUNK = 256 * 1024


class AbortsUnheard(Protocol):
    """A listener that is told that nobody listens to a request any more."""

    def abort_unheard(self, request_id: int) -> None: ...


class OutputStream:
    """The outputs of one request; the last one carries a finish reason."""

    def __init__(self, client: AbortsUnheard, request_id: int) -> None:
        self._client, self._id = client, request_id
        self._outputs: deque[Output] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._ended = False  # nothing more will be given out

    def put(self, output: Output) -> None:
        """Tell the client that an output came."""
        self._outputs.append(output)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def lost(self, reason: str) -> None:
        """Tell the client: the engine is gone, and nothing more will come."""
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
            self._client.abort_unheard(self._id)


class EngineLink:
    """One end of the stream to an engine: requests go in, outputs come out to those who wait for them, until the stream
    ends.
    """

    def __init__(self, first_ping: int = 0) -> None:
        """`first_ping`: before the number of the first question; answers find their way back by it where an engine has
        several fronts.
        """
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._statistics = EngineStats()
        self._serving = ServingChanged(True)
        # Called with CPUs on which the process of a front disturbs nobody, each time that they change.
        self.on_free_cpus: Callable[[tuple[int, ...]], None] = lambda cpus: None
        self._streams: dict[int, OutputStream] = {}
        self._asked: dict[int, asyncio.Future[Heartbeat | RequestList]] = {}
        self._num_asked = first_ping
        self._lost: str | None = None

    async def attach(self, connected: socket.socket) -> None:
        """Take the stream over `connected` into use."""
        reader, self._writer = await asyncio.open_unix_connection(sock=connected)
        self._reading = asyncio.get_running_loop().create_task(self._read(reader))

    def abandon(self, reason: str) -> None:
        """Close the stream; who still waits on it hears the reason."""
        if self._writer is not None:
            self._writer.close()
        self._lose(reason)

    # Use

    @property
    def statistics(self) -> EngineStats:
        """The latest figures the engine sent."""
        return self._statistics

    @property
    def hindrance(self) -> str | None:
        """Return why the engine computes nothing now although it takes requests, such as a worker that is being
        replaced; None: nothing hinders it.
        """
        return None if self._serving.serving else self._serving.reason

    @property
    def lost(self) -> str | None:
        """Return why the engine is gone; None while it is not."""
        return self._lost

    def submit(self, request: Request, stream: OutputStream | None = None) -> OutputStream:
        """Start `request` at once; several may run. Closing the stream early aborts it. CapacityError when it is too
        large for a frame.

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

    def abort(self, id: int, reason: str = "abort") -> None:
        """End request `id` with `reason` as its finish reason, in its last output; an unknown or finished one is
        ignored.
        """
        if id in self._streams:
            self._send(Abort([id], reason))

    async def release_kv(self, ticket: str, reason: str) -> None:
        """Give up the hand-over of KV under `ticket`; unknown and finished ones are ignored."""
        self._send(ReleaseKv(ticket, reason))

    async def reset_prefix_cache(self) -> None:
        """Have the engine forget what its prefix cache holds; requests that are sent from now on find nothing."""
        self._send(ResetPrefixCache())

    def abort_unheard(self, request_id: int) -> None:
        """Abort a request nobody listens to any more."""
        if self._streams.pop(request_id, None) is not None:
            self._send(Abort([request_id]))

    async def heartbeat(self, timeout: float) -> float:
        """Seconds the engine's loop took to answer. PeerError when it is gone or silent for `timeout` seconds."""
        begin = time.monotonic()
        await self._ask(Ping, timeout)
        return time.monotonic() - begin

    async def list_requests(self, most: int, timeout: float) -> RequestList:
        """The requests that the engine has, at most `most` that run and as many that wait. PeerError when it is gone or
        silent for `timeout` seconds.
        """
        answer = await self._ask(lambda number: ListRequests(number, most), timeout)
        return answer if isinstance(answer, RequestList) else RequestList(0, [])

    async def _ask(self, question: Callable[[int], ToEngine], timeout: float) -> Heartbeat | RequestList:
        """The answer to a question that is given its number. PeerError as above."""
        if self._lost is not None:
            raise PeerError(self._lost)
        self._num_asked += 1
        number = self._num_asked
        answer: asyncio.Future[Heartbeat | RequestList] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        self._send(question(number))
        try:
            async with asyncio.timeout(timeout):
                return await answer
        except TimeoutError:
            raise PeerError(f"the engine's loop did not answer within {timeout:g} s") from None
        finally:
            self._asked.pop(number, None)

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
                    if len(body) > LARGE_FRAME:
                        self._take(await asyncio.to_thread(decode_large_body, body))
                    else:
                        self._take(decode_body(body, ToFront))
        except PeerError as error:
            reason = error.message
        except OSError:
            pass  # a killed engine may leave a reset connection: how the process ended says more
        self._lose(await self._why_it_ended(reason))

    def _take(self, message: ToFront) -> None:
        match message:
            case Outputs(outputs):
                for output in outputs:
                    stream = self._streams.get(output.id)
                    if stream is not None:
                        if output.finish_reason is not None:
                            del self._streams[output.id]
                        stream.put(output)
            case Heartbeat(number) | RequestList(number):
                waiting = self._asked.get(number)
                if waiting is not None and not waiting.done():
                    waiting.set_result(message)
            case EngineStats():
                self._statistics = message
            case ServingChanged():
                self._serving = message
            case FreeCpusChanged(cpus):
                self.on_free_cpus(tuple(cpus))

    async def _why_it_ended(self, reason: str | None) -> str:
        """The end of the stream in words; `reason`: what was wrong with the stream itself."""
        return reason or "the engine closed its connection"

    def _lose(self, reason: str) -> None:
        """The engine is gone: nobody waits for it any longer."""
        if self._lost is not None:
            return
        self._lost = reason
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.lost(reason)
        for waiting in self._asked.values():
            if not waiting.done():
                waiting.set_exception(PeerError(reason))
