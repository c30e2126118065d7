"""A front as the coordinator sees it: its process, the stream to it, and the door that it is handed engines through."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from homenode.engine.errors import named_error
from homenode.engine.fronts.messages import Way
from homenode.engine.messages import Fatal, Heartbeat, Ping
from homenode.errors import HomenodeError, HostError, PeerError
from homenode.host.process_group import start_in_own_group
from homenode.host.refusals import reason_of
from homenode.host.socket_pair import open_socket_pair
from homenode.net.descriptors import door, send_fd
from homenode.net.message_frames import FrameDecoder, decode_body, encode_frame
from homenode.server.doors.tcp_socket import with_twins
from homenode.server.fronts.messages import FromFront, FrontReady, Prepare, Prepared, ToFront
from homenode.server.monitoring.files import FOLDER_VARIABLE

_log = logging.getLogger(__name__)
_CHUNK = 256 * 1024
_KILL_AFTER_S = 2.0


class FrontProcess:
    """One process of a front. `number`: its own; `slot`: its place among the fronts, which its successor will have.

    `left`: its exit code, when it has ended; `prepared`: what it has read, when it said so; `ready`: that it said so.
    """

    def __init__(self, number: int, slot: int, on_message: Callable[[FrontProcess, FromFront], None]) -> None:
        """`on_message` takes every other message of the process."""
        loop = asyncio.get_running_loop()
        self.number, self.slot, self.name = number, slot, f"homenode-front-{slot}"
        self.prepared: asyncio.Future[dict[str, str]] = loop.create_future()
        self.ready: asyncio.Future[None] = loop.create_future()
        self.left: asyncio.Future[int] = loop.create_future()
        self._on_message = on_message
        self._process: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._door: socket.socket | None = None
        self.pings: dict[int, asyncio.Future[None]] = {}
        self.num_pings = 0
        self._failure: Fatal | None = None

    async def start(self, program: str, listener: socket.socket, prepare: Prepare, key_counts: int = -1) -> None:
        """Start it; it says when it is prepared. `key_counts`: the descriptor of what keys use, -1: that is not
        counted. HostError when the machine refuses.
        """
        try:
            ours = self._spawn(program, listener, prepare.metrics, key_counts)
        except OSError as error:
            raise HostError(f"{self.name} could not be started: {reason_of(error)}", errno=error.errno) from error
        reader, self._writer = await asyncio.open_unix_connection(sock=ours)
        self._reading = asyncio.ensure_future(self._read(reader))
        self.send(prepare)

    def _spawn(self, program: str, listener: socket.socket, metrics: str, key_counts: int) -> socket.socket:
        ours, theirs = open_socket_pair()
        self._door, their_door = door()
        with theirs, their_door:
            listeners = [each.fileno() for each in with_twins(listener)]
            descriptors = (theirs.fileno(), their_door.fileno(), key_counts, *listeners)
            self._process = start_in_own_group(
                [sys.executable, "-P", "-m", program, ",".join(map(str, descriptors)), str(os.getpid()), self.name],
                pass_fds=[descriptor for descriptor in descriptors if descriptor >= 0],
                stdin=subprocess.DEVNULL,
                env={**os.environ, FOLDER_VARIABLE: metrics},
            )
        return ours

    @property
    def pid(self) -> int | None:
        """Its process id; None before the start."""
        return self._process.pid if self._process else None

    def send(self, message: ToFront) -> None:
        """Say this to it."""
        self.send_frame(encode_frame(message))

    def send_frame(self, frame: bytes) -> None:
        """Send a message that was encoded once for several front processes."""
        if self._writer is not None and not self.left.done():
            self._writer.write(frame)

    def send_stream(self, way: Way, connected: socket.socket) -> bool:
        """Hand it the stream to an engine. False when it takes none."""
        return self._door is not None and send_fd(self._door, way, connected)

    async def heartbeat(self, timeout: float) -> float:
        """Seconds its loop took to answer. PeerError when it is silent for `timeout` seconds."""
        self.num_pings += 1
        number, begin = self.num_pings, time.monotonic()
        answer = self.pings[number] = asyncio.get_running_loop().create_future()
        self.send(Ping(number))
        try:
            async with asyncio.timeout(timeout):
                await answer
        except TimeoutError:
            raise PeerError(f"{self.name} did not answer within {timeout:g} s") from None
        finally:
            self.pings.pop(number, None)
        return time.monotonic() - begin

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.kill()

    async def close(self) -> None:
        """End it, and wait for that."""
        if self._writer is not None:
            self._writer.close()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()
        if self._reading is not None:
            await self._reading
        if self._door is not None:
            self._door.close()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        decoder = FrameDecoder()
        try:
            while data := await reader.read(_CHUNK):
                for body in decoder.feed(data):
                    self._take(decode_body(body, FromFront))
        except ConnectionError:
            pass  # it ended without reading all that it was told; how the process ended says more
        except (PeerError, OSError) as error:
            _log.error("%s is ended, as the stream to it failed: %s", self.name, error)
            self.kill()
        except Exception:  # a fault in who hears: without this front everybody else goes on
            _log.exception("%s is ended, as what it said could not be taken", self.name)
            self.kill()
        self._end(await asyncio.to_thread(self._reap))

    def _take(self, message: FromFront) -> None:
        match message:
            case Heartbeat(number):
                if (answer := self.pings.get(number)) is not None and not answer.done():
                    answer.set_result(None)
            case Prepared(texts):
                if not self.prepared.done():
                    self.prepared.set_result(texts)
            case FrontReady():
                _done(self.ready)
            case Fatal():
                self._failure = message
            case _:
                self._on_message(self, message)

    def _reap(self) -> int:
        """Its exit code. It goes when its stream does."""
        assert self._process is not None  # there is a stream
        try:
            return self._process.wait(_KILL_AFTER_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _end(self, code: int) -> None:
        self.left.set_result(code)
        error = self._why(code)
        waiters: tuple[asyncio.Future[Any], ...] = (self.prepared, self.ready, *self.pings.values())
        for waiting in waiters:
            if not waiting.done():
                waiting.set_exception(error)
                waiting.exception()  # marks it as seen, should nobody wait any more

    def _why(self, code: int) -> HomenodeError:
        if self._failure is not None:
            return named_error(self._failure.kind, self._failure.message)
        return PeerError(f"{self.name} ended {f'by signal {-code}' if code < 0 else f'with exit code {code}'}")


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
