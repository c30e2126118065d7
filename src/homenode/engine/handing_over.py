"""The transfer agent of an engine: made with it and bound before it is ready, started when it is known where events go, closed with it."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, cast

from homenode.compute.kv_memory import EpochWords, KvLayout, KvMemory
from homenode.compute.native import NativeBackend
from homenode.compute.native.kv_memory import NativeEpochWords, copy_kv
from homenode.compute.ops import Backend, KvCache, KvGeometry
from homenode.engine.handoff import FiguresChanged
from homenode.transfer.agent import TransferAgent
from homenode.transfer.buffers import register
from homenode.transfer.carriers.carrier import Carrier, KvBackend
from homenode.transfer.carriers.shm import ShmCarrier
from homenode.transfer.carriers.tcp import TcpCarrier
from homenode.transfer.fingerprint import Fingerprint, hash_seed
from homenode.transfer.greeting import Identity
from homenode.transfer.machine import Own
from homenode.transfer.published import Published
from homenode.transfer.receiver import ReceiverMachine
from homenode.transfer.sender import SenderMachine
from homenode.transfer.settings import TransferConfig

_log = logging.getLogger(__name__)
_PROVED_OTHERWISE = ("protocol", "secret")  # Hello has the one by itself, and the greeting proves the other
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NETWORK = Path("/proc/self/ns/net")


class _NativeKv:
    """`KvBackend` of the native core."""

    def __init__(self, backend: NativeBackend) -> None:
        self._backend = backend
        self.copy = copy_kv

    def map_memory(self, fd: int, layout: KvLayout, *, writable: bool) -> KvMemory:
        return self._backend.map_kv(fd, layout, writable=writable)

    def create_words(self, count: int) -> EpochWords:
        return NativeEpochWords.create(count)

    def map_words(self, fd: int, count: int) -> EpochWords:
        return NativeEpochWords.map(fd, count)


class Sharing:
    """What of an engine is made otherwise when it hands KV over. `hash_seed`: for the identities of its blocks."""

    def __init__(self, config: TransferConfig, backend: Backend, geometry: KvGeometry, fingerprint: Fingerprint) -> None:
        assert isinstance(backend, NativeBackend)  # `pairing.require_transfer` has seen to it
        self._config, self._backend, self._geometry, self._fingerprint = config, backend, geometry, fingerprint
        self.hash_seed = hash_seed(fingerprint, config.pd_secret)

    def kv_cache(self, blocks: int) -> KvCache:
        """KV memory that other processes can map; for writing only where they push into it. HostError when the memory is not to be had."""
        config = self._config
        written = config.pd_role == "receiver" and config.mode == "push" and config.transfer_channel == "shm"
        return self._backend.kv_cache(self._geometry, blocks, shared=True, others_write=written)

    def hand_over(self, cache: KvCache) -> HandingOver:
        """The agent for that memory. Raises as `HandingOver`."""
        return HandingOver(self._config, self._backend, cache, self._geometry, self._fingerprint)


class HandingOver:
    """`published`: what others are told of it."""

    def __init__(
        self, config: TransferConfig, backend: NativeBackend, cache: KvCache, geometry: KvGeometry, fingerprint: Fingerprint
    ) -> None:
        """`cache`: the engine's KV cache, in memory that can be shared. Takes the CPU pool, if there is one, and binds what others connect to.

        UserError for an address or port that cannot be had, HostError when the machine refuses.
        """
        self._post: Callable[[object], None] = _drop
        memory, kernel = backend.kv_memory(cache), _NativeKv(backend)
        blocks = config.cpu_buffer_size // geometry.block_bytes
        pool = register(backend.kv_pool(geometry, blocks), kernel) if blocks else None
        role = cast(Literal["sender", "receiver"], config.pd_role)
        told = {name: value for name, value in fingerprint.items() if name not in _PROVED_OTHERWISE}
        identity = Identity(role, config.mode, config.transfer_channel, told)
        self._agent = TransferAgent(
            carrier_of(config, memory.layout, kernel),
            identity,
            register(memory, kernel),
            pool,
            ports_of(config),
            lambda own: _machine(config, own),
            backend=kernel,
            post=lambda event: self._post(event),
            on_change=lambda: self._post(FiguresChanged()),
        )
        self.published = _published(config, identity, geometry.block_size, fingerprint, self._agent.addresses)

    def start(self, post: Callable[[object], None]) -> TransferAgent:
        """Take connections; events go to `post`, from the agent's thread."""
        self._post = post
        self._agent.start()
        return self._agent

    def close(self, timeout_s: float) -> None:
        """Call off what is under way within so many seconds, and end."""
        if not self._agent.close(timeout_s):
            _log.warning("KV transfer did not end in order within %g s; other engines find out by themselves", timeout_s)


def _drop(event: object) -> None:
    """Nothing comes before the start."""


def _machine(config: TransferConfig, own: Own) -> SenderMachine | ReceiverMachine:
    return SenderMachine(own, config) if config.pd_role == "sender" else ReceiverMachine(own, config)


def carrier_of(config: TransferConfig, layout: KvLayout, kernel: KvBackend) -> Carrier:
    """The channel's carrier. UserError where its address cannot be had."""
    if config.transfer_channel == "shm":
        return ShmCarrier(layout, kernel)
    return TcpCarrier(config.pd_peer_host, config.pd_secret)


def ports_of(config: TransferConfig) -> dict[str, Sequence[int]]:
    """What this side listens on, by name."""
    if config.pd_role == "sender":
        return {"done": config.done_ports}
    return {"init": config.pd_peer_init_port, "alloc": config.pd_peer_alloc_port}


def _published(
    config: TransferConfig, identity: Identity, block_size: int, fingerprint: Fingerprint, addresses: dict[str, list[str]]
) -> Published:
    return Published(
        role=identity.role,
        mode=config.mode,
        channel=config.transfer_channel,
        incarnation=identity.incarnation.hex(),
        fingerprint=fingerprint,
        block_size=block_size,
        alloc=addresses.get("alloc", []),
        init=addresses.get("init", []),
        done=addresses.get("done", []),
        host=host_name(),
    )


def host_name() -> str:
    """A name that two processes have in common when Unix sockets lead from one to the other: of this boot, and of the network they see."""
    try:
        return f"{_BOOT.read_text().strip()}-{_NETWORK.stat().st_ino}"
    except OSError:
        return socket.gethostname()[:128]
