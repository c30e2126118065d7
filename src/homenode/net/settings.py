"""Settings of connections to peers: engines, workers and servers of the same service, on this host or on others."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from homenode.errors import UserError
from homenode.options import option

REMEDY = (
    "make keys with `homenode keys make FOLDER HOST...` and give each host its folder with --peer-keys; or, where "
    "nobody else can hear the network, --peer-plain-text"
)


@dataclass(frozen=True)
class NetConfig:
    """How peers on other hosts are known, and what keeps others from listening."""

    peer_keys: str | None = option(
        None,
        "Folder with this host's key and certificate and those of its peers, as `homenode keys make` writes it: "
        "connections to peers are encrypted (TLS 1.3), and both ends show a certificate that is pinned.",
        metavar="DIR",
    )
    peer_plain_text: bool = option(
        False,
        "Connections to peers on other hosts are neither encrypted nor kept from being changed on their way. Without "
        "this and without --peer-keys there are none.",
    )


def is_loopback(host: str) -> bool:
    """Tell whether a host, by name or number, can only be this one."""
    name = host.strip("[]").partition("%")[0].lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def plain_text_problem(net: NetConfig, host: str, what: str, setting: str) -> UserError | None:
    """Return why bytes must not go to or from `host` as these settings are: `what`, said by `setting`, would leave this
    host in clear. None: they may.
    """
    if net.peer_keys is not None or net.peer_plain_text or is_loopback(host):
        return None
    return UserError(
        f"{setting} is {host}: {what} would leave this host in clear, and no --peer-keys are given; {REMEDY}",
        param="peer_keys",
    )


def contradiction(net: NetConfig) -> UserError | None:
    """Return what is wrong with the two together."""
    if net.peer_keys is not None and net.peer_plain_text:
        return UserError(
            "--peer-keys and --peer-plain-text are given together: one encrypts, the other says that nothing is "
            "encrypted; leave one out",
            param="peer_plain_text",
        )
    return None
