"""Serving models until told to stop, or until no engine is left."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence

from homenode.engine.messages import ReplicaStats
from homenode.server.app import create_app, run_batches
from homenode.server.core.state import ServerState
from homenode.server.doors.tcp_socket import with_twins
from homenode.server.doors.unix_socket import remove_socket_file
from homenode.server.http.config import ServerConfig
from homenode.server.http.listener import (
    Ending,
    Server,
    bind,
    certificate_of,
    url_of,
    uvicorn_config,
    warn_if_open,
)
from homenode.server.http.service_manager import ServiceManager
from homenode.server.http.stop_signals import StopSignals, signals
from homenode.server.keys.counts import KeyCounts
from homenode.server.keys.keyring import Keyring, KeySource
from homenode.server.models.served_model import ModelParts
from homenode.server.tracing.endpoint import end_tracing

__all__ = ["bind", "serve", "serve_state", "url_of"]


async def serve(
    models: Sequence[ModelParts],
    config: ServerConfig,
    *,
    listener: socket.socket | None = None,
    on_listening: Callable[[str], None] | None = None,
    stop: StopSignals | None = None,
) -> int:
    """Answers requests until a signal or the loss of the engines; the exit code for the process.

    The clients of `models` are started and stay the caller's to close. `listener` comes from `bind` and is closed here.
    `on_listening` is called with the URL once connections are taken. `stop`: the signals of the process, when somebody
    heard them before. 0 after SIGTERM or SIGINT, 1 after the last engine was lost. Raises PeerError when the loop of
    one does not answer to begin with.
    """

    async def begin(state: ServerState, ending: Ending) -> None:
        for model in state.models:
            await model.client.heartbeat(config.health_timeout)  # it may have died before anybody listened for that

    def make(keys: Keyring) -> ServerState:
        return ServerState(models, config, keys=keys)

    return await serve_state(make, config, begin, listener=listener, on_listening=on_listening, stop=stop)


async def serve_state(
    make: Callable[[Keyring], ServerState],
    config: ServerConfig,
    begin: Callable[[ServerState, Ending], Awaitable[None]],
    *,
    listener: socket.socket | None = None,
    on_listening: Callable[[str], None] | None = None,
    stop: StopSignals | None = None,
    manager: ServiceManager | None = None,
) -> int:
    """The same with the state that `make` makes with the keys that there are. `begin`: awaited when signals are heard,
    before connections are taken; raises what keeps the server from serving. `manager`: None: that of the process.
    """
    listener = listener or bind(config)
    warn_if_open(config)
    source, certificate = KeySource(config.api_key, config.api_key_file), certificate_of(config)
    keys = Keyring(source.keys, KeyCounts() if source.counts else None)
    state = make(keys)
    url = url_of(listener, config.scheme)
    app = create_app(state)
    manager = manager or ServiceManager.of_process()

    def listening() -> None:
        if on_listening:
            on_listening(url)
        manager.ready()

    server = Server(uvicorn_config(app, config), listening, certificate=certificate)
    ending = Ending(state, server, config.shutdown_timeout, manager)
    state.watch_engines(ending.engine_lost)
    state.history.begin()
    watching = [asyncio.ensure_future(source.watch(keys.replace)), *run_batches(state, app)]
    try:
        with signals(ending.signalled, stop):
            await begin(state, ending)
            async with manager.watched(lambda timeout_s: engines_alive(state, timeout_s)):
                await server.serve(sockets=with_twins(listener))
    finally:
        for task in watching:
            task.cancel()
        state.history.end()
        end_tracing(state.tracing)
        remove_socket_file(listener)
    return ending.exit_code


async def engines_alive(state: ServerState, timeout_s: float) -> bool:
    """Return whether the loop of an engine answers in time, of any model that is loaded, or none can be asked: no model
    is loaded, or the engines of those that are come back just now. Raises PeerError or TimeoutError otherwise.
    """
    asked = (each.client.heartbeat(timeout_s) for each in state.models if _can_be_asked(each.client.engines))
    seen = await asyncio.gather(*asked, return_exceptions=True)
    failed = [each for each in seen if isinstance(each, BaseException)]
    if failed and len(failed) == len(seen):
        raise failed[0]
    return True


def _can_be_asked(engines: Sequence[ReplicaStats]) -> bool:
    """Return whether one of the engines of a model runs. `engines`: none, where it is one that nobody restarts."""
    return not engines or any(engine.state in ("ready", "silent") for engine in engines)
