"""KV memory of a worker that other processes read and write, too: in its share of the engine's file, with neighbours'
memory beside it.
"""

from __future__ import annotations

from homenode.compute.kv_memory import KvLayout
from homenode.compute.ops import Backend, KvCache, KvGeometry
from homenode.engine.channels.messages import FileRange
from homenode.engine.kv_transfer.shares import layout_of_cells, shares_of_shapes
from homenode.errors import InternalError
from homenode.model.kv_cells import kv_cells
from homenode.model.part import ModelPart
from homenode.model.spec import ModelSpec


class SharedKv:
    """`cache`: for the programs of this worker. `layout`: how it lies in the share."""

    def __init__(
        self,
        backend: Backend,
        geometry: KvGeometry,
        num_blocks: int,
        memory: tuple[int, FileRange],
        spec: ModelSpec,
        part: ModelPart,
    ) -> None:
        """`memory`: the file, and the share of it, which keeps what it holds. ValueError when that is too small,
        HostError when the machine refuses.
        """
        from homenode.compute.native import NativeBackend  # others keep KV where nobody else can read it

        if not isinstance(backend, NativeBackend):
            raise InternalError(f"KV memory of the {backend.name} backend cannot be shared")
        self._backend = backend
        fd, share = memory
        parts = [(fd, share.offset + begin, size) for begin, size in shares_of_shapes(geometry, num_blocks)]
        cells = kv_cells(spec)
        if cells is None:
            parts = [(fd, share.offset, share.nbytes)]
        self.cache: KvCache = backend.kv_cache(geometry, num_blocks, shares=parts)
        layouts = [backend.kv_memory(cache).layout for cache in backend.caches_of(self.cache)]
        self.layout = layouts[0] if cells is None else layout_of_cells(cells, part, geometry, layouts)

    def attach(self, fd: int, first: int, layout: KvLayout) -> None:
        """Steps read this memory in place from now on, as blocks from `first` on. UserError or ValueError for memory
        that is not what is said of it.
        """
        self._backend.attach_kv(self.cache, self._backend.map_kv(fd, layout), first)

    def detach(self, first: int) -> None:
        """No step names those blocks any more. ValueError when there are none."""
        self._backend.detach_kv(self.cache, first)
