"""Addresses of transfer sockets as text: `unix:@name` (abstract) and `tcp:host:port`, the host as a number
(`tcp:[::1]:7300`)."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from homenode.errors import PeerError

_MOST_NAME = 107  # bytes of sun_path


@dataclass(frozen=True)
class UnixAddress:
    """A socket in the abstract namespace; no file, gone with its last holder."""

    name: str

    def __str__(self) -> str:
        return f"unix:@{self.name}"


@dataclass(frozen=True)
class TcpAddress:
    """Host by number, and port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"tcp:[{self.host}]:{self.port}" if ":" in self.host else f"tcp:{self.host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """Whether it can only be reached from this host."""
        return ipaddress.ip_address(self.host).is_loopback


def parse_address(text: str) -> UnixAddress | TcpAddress:
    """PeerError for anything else than the two forms above."""
    scheme, _, rest = text.partition(":")
    if scheme == "unix" and rest.startswith("@") and 1 < len(rest.encode()) <= _MOST_NAME and "\0" not in rest:
        return UnixAddress(rest[1:])
    if scheme == "tcp":
        host, _, port = rest.rpartition(":")
        host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        try:
            number = int(port) if port.isascii() and port.isdigit() else 0
            if 0 < number < 65536:
                return TcpAddress(str(ipaddress.ip_address(host)), number)
        except ValueError:
            pass
    raise PeerError(
        f"{text[:120]!r} is no transfer address; wanted unix:@NAME or tcp:HOST:PORT with the host as a number"
    )
