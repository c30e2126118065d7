"""KV memory of the native core that other engines can be given: a KV cache, a pool, another process's; its digests, its
pieces, and the copy loop.
"""

from __future__ import annotations

from collections.abc import Sequence

from homenode import _native
from homenode.compute.kv_memory import EpochWords, KvLayout, KvMemory, KvRegion
from homenode.compute.native.refusals import host_errors
from homenode.compute.ops import KvGeometry
from homenode.errors import UnsupportedError, UserError

_KINDS = {kind.name: kind for kind in _native.KvType}
_MOST = (1 << 63) - 1


class NativeKvMemory:
    """`KvMemory` of the native core. `nodes`: for each region the NUMA node it comes from, -1: unknown or several."""

    def __init__(
        self, memory: _native.KvMemoryHandle, level: _native.Level, nodes: Sequence[int] = (), fd: int = -1
    ) -> None:
        """`fd`: of the file it lies in, where somebody else keeps that open."""
        self._memory = memory
        self._level = level
        self._fd = fd if fd >= 0 else memory.fd
        self._layout = _layout_of(memory, nodes)
        self._views = [memoryview(view) for view in memory.views]  # type: ignore[arg-type]

    @property
    def layout(self) -> KvLayout:
        """Return where everything is. Of private memory: as if its regions lay one behind the other."""
        return self._layout

    @property
    def fd(self) -> int:
        """See `KvMemory.fd`."""
        return self._fd

    @property
    def writable(self) -> bool:
        """See `KvMemory.writable`."""
        return self._memory.writable

    @property
    def level(self) -> _native.Level:
        """Return the level of the kernels that copy from it."""
        return self._level

    @property
    def handle(self) -> _native.KvMemoryHandle:
        """The native core's own."""
        return self._memory

    def digests(
        self, table: Sequence[int], first_page: int, pages: int, tokens: int, page_tokens: int | None = None
    ) -> list[bytes]:
        """See `KvMemory.digests`. ValueError for pages or blocks that are not there."""
        return _native.digest_kv(
            self._level,
            _native.NativeKvPages(
                memory=self._memory,
                table=table,
                first=first_page,
                count=pages,
                tokens=tokens,
                page_tokens=page_tokens or self._layout.block_size,
            ),
        )

    def pieces(self, block: int, tiles: int) -> list[memoryview]:
        """See `KvMemory.pieces`. ValueError for a block or tiles that are not there. They keep the memory mapped."""
        return [
            self._views[region][offset : offset + size] for region, offset, size in self._memory.parts(block, tiles)
        ]


class NativeEpochWords:
    """`EpochWords` of the native core: read and written atomically."""

    def __init__(self, words: _native.EpochWordsHandle) -> None:
        self._words = words

    @classmethod
    def create(cls, count: int) -> NativeEpochWords:
        """All zero; others may map them for reading only. HostError when the machine refuses."""
        with host_errors():
            return cls(_native.EpochWordsHandle.create(count))

    @classmethod
    def map(cls, fd: int, count: int) -> NativeEpochWords:
        """Another process's, for reading; the descriptor is not kept. UserError when it holds fewer, or its size is not
        sealed.
        """
        with host_errors():
            try:
                return cls(_native.EpochWordsHandle.map(fd, count))
            except ValueError as error:
                raise UserError(f"epoch words of another engine: {error}") from error

    @property
    def fd(self) -> int:
        """See `EpochWords.fd`."""
        return self._words.fd

    @property
    def handle(self) -> _native.EpochWordsHandle:
        """The native core's own."""
        return self._words

    def __len__(self) -> int:
        return self._words.count

    def read(self, block: int) -> int:
        """See `EpochWords.read`. ValueError for a block that is not there."""
        return self._words.read(block)

    def hold(self, blocks: Sequence[int], epochs: Sequence[int]) -> bool:
        """See `EpochWords.hold`. ValueError for a block that is not there."""
        return self._words.hold(blocks, epochs)

    def write(self, blocks: Sequence[int], epochs: Sequence[int]) -> None:
        """See `EpochWords.write`. ValueError for a block that is not there, and for words of another process."""
        self._words.write(blocks, epochs)


def pool(
    geometry: KvGeometry, blocks: int, level: _native.Level, *, others_write: bool = False, nodes: Sequence[int] = ()
) -> NativeKvMemory:
    """KV memory of its own in a memfd, each page in one piece, all of it taken now; from NUMA `nodes` in turn, if
    given.

    HostError when the memory is not to be had.
    """
    sharing = _native.Sharing.writable if others_write else _native.Sharing.readable
    with host_errors():
        memory = _native.KvMemoryHandle.pool(native_shape(geometry), blocks, sharing, nodes)
    return NativeKvMemory(memory, level, [nodes[0] if len(nodes) == 1 else -1])


def map_memory(
    fd: int, layout: KvLayout, level: _native.Level, *, writable: bool = False, own: bool = False
) -> NativeKvMemory:
    """Another process's KV memory, of which it says that it has this layout; the descriptor is not kept. `own`: the
    file is this process's own and stays open: others can be given it.

    UserError when the layout reaches past the memory or is none, or when the memory could shrink; HostError when the
    machine refuses.
    """
    numbers = [layout.tile_bytes, layout.blocks, layout.nbytes, *(n for r in layout.regions for n in _numbers(r))]
    sizes = (
        layout.layers,
        layout.kv_heads,
        layout.head_dim,
        layout.block_size,
        layout.sides,
        *(n for r in layout.regions for n in _cells(layout, r)),
    )
    if not all(0 <= n <= _MOST for n in numbers) or not all(0 <= n < 1 << 31 for n in sizes):
        raise UserError("layout of another engine's KV memory: a size that is negative or larger than any memory")
    native = _native.NativeKvLayout(
        shape=native_shape(layout),
        tile_bytes=layout.tile_bytes,
        blocks=layout.blocks,
        nbytes=layout.nbytes,
        regions=[_native_region(layout, region) for region in layout.regions],
    )
    with host_errors():
        try:
            memory = _native.KvMemoryHandle.map(fd, native, writable)
        except ValueError as error:
            raise UserError(f"KV memory of another engine: {error}") from error
    return NativeKvMemory(memory, level, [r.node for r in layout.regions], fd if own else -1)


def copy_kv(
    target: KvMemory,
    target_table: Sequence[int],
    source: KvMemory,
    source_table: Sequence[int],
    first_page: int,
    pages: int,
    tokens: int,
    source_heads: tuple[int, int] | None = None,
    target_first_head: int = 0,
    epochs: tuple[EpochWords, Sequence[int]] | None = None,
    page_tokens: int | None = None,
    *,
    threads: int = 1,
) -> list[bytes] | None:
    """`Copier` of the native core; the interpreter is free meanwhile. `threads`: how many share the pages.

    ValueError for tables, heads or memories that do not fit each other. One process must not write a page by two calls
    at once.
    """
    assert isinstance(target, NativeKvMemory) and isinstance(source, NativeKvMemory)
    words, expected = epochs if epochs is not None else (None, ())
    assert words is None or isinstance(words, NativeEpochWords)
    pages_there = _native.NativeKvPages(
        memory=source.handle,
        table=source_table,
        first=first_page,
        count=pages,
        tokens=tokens,
        page_tokens=page_tokens or source.layout.block_size,
        heads=source_heads,
    )
    here = _native.KvTarget(memory=target.handle, table=target_table, first_head=target_first_head)
    must_be = None if words is None else _native.KvEpochs(words=words.handle, expected=expected)
    return _native.copy_kv(source.level, pages_there, here, epochs=must_be, threads=threads)


def kv_type(dtype: str) -> _native.KvType:
    """UnsupportedError for a dtype the native core has no KV memory of."""
    kind = _KINDS.get(dtype)
    if kind is None:
        raise UnsupportedError(f"KV memory of {dtype}; the native core has {', '.join(_KINDS)}", dtype=dtype)
    return kind


def native_shape(of: KvGeometry | KvLayout) -> _native.KvShape:
    """UnsupportedError for a dtype the native core has no KV memory of, ValueError for layers of unlike shapes."""
    if isinstance(of, KvGeometry):
        shape, layers = of.only_shape, len(of.layers)
        kv_heads, head_dim, sides = shape.kv_heads, shape.key_width, shape.sides
        if shape.value_width not in (0, head_dim):
            raise UnsupportedError(f"KV memory of keys of {head_dim} and values of {shape.value_width} elements")
    else:
        layers, kv_heads, head_dim, sides = of.layers, of.kv_heads, of.head_dim, of.sides
    return _native.KvShape(
        layers=layers,
        kv_heads=kv_heads,
        head_dim=head_dim,
        block_size=of.block_size,
        type=kv_type(of.dtype),
        sides=sides,
    )


_REGION_FIELDS = ("first_head", "past_head", "offset", "layer_stride", "block_stride", "head_stride")


def _native_region(layout: KvLayout, region: KvRegion) -> _native.NativeKvRegion:
    native = _native.NativeKvRegion()
    for name in _REGION_FIELDS:
        setattr(native, name, getattr(region, name))
    native.first_layer, native.past_layer = layout.layers_of(region)
    return native


def _numbers(region: KvRegion) -> tuple[int, int, int, int]:
    return region.offset, region.layer_stride, region.block_stride, region.head_stride


def _cells(layout: KvLayout, region: KvRegion) -> tuple[int, int, int, int]:
    return region.first_head, region.past_head, *layout.layers_of(region)


def _layout_of(memory: _native.KvMemoryHandle, nodes: Sequence[int]) -> KvLayout:
    native = memory.layout
    shape = native.shape
    regions = tuple(
        KvRegion(
            node=node,
            first_layer=region.first_layer,
            past_layer=region.past_layer,
            **{name: getattr(region, name) for name in _REGION_FIELDS},
        )
        for region, node in zip(native.regions, nodes or [-1] * len(native.regions), strict=True)
    )
    return KvLayout(
        layers=shape.layers,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        block_size=shape.block_size,
        dtype=shape.type.name,
        tile_bytes=native.tile_bytes,
        blocks=native.blocks,
        nbytes=native.nbytes,
        regions=regions,
        sides=shape.sides,
    )
