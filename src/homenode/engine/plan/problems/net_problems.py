"""Problems with the settings of connections to other hosts, judged before anything is connected."""

from __future__ import annotations

import os
from pathlib import Path

from homenode.engine.config import EngineConfig
from homenode.errors import UserError
from homenode.net.settings import contradiction, plain_text_problem


def net_problems(config: EngineConfig) -> list[UserError]:
    """Everything wrong with --peer-keys and --peer-plain-text, and what would leave this host in clear without them;
    what KV transfer would send is judged in `transfer.setup.checks`.
    """
    found = [contradiction(config.net), _keys_problem(config), _ray_problem(config)]
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
