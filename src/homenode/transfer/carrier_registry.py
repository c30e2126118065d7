"""Channels by name. Whoever adds one adds a line here and keeps to `carrier.Carrier`."""

from __future__ import annotations

from collections.abc import Callable

from homenode.compute.kv_memory import KvLayout
from homenode.errors import UnsupportedError, UserError
from homenode.transfer.carriers.carrier import Carrier, KvBackend
from homenode.transfer.carriers.shm import ShmCarrier
from homenode.transfer.carriers.tcp import TcpCarrier
from homenode.transfer.settings import TransferConfig

Maker = Callable[[TransferConfig, KvLayout, KvBackend], Carrier]
_NEEDS = {
    "hccl": "torch_npu and the vendor's collective communication library (libhccl), on a machine with an NPU",
}


def _shm(config: TransferConfig, own: KvLayout, backend: KvBackend) -> Carrier:
    return ShmCarrier(own, backend)


def _tcp(config: TransferConfig, own: KvLayout, backend: KvBackend) -> TcpCarrier:
    return TcpCarrier(config.pd_peer_host, config.pd_secret, config.pd_allowed_peers)


def _nixl(config: TransferConfig, own: KvLayout, backend: KvBackend) -> Carrier:
    from homenode.transfer.carriers.nixl import NixlCarrier

    return NixlCarrier(_tcp(config, own, backend), own, backend)


def channels() -> dict[str, Maker]:
    """What makes a carrier, by `transfer_channel`."""
    return {"shm": _shm, "tcp": _tcp, "nixl": _nixl}


def open_carrier(config: TransferConfig, own: KvLayout, backend: KvBackend) -> Carrier:
    """The carrier of `transfer_channel`. UserError for a name nobody knows, UnsupportedError for one that lacks
    something here."""
    known = channels()
    name = config.transfer_channel
    maker = known.get(name)
    if maker is not None:
        return maker(config, own, backend)
    if name in _NEEDS:
        raise UnsupportedError(
            f"transfer_channel {name} needs {_NEEDS[name]}; use one of {', '.join(known)}.", param="transfer_channel"
        )
    raise UserError(f"transfer_channel {name!r} is none of {', '.join([*known, *_NEEDS])}", param="transfer_channel")
