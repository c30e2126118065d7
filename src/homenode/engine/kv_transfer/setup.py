"""The transfer agent of an engine: made with it and bound before it is ready, started when it is known where events go,
closed with it.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol, cast

from homenode.compute.kv_memory import KvLayout, KvMemory
from homenode.compute.native import NativeBackend
from homenode.compute.native.kv_backend import NativeKv
from homenode.compute.ops import Backend, KvCache, KvGeometry
from homenode.engine.kv_transfer.agent import StatsChanged
from homenode.engine.kv_transfer.fingerprint import Fingerprint, hash_seed
from homenode.engine.kv_transfer.shares import layout_of_cells, sealed_file, shares_of_shapes
from homenode.model.kv_cells import in_cells, kv_cells
from homenode.model.part import ModelPart
from homenode.model.spec import ModelSpec
from homenode.net.settings import NetConfig
from homenode.transfer.agent.agent import TransferAgent, open_agent
from homenode.transfer.agent.buffers import InPlace
from homenode.transfer.setup.settings import TransferConfig
from homenode.transfer.wire.message import Published

_log = logging.getLogger(__name__)
_PROVED_OTHERWISE = ("protocol", "secret")  # Hello has the one by itself, and the greeting proves the other
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NETWORK = Path("/proc/self/ns/net")


class Readers(Protocol):
    """Workers that read the KV memory of other engines in place (`executor.processes`)."""

    def attach(self, fd: int, layout: KvLayout) -> int: ...

    def detach(self, first: int) -> None: ...


class KvTransferSetup:
    """The parts of an engine that is made otherwise when it hands KV over. `hash_seed`: for the identities of its
    blocks.
    """

    def __init__(
        self,
        config: TransferConfig,
        backend: Backend,
        spec: ModelSpec,
        geometry: KvGeometry,
        fingerprint: Fingerprint,
        net: NetConfig | None = None,
    ) -> None:
        """`geometry`: of all of the engine's KV memory."""
        assert isinstance(backend, NativeBackend)  # `checks.require_transfer` has seen to it
        self._config, self._net, self._backend, self._fingerprint = config, net, backend, fingerprint
        self._spec, self._geometry, self._handed = spec, geometry, in_cells(spec, geometry)
        self._file = -1  # of an engine in its own process, where layers have unlike shapes
        self.hash_seed = hash_seed(fingerprint, config.pd_secret)

    def kv_cache(self, blocks: int) -> KvCache:
        """KV memory that other processes can map; for writing only where they push into it. HostError when the memory
        is not to be had.
        """
        config = self._config
        if len(self._geometry.shapes) > 1:
            shares = shares_of_shapes(self._geometry, blocks)
            self._file = sealed_file(sum(size for _, size in shares))
            places = [(self._file, begin, size) for begin, size in shares]
            return self._backend.kv_cache(self._geometry, blocks, shares=places)
        written = config.pd_role == "receiver" and config.mode == "push" and config.transfer_channel == "shm"
        return self._backend.kv_cache(self._geometry, blocks, shared=True, others_write=written)

    def hand_over(self, cache: KvCache) -> KvTransferLink:
        """The agent for that memory. Raises as `KvTransferLink`."""
        cells, backend = kv_cells(self._spec), self._backend
        if cells is not None and self._file >= 0:
            layouts = [backend.kv_memory(each).layout for each in backend.caches_of(cache)]
            layout = layout_of_cells(cells, ModelPart.whole(self._spec), self._geometry, layouts)
            memory = backend.map_kv(self._file, layout, writable=True, own=True)
            return KvTransferLink(
                self._config, backend, memory, self._handed, self._fingerprint, file=self._file, net=self._net
            )
        in_place = _in_place(backend, cache) if self._config.pd_in_place else None
        return KvTransferLink(
            self._config, backend, backend.kv_memory(cache), self._handed, self._fingerprint, in_place, net=self._net
        )

    def hand_over_file(self, fd: int, layout: KvLayout, readers: Readers) -> KvTransferLink:
        """The agent for KV memory that workers have in a file, which stays open as long as the agent works. `readers`:
        those workers, who may be asked to read others' memory in place. Raises as `KvTransferLink`.
        """
        memory = self._backend.map_kv(fd, layout, writable=True, own=True)
        in_place = (
            InPlace(lambda memory: readers.attach(memory.fd, memory.layout), readers.detach)
            if self._config.pd_in_place
            else None
        )
        return KvTransferLink(
            self._config,
            self._backend,
            memory,
            self._handed,
            self._fingerprint,
            in_place,
            passes_on=in_place is not None,
            net=self._net,
        )


class KvTransferLink:
    """`published`: what others are told of it."""

    def __init__(
        self,
        config: TransferConfig,
        backend: NativeBackend,
        memory: KvMemory,
        geometry: KvGeometry,
        fingerprint: Fingerprint,
        in_place: InPlace | None = None,
        passes_on: bool = False,
        file: int = -1,
        net: NetConfig | None = None,
    ) -> None:
        """`memory`: of the engine's KV cache, which can be shared; `geometry`: of all of it. Takes the CPU pool, if
        there is one, and binds what others connect to. `passes_on`: what others lend is opened by further processes.
        `file`: descriptor of what the memory lies in, to be closed with this.

        UserError for an address or port that cannot be had, HostError when the machine refuses.
        """
        self._post: Callable[[object], None] = _drop
        self._file = file
        blocks = config.cpu_buffer_size // geometry.block_bytes
        incarnation = os.urandom(16)
        self._agent = open_agent(
            config,
            {name: value for name, value in fingerprint.items() if name not in _PROVED_OTHERWISE},
            memory,
            backend.kv_pool(geometry, blocks) if blocks else None,
            NativeKv(backend.map_kv, keeps_files=passes_on),
            lambda event: self._post(event),
            on_change=lambda: self._post(StatsChanged()),
            incarnation=incarnation,
            in_place=in_place,
            net=net,
        )
        self.published = published_by(config, incarnation, geometry.block_size, fingerprint, self._agent.addresses)

    def start(self, post: Callable[[object], None]) -> TransferAgent:
        """Take connections; events go to `post`, from the agent's thread."""
        self._post = post
        self._agent.start()
        return self._agent

    def close(self, timeout_s: float) -> None:
        """Call off what is under way within so many seconds, and end."""
        if not self._agent.close(timeout_s):
            _log.warning(
                "KV transfer did not end in order within %g s; other engines find out by themselves", timeout_s
            )
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _in_place(backend: NativeBackend, cache: KvCache) -> InPlace:
    """Steps over this cache read other engines' memory beside it."""
    return InPlace(lambda memory: backend.attach_kv(cache, memory), lambda first: backend.detach_kv(cache, first))  # type: ignore[arg-type]


def _drop(event: object) -> None:
    """Nothing comes before the start."""


def published_by(
    config: TransferConfig,
    incarnation: bytes,
    block_size: int,
    fingerprint: Fingerprint,
    addresses: Mapping[str, Sequence[str]],
) -> Published:
    """The document of an engine whose agent is bound to `addresses`."""
    return Published(
        role=cast(Literal["sender", "receiver"], config.pd_role),
        mode=config.mode,
        channel=config.transfer_channel,
        incarnation=incarnation.hex(),
        fingerprint=fingerprint,
        block_size=block_size,
        alloc=list(addresses.get("alloc", ())),
        init=list(addresses.get("init", ())),
        done=list(addresses.get("done", ())),
        host=host_name(),
    )


def host_name() -> str:
    """A name that two processes have in common when Unix sockets lead from one to the other: of this boot, and of the
    network they see.
    """
    try:
        return f"{_BOOT.read_text().strip()}-{_NETWORK.stat().st_ino}"
    except OSError:
        return socket.gethostname()[:128]
