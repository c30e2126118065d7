"""Channel `hccl`: KV by way of two NPUs and the links between them, otherwise as `registered` has it.

KV stays in main memory on both sides: an engine of homenode computes it there. What HCCL moves is memory of an NPU, so
each request goes into one, to the other, and out of it.
"""

from __future__ import annotations

from homenode.compute.kv_memory import KvLayout
from homenode.transfer.carriers.carrier import KvBackend
from homenode.transfer.carriers.hccl_engine import HcclEngine
from homenode.transfer.carriers.hccl_library import HcclLibrary
from homenode.transfer.carriers.hccl_link import JOIN_S
from homenode.transfer.carriers.registered import RegisteredCarrier
from homenode.transfer.carriers.tcp import TcpCarrier


class HcclCarrier(RegisteredCarrier):
    """See the module."""

    name, title = "hccl", "HCCL"

    def __init__(self, tcp: TcpCarrier, own: KvLayout, backend: KvBackend, device: int) -> None:
        """`device`: the NPU, as torch counts it. UnsupportedError without the vendor's libraries, HostError where the
        NPU does not open.
        """
        engine = HcclEngine(HcclLibrary(device, JOIN_S), tcp.host, tcp.secret, tcp.vet)
        super().__init__(tcp, own, backend, engine)
