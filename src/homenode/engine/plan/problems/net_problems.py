"""Problems with the settings of connections to other hosts, judged before anything is connected."""

from __future__ import annotations

import os
from pathlib import Path

from homenode.engine.config import EngineConfig
from homenode.errors import UserError
from homenode.net.settings import contradiction, is_loopback, plain_text_problem


def net_problems(config: EngineConfig) -> list[UserError]:
    """Everything wrong with --peer-keys and --peer-plain-text, and what would leave this host in clear without them;
    what KV transfer would send is judged in `transfer.setup.checks`.
    """
    found = [contradiction(config.net), _keys_problem(config), _ray_problem(config), _store_problem(config)]
    return [problem for problem in found if problem is not None]


def _keys_problem(config: EngineConfig) -> UserError | None:
    if config.net.peer_keys is None:
        return None
    from homenode.net.keys import KeyFolder  # TLS and certificates take a while to import

    try:
        KeyFolder(Path(config.net.peer_keys)).check()
    except UserError as error:
        return error
    return None


def _ray_problem(config: EngineConfig) -> UserError | None:
    """Where the address of the cluster says it already; else the start does, by this host's address in it."""
    if config.parallel.executor != "ray":
        return None
    address = config.parallel.ray_address or os.environ.get("RAY_ADDRESS") or ""
    host = address.rpartition("://")[2].rpartition(":")[0]
    if not host:
        return None
    return plain_text_problem(config.net, host, "what workers compute", "ray_address (--ray-address)")


def _store_problem(config: EngineConfig) -> UserError | None:
    """Of KV blocks that a store of another host keeps. Its connection is its own: --peer-keys alone encrypt nothing."""
    if not config.disk.outlives:
        return None
    from homenode.engine.kv_disk.store_connectors import connector_of  # who keeps nothing starts sooner without

    connector = connector_of(config)
    if connector is None or not connector.host or is_loopback(connector.host):
        return None
    if connector.encrypts or config.net.peer_plain_text:
        return None
    return UserError(
        f"kv_disk (--kv-disk) is on {connector.host}: KV would leave this host in clear; take a store that is reached "
        "by TLS, or, where nobody else can hear the network, --peer-plain-text (in place of --peer-keys)",
        param="kv_disk",
    )
