"""Channels by name. Whoever adds one adds a line here and keeps to `carrier.Carrier`."""

from __future__ import annotations

from collections.abc import Callable

from homenode.compute.kv_memory import KvLayout
from homenode.errors import UserError
from homenode.transfer.carriers.carrier import Carrier, KvBackend
from homenode.transfer.carriers.shm import ShmCarrier
from homenode.transfer.carriers.tcp import TcpCarrier
from homenode.transfer.settings import TransferConfig

Maker = Callable[[TransferConfig, KvLayout, KvBackend], Carrier]


def _shm(config: TransferConfig, own: KvLayout, backend: KvBackend) -> Carrier:
    return ShmCarrier(own, backend)


def _tcp(config: TransferConfig, own: KvLayout, backend: KvBackend) -> TcpCarrier:
    return TcpCarrier(config.pd_peer_host, config.pd_secret, config.pd_allowed_peers)


def _nixl(config: TransferConfig, own: KvLayout, backend: KvBackend) -> Carrier:
    from homenode.transfer.carriers.nixl import NixlCarrier

    return NixlCarrier(_tcp(config, own, backend), own, backend)


def _hccl(config: TransferConfig, own: KvLayout, backend: KvBackend) -> Carrier:
    from homenode.transfer.carriers.hccl import HcclCarrier

    return HcclCarrier(_tcp(config, own, backend), own, backend, npu_of(config.pd_buffer_device))


def npu_of(device: str) -> int:
    """The NPU that `pd_buffer_device` names, the first one where it names none."""
    kind, _, number = device.partition(":")
    return int(number or 0) if kind == "npu" else 0


def channels() -> dict[str, Maker]:
    """What makes a carrier, by `transfer_channel`."""
    return {"shm": _shm, "tcp": _tcp, "nixl": _nixl, "hccl": _hccl}


def open_carrier(config: TransferConfig, own: KvLayout, backend: KvBackend) -> Carrier:
    """The carrier of `transfer_channel`. UserError for a name nobody knows, UnsupportedError for one that lacks
    something here."""
    known = channels()
    name = config.transfer_channel
    maker = known.get(name)
    if maker is not None:
        return maker(config, own, backend)
    raise UserError(f"transfer_channel {name!r} is none of {', '.join(known)}", param="transfer_channel")
