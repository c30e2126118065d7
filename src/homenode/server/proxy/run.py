"""The proxy until told to stop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from homenode.server.doors.tcp_socket import with_twins
from homenode.server.doors.unix_socket import remove_socket_file
from homenode.server.http.listener import (
    Ending,
    Server,
    bind,
    certificate_of,
    url_of,
    uvicorn_config,
    warn_if_open,
)
from homenode.server.http.service_manager import ServiceManager, always_alive
from homenode.server.http.stop_signals import StopSignals, signals
from homenode.server.keys.counts import KeyCounts
from homenode.server.keys.keyring import Keyring, KeySource
from homenode.server.proxy.app import create_app
from homenode.server.proxy.config import ProxyConfig
from homenode.server.proxy.state import ProxyState
from homenode.server.tracing.endpoint import end_tracing

__all__ = ["bind", "serve"]

_DESCRIPTORS_EACH = 3  # the client's connection, one to a prefill server and one to a decode server


async def serve(
    config: ProxyConfig,
    *,
    listener: socket.socket | None = None,
    on_listening: Callable[[str], None] | None = None,
    stop: StopSignals | None = None,
) -> int:
    """Answers requests until a signal; the exit code for the process. Servers that are not up yet are waited for
    meanwhile.

    `listener` comes from `bind` and is closed here. `on_listening` is called with the URL once connections are taken.
    `stop`: the signals of the process, when somebody heard them before.
    """
    listener = listener or bind(config)
    warn_if_open(config)
    source, certificate = KeySource(config.api_key, config.api_key_file), certificate_of(config)
    keys = Keyring(source.keys, KeyCounts() if source.counts else None)
    state, url = ProxyState(config, keys), url_of(listener, config.scheme)
    manager = ServiceManager.of_process()

    def listening() -> None:
        if on_listening:
            on_listening(url)
        manager.ready()

    server = Server(
        uvicorn_config(create_app(state), config),
        listening,
        descriptors_each=_DESCRIPTORS_EACH,
        certificate=certificate,
    )
    ending = Ending(state, server, config.shutdown_timeout, manager)
    watching = asyncio.ensure_future(source.watch(keys.replace))
    with signals(ending.signalled, stop):
        state.start()
        try:
            async with manager.watched(always_alive):
                await server.serve(sockets=with_twins(listener))
        finally:
            watching.cancel()
            await state.close()
            end_tracing(state.tracing)
            remove_socket_file(listener)
    return ending.exit_code
