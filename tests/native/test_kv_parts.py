"""KV memory of several workers in one file: the same pages and digests whatever the degrees, copies of a head, a share
that outlives its worker.
"""

from __future__ import annotations

import os
from itertools import pairwise

import msgspec
import numpy as np
import pytest

from homenode.compute.kv_memory import KvRegion
from homenode.compute.native import NativeBackend
from homenode.compute.native.kv_memory import copy_kv
from homenode.compute.ops import KvGeometry
from homenode.engine.channels.messages import FileRange
from homenode.engine.executor.kv_file import KvFile, joined
from homenode.engine.executor.neighbours import Attached, sliced
from homenode.errors import UserError
from homenode.model.part import IndexRange, ModelPart
from homenode.model.partition import Alignment, divide, divide_heads
from tests.native.kv_bytes import copies_of, digest, fill, wire_bytes

WHOLE = KvGeometry.uniform(5, 3, 16, 64, "bf16")
BLOCKS = 7
NOTHING = IndexRange(0, 0)
DEGREES = [(1, 1), (2, 1), (1, 2), (3, 2), (2, 6), (5, 3), (1, 5)]  # stages, ranks; three KV heads


def parts_of(stages: int, ranks: int) -> list[ModelPart]:
    """Layers of each stage, heads of each rank: uneven, and heads shared where there are more ranks."""
    layers, heads = (
        divide(len(WHOLE.layers), stages),
        divide_heads(
            2 * WHOLE.only_shape.kv_heads, WHOLE.only_shape.kv_heads, WHOLE.only_shape.key_width, ranks, Alignment()
        ),
    )
    assert layers is not None and heads is not None
    return [
        ModelPart(span, s, stages, r, ranks, query, kv, NOTHING, NOTHING, NOTHING, NOTHING, ())
        for s, span in enumerate(layers)
        for r, (query, kv) in enumerate(heads)
    ]


class Workers:
    """What several workers have of the KV memory of one engine, and what the engine has."""

    def __init__(self, backend: NativeBackend, stages: int, ranks: int, block_size: int = 64) -> None:
        self.parts = parts_of(stages, ranks)
        self.geometries = [
            KvGeometry.uniform(p.layers.count, p.kv_heads.count, 16, block_size, "bf16") for p in self.parts
        ]
        self.file = KvFile(self.geometries, BLOCKS)
        self.caches = [self.lay(backend, number) for number in range(len(self.parts))]
        layouts = [backend.kv_memory(cache).layout for cache in self.caches]
        self.memory = backend.map_kv(
            self.file.fd, joined(self.parts, layouts, self.file.shares), writable=True, own=True
        )

    def lay(self, backend: NativeBackend, number: int) -> object:
        share = self.file.shares[number]
        return backend.kv_cache(self.geometries[number], BLOCKS, shares=[(self.file.fd, share.offset, share.nbytes)])


@pytest.mark.parametrize(("stages", "ranks"), DEGREES)
@pytest.mark.parametrize("block_size", [64, 32])
def test_pages_are_the_same_whatever_the_degrees(
    backend: NativeBackend, stages: int, ranks: int, block_size: int
) -> None:
    """Into the memory of these workers and on into that of every other number of them: digests stay what they were."""
    plain = backend.kv_pool(WHOLE, BLOCKS)
    fill(plain, stages * 10 + ranks)
    there = Workers(backend, stages, ranks, block_size).memory
    table, own = [4, 0, 2, 5], [3, 1, 6, 2] if block_size == 64 else [6, 5, 4, 3, 2, 1, 0]
    tokens = 230 if block_size == 64 else 200
    pages = -(-tokens // 64)
    wanted = [digest(plain, table, page, tokens, 64, range(WHOLE.only_shape.kv_heads)) for page in range(pages)]
    assert copy_kv(there, own, plain, table, 0, pages, tokens) == wanted == there.digests(own, 0, pages, tokens, 64)
    for other_stages, other_ranks in DEGREES:
        other = Workers(backend, other_stages, other_ranks).memory
        assert copy_kv(other, [1, 2, 3, 4], there, own, 0, pages, tokens, page_tokens=64) == wanted
        assert other.digests([1, 2, 3, 4], 0, pages, tokens) == wanted


def test_every_rank_that_has_a_head_is_given_it(backend: NativeBackend) -> None:
    plain = backend.kv_pool(WHOLE, BLOCKS)
    fill(plain, 1)
    workers = Workers(backend, 2, 6)
    assert workers.memory.layout.has_copies
    copy_kv(workers.memory, [3], plain, [5], 0, 1, 64)
    for layer in range(len(WHOLE.layers)):
        for head in range(WHOLE.only_shape.kv_heads):
            copies = copies_of(workers.memory, layer, 3, head)
            assert len(copies) == 2
            assert all(np.array_equal(copy, copies_of(plain, layer, 5, head)[0]) for copy in copies)


def test_a_worker_finds_its_heads_in_its_share_and_nothing_else_there(backend: NativeBackend) -> None:
    plain = backend.kv_pool(WHOLE, BLOCKS)
    fill(plain, 2)
    workers = Workers(backend, 2, 2)
    copy_kv(workers.memory, [0, 3], plain, [6, 1], 0, 2, 128)
    for part, cache in zip(workers.parts, workers.caches, strict=True):
        own = backend.kv_memory(cache)  # type: ignore[arg-type]
        for layer in range(part.layers.count):
            for head in range(part.kv_heads.count):
                (mine,) = copies_of(own, layer, 3, head)
                assert np.array_equal(
                    mine, copies_of(plain, part.layers.first + layer, 1, part.kv_heads.first + head)[0]
                )
                assert not copies_of(own, layer, 2, head)[0].any()


def test_the_bytes_on_a_wire_do_not_depend_on_the_degrees(backend: NativeBackend) -> None:
    plain = backend.kv_pool(WHOLE, BLOCKS)
    fill(plain, 3)
    for stages, ranks in DEGREES:
        memory = Workers(backend, stages, ranks).memory
        copy_kv(memory, [2], plain, [4], 0, 1, 64)
        assert b"".join(memory.pieces(2, 3)) == wire_bytes(plain, 4, 3) == b"".join(plain.pieces(4, 3))


def test_a_worker_in_another_s_place_finds_what_is_there(backend: NativeBackend) -> None:
    """What was lent from its share is what it was: nobody ever reads memory that is fresh."""
    plain = backend.kv_pool(WHOLE, BLOCKS)
    fill(plain, 4)
    workers = Workers(backend, 1, 2)
    before = copy_kv(workers.memory, [0, 1, 2], plain, [0, 1, 2], 0, 3, 192)
    workers.caches[1] = None  # type: ignore[call-overload]
    again = workers.lay(NativeBackend([-1], spin_us=20), 1)
    assert backend.kv_memory(again).layout == backend.kv_memory(workers.lay(backend, 1)).layout  # type: ignore[arg-type]
    assert workers.memory.digests([0, 1, 2], 0, 3, 192) == before


def test_the_file_keeps_its_size_and_its_shares_lie_apart(backend: NativeBackend) -> None:
    workers = Workers(backend, 2, 2)
    size = os.fstat(workers.file.fd).st_size
    for other in (0, size - 1, size + 4096):
        with pytest.raises(PermissionError):
            os.truncate(workers.file.fd, other)
    places = [(share.offset, share.offset + share.nbytes) for share in workers.file.shares]
    assert places[0][0] == 0 and places[-1][1] == size
    assert all(after[0] == before[1] for before, after in pairwise(places))
    assert workers.memory.fd == workers.file.fd
    workers.file.close()
    workers.file.close()


@pytest.mark.parametrize(
    "share", [FileRange(0, 4096), FileRange(4096, 8 << 20), FileRange(1 << 40, 8 << 20), FileRange(0, 1 << 40)]
)
def test_a_share_that_is_none_is_refused(backend: NativeBackend, share: FileRange) -> None:
    file = KvFile([WHOLE], BLOCKS)
    with pytest.raises(ValueError, match="share"):
        backend.kv_cache(WHOLE, BLOCKS, shares=[(file.fd, share.offset, share.nbytes)])
    file.close()


def test_regions_that_do_not_make_up_a_memory_are_refused(backend: NativeBackend) -> None:
    workers = Workers(backend, 2, 2)
    layout, fd = workers.memory.layout, workers.file.fd

    def refused(*regions: KvRegion) -> None:
        with pytest.raises(UserError):
            backend.map_kv(fd, msgspec.structs.replace(layout, regions=regions))

    first, *rest = layout.regions
    for gone in range(4):
        refused(*layout.regions[:gone], *layout.regions[gone + 1 :])
    for name, value in (
        ("past_layer", len(WHOLE.layers) + 1),
        ("first_layer", -1),
        ("past_head", 4),
        ("first_head", -1),
        ("past_layer", 0),
    ):
        refused(
            type(first)(*[value if field == name else getattr(first, field) for field in first.__struct_fields__]),
            *rest,
        )
    refused(first, *layout.regions)  # twice in the same place
    refused(*layout.regions * 300)


@pytest.mark.parametrize(("stages", "ranks"), DEGREES)
def test_a_worker_finds_its_heads_in_the_memory_of_any_neighbour(
    backend: NativeBackend, stages: int, ranks: int
) -> None:
    plain = backend.kv_pool(WHOLE, BLOCKS)
    fill(plain, 6)
    for other_stages, other_ranks in DEGREES:
        there = Workers(backend, other_stages, other_ranks)
        copy_kv(there.memory, [2], plain, [5], 0, 1, 64)
        for part in parts_of(stages, ranks):
            mine = backend.map_kv(there.file.fd, sliced(there.memory.layout, part))
            for layer in range(part.layers.count):
                for head in range(part.kv_heads.count):
                    wanted = copies_of(plain, part.layers.first + layer, 5, part.kv_heads.first + head)[0]
                    assert np.array_equal(copies_of(mine, layer, 2, head)[0], wanted)
            assert mine.digests([2], 0, 1, 64) == [digest(mine, [2], 0, 64, 64, range(part.kv_heads.count))]


def test_blocks_in_place_have_the_same_numbers_for_all_workers_now_and_later(backend: NativeBackend) -> None:
    ours, first, second = Workers(backend, 1, 2), Workers(backend, 2, 1), Workers(backend, 1, 1)
    attached = Attached()
    numbers = [attached.add(each.file.fd, each.memory.layout, BLOCKS) for each in (first, second)]
    assert numbers == [BLOCKS, 2 * BLOCKS]
    attached.remove(BLOCKS)
    assert attached.add(first.file.fd, first.memory.layout, BLOCKS) == 3 * BLOCKS, "no number is used again"
    for part, cache in zip(ours.parts, ours.caches, strict=True):
        told = attached.of(part)
        assert [message.first for message, _ in told] == [2 * BLOCKS, 3 * BLOCKS]
        for message, fd in told:  # a worker that comes late has not seen those before
            assert backend.attach_kv(cache, backend.map_kv(fd, message.layout), message.first) == message.first  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="is taken"):
            backend.attach_kv(cache, backend.map_kv(fd, message.layout), 3 * BLOCKS)  # type: ignore[arg-type]
        backend.detach_kv(cache, 2 * BLOCKS)  # type: ignore[arg-type]
    huge = msgspec.structs.replace(first.memory.layout, blocks=(1 << 31) - 1)
    with pytest.raises(ValueError, match="no numbers"):
        attached.add(first.file.fd, huge, BLOCKS)
    with pytest.raises(ValueError, match="no memory"):
        attached.remove(BLOCKS)
    attached.close()
