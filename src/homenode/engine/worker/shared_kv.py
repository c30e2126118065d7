"""KV memory of a worker that other processes read and write, too: in its share of the engine's file, with neighbours'
memory beside it.
"""

from __future__ import annotations

from homenode.compute.kv_memory import KvLayout
from homenode.compute.ops import Backend, KvCache, KvGeometry
from homenode.engine.channels.messages import FileRange
from homenode.errors import InternalError


class SharedKv:
    """`cache`: for the programs of this worker. `layout`: how it lies in the share."""

    def __init__(self, backend: Backend, geometry: KvGeometry, num_blocks: int, fd: int, share: FileRange) -> None:
        """What the share holds stays as it is. ValueError when it is too small, HostError when the machine refuses."""
        from homenode.compute.native import NativeBackend  # others keep KV where nobody else can read it

        if not isinstance(backend, NativeBackend):
            raise InternalError(f"KV memory of the {backend.name} backend cannot be shared")
        self._backend = backend
        self._cache = backend.kv_cache(geometry, num_blocks, share=(fd, share.offset, share.nbytes))
        self.cache: KvCache = self._cache
        self.layout = backend.kv_memory(self._cache).layout

    def attach(self, fd: int, first: int, layout: KvLayout) -> None:
        """Steps read this memory in place from now on, as blocks from `first` on. UserError or ValueError for memory
        that is not what is said of it.
        """
        self._backend.attach_kv(self._cache, self._backend.map_kv(fd, layout), first)

    def detach(self, first: int) -> None:
        """No step names those blocks any more. ValueError when there are none."""
        self._backend.detach_kv(self._cache, first)
