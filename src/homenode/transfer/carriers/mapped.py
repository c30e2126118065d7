"""A peer's KV memory in this process's address space, and what must be true of a descriptor before it is mapped."""

from __future__ import annotations

import fcntl
import mmap
import os
import stat
from collections.abc import Sequence

from homenode.errors import PeerError
from homenode.transfer.carriers.carrier import Chunk, LocalBuffer, MapMemory
from homenode.transfer.memory import TILE_TOKENS, Copier, KvLayout

_WORD = 8
_GEOMETRY = ("layers", "kv_heads", "head_dim", "dtype", "tile_bytes")
_MOST_BLOCKS = 1 << 31


class MappedBuffer:
    """Pages are read, and in push mode written, in place."""

    def __init__(self, layout: KvLayout, fds: Sequence[int], own: KvLayout, map_memory: MapMemory, *, writable: bool) -> None:
        """Closes `fds` (the memory's and its epoch words') in any case. PeerError when they are not what `layout` says."""
        try:
            check_layout(layout, own)
            if len(fds) != 2:
                raise PeerError(f"{len(fds)} descriptors came for a buffer; two are due")
            _check_descriptor(fds[0], layout.nbytes)
            _check_descriptor(fds[1], layout.blocks * _WORD)
            self.layout = layout
            self._memory = map_memory(fds[0], layout, writable)
            self._map = mmap.mmap(fds[1], layout.blocks * _WORD, prot=mmap.PROT_READ)
            self._words = memoryview(self._map).cast("Q")
        except (OSError, ValueError) as error:
            raise PeerError(f"a peer's memory cannot be mapped: {error}") from error
        finally:
            for fd in fds:
                os.close(fd)

    def copy_from(self, copier: Copier, target: LocalBuffer, job: Chunk) -> list[bytes] | None:
        """As `PeerBuffer`."""
        epochs = None if job.epochs is None else (self._words, job.epochs)
        return copier(target.memory, job.target_table, self._memory, job.source_table, job.first_page, job.pages, job.tokens, epochs=epochs)

    def copy_to(self, copier: Copier, source: LocalBuffer, job: Chunk) -> list[bytes] | None:
        """As `PeerBuffer`."""
        epochs = None if job.epochs is None else (source.words, job.epochs)
        return copier(self._memory, job.target_table, source.memory, job.source_table, job.first_page, job.pages, job.tokens, epochs=epochs)

    def digests(self, job: Chunk) -> list[bytes] | None:
        """As `PeerBuffer`."""
        if not epochs_hold(self._words, job):
            return None
        digests = self._memory.digests(job.source_table, job.first_page, job.pages, job.tokens)
        return digests if epochs_hold(self._words, job) else None

    def close(self) -> None:
        """Give the mappings back; a copy that still runs keeps them until it ends."""
        self._words.release()
        self._map.close()
        del self._memory


def epochs_hold(words: memoryview, job: Chunk) -> bool:
    """Whether the source's words are what they must be for the pages of this chunk."""
    if job.epochs is None:
        return True
    blocks = job.source_table[job.first_page : job.first_page + job.pages]
    return all(words[block] == epoch for block, epoch in zip(blocks, job.epochs, strict=True) if block >= 0)


def check_layout(layout: KvLayout, own: KvLayout) -> None:
    """PeerError unless every tile the layout can name lies within its file, and its geometry is this process's own."""
    for name in _GEOMETRY:
        if getattr(layout, name) != getattr(own, name):
            raise PeerError(f"{name} of a peer's memory is {getattr(layout, name)!r}, here it is {getattr(own, name)!r}")
    if not (0 < layout.blocks < _MOST_BLOCKS and layout.nbytes > 0 and layout.block_size > 0 and layout.block_size % TILE_TOKENS == 0):
        raise PeerError(f"a peer's memory of {layout.blocks} blocks of {layout.block_size} tokens in {layout.nbytes} bytes makes no sense")
    heads = 0
    for region in layout.regions:
        head_bytes = 2 * (layout.block_size // TILE_TOKENS) * layout.tile_bytes
        strides = (region.layer_stride, region.block_stride, region.head_stride)
        if region.first_head != heads or region.past_head <= region.first_head or region.offset < 0 or min(strides) < head_bytes:
            raise PeerError("the regions of a peer's memory do not cover its heads one after another")
        heads = region.past_head
        steps = (layout.layers - 1, layout.blocks - 1, region.past_head - region.first_head - 1)
        end = region.offset + sum(count * stride for count, stride in zip(steps, strides, strict=True)) + head_bytes
        if end > layout.nbytes:
            raise PeerError(f"a region of a peer's memory ends at byte {end} of {layout.nbytes}")
    if heads != layout.kv_heads:
        raise PeerError(f"a peer's memory has regions for {heads} of {layout.kv_heads} heads")


def _check_descriptor(fd: int, nbytes: int) -> None:
    """A file long enough that cannot be made shorter: reading a mapping past a file's end would kill this process (SIGBUS)."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_size < nbytes:
        raise PeerError(f"a descriptor of {status.st_size} bytes came where memory of {nbytes} bytes was announced")
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError as error:
        raise PeerError("a descriptor that is no memfd came for a buffer") from error
    if not seals & fcntl.F_SEAL_SHRINK:
        raise PeerError("a peer's memory is not sealed against shrinking (F_SEAL_SHRINK)")
