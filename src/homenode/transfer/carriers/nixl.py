"""Channel `nixl`: KV by NIXL with its UCX backend, otherwise as `registered` has it."""

from __future__ import annotations

from homenode.compute.kv_memory import KvLayout
from homenode.transfer.carriers.carrier import KvBackend
from homenode.transfer.carriers.nixl_engine import NixlEngine
from homenode.transfer.carriers.registered import RegisteredCarrier
from homenode.transfer.carriers.tcp import TcpCarrier


class NixlCarrier(RegisteredCarrier):
    """See the module."""

    name, title = "nixl", "NIXL"

    def __init__(self, tcp: TcpCarrier, own: KvLayout, backend: KvBackend) -> None:
        """UnsupportedError where NIXL is not installed, HostError where it does not start."""
        super().__init__(tcp, own, backend, NixlEngine())
