"""An agent from settings and memory: which machine, which channel, which ports."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Literal, cast

from homenode.compute.kv_memory import KvMemory
from homenode.errors import UserError
from homenode.transfer.agent import TransferAgent
from homenode.transfer.buffers import InPlace, register
from homenode.transfer.carrier_registry import open_carrier
from homenode.transfer.carriers.carrier import KvBackend
from homenode.transfer.feeding import Machine
from homenode.transfer.greeting import Identity
from homenode.transfer.limits import Limits
from homenode.transfer.machine import Own
from homenode.transfer.receiver import ReceiverMachine
from homenode.transfer.seam import ToScheduler
from homenode.transfer.sender import SenderMachine
from homenode.transfer.settings import TransferConfig


def open_agent(
    config: TransferConfig,
    fingerprint: dict[str, str],
    cache: KvMemory,
    pool: KvMemory | None,
    backend: KvBackend,
    post: Callable[[ToScheduler], None],
    *,
    on_change: Callable[[], None] = lambda: None,
    incarnation: bytes | None = None,
    limits: Limits | None = None,
    in_place: InPlace | None = None,
) -> TransferAgent:
    """An agent whose sockets are bound and published (`TransferAgent.addresses`: "alloc" and "init", or "done"), and
    that is not started yet.

    `cache` is the engine's KV cache, `pool` the CPU buffer of an offloading sender. UserError for settings that cannot
    be met, such as a port that is taken; HostError when the machine refuses.
    """
    role = config.pd_role
    if role is None:
        raise UserError("KV transfer is on, but pd_role is not set: choose sender or receiver.", param="pd_role")
    carrier = open_carrier(config, cache.layout, backend)
    identity = Identity(
        role=cast(Literal["sender", "receiver"], role),
        mode=config.mode,
        channel=carrier.name,
        fingerprint=fingerprint,
        incarnation=incarnation or os.urandom(16),
    )
    ports = (
        {"done": config.done_ports}
        if role == "sender"
        else {"alloc": config.pd_peer_alloc_port, "init": config.pd_peer_init_port}
    )

    def make_machine(own: Own) -> Machine:
        return SenderMachine(own, config, limits) if role == "sender" else ReceiverMachine(own, config, limits)

    return TransferAgent(
        carrier,
        identity,
        register(cache, backend),
        register(pool, backend) if pool is not None else None,
        ports,
        make_machine,
        backend=backend,
        post=post,
        on_change=on_change,
        in_place=in_place,
    )
