"""A front as a process of its own: `python -m homenode.server.fronts.main FD,DOOR,LISTENER,COUNTS PARENT NAME`.

FD is one end of a socket pair on which it speaks with the coordinator, as in messages.py. Through DOOR come the streams
to the engines. LISTENER is the socket that all fronts accept on, COUNTS (-1: none) the memory in which they count what
keys use. The process does not outlive the coordinator, and
ignores SIGINT and SIGTERM: when to end is the coordinator's decision.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from homenode.engine.child_process import call_itself, die_with_parent, in_words, show_crashes
from homenode.engine.fronts.messages import Way
from homenode.engine.messages import Fatal, FreeCpusChanged, Heartbeat, Ping
from homenode.engine.pinning import move_process_threads
from homenode.engine.router.linked_client import LinkedClient
from homenode.errors import HomenodeError, InternalError, PeerError
from homenode.logs.setup import begin_service_log, end_log
from homenode.model.files_read import recorded_files
from homenode.net.descriptors import receive_fd
from homenode.net.message_frames import FrameDecoder, decode_body, encode_frame
from homenode.server.fronts.messages import (
    Begin,
    FromFront,
    FrontModel,
    FrontReady,
    KeysChanged,
    Prepare,
    Prepared,
    Serve,
    Stop,
    ToFront,
)
from homenode.server.http.listener import Ending, Server, certificate_of, uvicorn_config
from homenode.server.interfaces.tokenizer import TokenizerLike
from homenode.server.keys.counts import KeyCounts
from homenode.server.keys.keyring import Keyring
from homenode.server.monitoring.files import reserve_metrics_files

if TYPE_CHECKING:
    from homenode.server.core.state import ServerState
    from homenode.server.http.middleware import HttpApplication
    from homenode.server.models.served_model import ModelParts

_log = logging.getLogger(__name__)
_CHUNK = 256 * 1024
_ACCEPTED_AT_ONCE = 1  # connections, before another front has a chance

Load = Callable[[FrontModel], TokenizerLike]


def main(arguments: list[str], load: Load | None = None) -> int:
    """Answer requests until told to end; the exit code. `load` reads the vocabulary of a model."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    show_crashes()
    descriptors, parent, name = [int(each) for each in arguments[0].split(",")], int(arguments[1]), arguments[2]
    begin_service_log(name)
    call_itself(name)
    control, door = (socket.socket(fileno=descriptor) for descriptor in descriptors[:2])
    die_with_parent(parent)
    reserve_metrics_files(os.environ)
    listeners = [SharedListener(fileno=descriptor) for descriptor in descriptors[3:]]
    return asyncio.run(_Front(control, door, listeners, descriptors[2], load or _load).run())


def _load(model: FrontModel) -> TokenizerLike:
    return model.text.load(Path(model.path))


class SharedListener(socket.socket):
    """A listening socket that other processes accept on as well: how many connections may wait is for who opened it to
    say.
    """

    def listen(self, backlog: int = 0, /) -> None:
        """Nothing: it does."""


@dataclass(frozen=True)
class _FrontParts:
    """What a front takes connections with."""

    client: LinkedClient
    keys: Keyring
    state: ServerState
    app: HttpApplication
    server: Server
    ending: Ending


class _Front:
    """A front, from the first frame to the end."""

    def __init__(
        self,
        control: socket.socket,
        door: socket.socket,
        listeners: Sequence[SharedListener],
        key_counts: int,
        load: Load,
    ) -> None:
        """`key_counts`: the descriptor of what keys use; -1: that is not counted."""
        self._control, self._door, self._listeners, self._load = control, door, listeners, load
        self._key_counts = key_counts
        self._writer: asyncio.StreamWriter | None = None
        self._connecting: set[asyncio.Task[None]] = set()

    async def run(self) -> int:
        reader, self._writer = await asyncio.open_unix_connection(sock=self._control)
        messages = _messages(reader)
        try:
            made = await self._make(messages)
        except Exception as error:
            if not isinstance(error, HomenodeError):
                _log.exception("the front could not begin")
            self._send(Fatal(*in_words(error)))
            return 1
        return await self._serve(made, messages)

    async def _make(self, messages: AsyncIterator[ToFront]) -> _FrontParts:
        """Make all that connections are taken with, as the coordinator says."""
        prepare = await _next(messages, Prepare)
        with recorded_files() as read:
            tokenizers = [await asyncio.to_thread(self._load, model) for model in prepare.models]
        certificate = certificate_of(prepare.server)
        self._send(Prepared(read.texts))
        begin = await _next(messages, Begin)
        # These import prometheus_client, for which files had to be reserved first.
        from homenode.server.app import create_app
        from homenode.server.core.state import FrontIdentity, ServerState

        _keep_off_compute(begin)
        client = LinkedClient(begin.front, begin.engines, self._send)
        identity = FrontIdentity(begin.front, begin.fronts, prepare.metrics, begin.started)
        counts = KeyCounts(begin.fronts, begin.slot, self._key_counts) if self._key_counts >= 0 else None
        keys = Keyring(begin.keys, counts)
        state = ServerState(_parts(client, tokenizers, prepare.models), prepare.server, identity, keys=keys)
        app = create_app(state)
        server = Server(uvicorn_config(app, prepare.server, backlog=_ACCEPTED_AT_ONCE), certificate=certificate)
        ending = Ending(state, server, prepare.server.shutdown_timeout)
        state.watch_engines(ending.engine_lost)
        return _FrontParts(client, keys, state, app, server, ending)

    async def _serve(self, made: _FrontParts, messages: AsyncIterator[ToFront]) -> int:
        from homenode.server.app import run_batches
        from homenode.server.tracing.endpoint import end_tracing

        made.state.history.begin()
        self._take_engines(made.client)
        listens = asyncio.Event()
        handling = asyncio.ensure_future(self._handle_messages(messages, made, listens))
        self._send(FrontReady())
        await listens.wait()
        gc.freeze()  # what is there now stays: collections of cycles need not walk through it while requests wait
        batches = run_batches(made.state, made.app)
        await made.server.serve(sockets=list(self._listeners))
        for task in batches:
            task.cancel()
        handling.cancel()
        made.state.history.end()
        end_tracing(made.state.tracing)
        return made.ending.exit_code

    async def _handle_messages(
        self, messages: AsyncIterator[ToFront], made: _FrontParts, listens: asyncio.Event
    ) -> None:
        try:
            async for message in messages:
                match message:
                    case Ping(number):
                        self._send(Heartbeat(number, time.monotonic()))
                    case FreeCpusChanged(cpus):
                        move_process_threads(tuple(cpus))
                    case KeysChanged(changed):
                        made.keys.replace(changed)
                    case Serve():
                        listens.set()
                    case Stop():
                        made.ending.drain()
                    case Prepare() | Begin():
                        _log.error("a %s came twice", type(message).__name__)
                    case _:
                        made.client.take(message)
        except Exception:
            _log.exception("what the coordinator said could not be taken")
        end_log()
        # Nobody would tell it of anything; where the coordinator is gone the kernel is about to end it anyway.
        os._exit(1)

    def _send(self, message: FromFront) -> None:
        if self._writer is not None:
            self._writer.write(encode_frame(message))

    def _take_engines(self, client: LinkedClient) -> None:
        """Take the streams to engines, from now on."""
        loop = asyncio.get_running_loop()
        self._door.setblocking(False)

        def come() -> None:
            try:
                taken = receive_fd(self._door, Way)
            except BlockingIOError:
                return
            except (OSError, PeerError) as error:
                _log.error("no more engines are connected: %s", error)
                taken = None
            if taken is None:
                loop.remove_reader(self._door)
                return
            task = loop.create_task(client.connect(*taken))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

        loop.add_reader(self._door, come)


async def _messages(reader: asyncio.StreamReader) -> AsyncIterator[ToFront]:
    decoder = FrameDecoder()
    while data := await reader.read(_CHUNK):
        for body in decoder.feed(data):
            yield decode_body(body, ToFront)


async def _next(messages: AsyncIterator[ToFront], kind: type[Any]) -> Any:
    """The next message, of this kind. PeerError for another one, or none."""
    message = await anext(messages, None)
    if not isinstance(message, kind):
        raise PeerError(f"the coordinator said {type(message).__name__} in place of {kind.__name__}")
    return message


def _parts(client: LinkedClient, tokenizers: Sequence[TokenizerLike], models: Sequence[FrontModel]) -> list[ModelParts]:
    """The parts of each model. `client`: of the coordinator's engines, which are those of one."""
    from homenode.server.models.media import media_works
    from homenode.server.models.served_model import ModelParts

    return [
        ModelParts(one, tokenizer, model.config, media_works(Path(model.path), one.ready, model.config))
        for one, tokenizer, model in zip((client,), tokenizers, models, strict=True)
    ]


def _keep_off_compute(begin: Begin) -> None:
    """Move to the CPUs on which no engine computes, if they left any."""
    cpus = begin.engines.ready.details.get("free_cpus", ())
    if not isinstance(cpus, list | tuple):
        raise InternalError("the engines' free CPUs are no list")
    if cpus:
        move_process_threads(tuple(cpus))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
